"""Ids that are registered only once their package is imported: which package, and how to name them then.

Knows names only; imports nothing of what it names.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Beginnings of ids, the module that registers them, and what installs it.
_PACKAGES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("ALE/",), "ale_py", '"gymnasium[atari]"'),
    (("MiniGrid-", "BabyAI-"), "minigrid", '"phasegrad[minigrid]"'),
    (("MiniWorld-",), "miniworld", "miniworld"),
    (("dm_control/", "bsuite/", "DmLab"), "shimmy", '"shimmy[dm-control]"'),
    (
        (
            "Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen", "PointMaze", "AntMaze",
        ),
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    (("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"), "highway_env", "highway-env"),
    (("Meta-World/",), "metaworld", "metaworld"),
    (("Vizdoom",), "vizdoom.gymnasium_wrapper", "vizdoom"),
    (("FlappyBird-",), "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    (("SuperMarioBros",), "gym_super_mario_bros", "gym-super-mario-bros"),
    (("PandaReach", "PandaPush", "PandaSlide", "PandaPickAndPlace", "PandaStack", "PandaFlip"), "panda_gym", "panda-gym"),
    (("PyFlyt/",), "PyFlyt.gym_envs", "pyflyt"),
    (("mo-",), "mo_gymnasium", "mo-gymnasium"),
    (("CrafterReward-", "CrafterNoReward-"), "crafter", "crafter"),
    (("NetHack",), "nle", "nle"),
)  # fmt: skip


def package_of_id(name: str) -> str:
    """What to do for an id of a well-known package, as the end of a sentence; '' for others."""
    for beginnings, module, installed_by in _PACKAGES:
        if name.startswith(beginnings):
            if module in sys.modules:
                return ""  # it has registered all it has
            if _is_installed(module):
                return f" The module {module} registers such ids: --env {module}:{name}."
            return f" It is of another package: pip install {installed_by}, then --env {module}:{name}."
    return ""


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
