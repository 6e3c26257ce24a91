"""Every step of a rollout on disk, for those who want to look at single rewards and actions: one .npz file a rollout.

Files are named by the step that the rollout ended at, so a resumed run writes over those of the stretch it repeats.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch

from phasegrad.runs.files import writing

if TYPE_CHECKING:
    from phasegrad.data.storage import Rollout
    from phasegrad.distributed.ranks import Ranks
    from phasegrad.distributions import Distribution

STEPS = "steps"


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
    with writing(path), _opened(path) as file:
        np.savez(
            file,
            reward=rewards,
            terminated=terminated,
            truncated=truncated,
            **taken,
            **policy,
        )


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(exist_ok=True)  # not the run directory: one that is gone while the run trains must not come back
    return open(path, "wb")
