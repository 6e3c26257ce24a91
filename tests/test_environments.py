"""Every environment that is listed can be trained on; every other one says why in one sentence, before its code runs."""

from __future__ import annotations

import contextlib
import io
import itertools
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from machine import environments

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.envs import ObservationAdapter, all_envs, check, list_envs, make, resolve
from phasegrad.envs.joint import joint_choices
from phasegrad.envs.names import unique_names
from phasegrad.envs.needs import missing_for
from phasegrad.errors import EnvError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 2, "num_steps": 16, "num_minibatches": 2, "hidden_sizes": (8,), "eval_episodes": 0,
    "compile": "off", "seed": 1,
}  # fmt: skip
ONE = spaces.Box(-1, 1, (), np.float32)
TWO = spaces.Box(-1, 1, (2,), np.float32)
THREE = spaces.Box(-1, 1, (3,), np.float32)


class Seen(gym.Env):
    """Shows random observations of a space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gym.Space) -> None:
        self.observation_space, self.steps = space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 7, False, {}


def run(*arguments: str) -> tuple[int, str]:
    """The exit code and all the words of a command."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        code = main(list(arguments))
    return code, heard.getvalue()


# Scalars


@pytest.mark.parametrize(
    "space", [ONE, spaces.Box(-1, 1, (), np.float64), spaces.Box(0, 255, (), np.uint8), spaces.Dict(height=ONE, at=TWO)]
)
@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_observation": True, "frame_stack": 3}, {"memory": "gru", "normalize_observation": True}],
)
def test_a_scalar_is_one_number(space: gym.Space, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = pg.PPO(lambda: Seen(space), **SMALL, **settings)
    agent.learn(64)
    agent.evaluate(1)
    observation = Seen(space).reset(seed=3)[0]
    action, _ = agent.predict(observation)
    agent.save(tmp_path / "saved")
    loaded = pg.load(tmp_path / "saved")
    assert np.array_equal(loaded.predict(observation)[0], action)


def test_a_bare_number_is_an_observation() -> None:
    agent = pg.PPO(lambda: Seen(ONE), **SMALL)
    one = agent.predict(0.5)[0]
    assert np.shape(one) == ()
    batch = agent.predict(np.array([0.5, -0.5, 0.5], np.float32))[0]
    assert batch.shape == (3,)
    assert batch[0] == batch[2] == one
    assert check(lambda: Seen(ONE), 20).steps == 20


def test_a_scalar_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    agent = pg.PPO(lambda: Seen(spaces.Dict({"a.b": ONE, "a": spaces.Dict({"b": TWO}), "": THREE})), **SMALL)
    exported = pg.export_onnx(agent, tmp_path / "policy.onnx")
    assert {name for name, _, _ in exported.inputs} == {"a\\.b", "a.b", '""'}


@pytest.mark.parametrize("env", environments(["WalkerWalk-v1", "SearchAndRescue-v0"]))
def test_envpools_scalars_train(env: str) -> None:
    agent = pg.PPO(env, **SMALL | {"normalize_observation": True})
    agent.learn(64)
    seen = agent.agent.observation_space
    assert isinstance(seen, spaces.Dict)
    assert () in [space.shape for space in seen.spaces.values()]


# Names


def test_names_are_the_keys_with_dots_between() -> None:
    assert unique_names([("camera", "left"), ("camera", "right"), ("speed",), ()]) == [
        "camera.left", "camera.right", "speed", "",
    ]  # fmt: skip


def test_any_keys_have_names_of_their_own() -> None:
    keys = ("a", "b", "a.b", "", ".", "\\", "\\.", '"', '""', "a.", "/", ":", " ")
    paths = [path for length in (1, 2) for path in itertools.product(keys, repeat=length)]
    names = unique_names(paths)
    assert len(set(names)) == len(paths)
    assert "" not in names


AWKWARD = {
    "dots": spaces.Dict({"a.b": TWO, "c.d.e": THREE}),
    "a dot and a path": spaces.Dict({"a.b": TWO, "a": spaces.Dict({"b": THREE})}),
    "dots and paths": spaces.Dict(
        {
            "a.b.c": TWO,
            "a": spaces.Dict({"b.c": THREE, "b": spaces.Dict({"c": ONE})}),
            "a.b": spaces.Dict({"c": spaces.Discrete(4)}),
        }
    ),
    "an index": spaces.Dict({"a": spaces.Tuple([TWO, THREE]), "a.0": TWO}),
    "no letters": spaces.Dict({"": TWO, ".": THREE, "..": ONE, " ": TWO, "obs:x": TWO, "info/x": TWO}),
    "nothing in nothing": spaces.Dict({"": spaces.Dict({"": TWO}), "a": spaces.Dict({"": TWO}), "a.": THREE}),
    "numbers": spaces.Dict({1: TWO, 2: THREE}),
    "pairs": spaces.Dict({(0, 1): TWO, (1, 0): THREE}),
}


@pytest.mark.parametrize("awkward", AWKWARD)
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("PPO", {"normalize_observation": True, "frame_stack": 2}), ("PPG", {"n_pi": 2, "checkpoint_every": 32})],
)
def test_any_keys_train_and_come_back(awkward: str, algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    space = AWKWARD[awkward]
    agent = getattr(pg, algorithm)(lambda: Seen(space), run_dir=tmp_path / "run", **SMALL, **settings)
    agent.learn(160, callback=lambda row: row["step"] < 96)  # PPG: within a phase, whose buffer is saved by entry
    observation = Seen(space).reset(seed=3)[0]
    loaded = pg.load(tmp_path / "run", env=lambda: Seen(space))
    assert np.array_equal(loaded.predict(observation)[0], agent.predict(observation)[0])
    loaded.learn(160)
    never_stopped = getattr(pg, algorithm)(lambda: Seen(space), **SMALL, **settings).learn(160)
    assert np.array_equal(loaded.flat.data.numpy(), never_stopped.flat.data.numpy())


def test_entries_are_told_apart_by_their_values() -> None:
    adapter = ObservationAdapter(AWKWARD["a dot and a path"])
    flat = adapter.observation({"a.b": np.zeros((1, 2)), "a": {"b": np.ones((1, 3))}})
    assert isinstance(flat, dict)
    assert {name: array.shape for name, array in flat.items()} == {"a\\.b": (1, 2), "a.b": (1, 3)}
    nested = adapter.restore(flat)
    assert nested["a.b"].shape == (1, 2)
    assert nested["a"]["b"].shape == (1, 3)


def test_keys_that_are_alike_as_text_are_refused() -> None:
    with pytest.raises(EnvError, match="two entries that are called '1': give them keys that differ as text"):
        ObservationAdapter(spaces.Dict(OrderedDict([(1, TWO), ("1", THREE)])))


@pytest.mark.parametrize("env", environments(["FrankaKitchen-v1", "BinPack-v2"]))
def test_envpools_entries_within_entries_train(env: str) -> None:
    pg.PPO(env, **SMALL).learn(32)


# Masks of combinations


def test_a_mask_of_combinations_makes_one_choice() -> None:
    masked = spaces.Dict(action_mask=spaces.MultiBinary((4, 10)), grid=TWO)
    joint = joint_choices(masked, spaces.Box(1, np.array([4, 10]), (2,), np.int32))
    assert joint is not None
    assert joint.space == spaces.Discrete(40)
    assert joint.divided(np.array([0, 9, 10, 39])).tolist() == [[1, 1], [1, 10], [2, 1], [4, 10]]
    rows = spaces.Dict(action_mask=spaces.MultiBinary((2, 2)), grid=TWO)
    assert joint_choices(rows, spaces.MultiDiscrete([2, 2])) is None  # a row for each choice
    assert joint_choices(spaces.Dict(grid=TWO), spaces.MultiDiscrete([4, 10])) is None
    with pytest.raises(EnvError, match=r"make the action one Discrete\(40\) and divide it by numpy's unravel_index"):
        make(_masked_pairs, num_envs=1, seeds=[0])


def _masked_pairs() -> gym.Env:
    env = Seen(spaces.Dict(action_mask=spaces.MultiBinary((4, 10)), grid=TWO))
    env.action_space = spaces.MultiDiscrete([4, 10])  # type: ignore[assignment]
    return env


@pytest.mark.parametrize("env", environments(["Tetris-v0", "Sudoku-v0", "Minesweeper-v0"]))
def test_only_allowed_combinations_are_taken(env: str) -> None:
    """Jumanji ends an episode, or gives no reward, after a forbidden action: with the mask none is taken."""
    vector = make(env, num_envs=2, seeds=[1, 2])
    _, mask = vector.reset()
    random = np.random.default_rng(0)
    longest = 0
    for _ in range(8):
        assert mask is not None
        assert mask.shape == (2, vector.action_space.n)  # type: ignore[attr-defined]
        step = vector.step(np.array([random.choice(np.flatnonzero(row)) for row in mask]))
        longest = max([longest, *(episode.length for episode in step.episodes)])
        mask = step.action_mask
    vector.close()
    agent = pg.PPO(env, **SMALL)
    agent.learn(32)
    agent.evaluate(1, max_steps=10)


# What cannot be trained on

REFUSED = {
    "Cig-v1": "envpool's native code ends the process in it: use Deathmatch-v1, which one player plays.",
    "MultiDuel-v1": "envpool's native code ends the process in it: use Deathmatch-v1, which one player plays.",
    "Chess-v1": "Chess-v1 is for several players in turn, but only environments of one player can be trained on.",
    "IntersectionMultiAgent-v0": "IntersectionMultiAgent-v0 is for 2 players at once, but only environments of one player",
    "VizdoomCustom-v1": "plays a scenario of your own: give its files, --env.cfg-path FILE --env.wad-path FILE.",
    "MiniGrid-WFC-MazeSimple-v0": "draws its rooms from pictures that the installed package minigrid does not bring",
    "Ant-v2": "Ant-v2 needs mujoco-py, which is no longer maintained: use Ant-v5.",
    "GymV21Environment-v0": "wraps yours by shimmy's GymV21CompatibilityV0",
}


@pytest.mark.parametrize("env", environments(REFUSED))
def test_what_cannot_be_trained_on_says_so_before_its_code_runs(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool

    monkeypatch.setattr(envpool, "make", lambda *_, **__: pytest.fail("the native code would have run"))
    for attempt in (lambda: pg.PPO(env, **SMALL), lambda: check(env), lambda: make(env, num_envs=1, seeds=[0])):
        with pytest.raises(EnvError) as caught:
            attempt()
        assert REFUSED[env] in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env", environments(["Cig-v1"]))
def test_the_command_line_refuses_them_too(env: str, tmp_path: Path) -> None:
    code, said = run("train", "ppo", "--env", env, "--run-dir", str(tmp_path / "run"), "--quiet")
    assert code == 2
    assert said.splitlines()[-1].startswith(f"phasegrad: {env} is for several players over a network")
    assert not (tmp_path / "run").exists()


def test_the_list_marks_what_cannot_be_trained_on() -> None:
    listed = {env for ids in list_envs().values() for env in ids}
    marked = {entry.id: entry for entry in all_envs() if entry.reason}
    assert not listed & marked.keys()
    for env in environments(REFUSED):
        name = env if isinstance(env, str) else str(env.values[0])
        assert name not in listed
    for entry in marked.values():
        assert entry.sentence.endswith(".")
        assert "\n" not in entry.sentence
        if entry.family == "procgen":  # where its Qt is missing, which is looked for when one is made
            continue
        with pytest.raises(EnvError) as caught:
            resolve(entry.id)
        assert str(caught.value) == entry.sentence
    code, said = run("envs")
    assert code == 0
    lines = {line.partition(":")[0] for line in said.splitlines()}
    assert {"classic", "other (cannot be trained on"} <= lines
    if "Chess-v1" in marked:
        assert "pgx (cannot be trained on: several players): AnimalShogi-v1" in said
        assert "Chess-v1" in run("envs", "pgx")[1]


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from phasegrad.envs import needs

    assert missing_for("gymnasium.envs.classic_control.cartpole:CartPoleEnv") is None
    monkeypatch.setattr(needs, "is_installed", lambda module: False)
    assert missing_for("gymnasium.envs.box2d.lunar_lander:LunarLander") == 'pip install "phasegrad[box2d]"'
    assert missing_for("gymnasium.envs.tabular.blackjack:BlackjackEnv") == 'pip install "gymnasium[jax]"'


def test_packages_that_are_missing_mark_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from phasegrad.envs import listing, needs, qt

    monkeypatch.setattr(needs, "is_installed", lambda module: False)
    monkeypatch.setattr(qt, "missing", lambda: "Procgen draws with Qt 5, which is not installed: `pip install x`.")
    monkeypatch.setattr(listing, "envpool_packages", lambda: {"CoinrunEasy-v0": "envpool.procgen"})
    entries = {entry.id: entry for entry in all_envs()}
    assert entries["procgen/coinrun"].reason == "needs a package"
    assert entries["LunarLander-v3"].sentence.endswith('not installed: pip install "phasegrad[box2d]".')
    assert not entries["CartPole-v1"].reason


# The script that tries them all


def test_the_script_tells_what_trains_from_what_does_not(tmp_path: Path) -> None:
    script, out = Path(__file__).parents[1] / "tools" / "try_environments.py", tmp_path / "found.json"
    command = [sys.executable, str(script), "--out", str(out), "--steps", "32", "CartPole-v1", "Ant-v2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CartPole-v1: trained" in done.stdout
    assert "Ant-v2: refused Ant-v2 needs mujoco-py" in done.stdout
    assert '"counts": {"all": {"trained": 1, "refused": 1}' in out.read_text()
