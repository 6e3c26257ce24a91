"""Frame stacking: what is seen is what gymnasium's own stacking gives, stored once, in every algorithm and way to compute."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rank_work as work
import safetensors.torch
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from machine import needs_compiler

import phasegrad as pg
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.experience import leg_seeds
from phasegrad.config import make_config
from phasegrad.data.minibatches import Batch, everything, gather
from phasegrad.data.stacking import RunningStack, frame_rows, steps_since_start
from phasegrad.errors import ConfigError, EnvError, RunError
from phasegrad.models.encoders import ImageEncoder, flat_floats, flat_width, is_image
from phasegrad.models.stacking import Stacking
from phasegrad.runs.directory import RunDirectory
from phasegrad.tree import named_leaves, tree_map

COUNT = 3
VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
ROWS_OF_PIXELS = spaces.Box(0, 255, (8, 8, 3), np.uint8)  # [H, W, C]; three have more channels than pixels a side
PLANES = spaces.Box(0, 255, (2, 9, 9), np.uint8)  # [C, H, W]
MIXED = spaces.Dict(
    {
        "choice": spaces.Discrete(3),
        "choices": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(2),
        "image": ROWS_OF_PIXELS,
        "planes": PLANES,
        "grid": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        "action_mask": spaces.MultiBinary(3),
    }
)
SPACES: dict[str, gym.Space] = {"vector": VECTOR, "image": ROWS_OF_PIXELS, "dict": MIXED}
SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 3, "num_steps": 16, "hidden_sizes": (8,), "compile": "off", "seed": 7,
    "eval_episodes": 0, "total_steps": 1_000,
}  # fmt: skip
EACH: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "num_minibatches": 4},
    "ppg": {"n_pi": 2, "e_pi": 1, "e_v": 1, "e_aux": 1, "num_minibatches": 4, "aux_minibatches": 4},
    "a2c": {"updates_per_iteration": 2},
    "vpg": {"value_steps": 3},
    "trpo": {"value_epochs": 1, "num_minibatches": 2},
    "acer": {"updates_per_iteration": 2, "replay_start": 64, "replay_capacity": 480},
}
ALGORITHMS: dict[str, Any] = {
    "ppo": pg.PPO, "ppg": pg.PPG, "a2c": pg.A2C, "vpg": pg.VPG, "trpo": pg.TRPO, "acer": pg.ACER,
}  # fmt: skip


class RandomEnv(gym.Env):
    """Observes a random element of a space; episodes last 1 to 7 steps, and about half of them are cut short."""

    def __init__(self, space: gym.Space) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(3)
        self.left, self.cut = 0, False

    def draw(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        drawn = self.observation_space.sample()
        if isinstance(drawn, dict):
            drawn["action_mask"][int(self.np_random.integers(3))] = 1
        return drawn

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.cut = int(self.np_random.integers(1, 8)), bool(self.np_random.integers(2))
        return self.draw(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over = self.left == 0
        return self.draw(), float(action), over and not self.cut, over and self.cut, {}


class StacksItself(gym.ObservationWrapper):
    """gymnasium's own stack, laid out as the networks see it: images by their channels, all else flat."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(FrameStackObservation(env, COUNT, padding_type="reset"))
        single = env.observation_space
        self.single = single
        if isinstance(single, spaces.Dict):
            kinds = {name: plain(Stacking(part, COUNT).space) for name, part in single.items() if name != "action_mask"}
            self.observation_space = spaces.Dict(kinds | {"action_mask": single["action_mask"]})
        else:
            self.observation_space = plain(Stacking(single, COUNT).space)

    def observation(self, observation: Any) -> Any:
        if not isinstance(self.single, spaces.Dict):
            return laid_out(observation, self.single)
        found = {name: laid_out(observation[name], part) for name, part in self.single.items() if name != "action_mask"}
        return found | {"action_mask": observation["action_mask"][-1]}


def plain(space: gym.Space) -> gym.Space:
    """A stack's space as an environment may have it."""
    return spaces.Box(space.low, space.high, dtype=space.dtype.type) if isinstance(space, spaces.Box) else space


def laid_out(frames: np.ndarray, space: gym.Space) -> np.ndarray:
    """Frames [n, ...] as one observation, written without the library's help."""
    if is_image(space):
        return np.concatenate(list(frames), 0 if space.shape == PLANES.shape else 2)
    return np.concatenate([np.reshape(frame, -1) for frame in frames])


def make(name: str, env: Any, **fields: Any) -> Any:
    return ALGORITHMS[name](env, **{**SMALL, **EACH[name], **fields})


def same_weights(first: Algorithm, second: Algorithm, within: float = 0.0) -> None:
    assert first.progress.step == second.progress.step
    mine, theirs = first.tensors(), second.tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        if within:
            assert float((tensor.double() - theirs[name].double()).abs().max()) <= within, name
        else:
            assert torch.equal(tensor, theirs[name]), name


# Spaces


@pytest.mark.parametrize("name", [name for name in MIXED.spaces if name != "action_mask"])
def test_a_stack_is_encoded_as_its_frames_one_after_another(name: str) -> None:
    space = MIXED[name]
    space.seed(1)
    frames = np.stack([space.sample() for _ in range(5 * COUNT)])
    stacking = Stacking(space, COUNT)
    stacked = stacking.joined(torch.from_numpy(frames))
    wanted = np.stack([laid_out(part, space) for part in np.split(frames, 5)])
    np.testing.assert_array_equal(stacked, wanted)
    assert all(stacking.space.contains(row) for row in wanted.astype(stacking.space.dtype))
    if is_image(space):
        encoder, alone = ImageEncoder(stacking.space), ImageEncoder(space)  # type: ignore[arg-type]
        assert encoder.channels_first == alone.channels_first
        assert encoder.image_shape == (COUNT * alone.image_shape[0], *alone.image_shape[1:])
        pixels = alone.pixels(torch.from_numpy(frames)).unflatten(0, (5, COUNT)).flatten(1, 2)
        torch.testing.assert_close(encoder.pixels(stacked), pixels, rtol=0, atol=0)
    else:
        each = flat_floats(torch.from_numpy(frames), space).reshape(5, -1)
        assert torch.equal(flat_floats(stacked, stacking.space), each)
        assert flat_width(stacking.space) == COUNT * flat_width(space)


def test_a_number_alone_is_stacked_too() -> None:
    stacking = Stacking(spaces.Box(-1.0, 1.0, (), np.float32), 2)
    assert stacking.space.shape == (2,)
    assert stacking.joined(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_how_far_back_an_episode_goes_by_brute_force() -> None:
    done = torch.rand(40, 5, generator=torch.Generator().manual_seed(0)) < 0.2
    found = steps_since_start(done, 3)
    for n in range(5):
        since = 3  # what lies before is a full stack
        for t in range(40):
            assert found[t, n] == since
            since = 0 if done[t, n] else min(since + 1, 3)


# What is seen, against gymnasium's own stacking


def replayed(agent: Algorithm, space: gym.Space, actions: np.ndarray) -> Iterator[tuple[int, int, Any, Any, bool]]:
    """(t, environment, what is seen before the step, what is after it, whether it terminated) of one that stacks itself."""
    for n, seed in enumerate(leg_seeds(agent.config, agent.ranks, agent.run.legs.numbers)):
        env = StacksItself(RandomEnv(space))
        seen, _ = env.reset(seed=seed)
        for t, action in enumerate(actions[:, n].tolist()):
            after, _, terminated, truncated, _ = env.step(action)
            yield t, n, visible(seen), visible(after), terminated
            seen = env.reset()[0] if terminated or truncated else after


def visible(observation: Any) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {name: leaf for name, leaf in observation.items() if name != "action_mask"}


@pytest.mark.parametrize("kind", SPACES)
def test_acting_and_training_see_what_gymnasiums_stacking_gives(kind: str) -> None:
    """Three rollouts, the last of them short. What follows a step is valued: its next, one after a rollout, a cut end's."""
    agent = make("ppo", lambda: RandomEnv(SPACES[kind]), frame_stack=COUNT)
    agent.begin_iteration()
    actor, acted, trained, actions, values = agent.computation.actor, [], [], [], []
    original = actor.act

    def act(t: int) -> None:
        acted.append(tree_map(lambda leaf: leaf[t].clone(), actor.seen))
        original(t)

    actor.act = act
    truncated = 0
    for steps in (16, 16, 5):
        rollout = agent.collect(steps)
        order = torch.randperm(steps * 3, generator=torch.Generator().manual_seed(0))
        batch = gather(rollout, order, agent.device, Batch).observations
        trained.append(tree_map(lambda leaf: leaf[order.argsort()].unflatten(0, (steps, 3)), batch))
        for name, leaf in named_leaves(everything(rollout, agent.device, Batch).observations):
            assert torch.equal(leaf, dict(named_leaves(trained[-1]))[name].flatten(0, 1))
        actions.append(rollout.actions.clone())
        values.append(rollout.next_values.clone())
        truncated += int((rollout.truncated & ~rollout.terminated).sum())
    assert truncated > 5
    gathered = dict(named_leaves(tree_map(lambda *leaves: torch.cat(leaves), *trained)))
    next_values, checked = torch.cat(values), 0
    for t, n, seen, after, terminated in replayed(agent, SPACES[kind], torch.cat(actions).numpy()):
        for name, wanted in named_leaves(seen):
            np.testing.assert_array_equal(gathered[name][t, n], wanted)
            np.testing.assert_array_equal(dict(named_leaves(acted[t]))[name][n], wanted)
        if not terminated:
            with torch.no_grad():
                value = agent.model.value(tree_map(lambda leaf: torch.as_tensor(leaf)[None], after))
            assert float(next_values[t, n]) == pytest.approx(float(value), abs=1e-5)
        checked += 1
    assert checked == 37 * 3


# Training, against an environment that stacks itself


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_that_on_an_environment_that_stacks_itself(name: str) -> None:
    agents = [
        make(name, lambda: RandomEnv(VECTOR), frame_stack=COUNT),
        make(name, lambda: StacksItself(RandomEnv(VECTOR))),
    ]
    for agent in agents:
        agent.learn(16 * 3 * 5)
    same_weights(*agents)


@pytest.mark.parametrize("name", ["ppo", "ppg", "acer"])
def test_with_images_choices_bits_and_masks_too(name: str) -> None:
    agents = [
        make(name, lambda: RandomEnv(MIXED), frame_stack=COUNT),
        make(name, lambda: StacksItself(RandomEnv(MIXED))),
    ]
    agents[1].model.load_state_dict(agents[0].model.state_dict())
    for agent in agents:
        agent.learn(16 * 3 * 3)
    same_weights(*agents)


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_and_with_a_memory(name: str) -> None:
    fields = {"memory": "gru", "memory_size": 4, "sequence_length": 8, "num_minibatches": 2}
    agents = [
        make(name, lambda: RandomEnv(VECTOR), frame_stack=COUNT, **fields),
        make(name, lambda: StacksItself(RandomEnv(VECTOR)), **fields),
    ]
    for agent in agents:
        agent.learn(16 * 3 * 4)
    same_weights(*agents)


@needs_compiler
@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_compiled_code_finds_what_autograd_does(name: str) -> None:
    """By the same way as an environment that stacks itself the bits are the same, and close to those of plain kernels."""
    compiled = make(name, lambda: RandomEnv(VECTOR), frame_stack=COUNT, compile="on")
    itself = make(name, lambda: StacksItself(RandomEnv(VECTOR)), compile="on")
    ordinary = make(name, lambda: RandomEnv(VECTOR), frame_stack=COUNT)
    for agent in (compiled, itself, ordinary):
        agent.learn(16 * 3 * 4)
    assert compiled.stepper.way == "compiled"
    assert compiled.computation.actor.runs_program
    same_weights(compiled, itself)
    same_weights(compiled, ordinary, within=1e-5)
