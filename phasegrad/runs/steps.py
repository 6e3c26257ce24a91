"""Every step of a rollout on disk, for those who want to look at single rewards and actions: one .npz file a rollout.

Files are named by the step that the rollout ended at, so a resumed run writes over those of the stretch it repeats.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from phasegrad.runs.below import STEPS as STEPS
from phasegrad.runs.below import make_folder, mode_of, open_own, remove_file
from phasegrad.runs.files import replacing_file, writing

if TYPE_CHECKING:
    from phasegrad.data.storage import Rollout
    from phasegrad.distributed.ranks import Ranks
    from phasegrad.distributions import Distribution


def write_steps(run_dir: Path, step: int, rollout: Rollout, distribution: Distribution, ranks: Ranks) -> None:
    """Raw rewards [T, N], sampled actions [T, N, ...] and the policy by its distribution's names: mean and std of a
    Gaussian (before squashing, as the actions are), alpha and beta of a Beta (whose actions are in (0, 1)), else logits;
    of parts by name.
    """
    rollout = rollout.on_host()
    stored = (rollout.behaviour_params, rollout.raw_rewards, rollout.actions, rollout.terminated, rollout.truncated)
    params, rewards, actions, terminated, truncated = (ranks.whole(tensor, 1).numpy() for tensor in stored)
    if not ranks.is_first:
        return
    policy: dict[str, Any] = {
        name: part.numpy() for name, part in distribution.described(torch.from_numpy(params)).items()
    }
    taken: dict[str, Any] = {
        name: part.numpy() for name, part in distribution.named_actions(torch.from_numpy(actions)).items()
    }
    path = run_dir / STEPS / f"step-{step:012d}.npz"
    with writing(path), replacing_file(path) as temporary, _opened(temporary) as file:
        np.savez(
            file,
            reward=rewards,
            terminated=terminated,
            truncated=truncated,
            **taken,
            **policy,
        )


def _opened(path: Path) -> IO[bytes]:
    make_folder(
        path.parents[1], STEPS
    )  # not the run directory: one that is gone while the run trains must not come back
    if stat.S_ISLNK(mode_of(path) or 0):
        remove_file(path)  # the link goes, and what it leads to is left alone
    return open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
