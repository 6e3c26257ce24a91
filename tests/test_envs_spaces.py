"""Spaces, seeds, ids and the sentences users get."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from counting_envs import CountingEnv, CrashingEnv, EchoEnv
from gymnasium import spaces
from machine import needs_procgen

from phasegrad.envs import check, env_seeds, flatten, flatten_observation, list_envs, make, resolve
from phasegrad.envs.seeding import env_seeds as seeds_of
from phasegrad.errors import ConfigError, EnvError

BOX = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
PIXELS = spaces.Box(0, 255, (4, 4, 3), np.uint8)


# ---- spaces


@pytest.mark.parametrize(
    "space", [BOX, PIXELS, spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(5)]
)
def test_plain_spaces_stay_as_they_are(space: gym.Space) -> None:
    assert flatten(space) == space
    assert flatten(space).dtype == space.dtype


def test_nested_spaces_become_one_dict_with_dotted_names() -> None:
    inner = spaces.Tuple((spaces.Discrete(3, start=7), spaces.Box(-1e300, 1e300, (2,), np.float64)))
    space = spaces.Dict({"a": spaces.Dict({"b": PIXELS, "c": inner}), "d": spaces.MultiDiscrete([[2, 3], [4, 5]])})
    flat = flatten(space)
    assert isinstance(flat, spaces.Dict)
    assert set(flat.spaces) == {"a.b", "a.c.0", "a.c.1", "d"}
    assert flat["a.b"] == PIXELS
    assert flat["a.c.0"] == spaces.Discrete(3)
    assert flat["d"] == spaces.MultiDiscrete([2, 3, 4, 5])
    assert flat["a.c.1"] == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    pixels = np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3)
    batch = {
        "a": {"b": pixels, "c": (np.array([7, 9]), np.array([[1.0, 2.0], [3.0, 4.0]]))},
        "d": np.ones((2, 2, 2), int),
    }
    result = flatten_observation(batch, space)
    assert isinstance(result, dict)
    assert result["a.b"] is pixels  # nothing to change, nothing copied
    assert result["a.c.0"].tolist() == [0, 2]
    assert result["a.c.1"].dtype == np.float32
    assert result["a.c.1"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert result["d"].shape == (2, 4)
    by_name = flatten_observation({**batch, "action_mask": np.ones(2)})
    assert isinstance(by_name, dict)
    assert set(by_name) == set(result)
    assert by_name["a.c.0"].tolist() == [7, 9]
    assert flatten_observation(pixels) is pixels


def test_the_mask_is_no_part_of_the_observation() -> None:
    space = spaces.Dict({"board": BOX, "action_mask": spaces.MultiBinary(4)})
    assert flatten(space) == spaces.Dict({"board": BOX})


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Text(5), "The observation space is Text"),
        (spaces.Dict({"x": BOX, "y": spaces.Text(5)}), "The entry 'y' of the observation space is Text"),
        (spaces.Tuple((BOX, spaces.Sequence(BOX))), "The entry '1' of the observation space is Sequence"),
        (spaces.Dict({"g": spaces.Dict({"h": spaces.Graph(BOX, None)})}), "The entry 'g.h'"),
        (spaces.OneOf((BOX, spaces.Discrete(2))), "The observation space is OneOf"),
    ],
)
def test_unsupported_observations_are_named(space: gym.Space, named: str) -> None:
    with pytest.raises(EnvError, match=f"{named}.*which is not supported, since .*; Box, Discrete, MultiDiscrete"):
        flatten(space)


ACTION_SPACES = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=5),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiDiscrete([2, 3], start=[4, -1]),
    spaces.MultiBinary(4),
    spaces.Box(-2.0, 2.0, (3,), np.float32),
    spaces.Box(-2.0, 2.0, (2, 2), np.float64),
]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_actions_arrive_in_the_environments_own_numbers(space: gym.Space, vectorization: str) -> None:
    # EchoEnv refuses whatever its space does not contain and rewards the sum of what it was given.
    env = make(lambda: EchoEnv(space), num_envs=2, seeds=[0, 1], vectorization=vectorization)
    env.reset()
    shape = env.action_space.shape or ()
    actions = np.ones((2, *shape), env.action_space.dtype)
    offset = float(np.sum(getattr(space, "start", 0)))
    assert env.step(actions).reward.tolist() == [float(actions[0].sum()) + offset] * 2
    env.close()


@pytest.mark.parametrize(
    "space",
    [
        BOX, PIXELS, spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(5, start=3), spaces.MultiBinary([2, 2]),
        spaces.MultiDiscrete([3, 4]), spaces.Tuple((BOX, spaces.Dict({"x": PIXELS, "y": spaces.Discrete(2, start=1)}))),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_every_supported_observation_passes_the_check(space: gym.Space, vectorization: str) -> None:
    report = check(lambda: EchoEnv(spaces.Discrete(2), space), 12, vectorization=vectorization)
    assert report.episodes == 8
    assert report.observation_space == flatten(space)


def test_unsupported_actions_are_named() -> None:
    with pytest.raises(EnvError, match=r"The action space Text.* is not supported; Discrete, MultiDiscrete"):
        make(lambda: EchoEnv(spaces.Text(3)), num_envs=1, seeds=[0])
    with pytest.raises(EnvError, match=r"The part '1' of the action space, Text.* is not supported; Discrete"):
        make(lambda: EchoEnv(spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))), num_envs=1, seeds=[0])


def test_actions_of_the_wrong_shape_are_refused() -> None:
    env = make(CountingEnv, num_envs=2, seeds=[0, 1])
    env.reset()
    with pytest.raises(EnvError, match=r"actions have shape \(3,\), but 2 environments"):
        env.step(np.zeros(3, int))


class _Shape(CountingEnv):
    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return (observation[:2] if self.seed_row == 1 else observation), info


class _Dtype(EchoEnv):
    def __init__(self) -> None:
        super().__init__(spaces.Discrete(2), PIXELS)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return observation / 255.0, info


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (_Shape, r"Environment 1 returned an observation of shape \(2,\), but its space .* promises \(3,\)"),
        (_Dtype, "returned an observation of dtype float64, but its space .* promises uint8"),
        (CrashingEnv, r"Environment 2 \(seed 2\) raised ZeroDivisionError on step 2: the cart fell off the table"),
    ],
)
def test_a_misbehaving_environment_is_named(factory: Any, sentence: str, vectorization: str) -> None:
    def run() -> None:
        env = make(factory, num_envs=3, seeds=[0, 1, 2], vectorization=vectorization)
        env.reset()
        for _ in range(3):
            env.step(np.zeros(3, int))

    with pytest.raises(EnvError, match=sentence) as caught:
        run()
    if factory is CrashingEnv and vectorization == "sync":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


class _MaskEnv(EchoEnv):
    def __init__(self, mask: list[int], mask_space: gym.Space | None = None) -> None:
        masked = spaces.Dict({"x": BOX, "action_mask": mask_space or spaces.MultiBinary(len(mask))})
        super().__init__(spaces.MultiDiscrete([2, 3]), masked)
        self.mask = np.array(mask, np.int8)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return {**observation, "action_mask": self.mask}, info


def test_masks_of_several_choices_are_one_row() -> None:
    _, mask = make(lambda: _MaskEnv([1, 0, 0, 1, 1]), num_envs=2, seeds=[0, 1]).reset()
    assert mask is not None
    assert mask.tolist() == [[True, False, False, True, True]] * 2


def test_a_mask_that_allows_nothing_is_refused() -> None:
    env = make(lambda: _MaskEnv([1, 1, 0, 0, 0]), num_envs=2, seeds=[0, 1])
    with pytest.raises(EnvError, match="mask of environment 0 allows no action"):
        env.reset()


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(EnvError, match=r"action_mask has shape \(4,\), but the action space .* needs 5 entries"):
        make(lambda: _MaskEnv([1, 1, 1, 1]), num_envs=1, seeds=[0])


# ---- seeds


def test_seeds_depend_on_the_index_alone_and_never_meet() -> None:
    assert env_seeds(1, 0, 8) == env_seeds(1, 0, 3) + env_seeds(1, 0, 5, first_index=3)
    assert seeds_of is env_seeds
    streams = [
        env_seeds(seed, leg, 64, purpose=purpose)
        for seed in (0, 1, 2, 3) for leg in (0, 1) for purpose in ("train", "eval", "video")
    ]  # fmt: skip
    everything = [seed for stream in streams for seed in stream]
    assert len(set(everything)) == len(everything)
    assert all(0 <= seed < 2**31 for seed in everything)


def test_seeds_are_what_they_always_were() -> None:
    assert env_seeds(1, 0, 4) == [1641411168, 1454127163, 602120507, 909238497]


def test_an_unknown_purpose_of_seeds_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown purpose 'test'"):
        env_seeds(1, 0, 1, purpose="test")


# ---- ids and the sentences of `make`


@pytest.mark.parametrize(
    ("env_id", "options", "family", "backend", "name"),
    [
        ("CartPole-v1", {}, "classic", "envpool", "CartPole-v1"),
        ("LunarLander-v3", {}, "box2d", "envpool", "LunarLander-v3"),
        ("HalfCheetah-v4", {}, "mujoco", "envpool", "HalfCheetah-v4"),
        ("ALE/Breakout-v5", {}, "atari", "envpool", "Breakout-v5"),
        ("procgen/coinrun", {}, "procgen", "envpool", "CoinrunEasy-v0"),
        ("procgen/CoinRun", {"distribution": "hard"}, "procgen", "envpool", "CoinrunHard-v0"),
        ("BigfishHard-v0", {}, "procgen", "envpool", "BigfishHard-v0"),
        ("MiniGrid-Empty-5x5-v0", {}, "minigrid", "gymnasium", "MiniGrid-Empty-5x5-v0"),
        ("Taxi-v4", {}, "other", "gymnasium", "Taxi-v4"),
        ("gymnasium:CartPole-v1", {}, "classic", "gymnasium", "CartPole-v1"),
    ],
)
def test_ids_find_their_family_and_backend(env_id: str, options: dict, family: str, backend: str, name: str) -> None:
    spec = resolve(env_id, options)
    assert (spec.family, spec.backend, spec.id) == (family, backend, name)


def test_defaults_of_families() -> None:
    assert resolve("procgen/maze", {"num_levels": 5}).kwargs == {"channel_first": False, "num_levels": 5}
    training, evaluation = resolve("Pong-v5").kwargs, resolve("Pong-v5", evaluation=True).kwargs
    assert (training["episodic_life"], training["reward_clip"]) == (True, True)
    assert (evaluation["episodic_life"], evaluation["reward_clip"]) == (False, False)
    assert resolve("Pong-v5", {"stack_num": 2}).kwargs["stack_num"] == 2
    assert resolve("HalfCheetah-v5", render=True).backend == "gymnasium"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "error", "sentence"),
    [
        ("CartPol-v1", {}, EnvError, r"Unknown environment 'CartPol-v1'. Did you mean CartPole-v1.*`phasegrad envs`"),
        ("CartPol-v1", {"backend": "envpool"}, EnvError, "envpool has no environment 'CartPol-v1'. Did you mean"),
        ("Snake-v1", {"backend": "gymnasium"}, EnvError, "gymnasium has no environment 'Snake-v1'"),
        ("procgen/coinrunn", {}, EnvError, "Unknown environment 'procgen/coinrunn'. Did you mean procgen/coinrun"),
        ("procgen/coinrun", {"backend": "gymnasium"}, EnvError, "runs on envpool only"),
        (
            "procgen/coinrun",
            {"options": {"num_level": 1}},
            ConfigError,
            "no option 'num_level'. Did you mean num_levels",
        ),
        ("procgen/coinrun", {"options": {"num_levels": -1}}, ConfigError, "num_levels must be an integer of 0 or more"),
        ("procgen/bigfish", {"options": {"distribution": "memory"}}, ConfigError, "'memory'; it has easy, hard"),
        ("CoinrunEasy-v0", {"options": {"distribution": "hard"}}, ConfigError, "is easy already"),
        ("CartPole-v1", {"options": {"max_episode_step": 1}}, ConfigError, "'max_episode_step'. Did you mean max_ep"),
        ("CartPole-v1", {"options": {"seed": 1}}, ConfigError, "'seed' of CartPole-v1 is set by phasegrad"),
        (
            "CartPole-v1",
            {"backend": "gymnasium", "options": {"gravity": 1}},
            ConfigError,
            "gymnasium's CartPole-v1 has no option 'gravity'",
        ),
        ("HalfCheetah-v4", {"render": True, "backend": "envpool"}, EnvError, "render it with backend='gymnasium'"),
        ("nowhere:Env-v0", {}, EnvError, "needs the module nowhere, which cannot be imported"),
        ("CartPole-v1", {"backend": "jax"}, ConfigError, "Unknown backend 'jax'"),
        ("CartPole-v1", {"vectorization": "both"}, ConfigError, "Unknown vectorization 'both'"),
        ("CartPole-v1", {"seeds": [1]}, ConfigError, "2 environments need as many seeds, got 1"),
        ("CartPole-v1", {"num_threads": 0}, ConfigError, "num_threads must be 1 or more"),
        (CountingEnv(), {}, EnvError, "such as `lambda: CountingEnv\\(\\)`, not an environment"),
        (lambda: 3, {}, EnvError, "must return a gymnasium.Env, but returned int"),
        (lambda: 1 / 0, {}, EnvError, r"Making environment 0 \(seed \d+\) raised ZeroDivisionError"),
        (3, {}, EnvError, "not a int"),
        (CountingEnv, {"backend": "envpool"}, ConfigError, "from ids only"),
    ],
)
def test_each_mistake_gets_its_sentence(env_id: Any, kwargs: dict, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make(env_id, **{"num_envs": 2, "seeds": [1, 2], **kwargs})


def test_a_factory_that_returns_one_environment_twice_is_refused() -> None:
    single = CountingEnv()
    with pytest.raises(EnvError, match="returned the same environment twice"):
        make(lambda: single, num_envs=2, seeds=[1, 2])


@pytest.mark.parametrize(
    ("package", "cached", "env_id", "extra"),
    [
        ("minigrid", "minigrid", "MiniGrid-Empty-5x5-v0", "minigrid"),
        ("Box2D", "gymnasium.envs.box2d", "LunarLander-v3", "box2d"),
        ("mujoco", "gymnasium.envs.mujoco", "Hopper-v5", "mujoco"),
    ],
)
def test_a_missing_extra_is_named(
    package: str, cached: str, env_id: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(cached)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # what import finds where a package is not installed
    with pytest.raises(EnvError, match=rf'pip install "phasegrad\[{extra}\]"'):
        make(env_id, num_envs=1, seeds=[0], backend="gymnasium")


def test_without_envpool_gymnasium_serves_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "envpool"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert make("CartPole-v1", num_envs=1, seeds=[0]).backend == "gymnasium"
    with pytest.raises(EnvError, match="procgen/coinrun needs envpool, which cannot be imported"):
        make("procgen/coinrun", num_envs=1, seeds=[0])


def test_list_envs_names_every_family() -> None:
    listed = list_envs()
    assert {"classic", "box2d", "mujoco", "atari", "minigrid", "dm_control", "myosuite"} <= set(listed)
    assert "CartPole-v1" in listed["classic"]
    assert "MiniGrid-Empty-5x5-v0" in listed["minigrid"]


@needs_procgen
def test_list_envs_names_the_games_of_procgen() -> None:
    games = list_envs()["procgen"]
    assert len(games) == 16
    assert "procgen/coinrun" in games


def test_importing_the_package_imports_no_family() -> None:
    code = "import sys, phasegrad.envs; print(sorted({'envpool', 'torch', 'minigrid', 'mujoco'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
