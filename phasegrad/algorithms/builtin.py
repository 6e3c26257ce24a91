"""The algorithms of this package, registered: what `phasegrad.algorithms` gives once one of them is asked for."""

from phasegrad.algorithms.a2c import A2C
from phasegrad.algorithms.acer import ACER
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.ppg import PPG
from phasegrad.algorithms.ppo import PPO
from phasegrad.algorithms.registry import ALGORITHMS, register
from phasegrad.algorithms.trpo import TRPO
from phasegrad.algorithms.vpg import VPG

for _algorithm in (PPO, PPG, A2C, VPG, TRPO, ACER):
    register(_algorithm)

__all__ = ["A2C", "ACER", "ALGORITHMS", "PPG", "PPO", "TRPO", "VPG", "Algorithm", "register"]
