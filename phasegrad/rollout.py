"""Collecting experience: T steps of N environments into preallocated storage, every slot a real transition.

The storage is time-major [T, N, ...] and belongs to whoever allocates it: PPO reuses one segment for every rollout,
PPG keeps many. Acting computes only what acting needs; values, log-probabilities and the bootstrap follow in large
batches afterwards. Nothing here knows which algorithm will train on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.acting import Actor
from phasegrad.actions import ActionAdapter
from phasegrad.clock import Clock
from phasegrad.distributions import Family
from phasegrad.envs.contract import Episode, Observation, VectorEnv
from phasegrad.envs.spaces import CHOICES, describe_outside, outside_choices
from phasegrad.errors import EnvError, NonFiniteError
from phasegrad.tree import named_leaves, tree_map

LARGEST_REWARD = 1e18  # the square of a larger error is infinite in float32, and a larger one drowns all others
FLOATS = ("rewards", "values", "next_values", "log_probs", "advantages", "value_targets")


@dataclass
class Segment:
    """Storage of one rollout, each tensor [T, N, ...]."""

    observations: Any
    actions: Tensor
    policy_params: Tensor  # the whole old distribution, [T, N, P]
    raw_rewards: Tensor  # as the environment gave them, float64
    rewards: Tensor  # as the agent learns from them
    terminated: Tensor
    truncated: Tensor
    values: Tensor
    next_values: Tensor  # of the observation that really followed
    log_probs: Tensor
    advantages: Tensor
    value_targets: Tensor
    masks: Tensor | None

    def first(self, steps: int) -> Segment:
        """The same storage, only its first `steps` steps: for a shorter last rollout."""
        return Segment(**{f.name: _cut(getattr(self, f.name), steps) for f in fields(self)})

    @property
    def num_steps(self) -> int:
        return int(self.actions.shape[0])

    @property
    def num_envs(self) -> int:
        return int(self.actions.shape[1])


def _cut(tree: Any, steps: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[:steps], tree)


class Storage:
    """`count` segments in one allocation, `whole` [count, T, N, ...]; observations in the environment's own type."""

    def __init__(
        self, count: int, num_steps: int, num_envs: int, observation_space: gym.Space, family: Family, has_mask: bool
    ) -> None:
        def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, num_steps, num_envs, *shape), dtype=dtype)

        def observation_room(space: gym.Space) -> Tensor:
            return room(tuple(space.shape or ()), stored_dtype(space))

        if isinstance(observation_space, gym.spaces.Dict):
            observations: Any = {name: observation_room(space) for name, space in observation_space.items()}
        else:
            observations = observation_room(observation_space)
        self.whole = Segment(
            observations=observations,
            actions=room(family.action_shape, family.action_dtype),
            policy_params=room((family.parameter_size,), torch.float32),
            raw_rewards=room((), torch.float64),
            terminated=room((), torch.bool),
            truncated=room((), torch.bool),
            masks=room((family.mask_size,), torch.bool) if has_mask else None,
            **{name: room((), torch.float32) for name in FLOATS},
        )
        self.segments = [
            Segment(**{f.name: _at(getattr(self.whole, f.name), index) for f in fields(Segment)})
            for index in range(count)
        ]


def stored_dtype(space: gym.Space) -> torch.dtype:
    """uint8 stays uint8, float64 becomes float32."""
    dtype = torch.from_numpy(np.zeros(1, dtype=space.dtype)).dtype
    return torch.float32 if dtype == torch.float64 else dtype


def bytes_a_step(observation_space: gym.Space, family: Family, has_mask: bool) -> int:
    """What one stored transition takes."""
    spaces = (
        observation_space.spaces.values() if isinstance(observation_space, gym.spaces.Dict) else [observation_space]
    )
    observation = sum(int(np.prod(space.shape or (1,))) * stored_dtype(space).itemsize for space in spaces)
    action = int(np.prod(family.action_shape or (1,))) * family.action_dtype.itemsize
    flags_and_reward = 2 + 8 + (family.mask_size if has_mask else 0)
    return observation + action + 4 * family.parameter_size + flags_and_reward + 4 * len(FLOATS)


def _at(tree: Any, index: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[index], tree)


class Collector:
    """Steps the environments with the current policy and remembers where they are."""

    def __init__(
        self,
        env: VectorEnv,
        actor: Actor,
        adapter: ActionAdapter,
        clock: Clock,
        first_env: int = 0,
        all_envs: int = 0,
        played: tuple[Any, ...] | None = None,
    ) -> None:
        """The environments may be part of `all_envs`, from the number `first_env` on.

        `played`: what `env.play_back` takes, where they do not begin at their reset.
        """
        self.env, self.actor, self.adapter, self.clock = env, actor, adapter, clock
        self.first_env, self.all_envs = first_env, all_envs or env.num_envs
        self.model, self.device = actor.model, actor.device
        # Entries whose numbers are choices: one that does not exist would look like nothing at all.
        parts = env.observation_space.spaces if isinstance(env.observation_space, gym.spaces.Dict) else None
        entries = {"": env.observation_space} if parts is None else parts
        self._choices = [(name, space) for name, space in entries.items() if isinstance(space, CHOICES)]
        self.observation, self.mask = env.reset() if played is None else env.play_back(*played)
        self._finals: list[tuple[int, np.ndarray, Observation]] = []  # (t, environments, final observations) where cut
        self._valued = False  # whether the last rollout's values are in place already
        self.ended_at: list[int] = []  # the step t of each episode that finished in the last rollout
        self.renewed: list[tuple[int, list[int]]] = []  # (t, environments) made anew in the last rollout

    @torch.inference_mode()
    def collect(self, segment: Segment, noise: Tensor, first_step: int) -> list[Episode]:
        """Fill `segment` with transitions sampled by `noise` [T, N, K]; the episodes that finished meanwhile."""
        env, actor, family = self.env, self.actor, self.model.family
        observation_arrays = tree_map(lambda leaf: leaf.numpy(), segment.observations)
        masks = None if segment.masks is None else segment.masks.numpy()
        rewards, terminated, truncated, actions = (
            t.numpy() for t in (segment.raw_rewards, segment.terminated, segment.truncated, segment.actions)
        )
        finals: list[tuple[int, np.ndarray, Observation]] = []
        episodes: list[Episode] = []
        self.ended_at, self.renewed = [], []
        for t in range(segment.num_steps):
            with self.clock.section("inference"):
                tree_map(lambda room, leaf, t=t: _store(room, t, leaf), observation_arrays, self.observation)
                if masks is not None:
                    masks[t] = self.mask
                if t == 0:
                    actor.begin(segment, noise)
                actor.act(t)
                env_actions = self.adapter(actions[t])
            with self.clock.section("environment"):
                try:
                    step = env.step(env_actions)
                except EnvError:  # an action that is no number may be why
                    self._require_finite(segment.first(t + 1), first_step)
                    raise
            rewards[t], terminated[t], truncated[t] = step.reward, step.terminated, step.truncated
            if len(step.ended):
                cut = step.truncated[step.ended] & ~step.terminated[step.ended]
                if cut.any():
                    finals.append(
                        (t, step.ended[cut], tree_map(lambda leaf, cut=cut: leaf[cut], step.final_observation))
                    )
                episodes += step.episodes
                self.ended_at += [t] * len(step.episodes)
                if step.renewed:
                    self.renewed.append((t, step.renewed))
            self.observation, self.mask = step.observation, step.action_mask
        self._finals, self._valued = finals, False
        self._require_finite(segment, first_step)
        with self.clock.section("inference"):
            actor.end()
            segment.log_probs.copy_(family.log_prob(segment.policy_params, segment.actions))
            self.revalue(segment)
        return episodes

    @property
    def finals(self) -> list[tuple[int, np.ndarray, Observation]]:
        """(t, environments, true final observations) of the last rollout, where an episode was cut short."""
        return self._finals

    def revalue(self, segment: Segment) -> None:
        """V of the rollout last collected, by the value function as it now is, and of what followed each step."""
        if self.model.value_is_separate or self._valued:
            segment.values.copy_(self.values(segment.observations))
        self._valued = True
        segment.next_values[:-1] = segment.values[1:]
        followers = [self.observation, *(final for _, _, final in self._finals)]
        joined = tree_map(lambda *leaves: torch.from_numpy(np.concatenate(leaves)), *followers)
        values = self.values(joined, leading=1)
        segment.next_values[-1] = values[: segment.num_envs]
        start = segment.num_envs
        for t, envs, _ in self._finals:
            segment.next_values[t, torch.from_numpy(envs)] = values[start : start + len(envs)]
            start += len(envs)

    @torch.inference_mode()
    def values(self, observations: Any, leading: int = 2) -> Tensor:
        """V of observations with `leading` batch dimensions, on the CPU, in passes that stay within the cache."""
        return in_chunks(self.model.value, (observations,), leading, self.device)

    @torch.inference_mode()
    def policy(self, segment: Segment) -> Tensor:
        """Distribution parameters [T, N, P] of the policy as it now is, over a rollout."""
        return in_chunks(self.model.policy, (segment.observations, segment.masks), 2, self.device)

    def _require_finite(self, segment: Segment, first_step: int) -> None:
        """Stop at the first number that nothing can be learnt from, before it is, and say where it came from.

        A policy that has diverged spoils what its environments return, so of several faults the earliest is named.
        """
        faults: list[tuple[tuple[int, int], str]] = []  # (when: the step and the order within it, the sentence)

        def note(order: int, what: str, values: Tensor, bad: Tensor) -> None:
            if bad.any():
                place = tuple(bad.nonzero()[0].tolist())
                n, step = self._place(place[0], place[1], first_step)
                faults.append(((place[0], order), _sentence(what, n, f"at step {step}", float(values[place]))))

        for name, space in self._choices:
            outside = outside_choices(dict(named_leaves(segment.observations))[name].numpy(), space)
            if outside.any():
                t, n = (int(place[0]) for place in outside.nonzero()[:2])
                n, step = self._place(t, n, first_step)
                raise EnvError(describe_outside(name, n, f"at step {step}", space))
        for name, leaf in named_leaves(segment.observations):
            if leaf.is_floating_point():
                note(0, f"observation {name}".strip(), leaf, ~torch.isfinite(leaf))
        rewards = segment.raw_rewards
        note(2, "reward", rewards, ~(rewards.abs() <= LARGEST_REWARD))  # true of NaN too
        last = (segment.num_steps, np.arange(segment.num_envs), self.observation)
        for t, envs, final in [*self._finals, last]:  # these are not acted on here, but their value counts
            for name, space in self._choices:
                outside = outside_choices(dict(named_leaves(final))[name], space)
                if outside.any():
                    n = int(envs[outside][0]) + self.first_env
                    raise EnvError(describe_outside(name, n, f"after step {first_step + t * self.all_envs + n}", space))
            for name, leaf in named_leaves(final):
                bad = ~np.isfinite(leaf.reshape(len(leaf), -1)).all(1)
                if bad.any():
                    n, step = self._place(t, int(envs[bad][0]), first_step)
                    sentence = _sentence(f"observation {name}".strip(), n, f"after step {step}", np.inf)
                    faults.append(((t, 0 if t == segment.num_steps else 3), sentence))
        policy = self._policy_fault(segment, first_step)
        if policy is not None:
            faults.append(policy)
        if faults:
            raise NonFiniteError(min(faults)[1])
        if segment.masks is not None and not segment.masks.any(-1).all():
            t, n = (~segment.masks.any(-1)).nonzero()[0].tolist()
            n, step = self._place(t, n, first_step)
            raise EnvError(f"The action mask of environment {n} allows no action at step {step}: one must be allowed.")

    def _policy_fault(self, segment: Segment, first_step: int) -> tuple[tuple[int, int], str] | None:
        """The first output of the policy, or action drawn from it, that is no number: when, and a sentence."""
        outputs = {"output": segment.policy_params, "action": segment.actions}
        for what, values in outputs.items():
            if values.is_floating_point() and not torch.isfinite(values).all():
                t, n = (~torch.isfinite(values)).nonzero()[0, :2].tolist()
                env, step = self._place(t, n, first_step)
                return (t, 1), (
                    f"The policy's {what} is NaN or infinite for environment {env} at step {step}: training has diverged; "
                    "lower learning_rate or set normalize_observation."
                )
        return None

    def _place(self, t: int, n: int, first_step: int) -> tuple[int, int]:
        """The number of an environment among all, and of the step it takes at time `t` of a rollout."""
        return n + self.first_env, first_step + t * self.all_envs + n + self.first_env


def _sentence(what: str, env: int, when: str, value: float) -> str:
    if not np.isfinite(value):
        return f"The {what} of environment {env} is NaN or infinite {when}: check the environment."
    return (
        f"The reward of environment {env} is {value:.3g} {when}, too large to learn from (the limit is "
        f"{LARGEST_REWARD:.0e}): scale the rewards of the environment."
    )


def _store(room: np.ndarray, t: int, leaf: np.ndarray) -> None:
    room[t] = leaf


def in_chunks(function: Callable[..., Tensor], inputs: tuple[Any, ...], leading: int, device: torch.device) -> Tensor:
    """`function` over inputs with `leading` batch dimensions, a cache-sized piece at a time; the result on the CPU."""
    flat = [None if tree is None else tree_map(lambda leaf: leaf.flatten(0, leading - 1), tree) for tree in inputs]
    shape = named_leaves(inputs[0])[0][1].shape[:leading]
    size = chunk_size(flat[0])
    pieces = []
    for start in range(0, int(np.prod(shape)), size):
        pieces.append(function(*(_to(_part(tree, start, start + size), device) for tree in flat)).cpu())
    result = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    return result.reshape(*shape, *result.shape[1:])


def _to(tree: Any, device: torch.device) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf.to(device), tree)


def chunk_size(flat_observations: Any) -> int:
    """Images go through a network 256 at a time, where its activations stay in the cache; vectors all together."""
    widest = max(int(np.prod(leaf.shape[1:])) for _, leaf in named_leaves(flat_observations))
    return 256 if widest >= 1024 else 1 << 16


@dataclass
class Minibatch:
    """Tensors [B, ...] on the device."""

    observations: Any
    masks: Tensor | None
    value_targets: Tensor
    old_params: Tensor

    def __len__(self) -> int:
        return len(self.value_targets)

    def tensors(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
        """All tensors in a fixed order, and how to put a batch together from as many others."""
        present = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        flat = [leaf for tree in present.values() for _, leaf in named_leaves(tree)]

        def rebuild(leaves: Sequence[Tensor]) -> Any:
            rest = iter(leaves)
            values: dict[str, Any] = {f.name: None for f in fields(self)}
            for name, tree in present.items():
                values[name] = {key: next(rest) for key in sorted(tree)} if isinstance(tree, dict) else next(rest)
            return type(self)(**values)

        return flat, rebuild

    def split(self, size: int) -> Iterator[Self]:
        """Micro-batches of at most `size` samples, in order."""
        for start in range(0, len(self), size):
            yield type(self)(**{f.name: _part(getattr(self, f.name), start, start + size) for f in fields(self)})


@dataclass
class Batch(Minibatch):
    """What a policy and value update needs of a rollout."""

    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    old_values: Tensor


MOST_GATHERED_BYTES = 1 << 25  # beyond this a copy of the whole rollout would cost memory worth speaking of
STORED_AS = {"old_params": "policy_params", "old_log_probs": "log_probs", "old_values": "values"}
SomeBatch = TypeVar("SomeBatch", bound=Minibatch)


def gather(segment: Segment, index: Tensor, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """The samples at flat positions `index` [B] of a segment [T, N, ...], or of a whole storage [count, T, N, ...]."""
    last = segment.terminated.dim() - 1

    def pick(tree: Any) -> Any:  # index_select copies whole rows, where indexing goes byte by byte
        if tree is None:
            return None
        return tree_map(lambda leaf: leaf.flatten(0, last).index_select(0, index).to(device), tree)

    return kind(**{f.name: pick(getattr(segment, STORED_AS.get(f.name, f.name))) for f in fields(kind)})


def everything(segment: Segment, device: torch.device, kind: type[SomeBatch]) -> SomeBatch:
    """All samples of a segment as one batch, in order; on the CPU it shares the segment's memory."""

    def flat(tree: Any) -> Any:
        return None if tree is None else tree_map(lambda leaf: leaf.flatten(0, 1).to(device), tree)

    return kind(**{f.name: flat(getattr(segment, STORED_AS.get(f.name, f.name))) for f in fields(kind)})


def gather_each(
    segment: Segment, indices: list[Tensor], device: torch.device, kind: type[SomeBatch]
) -> Iterator[SomeBatch]:
    """The minibatches at each of `indices`; small observations are gathered for all of them at once, then sliced."""
    bytes_each = sum(leaf[0, 0].numel() * leaf.element_size() for _, leaf in named_leaves(segment.observations))
    if bytes_each * sum(map(len, indices)) > MOST_GATHERED_BYTES:
        for index in indices:
            yield gather(segment, index, device, kind)
        return
    everything = gather(segment, torch.cat(indices), device, kind)
    start = 0
    for index in indices:
        end = start + len(index)
        yield kind(**{f.name: _part(getattr(everything, f.name), start, end) for f in fields(kind)})
        start = end


@dataclass
class Minibatches(Generic[SomeBatch]):
    """One pass over stored samples: the flat positions of each minibatch, and what is done to it before its loss."""

    source: Segment  # [T, N, ...], or a whole storage [count, T, N, ...]
    indices: Sequence[Tensor]
    device: torch.device
    kind: type[SomeBatch]
    prepare: Callable[[SomeBatch], SomeBatch] | None = None
    usual: bool = True  # of the sizes that most passes have: an odd last one is not worth compiling for

    def __iter__(self) -> Iterator[SomeBatch]:
        return self.of(self.indices)

    def of(self, indices: Sequence[Tensor]) -> Iterator[SomeBatch]:
        """The minibatches at other positions."""
        for batch in gather_each(self.source, list(indices), self.device, self.kind):
            yield batch if self.prepare is None else self.prepare(batch)

    def rows(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], SomeBatch]]:
        """All stored samples as tensors [rows, ...] that share the storage, and how to make a batch of such rows."""
        last = self.source.terminated.dim() - 1

        def flat(tree: Any) -> Any:
            return None if tree is None else tree_map(lambda leaf: leaf.flatten(0, last), tree)

        names = [f.name for f in fields(self.kind)]
        whole = self.kind(**{name: flat(getattr(self.source, STORED_AS.get(name, name))) for name in names})
        return whole.tensors()


def _part(tree: Any, start: int, end: int) -> Any:
    return None if tree is None else tree_map(lambda leaf: leaf[start:end], tree)


def minibatch_indices(
    num_steps: int, num_envs: int, num_minibatches: int, whole_segments: bool, generator: torch.Generator
) -> list[Tensor]:
    """Flat positions of each minibatch of one epoch: random steps, or all steps of randomly chosen environments."""
    if whole_segments:
        steps = torch.arange(num_steps)[:, None] * num_envs
        envs = torch.randperm(num_envs, generator=generator).tensor_split(num_minibatches)
        return [(steps + chosen).flatten() for chosen in envs]
    return list(torch.randperm(num_steps * num_envs, generator=generator).tensor_split(num_minibatches))
