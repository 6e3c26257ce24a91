"""What environments answer wrongly, in training and to the check: each mistake gets one sentence of its own."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import phasegrad as pg
from phasegrad.envs import check, make
from phasegrad.errors import EnvError

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "epochs": 1, "preset": "none"}


class Honest(gym.Env):
    """Six steps an episode; the observation follows the seed and the actions."""

    def __init__(self) -> None:
        self.observation_space: gym.Space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: gym.Space = spaces.Discrete(2)
        self.steps = 0

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 0.5, self.steps == 6, False, {}


def changed(**methods: Callable[..., Any]) -> type[Honest]:
    """An honest environment with other answers: each method gets the honest answer and returns its own."""

    class Changed(Honest):
        def reset(self, **kwargs: Any) -> Any:
            return methods.get("reset", lambda env, answer: answer)(self, super().reset(**kwargs))

        def step(self, action: Any) -> Any:
            return methods.get("step", lambda env, answer: answer)(self, super().step(action))

    return Changed


def late(change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """From the third step of an episode on."""
    return lambda env, answer: change(answer) if env.steps >= 3 else answer


class Unseeded(Honest):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoSpaces(Honest):
    def __init__(self) -> None:
        super().__init__()
        del self.observation_space


class NoActions(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = None  # type: ignore[assignment]


class ForeignSpace(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = types.SimpleNamespace(n=2)  # type: ignore[assignment]


class OldGym:
    """Of the package gym: no gymnasium.Env at all."""

    def step(self, action: Any) -> Any: ...


SHIMMY = r"shimmy's GymV21CompatibilityV0\(env=\.\.\.\)"
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "only an observation": (
        changed(reset=lambda env, answer: answer[0]),  # of two numbers, which unpacks into two values
        f"The reset of environment 0 returned only an observation, as in the old Gym interface.*{SHIMMY}",
    ),
    "reset without seed": (
        Unseeded,
        f"The reset of environment 0 takes no seed, as in the old Gym interface.*{SHIMMY}",
    ),
    "reset info": (
        changed(reset=lambda env, answer: (answer[0], None)),
        "The reset of environment 0 returned None for its info",
    ),
    "four values": (
        changed(step=late(lambda answer: (*answer[:3], {}))),
        f"The step of environment 0 returned 4 values on step 3, as in the old Gym interface.*{SHIMMY}",
    ),
    "three values": (
        changed(step=late(lambda answer: answer[:3])),
        "The step of environment 0 returned 3 values on step 3",
    ),
    "one value": (changed(step=late(lambda answer: None)), "The step of environment 0 returned nothing on step 3"),
    "step info": (
        changed(step=late(lambda answer: (*answer[:4], None))),
        "The step of environment 0 returned None for its info on step 3: return a dict",
    ),
    "two rewards": (
        changed(step=late(lambda answer: (answer[0], np.zeros(2), *answer[2:]))),
        r"Environment 0 gave the reward array\(\[0., 0.\]\) on step 3: it must be one number",
    ),
    "no reward": (
        changed(step=late(lambda answer: (answer[0], None, *answer[2:]))),
        "Environment 0 gave the reward None on step 3: it must be one number",
    ),
    "two flags": (
        changed(step=late(lambda answer: (*answer[:2], np.zeros(2, bool), False, {}))),
        r"Environment 0 returned array\(\[False, False\]\) for terminated on step 3: it must be True or False",
    ),
    "another shape": (
        changed(step=late(lambda answer: (np.zeros(3, np.float32), *answer[1:]))),
        r"Environment 0 returned an observation of shape \(3,\), but its space .* promises \(2,\)",
    ),
    "no observation space": (NoSpaces, "NoSpaces has no observation_space: set it, .* to a space of gymnasium.spaces"),
    "no action space": (NoActions, "NoActions has no action_space: set it"),
    "a foreign space": (ForeignSpace, "The action_space of ForeignSpace is a SimpleNamespace, which is no space of"),
    "old gym": (OldGym, f"The environment factory returned a OldGym, an environment of the old package gym.*{SHIMMY}"),
}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("name", MISTAKES)
def test_each_wrong_answer_gets_its_sentence_in_training_and_from_the_check(name: str, vectorization: str) -> None:
    factory, sentence = MISTAKES[name]
    if vectorization == "async":  # which of the workers answers first is chance
        sentence = sentence.replace("nvironment 0", r"nvironment \d")
    with pytest.raises(EnvError, match=sentence):
        pg.PPO(factory, vectorization=vectorization, **SMALL).learn(64)
    with pytest.raises(EnvError, match=sentence):
        check(factory, 20, vectorization=vectorization)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("reward", [np.array([0.25]), np.array(0.25), np.float32(0.25), np.array([[0.25]]), True, 1])
def test_a_reward_of_one_number_is_taken_in_any_form(reward: Any, vectorization: str) -> None:
    factory = changed(step=lambda env, answer: (answer[0], reward, *answer[2:]))
    env = make(factory, num_envs=2, seeds=[0, 1], vectorization=vectorization)
    env.reset()
    assert env.step(np.zeros(2, int)).reward.tolist() == [float(np.asarray(reward).item())] * 2
    env.close()


class InfoMasks(Honest):
    """Its mask has one entry more from the third step on."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": np.ones(2 + (self.steps >= 3))}

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {"action_mask": np.ones(2)}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_mask_that_changes_its_size_gets_a_sentence(vectorization: str) -> None:
    said = r"Environment \d gave an action_mask of shape \(3,\), but its action space Discrete\(2\) needs 2 entries"
    with pytest.raises(EnvError, match=said):
        pg.PPO(InfoMasks, vectorization=vectorization, **SMALL).learn(64)


def test_one_environment_in_two_wrappers_is_refused() -> None:
    single = Honest()
    with pytest.raises(EnvError, match="returned the same environment twice"):
        make(lambda: gym.Wrapper(single), num_envs=2, seeds=[1, 2])


# ---- vector environments


class OneVector(gym.vector.VectorEnv):
    """Two environments that never end; `answer` changes what a step returns."""

    def __init__(self, answer: Callable[[Any], Any] = lambda answer: answer, info: Any = None) -> None:
        self.num_envs, self.answer, self.info = 2, answer, {} if info is None else info
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros((2, 2), np.float32), self.info

    def step(self, actions: Any) -> Any:
        no = np.zeros(2, bool)
        return self.answer((np.zeros((2, 2), np.float32), np.zeros(2), no, no, {}))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (lambda: OneVector(info=[]), "reset of the vector environment must return"),
        (lambda: OneVector(lambda answer: answer[:4]), "not 4 values on step 1"),
        (
            lambda: OneVector(lambda answer: (answer[0], np.zeros((2, 2)), *answer[2:])),
            r"rewards of float64 \(2, 2\) on",
        ),
        (lambda: OneVector(lambda answer: (*answer[:4], None)), "with a dict for info"),
    ],
)
def test_each_wrong_answer_of_a_vector_environment_gets_its_sentence(source: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        make(source(), num_envs=2, seeds=[0, 1])


def test_a_vector_environment_without_a_space_is_refused() -> None:
    source = OneVector()
    del source.single_action_space
    with pytest.raises(EnvError, match="OneVector has no single_action_space"):
        make(source, num_envs=2, seeds=[0, 1])


def test_what_a_vector_environment_returns_may_change_later() -> None:
    memory = (np.zeros((2, 2), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool))
    env = make(OneVector(lambda answer: (*memory, {})), num_envs=2, seeds=[0, 1])
    env.reset()
    step = env.step(np.zeros(2, int))
    for array in memory:
        array[...] = 7
    assert np.all(step.observation == 0)
    assert step.reward.tolist() == [1, 1]
    assert not step.terminated.any()
    assert not step.truncated.any()


# ---- what only the check looks at


class Shown(Honest):
    """Shows `wrong` from the third step of an episode on, and else what is in the space."""

    def __init__(self, space: gym.Space, wrong: Any) -> None:
        super().__init__()
        self.observation_space, self.wrong = space, wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        return self.wrong if self.steps >= 3 else self.observation_space.sample()


@pytest.mark.parametrize(
    ("space", "wrong", "sentence"),
    [
        (
            spaces.Box(-1, 1, (2,), np.float32), np.array([0, 1.5], np.float32),
            r"The observation of environment 0 holds 1.5 on step 3, but its Box has at most 1.0 there: widen the Box, or",
        ),
        (spaces.Box(-1, 1, (2,), np.float64), np.array([-1.1, 0]), "holds -1.1.* on step 3, but its Box has at least -1.0"),
        (spaces.Box(0, 9, (2,), np.int64), np.array([0, 10]), "holds 10 on step 3, but its Box has at most 9"),
        (spaces.Box(0, 100, (2,), np.uint8), np.array([101, 0], np.uint8), "holds 101 on step 3, but its Box has at most"),
        (spaces.Box(-1, 1, (), np.float32), np.float32(2), "holds 2.0 on step 3"),
        (spaces.MultiDiscrete([3, 4]), np.array([0, 4]), "Environment 0 returned an observation on step 3 that leaves"),
        (spaces.Discrete(3, start=1), 0, "Environment 0 returned an observation on step 3 that leaves its space"),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), "holds 2 on step 3, but its space MultiBinary.* has 0 and 1"),
        (
            spaces.Dict({"a": spaces.MultiBinary(2)}), {"a": np.array([-1, 0], np.int8)},
            "The observation entry 'a' of environment 0 holds -1 on step 3",
        ),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_check_finds_observations_outside_their_space(space: gym.Space, wrong: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        check(lambda: Shown(space, wrong), 20)


def test_check_forgives_rounding() -> None:
    slightly = np.array([1.0000005, -1.0000005], np.float32)
    assert check(lambda: Shown(spaces.Box(-1, 1, (2,), np.float32), slightly), 20).episodes > 0


class Rewriting(Honest):
    """Writes each observation into the array that it returned before."""

    def __init__(self, nested: bool = False) -> None:
        super().__init__()
        self.memory, self.nested = np.zeros(2, np.float32), nested
        if nested:
            self.observation_space = spaces.Dict({"x": spaces.Tuple((self.observation_space,))})

    def observe(self) -> Any:
        self.memory[:] = super().observe()
        return {"x": (self.memory,)} if self.nested else self.memory


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("nested", [False, True])
def test_check_finds_an_array_that_is_written_again(nested: bool, vectorization: str) -> None:
    with pytest.raises(EnvError, match=r"changed an observation after it was returned.*return a copy"):
        check(Rewriting, 20, vectorization=vectorization, options={"nested": nested})
    pg.PPO(Rewriting, env_options={"nested": nested}, vectorization=vectorization, **SMALL).learn(32)  # it is harmless


def test_what_training_bears_of_an_id_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factory in (
        ("Rewriting", Rewriting),
        ("Wide", lambda: Shown(spaces.Box(-1, 1, (2,)), np.full(2, 2, np.float32))),
    ):
        monkeypatch.setitem(gym.registry, f"{name}-v0", gym.envs.registration.EnvSpec(f"{name}-v0", factory))
    with pytest.warns(UserWarning, match="changed an observation after it was returned"):
        check("Rewriting-v0", 20)
    with pytest.warns(UserWarning, match="but its Box has at most 1.0 there"):
        check("Wide-v0", 20)


# ---- ids of modules


def test_a_module_id_is_compared_with_its_own_ids_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crafting", types.ModuleType("crafting"))
    with pytest.raises(EnvError) as caught:
        make("crafting:CoinrunEsy-v0", num_envs=1, seeds=[0])
    assert str(caught.value).startswith(
        "The module crafting was imported, but registers no environment 'CoinrunEsy-v0'"
    )
    assert "Coinrun" not in str(caught.value).replace("CoinrunEsy", "")
    spec = gym.envs.registration.EnvSpec("CraftReward-v1", "crafting.env:Env")
    monkeypatch.setitem(gym.registry, "CraftReward-v1", spec)
    with pytest.raises(EnvError, match=r"no environment 'CraftRewrd-v1'. Did you mean CraftReward-v1\?"):
        make("crafting:CraftRewrd-v1", num_envs=1, seeds=[0])
    with pytest.raises(EnvError, match=r"no environment 'Zzz-v1'. It registers CraftReward-v1."):
        make("crafting:Zzz-v1", num_envs=1, seeds=[0])


@pytest.mark.parametrize("module", ["no_such_module", "", "raises_on_import"])
def test_a_module_that_cannot_be_imported_is_named(module: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvError, match=f"needs the module {module}, which cannot be imported .*install the package"):
        make(f"{module}:Id-v0", num_envs=1, seeds=[0])
