"""Trajectories to learn from again: a ring of the latest rollouts, in memory of a size known beforehand.

Observations are kept once, as the environment gave them, even where several are seen together, with the behaviour policy's parameters, actions, rewards and
flags; beside them only what followed each trajectory. A rollout has a number for ever and a slot for a while, and can
be written and read back by its number. Nothing here knows which algorithm learns from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.data.collecting import Collector
from phasegrad.data.minibatches import Minibatch, stacks
from phasegrad.data.restored import FINAL, NEXT, OBSERVATIONS, DamagedPieceError, require_sound
from phasegrad.data.storage import Rollout, stored_dtype
from phasegrad.data.transfers import fetch, send_tree, to_device
from phasegrad.distributions import Distribution
from phasegrad.errors import DamagedError
from phasegrad.models.stacking import Stacking
from phasegrad.tree import named_leaves, tree_map

HEADER_BYTES = 1 << 13  # names, shapes and places of the tensors of one rollout, with bytes to spare


@dataclass
class Trajectories:
    """Steps of several environments, [T, N, ...], and what really followed them."""

    observations: Any  # as they are seen: stacks where `stacking` says how
    actions: Tensor
    behaviour_params: Tensor  # of the policy that acted, [T, N, P]
    raw_rewards: Tensor  # as the environment gave them
    terminated: Tensor
    truncated: Tensor
    masks: Tensor | None  # [T, N, A]
    next_observations: Any  # [N, ...] after the last step
    next_masks: Tensor | None  # [N, A]
    final_positions: Tensor  # [K] places t * N + n where an episode was cut short
    final_observations: Any  # [K, ...] its true last observations
    frames: Any = None  # what stacks are made of, as a `Rollout` has it
    since: Tensor | None = None
    stacking: Stacking | None = None

    def on(self, device: torch.device) -> Trajectories:
        """What is learnt from, on `device`, in one copy; the same where it is there already."""
        if device.type == self.actions.device.type:
            return self
        names = [each.name for each in fields(self) if each.name not in ("frames", "since", "stacking")]
        return replace(self, **dict(zip(names, send_tree([getattr(self, n) for n in names], device), strict=True)))


@dataclass
class ReplayBatch(Minibatch):
    """Steps of trajectories with their Retrace targets (`value_targets`)."""

    actions: Tensor
    behaviour_params: Tensor  # of the policy that acted
    average_params: Tensor


def replay_batch(
    trajectories: Trajectories, targets: Tensor, average_params: Tensor, device: torch.device
) -> ReplayBatch:
    """All steps of trajectories [T, N] as a batch [T * N]."""

    def flat(tree: Any) -> Any:
        return None if tree is None else tree_map(lambda leaf: leaf.flatten(0, 1).to(device), tree)

    return ReplayBatch(
        observations=flat(trajectories.observations),
        masks=flat(trajectories.masks),
        value_targets=flat(targets),
        actions=flat(trajectories.actions),
        behaviour_params=flat(trajectories.behaviour_params),
        average_params=flat(average_params),
    )


def trajectories_of(rollout: Rollout, collector: Collector) -> Trajectories:
    """The rollout that `collector` has just collected; its tensors are shared, not copied."""
    positions = [t * rollout.num_envs + envs for t, envs, _ in collector.finals]
    followers = tree_map(_as_stored, collector.followers()[0])
    return Trajectories(
        observations=rollout.observations if rollout.stacking is None else seen(rollout),
        actions=rollout.actions,
        behaviour_params=rollout.behaviour_params,
        raw_rewards=rollout.raw_rewards,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        masks=rollout.masks,
        next_observations=tree_map(lambda leaf: leaf[: rollout.num_envs], followers),
        next_masks=None
        if rollout.masks is None or collector.mask is None
        else to_device(torch.from_numpy(collector.mask.copy()), rollout.actions.device),
        final_positions=to_device(
            torch.from_numpy(np.concatenate([np.empty(0, np.int64), *positions])), rollout.actions.device
        ),
        final_observations=tree_map(lambda leaf: leaf[rollout.num_envs :], followers),
        frames=rollout.frames,
        since=rollout.since,
        stacking=rollout.stacking,
    )


def seen(source: Any) -> Any:
    """All stacks [T, N, ...] of what has their frames [n - 1 + T, N, ...]."""
    shape = source.since.shape
    where = source.since.device
    found = stacks(source, torch.arange(shape.numel(), device=where), where)
    return tree_map(lambda leaf: leaf.unflatten(0, shape), found)


def _as_stored(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.float64 else leaf


class ReplayMemory:
    """The latest `slots` rollouts of T steps of N environments; each environment's share is one trajectory."""

    def __init__(
        self,
        slots: int,
        num_steps: int,
        num_envs: int,
        observation_space: gym.Space,
        distribution: Distribution,
        has_mask: bool,
        stacking: Stacking | None = None,
    ) -> None:
        self.stacking, self.distribution, self.observation_space = stacking, distribution, observation_space
        self.slots, self.num_steps, self.num_envs = slots, num_steps, num_envs
        self.added = 0  # rollouts so far; the next one gets this number
        spaces, seen_spaces = _entries(observation_space), _entries(stacking.space if stacking else observation_space)
        before = stacking.count - 1 if stacking else 0
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, space in spaces.items():
            shapes[_joined(OBSERVATIONS, name)] = (before + num_steps, *(space.shape or ())), stored_dtype(space)
            shapes[_joined(NEXT, name)] = tuple(seen_spaces[name].shape or ()), stored_dtype(space)
        if stacking:
            shapes["since"] = ((num_steps,), torch.uint8)
        shapes["actions"] = ((num_steps, *distribution.action_shape), distribution.action_dtype)
        shapes["behaviour_params"] = ((num_steps, distribution.parameter_size), torch.float32)
        shapes["raw_rewards"] = ((num_steps,), torch.float32)
        shapes["terminated"] = shapes["truncated"] = ((num_steps,), torch.bool)
        if has_mask:
            shapes["masks"] = ((num_steps, distribution.mask_size), torch.bool)
            shapes["next_masks"] = ((distribution.mask_size,), torch.bool)
        self._shapes = shapes
        self._names = list(spaces)
        self._tensors: dict[str, Tensor] | None = None  # each [slots, N, T, ...]: a trajectory lies in one piece
        self._finals: dict[int, dict[int, dict[str, Tensor]]] = {}  # by slot, then t * N + n: true last observations

    def storage_bytes(self) -> int:
        """What the full memory takes, less the few final observations of episodes that were cut short."""
        each = sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in self._shapes.values())
        return self.slots * self.num_envs * each

    @property
    def is_allocated(self) -> bool:
        return self._tensors is not None

    @property
    def steps(self) -> int:
        """Environment steps held."""
        return min(self.added, self.slots) * self.num_steps * self.num_envs

    def numbers(self) -> range:
        """The numbers of the rollouts held."""
        return range(max(0, self.added - self.slots), self.added)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors [slots, N, T, ...], allocated when first needed."""
        if self._tensors is None:
            self._tensors = {
                name: torch.zeros((self.slots, self.num_envs, *shape), dtype=dtype)
                for name, (shape, dtype) in self._shapes.items()
            }
        return self._tensors

    def add(self, trajectories: Trajectories) -> int:
        """Keep a rollout of full length in place of the oldest; its number."""
        steps: dict[str, Tensor | None] = {
            "actions": trajectories.actions,
            "behaviour_params": trajectories.behaviour_params,
            "raw_rewards": trajectories.raw_rewards,
            "terminated": trajectories.terminated,
            "truncated": trajectories.truncated,
            "masks": trajectories.masks,
            "since": trajectories.since,
        }
        observations = trajectories.observations if trajectories.stacking is None else trajectories.frames
        steps |= {_joined(OBSERVATIONS, name): leaf for name, leaf in named_leaves(observations)}
        values = {name: leaf.transpose(0, 1) for name, leaf in steps.items() if leaf is not None}
        values |= {_joined(NEXT, name): leaf for name, leaf in named_leaves(trajectories.next_observations)}
        if trajectories.next_masks is not None:
            values["next_masks"] = trajectories.next_masks
        values |= {_joined(FINAL, name): leaf for name, leaf in named_leaves(trajectories.final_observations)}
        values["final_positions"] = trajectories.final_positions
        self.load_rollout(self.added, dict(zip(values, fetch(list(values.values())), strict=True)))
        self.added += 1
        return self.added - 1

    def rollout_tensors(self, number: int) -> dict[str, Tensor]:
        """All of the rollout `number`, by name, without copying what is large; `load_rollout` takes it back."""
        slot = number % self.slots
        tensors = {name: kept[slot] for name, kept in self.tensors().items()}
        finals = self._finals.get(slot, {})
        tensors["final_positions"] = torch.tensor(list(finals), dtype=torch.int64)
        for name in self._names:
            shape, dtype = self._shapes[_joined(NEXT, name)]
            leaves = [final[name] for final in finals.values()]
            tensors[_joined(FINAL, name)] = torch.stack(leaves) if leaves else torch.zeros((0, *shape), dtype=dtype)
        return tensors

    def load_rollout(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Put the tensors of a rollout where the one of this `number` belongs; refuses what does not fit."""
        cut = (tensors["truncated"] & ~tensors["terminated"]).nonzero()  # [K] of (n, t)
        wanted = {name: (self.num_envs, *shape) for name, (shape, _) in self._shapes.items()}
        wanted |= {_joined(FINAL, n): (len(cut), *self._shapes[_joined(NEXT, n)][0]) for n in self._names}
        for name, shape in wanted.items():
            if tuple(tensors[name].shape) != shape:
                raise DamagedPieceError(number, f"{name} is {tuple(tensors[name].shape)}, not {shape}")
        positions = tensors["final_positions"].tolist()
        if set(positions) != {t * self.num_envs + n for n, t in cut.tolist()} or len(positions) != len(cut):
            raise DamagedPieceError(number, "its final observations are elsewhere")
        slot = number % self.slots
        for name, kept in self.tensors().items():
            kept[slot] = tensors[name]
        finals = {name: tensors[_joined(FINAL, name)].clone() for name in self._names}
        self._finals[slot] = {p: {name: leaf[k] for name, leaf in finals.items()} for k, p in enumerate(positions)}

    # Checkpoints

    def pieces(self) -> dict[int, dict[str, Tensor]]:
        """The rollouts held, by their numbers."""
        return {number: self.rollout_tensors(number) for number in self.numbers()}

    def state(self) -> dict[str, Any]:
        """What else says where they lie, as plain data."""
        return {"added": self.added}

    def restore(self, state: Mapping[str, Any], pieces: Mapping[int, Mapping[str, Tensor]]) -> None:
        """The memory as it was when `state` was taken, from the rollouts that it held, or more."""
        self.added = added = int(state["added"])
        missing = sorted(set(self.numbers()) - pieces.keys())
        if missing or added < 0 or (added and not self.slots):
            self.added = 0
            raise DamagedError(f"The saved replay memory is damaged: rollout {missing[:1] or added} is not in it.")
        for number in self.numbers():
            self._require_sound(number, pieces[number])
            self.load_rollout(number, pieces[number])

    def _require_sound(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Refuse what a file gives for a rollout and no environment can have given."""
        wanted = {name: dtype for name, (_, dtype) in self._shapes.items()} | {"final_positions": torch.int64}
        wanted |= {_joined(FINAL, name): self._shapes[_joined(NEXT, name)][1] for name in self._names}
        for name, dtype in wanted.items():
            found = tensors.get(name)
            if found is None or found.dtype != dtype:
                raise DamagedPieceError(number, f"{name} is {'missing' if found is None else found.dtype}, not {dtype}")
        held = {name: tensors[name] for name in wanted}
        require_sound(number, held, self.observation_space, self.stacking, self.distribution)

    @property
    def most_bytes(self) -> int:
        """The most that the held rollouts take in files.

        Beside the memory there is at most as much again of final observations, or of each frame in their stacks, and of
        rollouts that have left it but share a file with one that has not; each rollout has a header.
        """
        finals = self.stacking.count if self.stacking else 1
        return 2 * (1 + finals) * self.storage_bytes() + 2 * HEADER_BYTES * self.slots

    def sample(self, count: int, generator: torch.Generator) -> Trajectories:
        """`count` trajectories drawn uniformly, with replacement, from those held, [T, count, ...]."""
        chosen = torch.randint(min(self.added, self.slots) * self.num_envs, (count,), generator=generator)
        picked = {name: kept.flatten(0, 1)[chosen] for name, kept in self.tensors().items()}  # [count, T, ...]

        def tree(kind: str, turned: bool) -> Any:
            leaves = {name: picked[_joined(kind, name)] for name in self._names}
            leaves = {name: _turned(leaf) if turned else leaf for name, leaf in leaves.items()}
            return leaves[""] if self._names == [""] else leaves

        cut = (picked["truncated"] & ~picked["terminated"]).nonzero().tolist()  # (which of the chosen, t)
        rows = chosen.tolist()
        finals = [self._finals[rows[n] // self.num_envs][t * self.num_envs + rows[n] % self.num_envs] for n, t in cut]
        final_leaves = {
            name: torch.stack([final[name] for final in finals]) if finals else picked[_joined(NEXT, name)][:0]
            for name in self._names
        }
        masks, since, observations = picked.get("masks"), picked.get("since"), tree(OBSERVATIONS, True)
        sampled = Trajectories(
            observations=observations,
            actions=_turned(picked["actions"]),
            behaviour_params=_turned(picked["behaviour_params"]),
            raw_rewards=_turned(picked["raw_rewards"]),
            terminated=_turned(picked["terminated"]),
            truncated=_turned(picked["truncated"]),
            masks=None if masks is None else _turned(masks),
            next_observations=tree(NEXT, False),
            next_masks=picked.get("next_masks"),
            final_positions=torch.tensor([t * count + n for n, t in cut], dtype=torch.int64),
            final_observations=final_leaves[""] if self._names == [""] else final_leaves,
        )
        if since is None:
            return sampled
        sampled.frames, sampled.since, sampled.stacking = observations, _turned(since), self.stacking
        sampled.observations = seen(sampled)
        return sampled


def _entries(space: gym.Space) -> dict[str, gym.Space]:
    return dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"": space}


def _joined(kind: str, name: str) -> str:
    return f"{kind}.{name}" if name else kind


def _turned(leaf: Tensor) -> Tensor:
    """[N, T, ...] as [T, N, ...] in one piece."""
    return leaf.transpose(0, 1).contiguous()
