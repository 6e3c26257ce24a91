"""Environments that are tensors on a device already, such as simulators that run on a GPU: what they must be like.

The contract is gymnasium's VectorEnv with torch tensors in place of arrays. Nothing here imports torch: environments that
are no tensors do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from torch import Tensor

FINAL = "final_obs"  # of the info of a step: the true last observations


class TensorVectorEnv(gym.vector.VectorEnv):
    """N environments on one `device`, stepped together, each reset on the step that ends its episode.

    A subclass sets `num_envs`, `device`, `single_observation_space` and `single_action_space`, and has

        reset(seed=[...]) -> (observation, info)                     tensors [N, ...], or a dict of them
        step(actions) -> (observation, reward, terminated, truncated, info)

    with a tensor [N, ...] of actions as its space has them, float rewards [N] and two tensors of flags [N]. The observation
    is the one to act on next, of a new episode where one has ended; info["final_obs"] holds whole tensors [N, ...] of the
    true last observations, which count where a flag is set. info["success"], where it is there, is a tensor [N] of flags
    that counts likewise. Neither may make the host wait. Tensors may be written to by the next step.

    One that can be saved has `state` and `load_state`; others are brought to where they were by their actions.
    """

    device: Any

    def state(self) -> dict[str, Tensor] | None:
        """All that decides what follows, copied: tensors [N, ...] by name. None where it cannot be told."""
        return None

    def load_state(self, state: Mapping[str, Tensor]) -> Any:
        """Go on from such a state; the observation to act on."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load.")


@dataclass(slots=True)
class TensorStep:
    """What one step of all N environments returned, on the device."""

    observation: Any  # [N, ...] to act on next, flat as the contract of the host has it
    mask: Tensor | None  # [N, M]
    reward: Tensor  # [N] float64
    terminated: Tensor  # [N]
    truncated: Tensor  # [N]
    final_observation: Any  # [N, ...], of which those count that ended
    success: Tensor | None  # [N]


def seed_list(seed: int | Sequence[int] | None, num_envs: int) -> list[int]:
    """A seed for each environment, as gymnasium's vector environments take them."""
    if seed is None:
        return list(range(num_envs))
    return [seed + index for index in range(num_envs)] if isinstance(seed, int) else [int(each) for each in seed]
