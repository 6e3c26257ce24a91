"""Frame stacking: what is seen is what gymnasium's own stacking gives, stored once, in every algorithm and way to compute."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
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
from phasegrad.data.minibatches import Batch, everything, gather
from phasegrad.data.stacking import steps_since_start
from phasegrad.errors import ConfigError, DamagedError, EnvError, RunError
from phasegrad.models.encoders import ImageEncoder, flat_floats, flat_width
from phasegrad.models.images import is_image
from phasegrad.models.stacking import Stacking
from phasegrad.runs.directory import RunDirectory
from phasegrad.tree import named_leaves, tree_map

COUNT = 3
VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
PIXELS = spaces.Box(0, 255, (12, 12, 3), np.uint8)  # [H, W, C]
PLANES = spaces.Box(0, 255, (2, 9, 9), np.uint8)  # [C, H, W]
MIXED = spaces.Dict(
    {
        "choice": spaces.Discrete(3),
        "choices": spaces.MultiDiscrete([2, 3]),
        "bits": spaces.MultiBinary(2),
        "image": PIXELS,
        "planes": PLANES,
        "grid": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        "action_mask": spaces.MultiBinary(3),
    }
)
SPACES: dict[str, gym.Space] = {"vector": VECTOR, "image": PIXELS, "dict": MIXED}
SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 3, "num_steps": 16, "hidden_sizes": (8,), "compile": "off", "seed": 7, "torch_threads": 1,
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


SMALL_IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)  # three of them have more channels than pixels a side


@pytest.mark.parametrize(
    "space", [*(MIXED[name] for name in MIXED if name != "action_mask"), VECTOR, SMALL_IMAGE], ids=str
)
def test_a_stack_is_encoded_as_its_frames_one_after_another(space: gym.Space) -> None:
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
        places = order.argsort().view(steps, 3)
        trained.append(tree_map(lambda leaf, places=places: leaf[places], batch))
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


def trained_both_ways(name: str, space: gym.Space, iterations: int, **fields: Any) -> tuple[Algorithm, Algorithm]:
    """Agents of the same seed: one that stacks observations, and one whose environment does."""
    first = make(name, lambda: RandomEnv(space), frame_stack=COUNT, **fields)
    second = make(name, lambda: StacksItself(RandomEnv(space)), **fields)
    for agent in (first, second):
        agent.learn(iterations * SMALL["num_steps"] * SMALL["num_envs"])
        agent.close()
    return first, second


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_that_on_an_environment_that_stacks_itself(name: str) -> None:
    """But for last bits: a product may depend on how its operands lie in memory."""
    same_weights(*trained_both_ways(name, VECTOR, 5), within=1e-6)


@pytest.mark.parametrize("name", ["ppo", "ppg", "acer"])
def test_with_images_choices_bits_and_masks_too(name: str) -> None:
    same_weights(*trained_both_ways(name, MIXED, 3), within=1e-6)


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_and_with_a_memory(name: str) -> None:
    fields = {"memory": "gru", "memory_size": 4, "sequence_length": 8, "num_minibatches": 2}
    same_weights(*trained_both_ways(name, VECTOR, 4, **fields), within=1e-6)


@needs_compiler
def test_compiled_code_finds_what_autograd_does() -> None:
    """By the same way as an environment that stacks itself, and close to plain kernels."""
    fields = {"num_minibatches": 2, "aux_minibatches": 2}
    compiled, itself = trained_both_ways("ppg", VECTOR, 4, compile="on", **fields)
    ordinary = make("ppg", lambda: RandomEnv(VECTOR), frame_stack=COUNT, **fields)
    ordinary.learn(compiled.progress.step)
    assert isinstance(compiled, pg.PPG)
    assert compiled.stepper.way == compiled.auxiliary_stepper.way == "compiled"
    assert compiled.computation.actor.runs_program
    same_weights(compiled, itself, within=1e-6)
    same_weights(compiled, ordinary, within=1e-5)


# What it is for


class EchoesThePast(gym.Env):
    """Pays 1 for the bit that was observed a step ago: a single observation says nothing of it."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits = self.np_random.integers(2, size=17)
        self.at = 0
        return self.bits[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        paid = float(action == self.bits[max(0, self.at - 1)])
        self.at += 1
        return self.bits[self.at], paid, False, self.at == 16, {}


@pytest.mark.parametrize(("count", "low", "high"), [(1, 0.35, 0.7), (2, 0.98, 1.0)])
def test_what_one_frame_cannot_tell_two_can(count: int, low: float, high: float) -> None:
    fields = {"num_envs": 8, "num_steps": 32, "epochs": 4, "learning_rate": 0.01, "hidden_sizes": (16,), "seed": 1}
    agent = make("ppo", EchoesThePast, frame_stack=count, **fields)
    agent.learn(8_192)
    share = agent.evaluate(20, seed=5).return_mean / 16
    assert low <= share <= high


# Storage


@pytest.mark.parametrize("name", ["ppo", "ppg", "acer"])
def test_observations_are_stored_once(name: str) -> None:
    sizes, fields = {}, {"replay_capacity": 3 * 128 * 2} if name == "acer" else {}
    for count in (1, 8):
        agent = make(name, lambda: RandomEnv(PIXELS), num_steps=128, frame_stack=count, **fields)
        sizes[count] = agent.storage_bytes()
        stored = [tree for tree in agent.experience.storage().whole.tensors().values() if tree is not None]
        memories = [leaf.untyped_storage() for tree in stored for _, leaf in named_leaves(tree)]
        assert (
            sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())
            == agent.experience.storage_bytes()
        )
    assert sizes[1] < sizes[8] < 1.15 * sizes[1]


def test_statistics_are_those_of_single_observations() -> None:
    agent = make("ppo", lambda: RandomEnv(VECTOR), frame_stack=COUNT, normalize_observation=True)
    agent.begin_iteration()
    with agent.collected() as rollout:
        frames = rollout.observations.clone().flatten(0, 1)
    normalizer = agent.model.normalizer
    torch.testing.assert_close(normalizer.mean_0, frames.mean(0).repeat(COUNT))
    torch.testing.assert_close(normalizer.scale_0, 1 / frames.std(0, correction=0).repeat(COUNT))


# Checkpoints


@pytest.mark.parametrize(
    ("name", "space", "fields"),
    [
        ("ppo", MIXED, {}),
        ("ppo", VECTOR, {"memory": "lstm", "memory_size": 4, "sequence_length": 8, "num_minibatches": 2}),
        ("ppg", VECTOR, {"normalize_observation": True, "n_pi": 4}),
        ("acer", VECTOR, {}),
    ],
    ids=["ppo", "memory", "ppg", "acer"],
)
def test_a_killed_run_resumes_to_the_same_bits(
    name: str, space: gym.Space, fields: dict[str, Any], tmp_path: Path
) -> None:
    """The run directory as a kill after six iterations leaves it; PPG is within a phase then, and its buffer is saved."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 48 * EACH[name].get("updates_per_iteration", 1)

    def copy(row: dict[str, Any]) -> None:
        if row["step"] == 6 * steps:
            shutil.copytree(whole, killed)

    def factory() -> gym.Env:
        return RandomEnv(space)

    agent = make(name, factory, frame_stack=COUNT, run_dir=whole, checkpoint_every=steps, **fields)
    agent.learn(10 * steps, callback=copy)
    resumed = pg.load(killed, env=factory)
    assert resumed.progress.step == 5 * steps
    resumed.learn(10 * steps)
    same_weights(agent, resumed)
    assert agent.progress == resumed.progress


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_a_damaged_stack_is_refused(damage: str, tmp_path: Path) -> None:
    agent = make("ppo", "CartPole-v1", frame_stack=2, run_dir=tmp_path / "run").learn(96)
    agent.close()
    checkpoint = RunDirectory(tmp_path / "run").checkpoint()
    leg, state = checkpoint / "leg.safetensors", checkpoint / "state.json"
    tensors = safetensors.torch.load_file(leg)
    assert tensors["stack"].shape == (3, 8)
    before = hashlib.sha256(leg.read_bytes()).hexdigest()
    changed = {"missing": None, "short": tensors["stack"][:2], "other": tensors["stack"].double()}[damage]
    tensors = {name: tensor for name, tensor in (tensors | {"stack": changed}).items() if tensor is not None}
    safetensors.torch.save_file(tensors, leg)
    state.write_text(state.read_text().replace(before, hashlib.sha256(leg.read_bytes()).hexdigest()))
    with pytest.raises(DamagedError, match=r"does not hold the legs of 3 environments"):
        pg.load(checkpoint)


def test_two_processes_keep_alike_and_go_on_exactly(tmp_path: Path) -> None:
    fields = {
        "num_envs": 4, "num_steps": 32, "seed": 3, "frame_stack": 3, "n_pi": 4, "checkpoint_every": 128, "compile": "off",
        "e_pi": 1, "e_v": 1, "num_minibatches": 4, "aux_minibatches": 4, "normalize_observation": True,
    }  # fmt: skip
    team = work.Team(2, tmp_path)
    try:
        team.run(work.train, "ppg", "CartPole-v1", 1280, str(tmp_path / "stopped"), 6, fields)
        resumed = team.run(work.resume, str(tmp_path / "stopped"))
        whole = team.run(work.train, "ppg", "CartPole-v1", 1280, str(tmp_path / "whole"), 0, fields)
    finally:
        team.close()
    assert resumed[0]["digest"] == resumed[1]["digest"] == whole[0]["digest"] == whole[1]["digest"]


# Playing


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_predict_carries_what_evaluation_does(memory: str) -> None:
    """Step by step from single observations, one environment and three at once, over the ends of episodes."""
    agent = make("ppo", lambda: RandomEnv(MIXED), frame_stack=COUNT, memory=memory, memory_size=4)
    player = agent.agent
    seeds = [4, 5, 6]
    environments = [RandomEnv(MIXED) for _ in seeds]
    stackers = [StacksItself(RandomEnv(MIXED)) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(environments, seeds, strict=True)]
    stacked = [env.reset(seed=seed)[0] for env, seed in zip(stackers, seeds, strict=True)]
    state: Any = None
    alone: Any = None
    states = player.fresh_states(3)
    starts = np.ones(3, bool)
    for _ in range(25):
        batch = {name: np.stack([each[name] for each in observations]) for name in MIXED}
        wanted = {name: np.stack([each[name] for each in stacked]) for name in MIXED if name != "action_mask"}
        values = agent.value(batch, state, starts)
        actions, state = agent.predict(batch, state, starts)
        first, alone = agent.predict(observations[0], alone, starts[0])
        if states is not None:
            states[torch.from_numpy(starts)] = 0.0
        np.testing.assert_allclose(values, player.values(wanted, states), rtol=1e-5)
        expected, states = player.act(wanted, batch["action_mask"].astype(bool), None, states)
        np.testing.assert_array_equal(actions, expected)
        assert first == expected[0]
        for n, action in enumerate(actions.tolist()):
            observations[n], _, terminated, truncated, _ = environments[n].step(action)
            stacked[n] = stackers[n].step(action)[0]
            starts[n] = terminated or truncated
            if starts[n]:
                observations[n], stacked[n] = environments[n].reset()[0], stackers[n].reset()[0]


def test_evaluation_acts_on_the_stacks_of_its_own_episodes() -> None:
    mine, theirs = trained_both_ways("ppo", VECTOR, 3, policy_gain=1.0)
    for deterministic in (True, False):
        found, wanted = (agent.evaluate(40, seed=3, deterministic=deterministic) for agent in (mine, theirs))
        assert found.returns == wanted.returns
        assert found.lengths == wanted.lengths


def test_a_state_that_does_not_fit_is_refused() -> None:
    agent = make("ppo", lambda: RandomEnv(VECTOR), frame_stack=COUNT)
    observation = np.zeros(2, np.float32)
    _, state = agent.predict(observation)
    with pytest.raises(EnvError, match=r"do not fit 2 observations of Box.*None at the start\.$"):
        agent.predict(np.zeros((2, 2), np.float32), state)
    with pytest.raises(EnvError, match=r"^The state is not what predict returned: give that, or None at the start\.$"):
        agent.predict(observation, np.zeros(6))


def test_an_export_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    agent = make("ppo", "CartPole-v1", frame_stack=2)
    with pytest.raises(RunError, match=r"^An agent with a frame_stack cannot be exported to ONNX yet: .*\.$"):
        pg.export_onnx(agent, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


# Settings


@pytest.mark.parametrize("value", [0, 65, -1])
def test_a_count_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^frame_stack must be from 1 to 64, not {value}\.$"):
        make("ppo", "CartPole-v1", frame_stack=value)
    with pytest.raises(ConfigError, match=r"^frame_stack must be a whole number"):
        make("ppo", "CartPole-v1", frame_stack="many")


def test_it_cannot_change_once_the_agent_exists() -> None:
    agent = make("ppo", "CartPole-v1", frame_stack=2)
    with pytest.raises(ConfigError, match=r"^frame_stack is 2 and cannot become 3 once the agent exists"):
        agent.config.frame_stack = 3


def test_any_backend(tmp_path: Path) -> None:
    for backend in ("envpool", "gymnasium"):
        agent = make("ppo", "CartPole-v1", frame_stack=2, backend=backend).learn(96)
        assert agent.evaluate(2, seed=1).lengths
        agent.close()


def test_a_single_number_is_normalised_in_every_frame() -> None:
    agent = pg.PPO(
        "MountainCarContinuous-v0", preset="none", frame_stack=3, normalize_observation=True, num_envs=2, num_steps=8,
        num_minibatches=2, eval_episodes=0, env_options={}, seed=1,
    )  # fmt: skip
    agent.learn(32)
    lone = pg.PPO(
        lambda: gym.wrappers.TransformObservation(
            gym.make("MountainCarContinuous-v0"), lambda seen: seen[:1], gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
        ),
        preset="none", frame_stack=3, normalize_observation=True, num_envs=2, num_steps=8, num_minibatches=2,
        eval_episodes=0, seed=1,
    )  # fmt: skip
    lone.learn(32)
    for trained, size in ((agent, 2), (lone, 1)):
        mean = trained.model.normalizer.mean_0
        assert mean.shape == (3 * size,)
        assert torch.equal(mean, mean[:size].repeat(3))
        assert bool(mean.any())
