"""The algorithms, each on a page of its own."""

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (PPO,)}

__all__ = ["ALGORITHMS", "PPO", "Algorithm"]
