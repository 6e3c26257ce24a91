"""A recurrent agent in use: loaded elsewhere, evaluated, filmed and watched, it remembers as it did where it was trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import IdentityEnv

import phasegrad as pg
from phasegrad.bench import Task, flops_a_step, measure
from phasegrad.cli.main import main
from phasegrad.errors import EnvError
from phasegrad.video.recording import record_video

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_steps": 32, "num_minibatches": 2, "epochs": 1, "seed": 3, "memory_size": 6, "hidden_sizes": (8,),
    "policy_gain": 3.0, "learning_rate": 0.01, "eval_episodes": 0, "compile": "off",
}  # fmt: skip
SIZE = 24  # numbers that two LSTM of 6 units remember


class Picture(IdentityEnv):
    """An image, and four actions."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(4))
        self.observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)


LOADED = """
import sys
import numpy as np
import phasegrad as pg

agent = pg.load(sys.argv[1])
given = np.load(sys.argv[2])
observations, starts = given["observations"], given["starts"]
actions, state = [], None
for observation, start in zip(observations, starts):
    action, state = agent.predict(observation, state, start)
    actions.append(action)
alone, own = [], None
for observation, start in zip(observations[:, 0], starts[:, 0]):
    action, own = agent.predict(observation, own, start)
    alone.append(action)
np.savez(sys.argv[3], actions=np.stack(actions), state=state, alone=np.stack(alone), own=own)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that ended; what it remembers decides what it does."""
    path = tmp_path_factory.mktemp("memory") / "run"
    agent = pg.PPO("CartPole-v1", memory="lstm", run_dir=path, total_steps=256, **SMALL)
    rely_on_memory(agent)
    agent.learn(256)
    agent.close()
    return path


def rely_on_memory(agent: Any) -> None:
    """Larger weights: those that a network starts with would act alike with and without a memory."""
    memory = agent.model.policy_memory
    with torch.no_grad():
        for weights in (memory.hidden_weights, memory.input_weights, agent.model.policy_head.linear.weight):
            weights *= 8.0


@pytest.fixture(scope="module")
def agent(run: Path) -> Any:
    return pg.load(run)


@pytest.fixture(scope="module")
def seen() -> tuple[np.ndarray, np.ndarray]:
    """Observations [T, N, 4] of episodes of random actions, and whether one starts [T, N]."""
    at_once = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    env = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs=at_once)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    observations, starts = [observation], [np.ones(3, bool)]
    for _ in range(59):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(observation)
        starts.append(terminated | truncated)
    env.close()
    return np.stack(observations), np.stack(starts)


def by_hand(agent: Any, observations: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Actions and values [T, N] and the last states, from the network's single steps."""
    states, actions, values = torch.zeros(starts.shape[1], SIZE), [], []
    with torch.no_grad():
        for observation, start in zip(torch.from_numpy(observations), torch.from_numpy(starts), strict=True):
            params, value, states = agent.model.step(observation, None, states * (~start[:, None]).float())
            actions.append(params.argmax(-1).numpy())
            values.append(value.numpy() * agent.agent.reward_normalizer.std)
    return np.stack(actions), np.stack(values), states.numpy()


def test_predict_remembers_an_episode_and_forgets_it_at_the_next(
    agent: Any, seen: tuple[np.ndarray, np.ndarray]
) -> None:
    observations, starts = seen
    assert starts.sum() > 6  # of the 3 environments, several episodes each
    actions, values, last = by_hand(agent, observations, starts)
    state: Any = None
    forgetful, never_told = 0, None
    for t, observation in enumerate(observations):
        np.testing.assert_allclose(agent.value(observation, state, starts[t]), values[t], rtol=1e-6, atol=1e-6)
        action, state = agent.predict(observation, state, starts[t])
        assert (action == actions[t]).all()
        forgetful += int((agent.predict(observation)[0] != actions[t]).sum())
        never_told = agent.predict(observation, never_told)[1]
    np.testing.assert_allclose(state, last, rtol=1e-6, atol=1e-6)
    assert forgetful > 0  # what it remembers decides actions of this episode
    assert np.abs(never_told - last).max() > 1e-3  # and where an episode starts, what it remembers


def test_loaded_in_another_process_it_acts_the_same(
    run: Path, agent: Any, seen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    observations, starts = seen
    np.savez(tmp_path / "given.npz", observations=observations, starts=starts)
    (tmp_path / "loaded.py").write_text(LOADED)
    names = [str(run), str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    subprocess.run([sys.executable, "-P", str(tmp_path / "loaded.py"), *names], check=True)
    found = np.load(tmp_path / "found.npz")
    actions, _, last = by_hand(agent, observations, starts)
    assert found["state"].dtype == np.float32
    assert (found["actions"] == actions).all()
    np.testing.assert_allclose(found["state"], last, rtol=1e-6, atol=1e-6)
    assert found["alone"].shape == (60,)
    assert (found["alone"] == actions[:, 0]).all()
    assert found["own"].shape == (SIZE,)
    np.testing.assert_allclose(found["own"], last[0], rtol=1e-6, atol=1e-6)


def test_starts_may_be_written_in_many_ways(agent: Any, seen: tuple[np.ndarray, np.ndarray]) -> None:
    batch = seen[0][5]
    _, held = agent.predict(seen[0][4])
    kept, fresh = agent.predict(batch, held)[1], agent.predict(batch)[1]
    mixed = np.stack([fresh[0], kept[1], fresh[2]])
    for starts in (np.array([True, False, True]), [True, False, True], (1, 0, 1), np.array([1.0, 0.0, 1.0])):
        np.testing.assert_allclose(agent.predict(batch, held, starts)[1], mixed, rtol=1e-6, atol=1e-7)
    for starts in (True, np.bool_(True), 1, [True], np.array(True)):
        np.testing.assert_allclose(agent.predict(batch, held, starts)[1], fresh, rtol=1e-6, atol=1e-7)
        alone = agent.predict(batch[0], held[0], starts)[1]
        np.testing.assert_allclose(alone, fresh[0], rtol=1e-6, atol=1e-7)
    for starts in (None, False, np.bool_(False), 0, [False], [False] * 3, np.zeros(3, bool)):
        np.testing.assert_allclose(agent.predict(batch, held, starts)[1], kept, rtol=1e-6, atol=1e-7)
    for state in (held[0], held[:1], held[0].tolist(), torch.from_numpy(held[0]), held[0].astype(np.float64)):
        np.testing.assert_allclose(agent.predict(batch[0], state, False)[1], kept[0], rtol=1e-6, atol=1e-7)


def test_predict_changes_nothing_of_what_it_is_given(agent: Any, seen: tuple[np.ndarray, np.ndarray]) -> None:
    held = agent.predict(seen[0][4])[1]
    before = held.copy()
    starts = np.array([True, False, False])
    agent.predict(seen[0][5], held, starts)
    agent.value(seen[0][5], held, starts)
    assert (held == before).all()
    held.flags.writeable = False
    assert agent.predict(seen[0][5], held, starts)[1].shape == before.shape


@pytest.mark.parametrize(
    ("rows", "shape", "needed"),
    [
        (3, (2, SIZE), (3, SIZE)),
        (3, (SIZE,), (3, SIZE)),
        (3, (3, SIZE // 2), (3, SIZE)),
        (3, (SIZE, 3), (3, SIZE)),  # the right number of numbers, but turned round, flat, or in two parts
        (3, (3 * SIZE,), (3, SIZE)),
        (3, (2, 1, 3, SIZE // 2), (3, SIZE)),
        (3, (), (3, SIZE)),
        (None, (2, SIZE), (1, SIZE)),
    ],
)
def test_a_state_of_another_shape_gets_a_sentence(
    agent: Any, seen: tuple[np.ndarray, np.ndarray], rows: int | None, shape: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    observation = seen[0][4] if rows else seen[0][4][0]
    for call in (agent.predict, agent.value):
        with pytest.raises(EnvError) as caught:
            call(observation, np.zeros(shape, np.float32))
        assert str(caught.value) == (
            f"The state has shape {shape}, but {needed} is needed: give what predict returned for as many observations, "
            "or None at the start."
        )


def test_starts_of_another_number_get_a_sentence(agent: Any, seen: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(EnvError, match=r"^episode_start has 2 entries for 3 observations\.$"):
        agent.predict(seen[0][4], np.zeros((3, SIZE), np.float32), [True, False])


def test_without_a_memory_a_state_is_passed_through() -> None:
    agent = pg.PPO("CartPole-v1", **{name: value for name, value in SMALL.items() if name != "memory_size"})
    marker = object()
    assert agent.predict(np.zeros(4, np.float32), marker, True)[1] is marker
    assert agent.predict(np.zeros((2, 4), np.float32), None, [True, False])[1] is None


def test_eval_of_a_run_is_evaluate_of_its_agent(run: Path, agent: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "24", "--seed", "5", "--deterministic", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = agent.evaluate(24, seed=5)  # more than are played side by side: environments go on to a second episode
    assert {name: printed[name] for name in expected.summary()} == expected.summary()
    assert sorted(expected.returns) == played_with_predict(agent, 24, seed=5)
    assert sorted(expected.returns) != played_with_predict(agent, 24, seed=5, forgets=True)
    assert sorted(expected.returns) != played_with_predict(agent, 24, seed=5, starts_afresh=False)


def played_with_predict(
    agent: Any, episodes: int, seed: int, forgets: bool = False, starts_afresh: bool = True
) -> list[float]:
    """Sorted returns of the episodes of an evaluation, played with `predict` alone."""
    from phasegrad.runs.evaluation import evaluation_env

    env = evaluation_env(agent.agent, episodes, seed=seed, levels="train")
    quota = [len(part) for part in np.array_split(np.arange(episodes), env.num_envs)]
    found: list[list[float]] = [[] for _ in quota]
    try:
        observation, _ = env.reset()
        state, starts = None, np.ones(env.num_envs, bool)
        while any(len(mine) < wanted for mine, wanted in zip(found, quota, strict=True)):
            held, new = (None if forgets else state), (starts if starts_afresh else None)
            actions, state = agent.predict(observation, held, new)
            step = env.step(actions)
            observation, starts = step.observation, step.terminated | step.truncated
            for episode in step.episodes:
                found[episode.env].append(episode.episode_return)
    finally:
        env.close()
    return sorted(value for mine, wanted in zip(found, quota, strict=True) for value in mine[:wanted])


@pytest.mark.parametrize("grid", [False, True])
def test_a_film_shows_the_episodes_of_an_evaluation(run: Path, agent: Any, grid: bool, tmp_path: Path) -> None:
    expected = agent.evaluate(3, seed=4)
    path = tmp_path / "film.mp4"
    options = ["--episodes", "3", "--seed", "4", "--out", str(path), *["--grid"] * grid]
    assert main(["video", str(run), *options]) == 0
    assert path.stat().st_size > 1000
    notes = json.loads(path.with_suffix(".json").read_text())
    assert sorted(notes["returns"]) == sorted(expected.returns)
    video = agent.record(tmp_path / "own.mp4", episodes=3, seed=4, grid=grid)
    assert sorted(video.returns) == sorted(expected.returns)
    assert sorted(video.lengths) == sorted(expected.lengths)


def test_an_evaluation_is_filmed_while_it_is_made(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "3", "--record", "best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
    assert (run / "videos" / "eval-best.mp4").stat().st_size > 1000


def test_a_run_with_a_memory_is_watched(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run), "--once"]) == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1" in printed
    assert "256" in printed


def test_a_film_of_a_save_with_a_gru(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", memory="gru", arch="shared", **SMALL)
    rely_on_memory(agent)
    agent.save(tmp_path / "agent")
    loaded = pg.load(tmp_path / "agent")
    assert sorted(loaded.evaluate(4, seed=1).returns) == played_with_predict(agent, 4, seed=1)
    assert sorted(loaded.evaluate(4, seed=1).returns) != played_with_predict(agent, 4, seed=1, forgets=True)
    film = record_video(loaded, tmp_path / "film.mp4", episodes=2, seed=1)
    assert sorted(film.returns) == sorted(agent.evaluate(2, seed=1).returns)


def test_a_benchmark_takes_a_memory() -> None:
    task = Task("ppo", "CartPole-v1", {"preset": "none", "backend": "gymnasium", "memory": "gru", **SMALL})
    task.fields = {name: value for name, value in task.fields.items() if name not in ("seed", "eval_episodes")}
    found = measure(task, 0.1)
    assert found["sps"] > 0
    assert 0 < found["ratio_to_limit"] < 1


@pytest.mark.parametrize(("memory", "gates"), [("lstm", 4), ("gru", 3)])
@pytest.mark.parametrize(("arch", "networks"), [("shared", 1), ("dual", 2)])
def test_the_work_of_a_recurrent_layer_is_counted(memory: str, gates: int, arch: str, networks: int) -> None:
    """Multiply-adds by hand: a layer of 16 units after the 512 features of an encoder, and heads that are narrower."""
    how = {**SMALL, "epochs": 3, "encoder": "nature", "arch": arch}
    without, width = pg.PPO(Picture, **how), 16
    with_memory = pg.PPO(Picture, **{**how, "memory": memory, "memory_size": width})
    layers = networks * gates * width * (512 + width)
    policy_head, value_head = (outputs * (512 - width) for outputs in (4, 1))  # so much less
    acting = layers - policy_head - (value_head if arch == "dual" else 0)
    learning = 3 * (layers - policy_head - value_head)  # backwards twice the work
    assert flops_a_step(with_memory) - flops_a_step(without) == 2 * (acting + 3 * learning)


@pytest.mark.parametrize("state", ["abc", object(), {"frames": 1}, [[1.0], [2.0, 3.0]]])
def test_a_state_that_is_none_gets_a_sentence(state: Any) -> None:
    agent = pg.PPO(
        "CartPole-v1", preset="none", memory="gru", memory_size=8, num_envs=2, num_steps=8, num_minibatches=2
    )
    with pytest.raises(pg.PhasegradError, match="The state is not what predict returned"):
        agent.predict(np.zeros(4, np.float32), state)
