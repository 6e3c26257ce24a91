"""The algorithms, each on a page of its own."""

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.ppg import PPG
from phasegrad.algorithms.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (PPO, PPG)}

__all__ = ["ALGORITHMS", "PPG", "PPO", "Algorithm"]
