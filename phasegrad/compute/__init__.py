"""Gradient steps and acting steps: plain, traced, compiled; the optimisers; which of the three a run takes."""
