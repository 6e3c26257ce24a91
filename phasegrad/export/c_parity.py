"""Whether a C file does what `predict` does: compiled here, and taken step by step through random and whole real episodes.

The function carries its own state, and `predict` is asked at that state: so a difference is that of one step, and how far
two states drift apart by themselves refuses no file.
"""

from __future__ import annotations

import copy
import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from phasegrad.agent import FRAMES, MEMORY
from phasegrad.errors import RunError
from phasegrad.export.c_layout import Layout
from phasegrad.export.parity import (
    EPISODE_STEPS,
    TOLERANCE,
    as_predicted,
    by_part,
    nearby_actions,
    random_masks,
    real_env,
    relative,
)
from phasegrad.runs.evaluation import release
from phasegrad.tree import named_leaves, tree_map

if TYPE_CHECKING:
    from phasegrad import envs
    from phasegrad.agent import Agent

FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic")
COMPILE_SECONDS = 300
RANDOM_EPISODES, RANDOM_STEPS = 64, 4


@dataclass
class Checked:
    """What came of it."""

    random: int = 0
    real: int = 0
    episodes: int = 0  # whole ones
    difference: float = 0.0


class CompiledPolicy:
    """The functions of a C file, built in `folder`."""

    def __init__(self, compiler: str, source: Path, folder: Path, layout: Layout) -> None:
        self.layout, self.program = layout, folder / "policy"
        library = folder / "policy.so"
        _compile([compiler, *FLAGS, "-DPHASEGRAD_NO_MAIN", "-fPIC", "-shared", str(source), "-o", str(library), "-lm"])
        _compile([compiler, *FLAGS, str(source), "-o", str(self.program), "-lm"])
        try:
            self._act = ctypes.CDLL(str(library)).phasegrad_act
        except OSError as error:
            raise _may_not_run(folder, error) from None
        self._act.restype = ctypes.c_int
        self._act.argtypes = [ctypes.c_void_p] * 4

    def act(self, observation: np.ndarray, mask: np.ndarray | None, state: np.ndarray) -> np.ndarray:
        """The action [K] for one row; `state` is changed in place."""
        action = np.zeros(self.layout.action_size, np.float32)
        allowed = None if mask is None else np.ascontiguousarray(mask, np.uint8)
        arrays = [np.ascontiguousarray(observation, np.float32), allowed, state, action]
        if self._act(*(None if array is None else array.ctypes.data for array in arrays)):
            raise RunError("The C function refuses an observation that predict takes; not written.")
        return action

    def printed(self, observations: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
        """What the program prints for an episode of observations [T, N]."""
        rows = observations if masks is None else np.concatenate([observations, masks], 1)
        text = "\n".join(" ".join(f"{number:.9g}" for number in row) for row in rows.astype(np.float64).tolist())
        try:
            done = subprocess.run(
                [str(self.program)], input=text, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"The C program takes more than {COMPILE_SECONDS} seconds; not written.") from None
        except OSError as error:
            raise _may_not_run(self.program.parent, error) from None
        if done.returncode:
            raise RunError(
                f"The C program ends with code {done.returncode} ({done.stderr.strip()[:200]}); not written."
            )
        found = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
        return np.array(found, np.float32)


def _may_not_run(folder: Path, error: OSError) -> RunError:
    """A folder of temporary files may be mounted without the right to run what is in it."""
    reason = (error.strerror or str(error)).removeprefix(f"{folder / 'policy.so'}: ")
    return RunError(
        f"The C file cannot be checked, since what is compiled does not run in {folder.parent} ({reason}): set TMPDIR to a "
        "folder that programs may run in; not written."
    )


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunError(f"The C compiler takes more than {COMPILE_SECONDS} seconds; not written.") from None
    except OSError as error:
        raise RunError(f"The C compiler cannot be started: {error.strerror or error}.") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()] or ["it gave no reason"]
        raise RunError(f"The C compiler failed: {lines[0][:300]}; not written.")


def check(agent: Agent, policy: CompiledPolicy) -> Checked:
    """Compare it with `predict` wherever it can be; a difference that is too large is refused."""
    found = Checked()
    for observation, mask, starts in _random_steps(agent, policy.layout):
        if starts.all():
            one = Comparison(agent, policy, len(starts))
        found.difference = max(found.difference, one.step(observation, mask, starts)[0])
        found.random += len(starts)
    _check_program(agent, policy)
    env = real_env(agent)
    if env is not None:
        try:
            _play(agent, policy, env, found)
        finally:
            release(agent, env)
    return found


def _play(agent: Agent, policy: CompiledPolicy, env: envs.VectorEnv, found: Checked) -> None:
    """Whole episodes, one in each environment, with the actions of the agent."""
    ended, starts = np.zeros(env.num_envs, bool), np.ones(env.num_envs, bool)
    observation, mask = env.reset()
    one = Comparison(agent, policy, env.num_envs)
    for _ in range(EPISODE_STEPS):
        difference, actions = one.step(observation, mask, starts)
        found.difference = max(found.difference, difference)
        found.real += env.num_envs
        step = env.step(actions)
        observation, mask, starts = step.observation, step.action_mask, step.terminated | step.truncated
        ended |= starts
        if ended.all():
            break
    found.episodes = int(ended.sum())


class Comparison:
    """Episodes side by side, each with a state of the C function and, where there is one, of `predict`."""

    def __init__(self, agent: Agent, policy: CompiledPolicy, count: int) -> None:
        self.agent, self.policy, self.layout = agent, policy, policy.layout
        self.states = np.zeros((count, max(1, policy.layout.state_size)), np.float32)
        self.theirs: Any = None  # what `predict` returned

    @torch.no_grad()
    def step(self, observation: Any, mask: np.ndarray | None, starts: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest difference, and the agent's actions as its environment is stepped with them."""
        agent, layout = self.agent, self.layout
        given, own_mask = agent.model.for_policy(observation), mask if layout.mask_size else None
        self.states[starts] = 0.0
        # all of the observation, so that the value network's own memory goes along with the policy's
        seen, states = agent._recalled(observation, self.theirs, starts)
        actions, _ = agent.act(seen, own_mask, None, states)
        predicted, after = agent.predict(agent.observing.restore(observation), self.theirs, starts, own_mask)
        rows = [
            self.policy.act(layout.observation_row(given, index), None if own_mask is None else own_mask[index], state)
            for index, state in enumerate(self.states)
        ]
        difference = self._difference(np.stack(rows), predicted, seen, own_mask, states)
        memory: Any = after.get(MEMORY) if isinstance(after, dict) else after
        if layout.memory_size:
            own = slice(layout.memory_size)
            difference = max(difference, _allowed(relative(self.states[:, own], memory[:, own])))
        self.theirs = self._at_these_states(after, memory)
        return difference, actions

    def _difference(self, rows: np.ndarray, predicted: Any, seen: Any, mask: Any, states: Any) -> float:
        agent, worst = self.agent, 0.0
        found, nearby = self.layout.by_part(rows), None
        for name, wanted in by_part(agent, predicted).items():
            if wanted.dtype.kind == "f":
                worst = max(worst, relative(found[name], wanted))
                continue
            if np.array_equal(found[name], wanted):
                continue
            # Rounding may decide between actions that are equally likely; any other disagreement is an error.
            if nearby is None:
                params = _params(agent, seen, mask, states)
                options = nearby_actions(agent, params, torch.empty(0), True)
                nearby = [as_predicted(agent, option) for option in options]
            if not np.logical_or.reduce([found[name] == option[name] for option in nearby]).all():
                worst = float("inf")
        return _allowed(worst)

    def _at_these_states(self, after: Any, memory: Any) -> Any:
        """What `predict` returned with what the C function remembers in its place."""
        own, model = self.layout.memory_size, self.agent.model
        if own:
            memory = np.concatenate([self.states[:, :own], memory[:, own:]], 1)
        if model.stacking is None:
            return memory if own else None
        return {FRAMES: after[FRAMES]} | ({MEMORY: memory} if own else {})


def _allowed(difference: float) -> float:
    if not difference <= TOLERANCE:
        raise RunError(f"The C file disagrees with predict by {difference:.1e} (allowed {TOLERANCE:g}); not written.")
    return difference


def _params(agent: Agent, seen: Any, mask: np.ndarray | None, states: torch.Tensor | None) -> torch.Tensor:
    """The parameters of the policy at what is seen."""
    tensors = tree_map(lambda leaf: torch.from_numpy(np.array(leaf)).to(agent.device), agent.model.for_policy(seen))
    allowed = None if mask is None else torch.from_numpy(mask).to(agent.device)
    if states is None:
        return agent.model.policy(tensors, allowed)
    return agent.model.policy_step(tensors, allowed, states[:, : agent.model.policy_state_size])[0]


def _random_steps(agent: Agent, layout: Layout) -> Iterator[tuple[Any, np.ndarray | None, np.ndarray]]:
    """Observations anywhere in their space and masks that allow a random part, in episodes of a few steps."""
    random = np.random.default_rng(0)
    spaces = copy.deepcopy(agent.observation_space)
    spaces.seed(0)
    for step in range(RANDOM_STEPS):
        rows = [spaces.sample() for _ in range(RANDOM_EPISODES)]
        if isinstance(spaces, gym.spaces.Dict):
            observation: Any = {name: np.stack([row[name] for row in rows]) for name in spaces.spaces}
        else:
            observation = np.stack(rows)
        masks = random_masks(agent, random, len(rows)) if layout.mask_size else None
        yield observation, masks, np.full(len(rows), step == 0)


def _check_program(agent: Agent, policy: CompiledPolicy) -> None:
    """The program prints for an episode what the function returns, to the last bit."""
    layout, state = policy.layout, np.zeros(max(1, policy.layout.state_size), np.float32)
    rows, masks, wanted = [], [], []
    for observation, mask, _ in _random_steps(agent, layout):
        for index in range(len(named_leaves(observation)[0][1])):
            rows.append(layout.observation_row(agent.model.for_policy(observation), index))
            masks.append(None if mask is None else mask[index])
            wanted.append(policy.act(rows[-1], masks[-1], state))
    stacked = None if masks[0] is None else np.stack([mask for mask in masks if mask is not None])
    if not np.array_equal(policy.printed(np.stack(rows), stacked), np.stack(wanted), equal_nan=True):
        raise RunError("The C program prints something else than its function returns; not written.")
