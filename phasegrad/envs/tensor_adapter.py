"""Adapts environments that are tensors to the contract: as arrays for whoever lives on the host, as they are for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.envs.answers import require_space, vector_reset
from phasegrad.envs.contract import Episode, Observation, Step, VectorEnv
from phasegrad.envs.spaces import Leaf, ObservationAdapter, follow
from phasegrad.envs.tensor_contract import FINAL, TensorStep, TensorVectorEnv
from phasegrad.errors import EnvError, words_of
from phasegrad.machine.memory import is_lack_of_memory
from phasegrad.tree import tree_map

RETURNS, LENGTHS = "episode_returns", "episode_lengths"  # of the running episodes, beside the source's own state
SIMPLE = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary, gym.spaces.Box)


class TensorAdapter(VectorEnv):
    """A `TensorVectorEnv`: `step` copies to the host what is not there, `step_tensors` copies nothing."""

    backend, family = "tensor", "tensor"

    def __init__(self, source: TensorVectorEnv, seeds: Sequence[int]) -> None:
        for name in ("single_observation_space", "single_action_space"):
            require_space(source, name)
        if getattr(source, "device", None) is None:
            raise EnvError(
                f"{type(source).__name__} has no device: set it to where its tensors are, such as 'cpu' or 'cuda'."
            )
        self.source, self.num_envs, self._seeds = source, source.num_envs, list(seeds)
        self._adapter = ObservationAdapter(source.single_observation_space)
        self.observation_space, self.original_observation_space = self._adapter.space, self._adapter.original
        self.action_space = self.original_action_space = source.single_action_space
        _require_simple(self.action_space, self._adapter)
        self.has_action_mask = bool(self._adapter.mask_leaves)
        self.latest: Any = None  # the observation to act on, flat tensors [N, ...]
        self.latest_mask: Tensor | None = None
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._steps = 0

    def reset(self) -> tuple[Observation, np.ndarray | None]:
        seeds: Any = list(self._seeds)
        batch, _ = vector_reset(self._call("reset", self.source.reset, seed=seeds))
        self._steps, self._returns[:], self._lengths[:] = 0, 0.0, 0
        return self._at(batch)

    def load_state(self, state: Mapping[str, Tensor]) -> tuple[Observation, np.ndarray | None]:
        """Go on from a state of the source, with the episodes' returns so far."""
        given = dict(state)
        try:
            returns, lengths = given.pop(RETURNS).cpu(), given.pop(LENGTHS).cpu()
            self._returns[:], self._lengths[:] = returns.numpy(), lengths.numpy()
            there = {name: tensor.to(self.source.device) for name, tensor in given.items()}
            return self._at(self.source.load_state(there))
        except (KeyError, ValueError, RuntimeError) as error:
            raise EnvError(
                f"The saved state of the environments does not fit {type(self.source).__name__}: {error}."
            ) from error

    def _at(self, batch: Any) -> tuple[Observation, np.ndarray | None]:
        self.latest, self.latest_mask = self._flat(batch, "reset")
        return tree_map(_array, self.latest), None if self.latest_mask is None else _array(self.latest_mask)

    def step(self, actions: np.ndarray) -> Step:
        taken = torch.from_numpy(np.ascontiguousarray(actions)).to(self.source.device)
        answer = self.step_tensors(taken.reshape(self.num_envs, *(self.action_space.shape or ())))
        reward, terminated, truncated = (
            np.array(_array(each)) for each in (answer.reward, answer.terminated, answer.truncated)
        )
        self._returns += reward
        self._lengths += 1
        ended = np.flatnonzero(terminated | truncated)
        step = Step(tree_map(_array, answer.observation), reward, terminated, truncated, ended)
        if ended.size:
            step.final_observation = tree_map(lambda leaf: _array(leaf)[ended], answer.final_observation)
            success = None if answer.success is None else _array(answer.success)
            step.episodes = [
                Episode(
                    int(i),
                    float(self._returns[i]),
                    int(self._lengths[i]),
                    None if success is None else bool(success[i]),
                )
                for i in ended
            ]
            self._returns[ended], self._lengths[ended] = 0.0, 0
        step.action_mask = None if answer.mask is None else _array(answer.mask)
        return step

    def step_tensors(self, actions: Tensor) -> TensorStep:
        """Take `actions` [N, ...] on the device; what it returned, flat, on the device."""
        self._steps += 1
        answer = self._call(f"step {self._steps}", self.source.step, actions)
        if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[4], dict):
            raise EnvError(
                f"The step of {type(self.source).__name__} must return (observation, reward, terminated, truncated, info), "
                "tensors and a dict."
            )
        batch, info = answer[0], answer[4]
        if FINAL not in info:
            raise EnvError(
                f"The step of {type(self.source).__name__} has no info[{FINAL!r}]: put the true last observations [N, ...] of "
                "episodes that end there, for all environments (those that go on do not count)."
            )
        self.latest, self.latest_mask = self._flat(batch, f"step {self._steps}")
        numbers = [
            self._number(name, each)
            for name, each in zip(("reward", "terminated", "truncated"), answer[1:4], strict=True)
        ]
        final, _ = self._flat(info[FINAL], f"step {self._steps}")
        success = info.get("success")
        if isinstance(success, Tensor):
            success = self._number("info['success']", success).bool()
        return TensorStep(
            self.latest,
            self.latest_mask,
            numbers[0].double(),
            numbers[1].bool(),
            numbers[2].bool(),
            final,
            success if isinstance(success, Tensor) else None,
        )

    def _number(self, name: str, column: Any) -> Tensor:
        if not isinstance(column, Tensor) or column.numel() != self.num_envs:
            found = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise EnvError(
                f"{type(self.source).__name__} returned {found} for {name} on step {self._steps}: it must be a tensor of one "
                f"number for each of its {self.num_envs} environments."
            )
        return column.reshape(self.num_envs)

    def _flat(self, batch: Any, when: str) -> tuple[Any, Tensor | None]:
        """The observation as the contract has it, and the mask in it."""
        adapter = self._adapter
        if adapter.nested:
            flat: Any = {leaf.name: self._leaf(leaf, _entry(batch, leaf), when) for leaf in adapter.leaves}
        else:
            flat = self._leaf(adapter.leaves[0], batch, when)
        if not adapter.mask_leaves:
            return flat, None
        leaf = adapter.mask_leaves[0]
        return flat, self._leaf(leaf, _entry(batch, leaf), when).reshape(self.num_envs, -1).bool()

    def _leaf(self, leaf: Leaf, tensor: Any, when: str) -> Tensor:
        entry = f" entry {leaf.name!r}" if leaf.name else ""
        if not isinstance(tensor, Tensor) or tensor.numel() != self.num_envs * int(np.prod(leaf.shape)):
            missing = "missing" if tensor is None else f"a {type(tensor).__name__}"
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else missing
            raise EnvError(
                f"The observation{entry} of {type(self.source).__name__} is {found} on {when}: it must be a tensor of shape "
                f"{(self.num_envs, *leaf.shape)}."
            )
        flat = tensor.reshape(self.num_envs, *(leaf.space.shape or ()))
        return flat.float() if flat.is_floating_point() else flat

    def _call(self, when: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except EnvError:
            raise
        except Exception as error:
            if is_lack_of_memory(error):
                raise  # the run has a sentence on what to make smaller
            said = words_of(error)
            raise EnvError(
                f"{type(self.source).__name__} raised {type(error).__name__} on {when}{f': {said}' if said else ''}."
            ) from error

    def state(self) -> dict[str, Tensor] | None:
        """The source's, with the episodes' returns so far; None where it has none."""
        own = self.source.state()
        if own is None:
            return None
        counted = {RETURNS: torch.from_numpy(self._returns.copy()), LENGTHS: torch.from_numpy(self._lengths.copy())}
        return {**own, **counted}

    def count(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """What the running episodes have come to, where somebody else has counted."""
        self._returns[:], self._lengths[:] = returns, lengths

    @property
    def running(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns and lengths of the running episodes so far."""
        return self._returns, self._lengths

    def close(self) -> None:
        self.source.close()


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _entry(batch: Any, leaf: Leaf) -> Any:
    """An entry of a nested batch; None where there is no such entry."""
    try:
        return None if isinstance(batch, Tensor) else follow(batch, leaf.path)
    except (KeyError, IndexError, TypeError):
        return None


def _require_simple(space: gym.Space, adapter: ObservationAdapter) -> None:
    """Refuse spaces whose numbers would have to be changed on their way: tensors are taken as they are."""
    if not isinstance(space, SIMPLE) or _first(space):
        raise EnvError(
            f"A TensorVectorEnv needs a Box, Discrete, MultiDiscrete or MultiBinary action space that counts from 0, not "
            f"{space}."
        )
    for leaf in adapter.leaves:
        if _first(leaf.original):
            entry = f" entry {leaf.name!r}" if leaf.name else ""
            raise EnvError(
                f"The choices of a TensorVectorEnv's observation{entry} must count from 0, not as in {leaf.original}."
            )
    if len(adapter.mask_leaves) > 1:
        raise EnvError("The action_mask of a TensorVectorEnv must be one tensor [N, M].")


def _first(space: gym.Space) -> int:
    """The number of the first choice that is farthest from 0."""
    return int(np.max(np.abs(getattr(space, "start", 0))))
