"""Whether an exported policy does what `predict` does: observations to try, and the largest difference on them.

Knows the agent and the outputs of the file by name; nothing of how the file was made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad import envs
from phasegrad.envs.spaces import follow
from phasegrad.errors import PhasegradError, RunError
from phasegrad.runs.evaluation import evaluation_env, release
from phasegrad.tree import named_leaves, tree_map

if TYPE_CHECKING:
    from phasegrad.agent import Agent

TOLERANCE = 1e-5  # relative to the size of a number where that exceeds 1, for values the reward's deviation
RANDOM_OBSERVATIONS, REAL_STEPS, REAL_ENVS = 256, 32, 4
EPISODE_STEPS = 1000  # at most, where there is a memory: it is checked on whole episodes


@dataclass
class Samples:
    """A batch to check the file on: a flat observation, masks [B, M] or None, noise [B, K], with a memory states [B, S].

    A state counts for nothing where `starts` [B] says that an episode starts.
    """

    observation: Any
    masks: np.ndarray | None
    noise: np.ndarray
    states: np.ndarray | None = None
    starts: np.ndarray | None = None

    def arrays(self, agent: Agent, with_noise: bool) -> list[np.ndarray]:
        """The inputs in the order of an exported policy: the observation's entries by name, mask, states, noise.

        Entries have the environment's own numbers and shape, in the type that the agent stores them in.
        """
        flat = dict(named_leaves(self.observation))
        leaves = sorted((leaf for leaf in agent.observing.leaves if leaf.name in flat), key=lambda leaf: leaf.name)
        arrays = [leaf.restore(flat[leaf.name]).astype(leaf.space.dtype) for leaf in leaves]
        arrays += [array for array in (self.masks, self.held()) if array is not None]
        return arrays + [self.noise] * with_noise

    def held(self) -> np.ndarray | None:
        """The states [B, S] with zeros where an episode starts."""
        if self.states is None or self.starts is None:
            return self.states
        return np.where(self.starts[:, None], np.float32(0.0), self.states)

    def __len__(self) -> int:
        return len(self.noise)


def random_samples(agent: Agent, whole: bool = True) -> Samples:
    """Observations anywhere in their space, with masks that allow a random part of the actions, and random states.

    Where they are not `whole`, they are what the policy alone is shown, here and below.
    """
    random = np.random.default_rng(0)
    spaces = copy.deepcopy(agent.observation_space)
    spaces.seed(0)
    rows = [spaces.sample() for _ in range(RANDOM_OBSERVATIONS)]
    if isinstance(spaces, gym.spaces.Dict):
        observation: Any = {name: np.stack([row[name] for row in rows]) for name in spaces.spaces}
    else:
        observation = np.stack(rows)
    masks = random_masks(agent, random, len(rows)) if agent.spaces.has_mask else None
    size = agent.model.state_size if whole else agent.model.policy_state_size
    observation = observation if whole else agent.model.for_policy(observation)
    states = random.standard_normal((len(rows), size), np.float32) if size else None
    return Samples(observation, masks, draw_noise(agent, len(rows)), states)


def random_masks(agent: Agent, random: np.random.Generator, count: int) -> np.ndarray:
    """[B, M] bool, with at least one action allowed for every choice."""
    parts = []
    for size in agent.distribution.mask_sizes:
        part = random.random((count, size)) < 0.5
        part[np.arange(count), random.integers(size, size=count)] = True
        parts.append(part)
    return np.concatenate(parts, 1)


def draw_noise(agent: Agent, count: int) -> np.ndarray:
    return agent.distribution.draw_noise((count,), torch.Generator().manual_seed(0)).numpy()


def real_env(agent: Agent) -> envs.VectorEnv | None:
    """A few environments to play in, or None where they cannot be made here."""
    if isinstance(agent.source, gym.vector.VectorEnv):
        return None  # the user's own, in which training may be under way
    try:
        return evaluation_env(agent, REAL_ENVS, seed=None, levels="train")
    except PhasegradError:
        return None


def real_samples(agent: Agent, whole: bool = True) -> Samples | None:
    """What an agent without a memory sees when it plays, or None where its environment cannot be made here."""
    env = real_env(agent)
    if env is None:
        return None
    observations, masks = [], []
    try:
        observation, mask = env.reset()
        for _ in range(REAL_STEPS):
            observations.append(observation if whole else agent.model.for_policy(observation))
            masks.append(mask)
            with torch.inference_mode():
                actions, _ = agent.act(observation, mask)
            step = env.step(actions)
            observation, mask = step.observation, step.action_mask
    finally:
        release(agent, env)
    joined = tree_map(lambda *leaves: np.concatenate(leaves), observations[0], *observations[1:])
    joined_masks = None if masks[0] is None else np.concatenate([mask for mask in masks if mask is not None])
    return Samples(joined, joined_masks, draw_noise(agent, REAL_STEPS * env.num_envs))


def batches(random: Samples, real: Samples | None) -> Iterator[Samples]:
    """All of them, and one alone, so that the batch size is seen to be free."""
    yield random
    yield Samples(
        tree_map(lambda leaf: leaf[:1], random.observation),
        None if random.masks is None else random.masks[:1],
        random.noise[:1],
        None if random.states is None else random.states[:1],
    )
    if real is not None:
        yield real


@dataclass
class Sequel:
    """What came of playing episodes in sequence, the file going on from the states that it put out itself."""

    observations: int = 0
    episodes: int = 0  # whole ones
    difference: float = 0.0  # the largest of a single step, from the same states
    drift: float = 0.0  # the largest between the file's states and those of an agent that carries its own


def play_episodes(
    agent: Agent, run: Callable[[Samples], dict[str, np.ndarray]], deterministic: bool, whole: bool = True
) -> Sequel:
    """Check every step of the episodes that an agent with a memory plays; `run` gives a file's outputs by name.

    How far the states drift apart refuses no file: a memory may magnify rounding errors without bound.
    """
    found, env = Sequel(), real_env(agent)
    if env is None:
        return found
    generator = torch.Generator().manual_seed(1)
    starts, ended = np.ones(env.num_envs, bool), np.zeros(env.num_envs, bool)
    size = agent.model.state_size if whole else agent.model.policy_state_size
    states = mine = np.zeros((env.num_envs, size), np.float32)
    try:
        observation, mask = env.reset()
        for _ in range(EPISODE_STEPS):
            noise = agent.distribution.draw_noise((env.num_envs,), generator).numpy()
            observation = observation if whole else agent.model.for_policy(observation)
            batch = Samples(observation, mask, noise, states, starts)
            outputs = run(batch)
            found.difference = max(found.difference, largest_difference(agent, outputs, batch, deterministic))
            actions, after = agent.act(observation, mask, None, _states(agent, replace(batch, states=mine)))
            assert after is not None
            states, mine = outputs["next_state"], after.cpu().numpy()
            found.drift = max(found.drift, relative(states, mine))
            found.observations += env.num_envs
            step = env.step(actions)
            observation, mask, starts = step.observation, step.action_mask, step.terminated | step.truncated
            ended |= starts
            if ended.all():
                break
    finally:
        release(agent, env)
    found.episodes = int(ended.sum())
    return found


@torch.no_grad()
def largest_difference(agent: Agent, found: dict[str, np.ndarray], batch: Samples, deterministic: bool) -> float:
    """Between a file's outputs `found` by name and the agent's own on a batch; too large a one is refused."""
    given = _as_given(agent, batch.observation)
    params = _policy_params(agent, batch)
    noise = torch.from_numpy(batch.noise).to(agent.device)
    predicted, after = agent.predict(given, batch.states, batch.starts, batch.masks)
    if deterministic:
        wanted = by_part(agent, predicted)
        taken = agent.distribution.mode(params)
    else:
        taken = agent.distribution.sample(params, noise)
        wanted = as_predicted(agent, taken)
    same = np.ones(len(batch), bool)
    differences = []
    nearby: list[dict[str, np.ndarray]] = []
    for name, own in wanted.items():
        if own.dtype.kind == "f":
            differences.append(relative(found[name], own))
            continue
        # Rounding may decide between actions that are equally likely; any other disagreement is an error.
        same &= (found[name] == own).reshape(len(batch), -1).all(1)
        nearby = nearby or [
            as_predicted(agent, option) for option in nearby_actions(agent, params, noise, deterministic)
        ]
        fine = np.logical_or.reduce([found[name] == option[name] for option in nearby])
        differences.append(0.0 if fine.all() else float("inf"))
    if "log_prob" in found:
        own = agent.distribution.log_prob(params, taken).cpu().numpy()
        if agent.distribution.bounded and not deterministic:
            # Next to a bound the last digit of a sampled action decides the fifth of its log-probability.
            near = [
                agent.distribution.log_prob(params, option) for option in nearby_actions(agent, params, noise, False)
            ]
            options = torch.stack(near).cpu().numpy()
            own = np.clip(found["log_prob"], options.min(0), options.max(0))
        differences.append(relative(found["log_prob"][same], own[same]))
    if "value" in found:
        # A value is the network's output times this deviation, and so is its rounding error.
        scale = max(1.0, agent.reward_normalizer.std)
        differences.append(relative(found["value"], agent.value(given, batch.states, batch.starts), scale))
    if "params" in found:
        differences.append(relative(found["params"], params.cpu().numpy()))
    if "next_state" in found:
        differences.append(relative(found["next_state"], after))
    worst = max(differences)
    if not worst <= TOLERANCE:
        raise RunError(f"The exported file disagrees with predict by {worst:.1e} (allowed {TOLERANCE:g}); not written.")
    return worst


def _policy_params(agent: Agent, batch: Samples) -> Tensor:
    """The parameters [B, P] of the policy at a flat observation."""
    tensors = tree_map(lambda leaf: torch.from_numpy(leaf).to(agent.device), batch.observation)
    masks = None if batch.masks is None else torch.from_numpy(batch.masks).to(agent.device)
    states = _states(agent, batch)
    if states is None:
        return agent.model.policy(tensors, masks)
    return agent.model.policy_step(tensors, masks, states[:, : agent.model.policy_state_size])[0]


def _as_given(agent: Agent, observation: Any) -> Any:
    """A flat observation as a caller has it; one that is not whole by its dotted names."""
    leaves = agent.observing.leaves
    if not isinstance(observation, dict) or all(leaf.name in observation for leaf in leaves):
        return agent.observing.restore(observation)
    return {leaf.name: leaf.restore(observation[leaf.name]) for leaf in leaves if leaf.name in observation}


def _states(agent: Agent, batch: Samples) -> Tensor | None:
    held = batch.held()
    return None if held is None else torch.from_numpy(held).to(agent.device)


def nearby_actions(agent: Agent, params: Tensor, noise: Tensor, deterministic: bool) -> list[Tensor]:
    """The actions that a change of the parameters or the noise within the tolerance could give."""
    distribution = agent.distribution
    if not deterministic:
        return [distribution.sample(params, noise + shift) for shift in (0.0, TOLERANCE, -TOLERANCE)]
    options = [distribution.mode(params)]
    ramp = torch.linspace(-TOLERANCE, TOLERANCE, params.shape[-1], device=params.device)
    return options + [distribution.mode(params + shift) for shift in (ramp, -ramp, TOLERANCE, -TOLERANCE)]


def as_predicted(agent: Agent, actions: Tensor) -> dict[str, np.ndarray]:
    own = envs.ActionAdapter(agent.spaces.original_action)
    return by_part(agent, own.to_environment(agent.bounds(actions.cpu().numpy()), len(actions)))


def by_part(agent: Agent, batch: Any) -> dict[str, np.ndarray]:
    """Actions as `predict` returns them by the names of a file's outputs."""
    parts = envs.ActionAdapter(agent.spaces.original_action).parts
    return {f"action.{part.name}" if part.name else "action": follow(batch, part.path) for part in parts}


def relative(found: np.ndarray, wanted: np.ndarray, unit: float = 1.0) -> float:
    """The largest difference in units of `unit`, relative where numbers exceed it."""
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    apart = ~((found == wanted) | (np.isnan(found) & np.isnan(wanted)))  # infinite numbers and NaN may agree too
    found, wanted = found[apart], wanted[apart]
    if not np.isfinite([found, wanted]).all():
        return float("inf")
    return float((np.abs(found - wanted) / np.maximum(unit, np.abs(wanted))).max(initial=0.0))
