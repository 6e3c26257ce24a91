"""Environments that are no gymnasium environments, or one that is made already: what they are and how to bring them here."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dm_env
import foreign_envs
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.experimental.functional import FuncEnv

import phasegrad as pg
from phasegrad.envs import check, make
from phasegrad.errors import ConfigError, EnvError

SMALL: dict[str, Any] = {"num_steps": 16, "num_minibatches": 2, "epochs": 1, "eval_episodes": 0, "seed": 1}


class DmEnv(dm_env.Environment):
    """A real one of the package dm_env."""

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(np.zeros(2))

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(1.0, np.zeros(2))

    def observation_spec(self) -> Any:
        return dm_env.specs.Array((2,), np.float32)

    def action_spec(self) -> Any:
        return dm_env.specs.DiscreteArray(2)


class Functional(FuncEnv):
    """A real functional environment of gymnasium."""


FOREIGN: dict[str, tuple[type, str]] = {
    "gym 0.26": (foreign_envs.GymV26Env, r"old package gym.*shimmy's GymV26CompatibilityV0\(env="),
    "gym 0.21": (foreign_envs.GymV21Env, r"old package gym.*shimmy's GymV21CompatibilityV0\(env="),
    "ParallelEnv": (
        foreign_envs.ParallelEnv,
        r"a PettingZoo environment \(ParallelEnv\), which has several agents: write",
    ),
    "AECEnv": (foreign_envs.AECEnv, r"a PettingZoo environment \(AECEnv\).*pettingzoo_env_to_vec_env_v1"),
    "VecEnv": (foreign_envs.DummyVecEnv, "a VecEnv of Stable-Baselines3.*makes one environment and num_envs=4"),
    "dm_env": (DmEnv, "a dm_env environment, whose steps are TimeSteps: wrap it by shimmy's DmControlCompatibilityV0"),
    "brax": (foreign_envs.BraxEnv, r"a functional environment of JAX \(Brax, gymnax"),
    "gymnax": (foreign_envs.GymnaxEnv, r"a functional environment of JAX \(Brax, gymnax"),
    "FuncEnv": (Functional, r"a functional environment of JAX \(Brax, gymnax"),
    "MultiAgentEnv": (foreign_envs.MultiAgentEnv, r"several agents \(MultiAgentEnv\)"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("given", ["class", "function", "instance", "check", "id"])
def test_what_it_is_and_how_to_wrap_it(kind: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, sentence = FOREIGN[kind]
    if kind == "MultiAgentEnv" and given == "instance":
        sentence = "made already is one environment"  # what every gymnasium.Env is told, before it is looked at
    monkeypatch.setitem(gym.registry, "Foreign-v0", gym.envs.registration.EnvSpec("Foreign-v0", entry_point=made))
    source = {"class": made, "function": lambda: made(), "instance": made(), "id": "Foreign-v0", "check": made}[given]
    with pytest.raises((EnvError, ConfigError), match=sentence) as raised:
        (check if given == "check" else pg.PPO)(source)
    assert "\n" not in str(raised.value)


def test_a_module_and_a_vector_env_in_a_function() -> None:
    with pytest.raises(EnvError, match="the module numpy, no environment: give its id"):
        pg.PPO(np)
    with pytest.raises(EnvError, match="returned a SyncVectorEnv: give a VectorEnv itself"):
        pg.PPO(lambda: gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))


def test_spaces_of_the_old_package() -> None:
    with pytest.raises(
        EnvError, match=r"a GymDiscrete, which is no space of gymnasium\.spaces, but of the old package gym"
    ):
        pg.PPO(foreign_envs.OldSpaces)


# One that is made already


def test_an_environment_that_is_made_already_trains_alone(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    agent = pg.PPO(env, num_envs=1, preset="none", **SMALL)
    assert agent.config.env == "custom:CartPoleEnv"
    agent.learn(64)
    assert len(agent.evaluate(3).returns) == 3
    agent.learn(128)  # the evaluation has borrowed it; training goes on where it was
    unborrowed = pg.PPO(gym.make("CartPole-v1"), num_envs=1, preset="none", **SMALL)
    unborrowed.learn(64)
    unborrowed.learn(128)
    assert torch.equal(agent.flat.data, unborrowed.flat.data)
    agent.save(tmp_path / "agent")
    again = pg.load(tmp_path / "agent", env=gym.make("CartPole-v1"))
    again.learn(192)
    unborrowed.learn(192)
    assert torch.equal(again.flat.data, unborrowed.flat.data)


def test_one_environment_is_not_several() -> None:
    fix = r'give a function that makes it, such as `lambda: gymnasium.make\("CartPole-v1"\)`.*or num_envs=1'
    for settings in ({}, {"num_envs": 4}):
        with pytest.raises(ConfigError, match=fix):
            pg.PPO(gym.make("CartPole-v1"), **settings)


def test_the_check_takes_one_that_is_made() -> None:
    assert check(gym.make("CartPole-v1"), 30).steps == 30


@pytest.mark.parametrize(
    ("arguments", "settings", "meant"),
    [
        (("MlpPolicy", "Acrobot-v1"), {}, r"PPO\('Acrobot-v1'\)"),
        (("CartPole-v1", "MlpPolicy"), {}, r"PPO\('CartPole-v1'\)"),
        (("MlpPolicy", gym.make("CartPole-v1")), {}, r"PPO\('CartPole-v1'\)"),
        (("MlpPolicy",), {"env": "CartPole-v1"}, r"PPO\('CartPole-v1'\)"),
        (("CartPole-v1",), {"policy": "MlpPolicy"}, r"PPO\('CartPole-v1'\)"),
        (("MlpPolicy", foreign_envs.OldSpaces), {}, r"PPO\(OldSpaces\)"),
        (("MlpPolicy", foreign_envs.OldSpaces()), {}, r"PPO\(lambda: OldSpaces\(\)\)"),
    ],
)
def test_a_policy_name_first(arguments: Any, settings: dict[str, Any], meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"takes the environment first and no policy name.*{meant}"):
        pg.PPO(*arguments, **settings)


# Spaces of derived classes, and answers that are nearly right


class MyBox(spaces.Box): ...


class MyDiscrete(spaces.Discrete): ...


class MyMultiDiscrete(spaces.MultiDiscrete): ...


class MyMultiBinary(spaces.MultiBinary): ...


class MyDict(spaces.Dict): ...


class MyTuple(spaces.Tuple): ...


class Answering(gym.Env):
    """Episodes of five steps whose observations are drawn from the space and then changed."""

    def __init__(
        self,
        observation: gym.Space,
        action: gym.Space,
        change: Callable[[Any], Any] = lambda found: found,
        reward: Any = 1.0,
    ) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observation), copy.deepcopy(action)
        self.change, self.reward, self.steps = change, reward, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.change(self.observation_space.sample()), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.change(self.observation_space.sample()), self.reward, self.steps == 5, False, {}


DERIVED = {
    "Box": MyBox(-1, 1, (3,), np.float32),
    "Box of doubles": MyBox(-1, 1, (3,), np.float64),
    "image": MyBox(0, 255, (16, 16, 3), np.uint8),
    "Discrete": MyDiscrete(5, start=1),
    "MultiDiscrete": MyMultiDiscrete([2, 3]),
    "MultiBinary": MyMultiBinary(4),
    "MultiBinary of two axes": MyMultiBinary((2, 2)),
    "Dict": MyDict({"a": MyBox(-1, 1, (2,), np.float32), "b": MyDict({"c": MyDiscrete(3)})}),
    "Tuple": MyTuple((MyMultiBinary(2), MyBox(-1, 1, (2,), np.float32))),
}


@pytest.mark.parametrize("name", DERIVED)
def test_observations_of_derived_spaces_train_save_and_load(name: str, tmp_path: Path) -> None:
    env = lambda: Answering(DERIVED[name], spaces.Discrete(2))
    agent = pg.PPO(env, num_envs=2, preset="none", **SMALL)
    agent.learn(64)
    agent.save(tmp_path / "agent")
    again = pg.load(tmp_path / "agent", env=env)
    again.learn(96)
    agent.learn(96)
    assert torch.equal(again.flat.data, agent.flat.data)
    derived = (MyBox, MyDiscrete, MyMultiDiscrete, MyMultiBinary, MyDict, MyTuple)
    found = agent.agent.observation_space
    parts = [found, *(found.spaces.values() if isinstance(found, spaces.Dict) else [])]
    assert not any(isinstance(part, derived) for part in parts)


@pytest.mark.parametrize("name", ["Box", "Box of doubles", "Discrete", "MultiDiscrete", "MultiBinary"])
def test_actions_of_derived_spaces(name: str, tmp_path: Path) -> None:
    env = lambda: Answering(spaces.Box(-1, 1, (2,), np.float32), DERIVED[name])
    agent = pg.PPO(env, num_envs=2, preset="none", **SMALL)
    agent.learn(64)
    agent.save(tmp_path / "agent")
    assert pg.load(tmp_path / "agent").agent.action_space == agent.agent.action_space
    assert type(agent.agent.action_space) in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


BOX = spaces.Box(-1, 1, (3,), np.float32)
ONE = spaces.Box(-1, 1, (1,), np.float32)
NEARLY: dict[str, tuple[gym.Space, Callable[[Any], Any]]] = {
    "a list": (BOX, lambda found: found.tolist()),
    "doubles": (BOX, lambda found: found.astype(np.float64)),
    "half precision": (BOX, lambda found: found.astype(np.float16)),
    "a tensor": (BOX, torch.from_numpy),
    "a number for one": (ONE, lambda found: float(found[0])),
    "one in brackets": (spaces.Box(-1, 1, (), np.float32), lambda found: np.array([found])),
    "an int": (spaces.Discrete(4), int),
    "a choice in brackets": (spaces.Discrete(4), lambda found: np.array([found])),
    "a list of choices": (spaces.MultiDiscrete([2, 3]), lambda found: found.tolist()),
    "truth values": (spaces.MultiBinary(3), lambda found: found.astype(bool)),
    "a list for a tuple": (spaces.Tuple((BOX, spaces.Discrete(2))), list),
}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_observations_of_another_form_are_the_same(vectorization: str) -> None:
    names = list(NEARLY) if vectorization == "sync" else ["a list", "a number for one", "a choice in brackets"]
    for name in names:
        space, change = NEARLY[name]
        found = []
        for altered in (change, lambda answer: answer):
            env = make(
                lambda space=space, altered=altered: Answering(space, spaces.Discrete(2), altered),
                num_envs=2, seeds=[1, 2], vectorization=vectorization,
            )  # fmt: skip
            observations = [env.reset()[0], *(env.step(np.zeros(2, np.int64)).observation for _ in range(7))]
            found.append([list(o.values()) if isinstance(o, dict) else [o] for o in observations])
            env.close()
        tolerance = 1e-3 if name == "half precision" else 0.0
        for one, other in zip(*found, strict=True):
            for mine, theirs in zip(one, other, strict=True):
                assert mine.dtype == theirs.dtype
                np.testing.assert_allclose(mine, theirs, atol=tolerance, err_msg=name)


def test_a_reward_is_one_number_in_any_form() -> None:
    for reward in (
        1,
        True,
        np.float32(1),
        np.array(1.0),
        np.array([1.0]),
        [1.0],
        torch.tensor(1.0),
        torch.tensor([1.0]),
    ):
        env = make(lambda reward=reward: Answering(BOX, spaces.Discrete(2), reward=reward), num_envs=1, seeds=[1])
        env.reset()
        step = env.step(np.zeros(1, np.int64))
        assert step.reward.tolist() == [1.0], reward


def test_rows_of_unlike_length_get_a_sentence() -> None:
    with pytest.raises(EnvError, match="returned an observation that is no array of Box"):
        make(
            lambda: Answering(BOX, spaces.Discrete(2), lambda found: [[0.0], [0.0, 1.0]]), num_envs=1, seeds=[1]
        ).reset()


def test_modules_are_told_by_name_only() -> None:
    """A class called as one of another library is not taken for it where it is a gymnasium environment."""
    kind = types.new_class("AECEnv", (Answering,), {}, lambda body: body.update(possible_agents=["a"]))
    assert make(lambda: kind(BOX, spaces.Discrete(2)), num_envs=1, seeds=[1]).num_envs == 1


class TwoWalkers(foreign_envs.ParallelEnv):
    """A stand-in for a ParallelEnv of PettingZoo that can be played: each agent is paid for its own action."""

    def observation_space(self, agent: str) -> gym.Space:
        return BOX

    def action_space(self, agent: str) -> gym.Space:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return {agent: np.zeros(3, np.float32) for agent in self.possible_agents}, {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        seen = {agent: np.full(3, self.steps / 10, np.float32) for agent in actions}
        over = dict.fromkeys(actions, self.steps == 5)
        return (
            seen,
            {agent: float(action) for agent, action in actions.items()},
            over,
            dict.fromkeys(actions, False),
            {},
        )


def test_the_class_of_the_page_trains_all_agents_of_a_parallel_environment() -> None:
    page = (Path(__file__).parents[1] / "docs" / "own_environment.md").read_text()
    block = next(part for part in page.split("```python\n")[1:] if part.startswith("class SharedPolicy"))
    names: dict[str, Any] = {"gym": gym, "np": np}
    exec(block.split("```")[0], names)
    agent = pg.PPO(names["SharedPolicy"](TwoWalkers()), preset="none", **SMALL | {"learning_rate": 0.02, "epochs": 4})
    assert agent.config.num_envs == 2
    agent.learn(2048)
    assert agent.evaluate(4, deterministic=True).returns == [5.0] * 4
