"""Runs on disk and on screen: run directory, checkpoints, metrics, display, evaluation."""
