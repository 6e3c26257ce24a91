"""What an agent is shown means the same everywhere: in training, in evaluation, to predict and value, in files."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import phasegrad as pg
from phasegrad.envs import check
from phasegrad.errors import ConfigError, EnvError
from phasegrad.models.encoders import VectorEncoder, build_encoder
from phasegrad.runs.spaces import space_from_json, space_to_json

SMALL: dict[str, Any] = {
    "num_envs": 2, "num_steps": 8, "num_minibatches": 1, "epochs": 1, "seed": 3, "preset": "none", "policy_gain": 1.0,
}  # fmt: skip
PIXELS = spaces.Box(0, 255, (8, 8, 3), np.uint8)

SPACES: dict[str, gym.Space] = {
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "float32": spaces.Box(-1, 1, (3,), np.float32),
    "float16": spaces.Box(-1, 1, (3,), np.float16),
    "int32": spaces.Box(-9, 9, (3,), np.int32),
    "int64": spaces.Box(-(2**60), 2**60, (2,), np.int64),
    "uint8 vector": spaces.Box(0, 255, (5,), np.uint8),
    "uint16": spaces.Box(0, 60_000, (5,), np.uint16),
    "uint64": spaces.Box(0, 2**62, (2,), np.uint64),
    "bool": spaces.Box(0, 1, (4,), np.bool_),
    "image": PIXELS,
    "image of 3 pixels": spaces.Box(0, 255, (3, 3, 3), np.uint8),
    "image of 1 pixel": spaces.Box(0, 255, (1, 1, 3), np.uint8),
    "narrow image": spaces.Box(0, 255, (8, 3, 8), np.uint8),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "integer scalar": spaces.Box(-5, 5, (), np.int64),
    "discrete": spaces.Discrete(4),
    "discrete from 1": spaces.Discrete(4, start=1),
    "discrete from -3": spaces.Discrete(4, start=-3, dtype=np.int32),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete uint8": spaces.MultiDiscrete([3, 4], dtype=np.uint8),
    "multi_discrete with starts": spaces.MultiDiscrete([3, 4], start=[2, -1]),
    "2-D multi_discrete": spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "2-D multi_discrete with starts": spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[1, 2], [3, -4]]),
    "multi_binary": spaces.MultiBinary(4),
    "multi_binary of a tuple": spaces.MultiBinary((4,)),
    "2-D multi_binary": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"b": spaces.Discrete(3, start=5), "a": spaces.Box(-1, 1, (), np.float64)}),
    "dotted keys": spaces.Dict({"kitchen.state": spaces.Box(-1, 1, (2,)), "kitchen": spaces.Discrete(3, start=1)}),
    "number keys": spaces.Dict({0: spaces.Box(-1, 1, (2,)), 1: spaces.Discrete(3, start=1)}),  # type: ignore[dict-item]
    "an empty entry": spaces.Dict({"none": spaces.Box(-1, 1, (0,)), "some": spaces.Box(-1, 1, (2,))}),
    "tuple": spaces.Tuple((spaces.MultiDiscrete([[2], [3]], start=[[1], [1]]), spaces.Box(-1, 1, (2,)))),
    "like a reset": spaces.Tuple((spaces.Discrete(4, start=1), spaces.Dict({"x": spaces.Box(-1, 1, (2,))}))),
    "nested": spaces.Dict(
        {
            "outer": spaces.Tuple(
                (spaces.Discrete(3, start=7), spaces.Dict({"in": spaces.MultiBinary(2), "pic": PIXELS}))
            ),
            "small": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "grid": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
        }
    ),
    "masked": spaces.Dict({"x": spaces.Discrete(5, start=1), "action_mask": spaces.MultiBinary(7)}),
}


class Showing(gym.Env):
    """Shows random elements of any space and notes what each action answered; ends every fifth step."""

    made: ClassVar[list[Showing]] = []

    def __init__(self, space: gym.Space, actions: gym.Space | None = None) -> None:
        self.observation_space, self.action_space = copy.deepcopy(space), actions or spaces.Discrete(7)
        self.acted: list[tuple[Any, Any]] = []
        self.steps = 0
        self.made.append(self)

    def draw(self) -> Any:
        self.shown = self.observation_space.sample()
        if isinstance(self.shown, dict) and "action_mask" in self.shown:
            self.shown["action_mask"] = (self.np_random.random(7) < 0.3).astype(np.int8)
            self.shown["action_mask"][self.np_random.integers(7)] = 1
        return copy.deepcopy(self.shown)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.acted.append((self.shown, action))
        self.steps += 1
        return self.draw(), float(np.sum(action)), self.steps % 5 == 0, False, {}


def stacked(rows: list[Any]) -> Any:
    """Single observations as a batch of the same structure."""
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stacked([row[index] for row in rows]) for index in range(len(rows[0])))
    return np.stack([np.asarray(row) for row in rows])


def trained(space: gym.Space, **fields: Any) -> Any:
    Showing.made.clear()
    agent = pg.PPO(lambda: Showing(space), **{**SMALL, **fields})
    return agent.learn(32)


def played(agent: Any) -> list[tuple[Any, Any]]:
    """(observation, action) pairs of an evaluation, as its environments saw them."""
    Showing.made.clear()
    agent.evaluate(episodes=6)
    return [pair for env in Showing.made for pair in env.acted]


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("name", SPACES)
def test_every_space_means_the_same_to_training_evaluation_predict_and_files(name: str, tmp_path: Path) -> None:
    space = SPACES[name]
    assert check(lambda: Showing(space), 12).episodes > 0  # whatever it passes must train
    agent = trained(space)
    pairs = played(agent)
    assert len(pairs) == 30
    actions = [int(action) for _, action in pairs]
    assert len(set(actions)) > 1, "an agent that always does the same shows nothing"
    batch = stacked([observation for observation, _ in pairs])
    assert agent.predict(batch)[0].tolist() == actions
    assert [int(agent.predict(observation)[0]) for observation, _ in pairs] == actions

    agent.close()
    Showing.made.clear()
    agent.experience.be_ready()
    for env in Showing.made:
        env.acted.clear()  # what was played back
    values = agent.collect(8).values
    for index, env in enumerate(Showing.made):
        seen = [observation for observation, _ in env.acted]
        np.testing.assert_allclose(agent.value(stacked(seen)), values[:, index], rtol=1e-4, atol=1e-5)
        assert float(agent.value(seen[3])) == pytest.approx(float(values[3, index]), rel=1e-4, abs=1e-5)

    agent.save(tmp_path / "agent")
    again = pg.load(tmp_path / "agent", env=lambda: Showing(space))
    assert again.predict(batch)[0].tolist() == actions
    again.learn(64)  # its spaces are still those of the environment


@pytest.mark.parametrize("name", ["discrete from 1", "2-D multi_discrete with starts", "scalar", "nested", "masked"])
def test_an_exported_policy_takes_observations_as_the_environment_gives_them(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    agent = trained(SPACES[name])
    pg.export_onnx(agent, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    pairs = played(agent)
    batch = stacked([observation for observation, _ in pairs])

    def entry(path: str) -> np.ndarray:
        found = batch
        for key in [] if path == "observation" else path.split("."):
            found = found[key] if isinstance(found, dict) else found[int(key)]
        return found

    feed = {i.name: entry(i.name) for i in session.get_inputs()}
    if "action_mask" in feed:
        feed["action_mask"] = feed["action_mask"].astype(bool)
    assert session.run(["action"], feed)[0].tolist() == [int(action) for _, action in pairs]


def test_an_agent_saved_before_there_was_an_original_space_still_loads(tmp_path: Path) -> None:
    agent = trained(SPACES["nested"])
    pairs = played(agent)
    agent.save(tmp_path / "agent")
    path = tmp_path / "agent" / "state.json"
    state = json.loads(path.read_text())
    del state["original_observation_space"]
    path.write_text(json.dumps(state))
    again = pg.load(tmp_path / "agent")
    flat = again.agent.observation_space
    assert flat == agent.agent.observation_space
    observation = agent.agent.observing.observation(stacked([pairs[0][0]]))
    assert again.predict(observation)[0].tolist() == [int(pairs[0][1])]
    nested = {"outer": (observation["outer.0"], {"in": observation["outer.1.in"], "pic": observation["outer.1.pic"]})}
    rest = {name: observation[name] for name in ("small", "grid")}
    assert again.predict({**nested, **rest})[0].tolist() == [int(pairs[0][1])]


@pytest.mark.parametrize("space", [*SPACES.values(), spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64)], ids=str)
def test_spaces_survive_a_file(space: gym.Space) -> None:
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    if "0" not in getattr(again, "spaces", {}) and space != spaces.MultiBinary((4,)):  # a file cannot tell 0 from "0"
        assert again == space
        assert again.dtype == space.dtype
    assert pg.envs.flatten(again) == pg.envs.flatten(space) if space != spaces.Box(0, 0, (0,)) else True


# ---- masks


def test_a_mask_inside_the_observation_is_kept_to() -> None:
    agent = trained(SPACES["masked"])
    pairs = played(agent)
    rows = [observation for observation, _ in pairs]
    batch = stacked(rows)
    allowed = batch["action_mask"].astype(bool)
    assert not allowed.all()
    for actions in (agent.predict(batch)[0], agent.predict(batch, deterministic=False)[0]):
        assert allowed[np.arange(len(rows)), actions].all()
    assert all(row["action_mask"][int(agent.predict(row)[0])] for row in rows)
    other = np.eye(7, dtype=bool)[4]  # one that is given counts before the one inside
    assert agent.predict(rows[0], mask=other)[0] == 4
    assert agent.predict({"x": rows[0]["x"]}, mask=other)[0] == 4
    with pytest.raises(EnvError, match=r"has no entry 'action_mask': give it, or the mask as predict\(..., mask=...\)"):
        agent.predict({"x": rows[0]["x"]})
    assert np.isfinite(agent.value({"x": rows[0]["x"]}))


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (np.ones(6, bool), r"The action mask has shape \(6,\), but one observation .* needs \(1, 7\)\."),
        (np.ones((2, 7), bool), r"The action mask has shape \(2, 7\), but one observation"),
        (np.zeros(7, bool), "The action mask of observation 0 allows no action at all"),
    ],
)
def test_a_mask_that_does_not_fit_gets_a_sentence(mask: Any, sentence: str) -> None:
    agent = trained(SPACES["discrete from 1"])
    with pytest.raises(EnvError, match=sentence):
        agent.predict(2, mask=mask)


def test_a_mask_of_bits_that_does_not_fit_gets_a_sentence() -> None:
    agent = pg.PPO(lambda: Showing(SPACES["float32"], spaces.MultiBinary(3)), **SMALL)
    with pytest.raises(EnvError, match=r"The action mask has shape \(4,\), but \(1, 3\) is needed"):
        agent.predict(np.zeros(3, np.float32), mask=np.ones(4))


# ---- what predict refuses


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("float32", (np.zeros(3, np.float32), {}), r"`observation, info = env.reset\(\)`"),
        ("float32", (np.zeros(3), 1.0, False, False, {}), "all that step returned, but only the observation is wanted"),
        ("tuple", ((np.ones((2, 1), int), np.zeros(2)), {}), r"`observation, info = env.reset\(\)`"),
        ("like a reset", ((1, {"x": np.zeros(2)}), {}), r"`observation, info = env.reset\(\)`"),
        ("float32", np.zeros(4, np.float32), r"has shape \(4,\); one of shape \(3,\) or a batch"),
        ("float32", [[0.0], [1.0, 2.0]], "The observation is no array of Box"),
        ("float32", None, "There is no observation"),
        ("image", np.zeros((8, 8, 3)), "The observation is float64, but uint8 is needed"),
        ("discrete from 1", 0, r"The observation is 0, which is not in Discrete\(4, start=1\)"),
        ("discrete from 1", [1, 5], r"The observation is 5, which is not in Discrete\(4, start=1\)"),
        ("multi_discrete with starts", [2, 3], r"The observation is \[2, 3\], which is not in MultiDiscrete"),
        ("multi_discrete", [[0, 0], [0, 4]], r"The observation is \[0, 4\], which is not in MultiDiscrete"),
        ("dict", {"a": 0.5}, "The observation has no entry 'b'"),
        ("dict", {"a": [0.5, 0.5], "b": 5}, r"entry 'b' has shape \(\); .* the others have 2 rows"),
        ("multi_binary", np.full(4, 257), "The observation is int64, but int8 is needed"),
    ],
)
def test_what_is_no_observation_gets_a_sentence(name: str, given: Any, sentence: str) -> None:
    agent = pg.PPO(lambda: Showing(SPACES[name]), **SMALL)
    for method in (agent.predict, agent.value):
        with pytest.raises(EnvError, match=sentence):
            method(given)


def test_predict_takes_an_image_that_is_turned_or_may_not_be_written() -> None:
    agent = pg.PPO(lambda: Showing(PIXELS), **SMALL)
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    turned, still = image[::-1, :, ::-1], image.copy()
    still.flags.writeable = False
    assert agent.predict(turned)[0] == agent.predict(turned.copy())[0]
    assert agent.predict(still)[0] == agent.predict(image)[0]


# ---- memory that is shared


class Greedy(Showing):
    """Overwrites what it is given, and later what it returned."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = super().step(copy.deepcopy(action))
        if isinstance(action, np.ndarray):
            action[...] = 0
        return answer


ACTIONS = [
    spaces.Discrete(7, start=2),
    spaces.MultiDiscrete([9, 9]),
    spaces.MultiDiscrete([9, 9], dtype=np.int32),
    spaces.MultiDiscrete([[9, 9]], start=[[1, 1]]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(-1, 1, (2,), np.float64),
]


class GreedyVector(gym.vector.SyncVectorEnv):
    """A third party's, which overwrites the whole batch of actions and gives away its own buffers."""

    def __init__(self, actions: gym.Space) -> None:
        super().__init__(
            [partial(Showing, SPACES["float32"], actions)] * 2,
            copy=False,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )

    def step(self, actions: Any) -> Any:
        answer = super().step(copy.deepcopy(actions))
        if isinstance(actions, np.ndarray):
            actions[...] = 0
        return answer


@pytest.mark.parametrize("vector", [False, True], ids=["single", "vector"])
@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_an_environment_that_writes_into_its_actions_changes_nothing(space: gym.Space, vector: bool) -> None:
    Showing.made.clear()
    source: Any = GreedyVector(space) if vector else lambda: Greedy(SPACES["float32"], space)
    agent = pg.PPO(source, **{**SMALL, "action_bounds": "clip"})
    Showing.made.clear() if not vector else [env.acted.clear() for env in Showing.made]
    agent.close()
    agent.experience.be_ready()
    for env in Showing.made:
        env.acted.clear()
    rollout = agent.collect(8)
    taken = np.stack([[np.asarray(action) for _, action in env.acted] for env in Showing.made[-2:]], 1)
    own = pg.envs.ActionAdapter(space)
    stored = np.stack([own.to_environment(agent.agent.bounds(row), 2) for row in rollout.actions.numpy()])
    np.testing.assert_array_equal(stored, taken)
    assert np.any(stored), "all zeros would show nothing"


def test_actions_for_the_environment_never_share_memory() -> None:
    for space in ACTIONS:
        own = pg.envs.ActionAdapter(space)
        shape = (3, *(own.space.shape or ()))
        actions = np.zeros(shape, own.parts[0].dtype)
        assert not np.may_share_memory(own.to_environment(actions, 3), actions)


# ---- small images, integers


@pytest.mark.parametrize(
    ("encoder", "shape", "sentence"),
    [
        ("grid", (3, 3, 3), r"encoder grid needs images of at least 4 pixels a side, not \(3, 3, 3\); use impala, mlp"),
        ("grid", (8, 3, 8), "encoder grid needs images of at least 4 pixels a side"),
        ("nature", (3, 3, 3), "encoder nature needs images of at least 36 pixels a side.*use impala, mlp or auto"),
        ("nature", (40, 8, 40), "encoder nature needs images of at least 36 pixels a side.*use grid or impala"),
    ],
)
def test_an_encoder_too_large_for_the_image_gets_a_sentence(encoder: str, shape: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pg.PPO(lambda: Showing(spaces.Box(0, 255, shape, np.uint8)), encoder=encoder, **SMALL)


def test_the_smallest_images_are_vectors_and_impala_takes_them_too() -> None:
    box = spaces.Box(0, 255, (2, 3, 3), np.uint8)
    settings: Any = {"hidden_sizes": (4,), "activation": "tanh", "impala_channels": (4,), "impala_pooling": "flatten"}
    assert isinstance(build_encoder(box, "auto", **settings), VectorEncoder)
    for stem in ((0, 2), (4, 2)):
        encoder = build_encoder(box, "impala", impala_stem=stem, **settings)
        assert encoder(torch.zeros(5, 2, 3, 3, dtype=torch.uint8)).shape == (5, 256)
    with pytest.raises(ConfigError, match=r"images of at least 4 pixels a side, not .*; lower impala_stem_stride"):
        build_encoder(box, "impala", impala_stem=(4, 4), **settings)


def test_integer_boxes_are_normalised_and_images_are_not(tmp_path: Path) -> None:
    space = spaces.Dict(
        {"counts": spaces.Box(0, 1000, (3,), np.int64), "ram": spaces.Box(0, 255, (4,), np.uint8), "eye": PIXELS}
    )
    agent = trained(space, normalize_observation=True)
    assert agent.model.normalizer.names == ["counts", "ram"]
    assert agent.model.normalizer.mean_0.mean() > 100  # it has learnt from them
    observation = agent.agent.observing.observation(stacked([space.sample() for _ in range(64)]))
    seen = agent.model.normalizer({name: torch.from_numpy(array) for name, array in observation.items()})
    assert seen["counts"].abs().max() < 3
    assert seen["eye"].dtype == torch.uint8
    pairs = played(agent)
    batch = stacked([observation for observation, _ in pairs])
    agent.save(tmp_path / "agent")
    assert pg.load(tmp_path / "agent").predict(batch)[0].tolist() == [int(action) for _, action in pairs]


# ---- choices out of range, other environments


class Straying(Showing):
    """Shows 9 once, in the middle of an episode."""

    count = 0

    def draw(self) -> Any:
        shown = super().draw()
        self.count += 1
        return np.full_like(shown, 9) if self.count == 4 else shown


@pytest.mark.parametrize("name", ["discrete from 1", "2-D multi_discrete"])
def test_choices_that_do_not_exist_stop_the_training_and_the_check(name: str) -> None:
    said = "Environment 0 returned an observation .* that leaves its space, .*Discrete"
    with pytest.raises(EnvError, match=said):
        pg.PPO(lambda: Straying(SPACES[name]), **SMALL).learn(64)
    with pytest.raises(EnvError, match=said):
        check(lambda: Straying(SPACES[name]), 30)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ("discrete from 1", r"The observation space of <lambda> is Discrete\(4\), but this agent was trained with Box"),
        ("float64", r"The observation space of <lambda> is Box.*\(2, 3\).* but this agent was trained with Box"),
    ],
)
def test_an_environment_of_another_space_is_refused_where_it_is_used(space: str, sentence: str, tmp_path: Path) -> None:
    trained(SPACES["float32"]).save(tmp_path / "agent")
    agent = pg.load(tmp_path / "agent", env=lambda: Showing(SPACES[space]))
    with pytest.raises(EnvError, match=sentence):
        agent.evaluate(episodes=2)
    with pytest.raises(EnvError, match=sentence):
        agent.learn(64)


def test_other_bounds_are_no_other_space_to_an_evaluation(tmp_path: Path) -> None:
    trained(SPACES["float32"]).save(tmp_path / "agent")
    agent = pg.load(tmp_path / "agent", env=lambda: Showing(spaces.Box(-2, 2, (3,), np.float32)))
    assert len(agent.evaluate(episodes=2).returns) == 2
