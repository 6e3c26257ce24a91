"""An agent is what one deploys: networks with their normalisers, the spaces they were made for, and how they act.

It knows nothing of training: what trains it is an algorithm, and where a training run stands is in runs/.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
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
from phasegrad.data.transfers import send_tree
from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import EnvError, PhasegradWarning
from phasegrad.models import ActorCritic, build_model
from phasegrad.models.images import ImageSpace, is_image, with_images
from phasegrad.models.room import require_room_for
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
        self.kept_threads = 0  # of torch, that its run has had so far, where they are to stay
        self.observing = envs.ObservationAdapter(spaces.observation)
        self.observation_space, self.action_space = self.observing.space, spaces.action
        parts = _parts(with_images(self.observation_space, config.encoder, config.images))
        if config.arch == "auto":
            config.settle(arch="shared" if any(is_image(part) for part in parts) else "dual")
        config.validate()  # again, now that the architecture is decided
        _note_stacks(parts)
        self.is_large = any(config.frame_stack * np.prod(part.shape or (1,)) >= LARGE for part in parts)
        self.device = pick_device(config.device, ranks)

        def build() -> ActorCritic:
            return build_model(self.observation_space, spaces.action, config, auxiliary_head, model_class)

        require_room_for(config, build)
        self.model: ActorCritic = build().to(self.device)
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
        batch, allowed, noise = send_tree([observation, mask, noise], self.device)
        if states is None:
            params = self.model.policy(batch, allowed)
        elif (
            states.shape[1] < self.model.state_size
        ):  # the policy's alone, where nothing is known of the value network's
            params, states = self.model.policy_step(batch, allowed, states)
        else:
            params, _, states = self.model.step(batch, allowed, states)
        actions = self.distribution.mode(params) if noise is None else self.distribution.sample(params, noise)
        return self.bounds(actions.cpu().numpy()), states

    def fresh_states(self, count: int, policy_only: bool = False) -> Tensor | None:
        """What is remembered at the start of `count` episodes: nothing; None without a memory."""
        size = self.model.policy_state_size if policy_only else self.model.state_size
        return torch.zeros(count, size, device=self.device) if size else None

    def stack_of(self, observation: Any) -> RunningStack | None:
        """What is seen of episodes that start with a flattened environment's `observation` [B, ...], in stacks to which
        later ones are pushed; None where an observation is seen alone.
        """
        return None if self.model.stacking is None else RunningStack(self.model.stacking, observation)

    @torch.no_grad()
    def values(self, observation: Any, states: Tensor | None = None) -> np.ndarray:
        """V [B] of what is seen, as `act` takes it, in the units of the unnormalised reward."""
        batch = send_tree([observation], self.device)[0]
        values = self.model.value(batch) if states is None else self.model.step(batch, None, states)[1]
        return np.asarray(values.cpu()) * self.reward_normalizer.std

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Actions for one observation or a batch, as the environment gives and takes them, and the next `state`.

        With a memory or a `frame_stack`, `state` is what the last call returned, or None where nothing has been seen; it
        counts for nothing where `episode_start` [B] says that an episode starts. `mask` [M] or [B, M] says what is allowed; without it an
        `action_mask` entry of the observation does. Where actions are a Dict or Tuple, one observation gets one such
        action, a batch gets a Dict or Tuple of arrays [B, ...], as gymnasium's vector environments take them; the mask
        may be nested likewise. Entries that are `critic_only` need not be there.
        """
        hidden = self.model.critic_only
        known = not hidden or envs.missing_entry(self.observing, observation, hidden) is None
        adapter = self.observing if known else self.observing.without(hidden)
        batch, inside, single = envs.as_batch(adapter, observation)
        size = len(named_leaves(batch)[0][1])
        masks = self._as_mask(inside if mask is None else mask, size)
        if masks is None and self.observing.mask_leaves:
            raise EnvError(
                "The observation has no entry 'action_mask': give it, or the mask as predict(..., mask=...)."
            )
        noise = None if deterministic else self.distribution.draw_noise((size,), torch.default_generator)
        seen, states = self._recalled(batch, state, episode_start)
        actions, after = self.act(seen, masks, noise, states)
        own = envs.ActionAdapter(self.spaces.original_action)
        result = own.to_environment(actions, size)
        return (own.row(result, 0) if single else result), self._as_state(state, seen, after, single)

    def value(self, observation: Any, state: Any = None, episode_start: Any = None) -> np.ndarray:
        """V(s) of a batch of observations [B], in the units of the unnormalised reward; `state` as `predict` takes it."""
        missing = envs.missing_entry(self.observing, observation, self.model.critic_only)
        if missing is not None:
            raise EnvError(
                f"The observation has no entry {missing!r}, which the value network sees (critic_only): value needs it, "
                "predict does not."
            )
        batch, _, single = envs.as_batch(self.observing, observation)
        if self.model.critic_only and not self._knows_all(state):
            raise EnvError(
                f"The state is that of the policy alone, after observations without {', '.join(self.model.critic_only)}: "
                "give predict whole observations from an episode's start for the value's memory of it."
            )
        values = self.values(*self._recalled(batch, state, episode_start))
        return values[0] if single else values

    # What a caller carries from step to step: what is remembered, and where several observations are seen together, those

    def _recalled(self, batch: Any, state: Any, episode_start: Any) -> tuple[Any, Tensor | None]:
        """What is seen with the observations `batch`, and what is remembered of their episodes, by a caller's `state`."""
        size = len(named_leaves(batch)[0][1])
        starts = _starts(episode_start, size)
        hidden = self.model.critic_only
        policy_only = bool(hidden) and not (self._knows_all(state) and set(hidden) <= batch.keys())
        if policy_only:
            batch, state = self.model.for_policy(batch), self._of_policy(state)
        stack = self.stack_of(batch)
        if stack is None:
            return batch, self._as_states(state, starts, size, policy_only)
        if state is None:
            return tree_map(np.asarray, stack.seen), self.fresh_states(size, policy_only)
        if not isinstance(state, Mapping) or state.keys() != {FRAMES, *([MEMORY] if self.model.state_size else [])}:
            raise EnvError("The state is not what predict returned: give that, or None at the start.")
        stack.load(state[FRAMES])
        stack.push(batch, np.flatnonzero(starts))
        return tree_map(np.asarray, stack.seen), self._as_states(state.get(MEMORY), starts, size, policy_only)

    def _knows_all(self, state: Any) -> bool:
        """Whether a caller's `state` holds what the value network has seen too; one that does not fit counts as such."""
        frames, memory = (state.get(FRAMES), state.get(MEMORY)) if isinstance(state, Mapping) else (None, state)
        narrow = self.model.state_size and _width(memory) == (self.model.policy_state_size,) != (self.model.state_size,)
        return not narrow and (not isinstance(frames, Mapping) or set(self.model.critic_only) <= frames.keys())

    def _of_policy(self, state: Any) -> Any:
        """The part of a caller's `state` that is the policy's own."""
        own = self.model.policy_state_size

        def cut(memory: Any) -> Any:
            whole = own and _width(memory) == (self.model.state_size,)
            return np.asarray(memory)[..., :own] if whole else memory

        if not isinstance(state, Mapping):
            return cut(state)
        parts = {name: cut(part) if name == MEMORY else part for name, part in state.items()}
        if isinstance(parts.get(FRAMES), Mapping):
            parts[FRAMES] = self.model.for_policy(parts[FRAMES])
        return parts

    def _as_state(self, given: Any, seen: Any, states: Tensor | None, single: bool) -> Any:
        """What a caller is to hand back with the next observation."""
        memory = None if states is None else states[0].cpu().numpy() if single else states.cpu().numpy()
        if self.model.stacking is None:
            return given if memory is None else memory
        frames = tree_map(lambda leaf: leaf[0] if single else leaf, seen)
        return {FRAMES: frames} if memory is None else {FRAMES: frames, MEMORY: memory}

    def _as_states(self, state: Any, starts: np.ndarray, size: int, policy_only: bool = False) -> Tensor | None:
        """What a caller's `state` says is remembered of `size` episodes [B, M], on the device; None without a memory."""
        states = self.fresh_states(size, policy_only)
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
        given = np.where(starts[:, None], np.float32(0.0), given.reshape(states.shape))
        return send_tree([given], self.device)[0]

    def _as_mask(self, mask: Any, size: int) -> np.ndarray | None:
        """A mask [B, M]."""
        if mask is None:
            return None
        own = envs.ActionAdapter(self.spaces.original_action).masks
        if own.size:
            return own.batch(mask, size, "observation")
        bits, wanted = np.asarray(mask, dtype=bool), (size, self.distribution.mask_size)
        if wanted[1] and bits.size != size * wanted[1]:
            raise EnvError(f"The action mask has shape {bits.shape}, but {wanted} is needed.")
        return bits.reshape(size, -1).copy()

    # The environments it fits

    def require_source(self, source: Any = None, options: Mapping[str, Any] | None = None) -> None:
        """Refuse what a file may not ask for: an environment that only Python knows, a module to import, a path.

        Its own, or another `source` with `options` that the file names.
        """
        source = self.source if source is None else source
        options = self.config.env_options if options is None else options
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
        if not self.may_import and isinstance(source, str):
            envs.require_harmless(source, options, self.config.backend)

    def require_spaces(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that is not the one this agent was made for."""
        for name, mine in self._described().items():
            theirs = getattr(env, name)
            if mine != theirs or (name == "action_space" and _order(mine) != _order(theirs)):
                raise EnvError(self._other_space(name, mine, theirs))

    def require_form(self, env: envs.VectorEnv) -> None:
        """Refuse an environment that this agent cannot act in; another backend's may have other bounds."""
        for name, mine in self._described().items():
            theirs = getattr(env, name)
            same = mine == theirs if name == "has_action_mask" else envs.same_form(mine, theirs)
            if not same or (name == "action_space" and _order(mine) != _order(theirs)):
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


def _order(space: Any) -> list[str]:
    """The parts of an action in their order, which decides what each number of a stored one means."""
    return list(space.spaces) if isinstance(space, gym.spaces.Dict) else []


def _width(memory: Any) -> tuple[int, ...]:
    """(M,) of what a caller says is remembered [B, M] or [M]; nothing of what is no array."""
    try:
        return np.shape(memory)[-1:]
    except ValueError:
        return ()


def _parts(space: gym.Space) -> list[gym.Space]:
    return list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else [space]


def _note_stacks(parts: Iterable[gym.Space]) -> None:
    """Say once that what an environment stacked itself is seen as one image."""
    for part in parts:
        if isinstance(part, ImageSpace) and part.frames > 1:
            channels, height, width = part.image_shape
            warnings.warn(
                f"An observation of shape {part.shape} is seen as {part.frames} frames of one image, folded into {channels} "
                f"channels of {height} x {width} pixels; encoder mlp leaves it as it is.",
                PhasegradWarning,
                stacklevel=4,
            )
