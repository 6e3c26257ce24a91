"""Environments' own options: which backend takes them, what is said of it, and the sentence for one that nobody has."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from interrupted import resumed_to_the_same_bits
from machine import needs_procgen

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.cli.parsing import split_env_options
from phasegrad.config import option_value
from phasegrad.envs import make, resolve
from phasegrad.envs.actions import random_actions
from phasegrad.errors import ConfigError, EnvError, PhasegradWarning
from phasegrad.studies.definition import parse_study
from phasegrad.studies.grid import build_grid
from phasegrad.studies.selection import parse_overrides

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "epochs": 1, "preset": "none", "seed": 1}
TINY = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--epochs", "1", "--total-steps", "64"]

# id, options, and the backend that takes them
TAKEN: list[tuple[str, dict[str, Any], str]] = [
    ("LunarLander-v3", {"continuous": True}, "gymnasium"),
    ("LunarLander-v3", {"gravity": -5.0, "enable_wind": True, "wind_power": 10, "turbulence_power": 1.0}, "gymnasium"),
    ("LunarLander-v3", {"max_episode_steps": 7}, "envpool"),
    ("BipedalWalker-v3", {"hardcore": True}, "envpool"),
    ("FrozenLake-v1", {"is_slippery": False}, "gymnasium"),
    ("FrozenLake-v1", {"map_name": "8x8"}, "gymnasium"),
    ("FrozenLake-v1", {"desc": ["SF", "FG"], "is_slippery": False}, "gymnasium"),
    ("FrozenLake-v1", {"size": 8}, "envpool"),
    ("CliffWalking-v1", {"is_slippery": True}, "envpool"),
    ("CliffWalking-v1", {"max_episode_steps": 7}, "gymnasium"),  # envpool takes it and does nothing
    ("Blackjack-v1", {"natural": True, "sab": False}, "envpool"),
    ("CarRacing-v3", {"continuous": False}, "gymnasium"),
    ("CarRacing-v3", {"lap_complete_percent": 0.5}, "envpool"),
    ("CarRacing-v3", {"lap_complete_percent": 0.5, "domain_randomize": True}, "gymnasium"),
    ("HalfCheetah-v5", {"ctrl_cost_weight": 1.0, "frame_skip": 2}, "envpool"),
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False}, "envpool"),
    ("Hopper-v5", {"healthy_z_range": [1.2, 2.0]}, "gymnasium"),
    ("Ant-v5", {"xml_file": "ant.xml"}, "gymnasium"),  # envpool's is a name of its own files
    ("Pendulum-v1", {"g": 9.81}, "gymnasium"),
    ("CartPole-v1", {"sutton_barto_reward": True}, "gymnasium"),
    ("Breakout-v5", {"repeat_action_probability": 0.25, "frame_skip": 3}, "envpool"),
    ("MiniGrid-Empty-5x5-v0", {"agent_start_pos": [2, 2], "agent_view_size": 5}, "gymnasium"),
]
TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"


@pytest.mark.parametrize(("env_id", "options", "backend"), TAKEN)
def test_the_backend_that_has_the_option_is_used_and_told_of(
    env_id: str, options: dict[str, Any], backend: str
) -> None:
    spec = resolve(env_id, options)
    assert spec.backend == backend
    assert resolve(env_id, json.loads(json.dumps(options))) == spec  # what a run's config.json brings back
    told = backend == "gymnasium" and not env_id.startswith("MiniGrid")  # those always run on gymnasium
    assert bool(spec.notice) == told
    if told:
        assert spec.notice.startswith(f"{env_id} runs on gymnasium, which steps slower, since envpool's has no option ")
        with pytest.raises(ConfigError, match=f"envpool's {env_id} has no option .*: use --backend gymnasium"):
            resolve(env_id, options, backend="envpool")
    assert resolve(env_id, options, backend=backend).notice == ""  # asked for by name


@pytest.mark.parametrize(
    ("env_id", "options"), [(*case[:2],) for case in TAKEN if case[0] not in ("Breakout-v5", "CarRacing-v3")]
)
def test_the_option_has_an_effect(env_id: str, options: dict[str, Any]) -> None:
    """Each option changes what the same actions lead to, or the spaces; options do nothing only where they are defaults."""
    if "xml_file" in options:
        pytest.skip("the file is the default one")

    def trajectory(given: dict[str, Any], backend: str) -> Any:
        env = make(env_id, num_envs=4, seeds=[1, 2, 3, 4], options=given, backend=backend)
        described = [str(env.observation_space), str(env.action_space)]
        random = np.random.default_rng(0)
        found = [env.reset()[0]]
        flags = []
        for _ in range(120):
            step = env.step(random_actions(env.action_space, env.num_envs, random, None))
            found.append(step.observation)
            flags.append((step.reward.tolist(), step.truncated.tolist(), step.terminated.tolist()))
        env.close()
        return described, [str(observation) for observation in found], flags

    backend = resolve(env_id, options).backend
    assert trajectory(options, backend) == trajectory(options, backend)
    assert trajectory(options, backend) != trajectory({}, backend)


def test_taxi_and_its_options() -> None:
    if TAXI == "Taxi-v3":
        pytest.skip("gymnasium's Taxi of this version is that of envpool")
    assert resolve(TAXI, {"is_rainy": True, "fickle_passenger": True}).backend == "gymnasium"
    with pytest.raises(ConfigError, match=r"has no option 'rainy'. Did you mean is_rainy"):
        resolve(TAXI, {"rainy": True})


@pytest.mark.parametrize(
    ("env_id", "options", "backend", "sentence"),
    [
        ("LunarLander-v3", {"gravitty": 1}, "auto", "^LunarLander-v3 has no option 'gravitty'. Did you mean gravity"),
        ("HalfCheetah-v5", {"ctrl_cost": 1}, "auto", "no option 'ctrl_cost'. Did you mean ctrl_cost_weight"),
        ("Pendulum-v1", {"g": 1, "gg": 2}, "auto", "^Pendulum-v1 has no option 'gg'"),
        ("FrozenLake-v1", {"size": 8, "is_slippery": False}, "auto", "no size on gymnasium and no is_slippery on envpool"),
        ("CartPole-v1", {"reward_threshold": 3.0}, "auto", "has no option 'reward_threshold'"),  # envpool takes it for nothing
        ("Breakout-v5", {"frameskip": 3}, "auto", "no option 'frameskip'. Did you mean frame_skip.*--backend gymnasium"),
        ("Breakout-v5", {"task": "pong"}, "auto", "envpool's Breakout-v5 has no option 'task'"),
        ("MiniGrid-DoorKey-5x5-v0", {"num_crossings": 3}, "envpool", "has no option 'num_crossings'"),
        ("MiniGrid-Empty-5x5-v0", {"agent_view": 3}, "auto", "no option 'agent_view'. Did you mean agent_view_size"),
        ("CheetahRun-v1", {"nope": 1}, "auto", "CheetahRun-v1 has no option 'nope'. It takes frame_skip"),
        ("Acrobot-v1", {"x": 1}, "gymnasium", "gymnasium's Acrobot-v1 has no option 'x'. It takes max_episode_steps"),
        ("CartPole-v1", {"render_mode": "human"}, "auto", "'render_mode' of CartPole-v1 is set by phasegrad: `phasegrad video"),
        ("CartPole-v1", {"num_threads": 2}, "auto", "'num_threads' of CartPole-v1 is set by phasegrad"),
        ("FrozenLake-v1", {"is_slippery": "no"}, "auto", "is_slippery of FrozenLake-v1 must be true or false, not 'no'"),
        ("BipedalWalker-v3", {"hardcore": "no"}, "auto", "hardcore of BipedalWalker-v3 must be true or false"),
        ("LunarLander-v3", {"gravity": "low"}, "auto", "gravity of LunarLander-v3 must be a number, not 'low'"),
    ],
)  # fmt: skip
def test_an_option_that_nobody_has(env_id: str, options: dict[str, Any], backend: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve(env_id, options, backend=backend)
    with pytest.raises(ConfigError, match=sentence):
        pg.PPO(env_id, env_options=options, backend=backend)


def test_values_that_an_environment_refuses() -> None:
    for env_id, options, told in (
        ("LunarLander-v3", {"gravity": -50.0}, "must be between -12 and 0"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "KeyError: '9x9'"),
    ):
        with pytest.raises(EnvError, match=f"could not make {env_id} with .*{told}"):
            pg.PPO(env_id, env_options=options)


@needs_procgen
def test_procgen_has_options_of_its_own() -> None:
    assert resolve("procgen/coinrun", {"num_levels": 3, "use_backgrounds": False}).notice == ""
    with pytest.raises(ConfigError, match="Procgen has no option 'is_slippery'"):
        resolve("procgen/coinrun", {"is_slippery": False})


def test_the_same_environment_under_another_id_is_named() -> None:
    assert "LunarLanderContinuous-v3 is the same on envpool" in resolve("LunarLander-v3", {"continuous": True}).notice
    assert "the same" not in resolve("LunarLander-v3", {"continuous": True, "gravity": -9.0}).notice
    assert "the same" not in resolve("FrozenLake-v1", {"map_name": "8x8"}).notice  # that one has another time limit


# Factories and modules


class Roomy(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rooms: int = 3) -> None:
        self.rooms = rooms

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(self.rooms), True, False, {}


class Open(Roomy):
    def __init__(self, **anything: Any) -> None:
        super().__init__()
        self.rooms = anything.get("size", 0)


def test_options_of_a_class_and_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def reward_of(source: Any, options: dict[str, Any]) -> float:
        env = make(source, num_envs=1, seeds=[1], options=options)
        env.reset()
        return float(env.step(np.zeros(1, np.int64)).reward[0])

    assert reward_of(Roomy, {"rooms": 5}) == 5
    assert reward_of(Open, {"size": 4}) == 4  # takes any keyword, and knows which
    with pytest.raises(ConfigError, match=r"^Roomy has no option 'room'. Did you mean rooms\?"):
        make(Roomy, num_envs=1, seeds=[1], options={"room": 5})
    monkeypatch.setitem(sys.modules, "users_module", types.ModuleType("users_module"))
    for name, kind in (("Roomy-v0", Roomy), ("Open-v0", Open)):
        monkeypatch.setitem(gym.registry, name, gym.envs.registration.EnvSpec(name, entry_point=kind))
    assert reward_of("users_module:Roomy-v0", {"rooms": 7}) == 7
    assert reward_of("users_module:Open-v0", {"size": 8}) == 8
    with pytest.raises(ConfigError, match=r"Roomy-v0 has no option 'room'. Did you mean rooms"):
        resolve("users_module:Roomy-v0", {"room": 7})


@pytest.mark.parametrize(
    ("env_id", "advice"),
    [
        ("ALE/Nonesuch-v5", r'pip install "gymnasium\[atari\]", then --env ale_py:ALE/Nonesuch-v5'),
        ("FetchReach-v3", "Did you mean FetchReach-v4.*pip install gymnasium-robotics"),
        ("highway-nonesuch-v0", "pip install highway-env, then --env highway_env:highway-nonesuch-v0"),
        ("dm_control/nonesuch-v0", r'pip install "shimmy\[dm-control\]"'),
        ("MiniGrid-Nonesuch-v0", "Did you mean MiniGrid-"),
        ("Nonesuch-v0", "one that a module of yours registers is module:Nonesuch-v0"),
    ],
)
def test_an_unknown_id_names_the_package_it_may_be_of(env_id: str, advice: str) -> None:
    with pytest.raises(EnvError, match=advice):
        resolve(env_id)


def test_a_package_that_is_installed_is_only_to_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from phasegrad.envs import unknown_ids

    monkeypatch.setattr(unknown_ids, "find_spec", lambda module: object())
    with pytest.raises(
        EnvError, match="The module gymnasium_robotics registers such ids: --env gymnasium_robotics:AntMaze_X-v9"
    ):
        resolve("AntMaze_X-v9")


# The command line


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--env.continuous", "true"], {"continuous": True}),
        (["--env.continuous", "False"], {"continuous": False}),
        (["--env.continuous"], {"continuous": True}),
        (["--env.enable-wind", "--env.wind_power=3"], {"enable_wind": True, "wind_power": 3}),
        (["--env.enable-wind", "-h"], {"enable_wind": True}),
        (["--env.gravity", "-5"], {"gravity": -5}),
        (["--env.gravity=-.5"], {"gravity": -0.5}),
        (["--env.map-name", "8x8"], {"map_name": "8x8"}),
        (["--env.desc", '["SF","FG"]'], {"desc": ["SF", "FG"]}),
        (["--env.healthy-z-range", "(0.2, 2)"], {"healthy_z_range": [0.2, 2]}),
        (["--env.desc", "None"], {"desc": None}),
        (["--env.limit", "-inf"], {"limit": float("-inf")}),
    ],
)
def test_options_on_the_command_line(words: list[str], options: dict[str, Any]) -> None:
    rest, found = split_env_options(["train", "ppo", *words])
    assert found == options
    assert all(type(found[name]) is type(options[name]) for name in options)
    assert rest == ["train", "ppo", *[word for word in words if word == "-h"]]


def test_options_of_a_study_are_read_alike() -> None:
    found = parse_overrides(["env.is-slippery=False", "env.map_name=8x8", "env.gravity=-5"])
    assert found == {"env_options": {"is_slippery": False, "map_name": "8x8", "gravity": -5}}
    assert option_value("") == ""


def test_a_study_refuses_a_wrong_option_before_any_run(tmp_path: Path) -> None:
    study = 'environments = ["CartPole-v1"]\n[variants.a]\nenv_options = { nonsense = 1 }'
    with pytest.raises(ConfigError, match="Variant a on CartPole-v1: CartPole-v1 has no option 'nonsense'"):
        build_grid(parse_study(study, "x"), tmp_path, {})


def test_a_name_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--env", "CartPole-v1", "--env.", "3"]) == 2
    assert "--env.NAME VALUE names an option" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["eval", "resume", "video", "study"])
def test_a_verb_that_would_ignore_an_option_refuses_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "somewhere", "--env.gravity", "-5"]) == 2
    said = capsys.readouterr().err
    assert f"{verb} takes no --env.gravity: " in said
    assert ("--set env.gravity=VALUE" in said) == (verb == "study")


def test_the_console_says_that_gymnasium_is_used_and_so_does_a_resumed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    command = ["train", "ppo", "--env", "FrozenLake-v1", "--env.is-slippery", "false", "--run-dir", run, *TINY]
    assert main([*command, "--eval-episodes", "2"]) == 0
    told = "FrozenLake-v1 runs on gymnasium, which steps slower, since envpool's has no option is_slippery."
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == f"phasegrad: {told}"
    assert err.count(told) == 1
    assert "PPO on FrozenLake-v1, seed 1 on gymnasium, " in out.splitlines()[1]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["env_options"], config["backend"]) == ({"is_slippery": False}, "auto")
    assert main(["resume", run, "--total-steps", "128"]) == 0
    assert told in capsys.readouterr().err
    assert main(["eval", run, "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


def test_a_wrong_option_ends_the_command_before_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["train", "ppo"], ["tune", "ppo"]):
        command = [*more, "--env", "LunarLander-v3", "--env.gravitty", "-5", "--total-steps", "64"]
        assert main(command) == 2
        assert "LunarLander-v3 has no option 'gravitty'. Did you mean gravity?" in capsys.readouterr().err


# Python


def test_one_warning_in_python_and_none_for_envpools_own() -> None:
    with pytest.warns(PhasegradWarning, match="LunarLander-v3 runs on gymnasium") as found:
        agent = pg.PPO("LunarLander-v3", env_options={"continuous": True}, eval_episodes=0, **SMALL)
    agent.learn(64)
    assert len([warning for warning in found if issubclass(warning.category, PhasegradWarning)]) == 1
    assert agent.agent.action_space.shape == (2,)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhasegradWarning)
        agent.evaluate(1)
        pg.PPO("CartPole-v1", env_options={"max_episode_steps": 9}, **SMALL)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "FrozenLake-v1"])
@pytest.mark.filterwarnings("ignore::phasegrad.errors.PhasegradWarning")
def test_a_run_on_gymnasium_by_its_options_resumes_to_the_same_bits(env_id: str, tmp_path: Path) -> None:
    options: dict[str, Any] = (
        {"gravity": -4.0, "enable_wind": True} if env_id.startswith("Lunar") else {"map_name": "8x8"}
    )
    agent = pg.PPO(
        env_id, env_options=options, run_dir=tmp_path / "run", checkpoint_every=128, eval_episodes=0, **SMALL
    )
    resumed = resumed_to_the_same_bits(agent, 640, 400)
    assert resumed.experience.env.backend == "gymnasium"


@pytest.mark.filterwarnings("ignore::phasegrad.errors.PhasegradWarning")
def test_a_film_of_a_run_on_gymnasium_by_its_options(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    from phasegrad.video.drawing import drawing_env

    agent = pg.PPO("FrozenLake-v1", env_options={"is_slippery": False}, eval_episodes=0, **SMALL)
    env = drawing_env(agent.agent, 1, seed=1, levels="train")
    env.reset()
    assert env.backend == "gymnasium"
    assert np.asarray(env.render([0])).shape[0] == 1
    env.close()
