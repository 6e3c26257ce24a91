"""An agent is what one deploys: networks with their normalisers, the spaces they were made for, and how they act.

It knows nothing of training: what trains it is an algorithm, and where a training run stands is in runs/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad import envs
from phasegrad.compute.devices import pick_device
from phasegrad.config import Config
from phasegrad.data.action_bounds import ActionBounds
from phasegrad.data.reward_scaling import RewardNormalizer
from phasegrad.data.stacking import RunningStack
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import EnvError
from phasegrad.models import ActorCritic, build_model
from phasegrad.models.encoders import is_image
from phasegrad.tree import named_leaves, tree_map

FRAMES, MEMORY = "frames", "memory"  # of what a caller of `predict` carries, where observations are stacked
LARGE = 1024  # numbers of an observation from which on it is handled in small batches


@dataclass(frozen=True)
class Spaces:
    """The spaces of one environment."""

    observation: gym.Space  # the environment's own, with the action mask where it holds one
    action: gym.Space  # as a policy acts in it
    original_action: gym.Space  # the environment's own
    has_mask: bool

    @classmethod
    def of(cls, env: envs.VectorEnv) -> Spaces:
        return cls(env.original_observation_space, env.action_space, env.original_action_space, env.has_action_mask)


class Agent:
    """A policy and a value function for one kind of environment; `source` is where such environments come from."""

    def __init__(
        self,
        config: Config,
        spaces: Spaces,
        source: Any,
        *,
        model_class: type[ActorCritic] = ActorCritic,
        auxiliary_head: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.spaces, self.source = config, spaces, source
        self.may_import = True  # whether an environment id may name a module to import
        self.borrowed = 0  # how often an evaluation has used the environments that training uses too
        self.observing = envs.ObservationAdapter(spaces.observation)
        self.observation_space, self.action_space = self.observing.space, spaces.action
        parts = _parts(self.observation_space)
        if config.arch == "auto":
            config.settle(arch="shared" if any(is_image(part) for part in parts) else "dual")
        config.validate()  # again, now that the architecture is decided
        self.is_large = any(config.frame_stack * np.prod(part.shape or (1,)) >= LARGE for part in parts)
        self.device = pick_device(config.device, ranks)
        self.model: ActorCritic = build_model(
            self.observation_space, spaces.action, config, auxiliary_head, model_class
        ).to(self.device)
        self.model.eval()  # but for updates
        self.model.normalizer.ranks = ranks
        self.distribution = self.model.distribution
        self.bounds = ActionBounds(spaces.action, self.distribution, config.action_bounds)
        gamma = config.gamma if config.reward_gamma is None else config.reward_gamma
        self.reward_normalizer = RewardNormalizer(config.normalize_reward, gamma, config.clip_reward, ranks)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor it is made of, by name, without copying."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return named | {"reward_normalizer.moments": self.reward_normalizer.moments}

    # Acting

    @torch.no_grad()
    def act(
        self,
        observation: Any,
        mask: np.ndarray | None = None,
        noise: Tensor | None = None,
        states: Tensor | None = None,
    ) -> tuple[np.ndarray, Tensor | None]:
        """Actions [B, ...] as the flattened environment takes them, for what is seen [B, ...]: observations as it gives
        them, or where `frame_stack` says so stacks of them, as `stack_of` makes them.

        The most likely ones, or with `noise` [B, K] the ones it samples. With a memory, `states` [B, M] is what it
        remembers of each episode, as `fresh_states` gives it at the start; what it remembers next is returned.
        """
        batch = tree_map(self._as_tensor, observation)
        allowed = None if mask is None else self._as_tensor(mask)
        if states is None:
            params = self.model.policy(batch, allowed)
        else:
            params, _, states = self.model.step(batch, allowed, states)
        if noise is None:
            actions = self.distribution.mode(params)
        else:
            actions = self.distribution.sample(params, noise.to(self.device))
        return self.bounds(actions.cpu().numpy()), states

    def fresh_states(self, count: int) -> Tensor | None:
        """What is remembered at the start of `count` episodes: nothing; None without a memory."""
        size = self.model.state_size
        return torch.zeros(count, size, device=self.device) if size else None

    def stack_of(self, observation: Any) -> RunningStack | None:
        """What is seen of episodes that start with a flattened environment's `observation` [B, ...], in stacks to which
        later ones are pushed; None where an observation is seen alone.
        """
        return None if self.model.stacking is None else RunningStack(self.model.stacking, observation)

    @torch.no_grad()
    def values(self, observation: Any, states: Tensor | None = None) -> np.ndarray:
        """V [B] of what is seen, as `act` takes it, in the units of the unnormalised reward."""
        batch = tree_map(self._as_tensor, observation)
        values = self.model.value(batch) if states is None else self.model.step(batch, None, states)[1]
        return np.asarray(values.cpu()) * self.reward_normalizer.std

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, as the environment gives and takes them, and the next `state`.

        With a memory or a `frame_stack`, `state` is what the last call returned, or None where nothing has been seen; it
        counts for nothing where `episode_start` [B] says that an episode starts. `mask` [M] or [B, M] says what is allowed; without it an
        `action_mask` entry of the observation does.
        """
        batch, inside, single = envs.as_batch(self.observing, observation)
        size = len(named_leaves(batch)[0][1])
        masks = self._as_mask(inside if mask is None else mask, size)
        if masks is None and self.observing.mask_leaf is not None:
            raise EnvError(
                "The observation has no entry 'action_mask': give it, or the mask as predict(..., mask=...)."
            )
        noise = None if deterministic else self.distribution.draw_noise((size,), torch.default_generator)
        own = envs.ActionAdapter(self.spaces.original_action)
        seen, states = self._recalled(batch, state, episode_start)
        actions, after = self.act(seen, masks, noise, states)
        result = own.to_environment(actions, size)
        return (result[0] if single else result), self._as_state(state, seen, after, single)

    def value(self, observation: Any, state: Any = None, episode_start: Any = None) -> np.ndarray:
        """V(s) of a batch of observations [B], in the units of the unnormalised reward; `state` as `predict` takes it."""
        batch, _, single = envs.as_batch(self.observing, observation)
        values = self.values(*self._recalled(batch, state, episode_start))
        return values[0] if single else values

    # What a caller carries from step to step: what is remembered, and where several observations are seen together, those

    def _recalled(self, batch: Any, state: Any, episode_start: Any) -> tuple[Any, Tensor | None]:
        """What is seen with the observations `batch`, and what is remembered of their episodes, by a caller's `state`."""
        size = len(named_leaves(batch)[0][1])
        starts = _starts(episode_start, size)
        stack = self.stack_of(batch)
        if stack is None:
            return batch, self._as_states(state, starts, size)
        if state is None:
            return tree_map(np.asarray, stack.seen), self.fresh_states(size)
        if not isinstance(state, Mapping) or state.keys() != {FRAMES, *([MEMORY] if self.model.state_size else [])}:
            raise EnvError("The state is not what predict returned: give that, or None at the start.")
        stack.load(state[FRAMES])
        stack.push(batch, np.flatnonzero(starts))
        return tree_map(np.asarray, stack.seen), self._as_states(state.get(MEMORY), starts, size)

    def _as_state(self, given: Any, seen: Any, states: Tensor | None, single: bool) -> Any:
        """What a caller is to hand back with the next observation."""
        memory = None if states is None else states[0].cpu().numpy() if single else states.cpu().numpy()
        if self.model.stacking is None:
            return given if memory is None else memory
        frames = tree_map(lambda leaf: leaf[0] if single else leaf, seen)
        return {FRAMES: frames} if memory is None else {FRAMES: frames, MEMORY: memory}

    def _as_states(self, state: Any, starts: np.ndarray, size: int) -> Tensor | None:
        """What a caller's `state` says is remembered of `size` episodes [B, M], on the device; None without a memory."""
        states = self.fresh_states(size)
        if states is None or state is None:
            return states
        try:
            given = np.asarray(state, dtype=np.float32)
        except (ValueError, TypeError):
            raise EnvError("The state is not what predict returned: give that, or None at the start.") from None
        if given.size != states.numel() or given.shape[-1:] != states.shape[1:]:
            raise EnvError(
                f"The state has shape {given.shape}, but {tuple(states.shape)} is needed: give what predict returned for as "
                "many observations, or None at the start."
            )
        states = self._as_tensor(given.reshape(states.shape)).clone()
        states[torch.from_numpy(starts).to(self.device)] = 0.0
        return states

    def _as_tensor(self, leaf: np.ndarray) -> Tensor:
        """On the device, in memory that torch takes: an image turned round or one that may not be written to is copied."""
        return torch.from_numpy(np.require(leaf, requirements=["C", "W"])).to(self.device)

    def _as_mask(self, mask: Any, size: int) -> np.ndarray | None:
        """A mask [B, M]."""
        if mask is None:
            return None
        own = envs.ActionAdapter(self.spaces.original_action)
        if own.parts:
            return own.to_mask(mask, size, "observation")
        bits, wanted = np.asarray(mask, dtype=bool), (size, self.distribution.mask_size)
        if wanted[1] and bits.size != size * wanted[1]:
            raise EnvError(f"The action mask has shape {bits.shape}, but {wanted} is needed.")
        return bits.reshape(size, -1).copy()

    # The environments it fits

    def require_source(self, source: Any = None) -> None:
        """Refuse what a file may not ask for: an environment that only Python knows, or a module to import.

        Its own, or another `source` that the file names.
        """
        source = self.source if source is None else source
        if isinstance(source, str) and source.startswith("custom:"):
            raise EnvError(
                f"This agent was trained on an environment given in Python ({source}): "
                "load it with phasegrad.load(path, env=...), or give it one with agent.set_env(env)."
            )
        if isinstance(source, str) and ":" in source and not self.may_import:
            raise EnvError(
                f"The file asks to import {source.split(':')[0]!r} for its environment {source}: where you trust "
                f"it, allow that with --allow-import, or in Python with phasegrad.load(path, env={source!r})."
            )

    def require_spaces(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that is not the one this agent was made for."""
        for name, mine in self._described().items():
            if mine != getattr(env, name):
                raise EnvError(self._other_space(name, mine, getattr(env, name)))

    def require_form(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that this agent cannot act in; another backend's may have other bounds."""
        for name, mine in self._described().items():
            theirs = getattr(env, name)
            if mine != theirs if name == "has_action_mask" else not envs.same_form(mine, theirs):
                raise EnvError(self._other_space(name, mine, theirs))

    def require_likeness(self, env: envs.VectorEnv, name: str) -> None:
        """Refuse an environment called `name` that this agent cannot go on in: it may see other bounds, not act in them."""
        for what, mine in self._described().items():
            theirs = getattr(env, what)
            if not (envs.same_form(mine, theirs) if what == "observation_space" else mine == theirs):
                raise EnvError(self._other_space(what, mine, theirs, name))

    def live_in(self, source: Any, env: envs.VectorEnv) -> None:
        """From now on its environments come from another `source`, such as `env`, which is like those it had."""
        self.source, self.spaces, self.may_import = source, Spaces.of(env), True
        self.observing = envs.ObservationAdapter(self.spaces.observation)
        self.observation_space, self.action_space = self.observing.space, self.spaces.action

    def _described(self) -> Mapping[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "has_action_mask": self.spaces.has_mask,
        }

    def _other_space(self, name: str, mine: Any, theirs: Any, given: str = "") -> str:
        advice = "give one with the same" if given else "give the environment, options and versions it was trained with"
        given = given or envs.name_of(self.source)
        if name == "has_action_mask":
            found, trained = ("an", "without one") if theirs else ("no", "with one")
            what = f"{given} has {found} action mask, but this agent was trained {trained}"
        else:
            what = f"The {name.replace('_', ' ')} of {given} is {theirs}, but this agent was trained with {mine}"
        return f"{what}: {advice}."


def _starts(episode_start: Any, size: int) -> np.ndarray:
    """Where a caller says that episodes start [B]."""
    starts = np.asarray(False if episode_start is None else episode_start, dtype=bool).reshape(-1)
    if len(starts) not in (1, size):
        raise EnvError(f"episode_start has {len(starts)} entries for {size} observations.")
    return np.broadcast_to(starts, size).copy()


def _parts(space: gym.Space) -> list[gym.Space]:
    return list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else [space]
