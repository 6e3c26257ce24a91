"""Cloning: a policy and a value function fitted to a demonstrator's steps, and what such steps may be."""

from __future__ import annotations

import copy
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_envs import CountingEnv
from gymnasium import spaces
from identity_envs import DictIdentityEnv, IdentityEnv, MaskedIdentityEnv
from memory_envs import RecallEnv

import phasegrad as pg
from phasegrad.cli.main import main
from phasegrad.data.action_bounds import ActionBounds, stored_actions
from phasegrad.distributions import distribution_for
from phasegrad.errors import ConfigError

SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (32,), "seed": 3, "compile": "off",
    "num_minibatches": 2, "epochs": 2, "eval_episodes": 0,
}  # fmt: skip
FEW: dict[str, Any] = {"preset": "none", "hidden_sizes": (32,), "seed": 3, "compile": "off"}


class Echo(IdentityEnv):
    """Takes the very numbers that it shows."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.action_space = copy.deepcopy(space)


def steps_of_identity(space: Any, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    space.seed(1)
    rows = np.stack([space.sample() for _ in range(count)])
    return rows, rows.copy()


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4), spaces.Discrete(4, start=2), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3)],
    ids=["discrete", "start", "multi-discrete", "multi-binary"],
)
@pytest.mark.parametrize("algorithm", [pg.PPO, pg.PPG, pg.A2C, pg.VPG, pg.TRPO, pg.ACER])
def test_a_known_policy_is_recovered(algorithm: Any, space: Any) -> None:
    if algorithm is pg.ACER and not isinstance(space, spaces.Discrete):
        pytest.skip("ACER has one choice only")
    agent = algorithm(partial(Echo, space), **FEW)
    observations, actions = steps_of_identity(space)
    result = agent.clone(observations, actions, learning_rate=1e-2, epochs=60)
    assert result.agreement == 1.0
    assert result.steps == 400
    assert result.held_out_steps == 40
    taken, _ = agent.predict(observations)
    np.testing.assert_array_equal(taken, actions)


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
def test_a_linear_gaussian_demonstrator_is_recovered(bounds: str) -> None:
    """Its mean within a few hundredths, its deviation too, where it is not below the least one."""
    box = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([2.0, 5.0], np.float32))

    class Env(IdentityEnv):
        def __init__(self) -> None:
            super().__init__(spaces.Box(-1.0, 1.0, (3,)))
            self.action_space = box

    agent = pg.PPO(Env, **{**SMALL, "hidden_sizes": (64,)}, action_bounds=bounds)
    draw = np.random.default_rng(0)
    seen = draw.uniform(-1, 1, (6000, 3)).astype(np.float32)
    matrix = np.array([[0.6, 0.0], [-0.3, 0.5], [0.0, -0.4]])
    mean = seen @ matrix + np.array([0.2, 3.0])
    actions = np.clip(mean + draw.normal(size=mean.shape) * [0.5, 0.01], box.low, box.high).astype(np.float32)
    agent.clone(seen, actions, least_std=0.1, epochs=60, learning_rate=3e-3)
    found, _ = agent.predict(seen[:500])
    assert np.abs(found - mean[:500]).mean() < 0.05
    std = agent.model.policy_head.log_std.exp().detach().numpy() * (2.0 if bounds == "rescale" else 1.0)
    assert std[0] == pytest.approx(0.5, abs=0.05)
    assert std[1] == pytest.approx(0.1 * 2.0, rel=1e-5)  # the least one: a tenth of half the range


def test_the_value_function_is_fitted_to_the_returns() -> None:
    """Of episodes in which what is seen says how far the end is: G by hand at each step."""
    gamma = 0.9
    env = partial(IdentityEnv, spaces.Discrete(5))
    seen = np.tile(np.arange(5), 60)
    rewards = np.tile([1.0, 0.0, -2.0, 0.0, 10.0], 60)
    ends = seen == 4
    by_hand = [1.0 + gamma * (0 + gamma * (-2.0 + gamma * (0 + gamma * 10.0))), 0.0, 0.0, gamma * 10.0, 10.0]
    by_hand[2] = -2.0 + gamma * by_hand[3]
    by_hand[1] = gamma * by_hand[2]
    agent = pg.PPO(env, **SMALL, gamma=gamma)
    result = agent.clone(seen, seen, rewards=rewards, terminated=ends, learning_rate=1e-2, epochs=120)
    np.testing.assert_allclose(agent.value(np.arange(5)), by_hand, atol=0.15)
    assert result.value_explained is not None
    assert result.value_explained > 0.999


@pytest.mark.parametrize("bootstrap", [True, False])
def test_beyond_a_time_limit_the_value_of_the_last_state_counts(bootstrap: bool) -> None:
    """One state that pays 1 for ever, in episodes that are cut: 1 / (1 - gamma), unless the cut counts as an end."""
    gamma, length = 0.8, 5
    agent = pg.PPO(partial(IdentityEnv, spaces.Discrete(2)), **SMALL, gamma=gamma, bootstrap_truncated=bootstrap)
    seen = np.zeros(400, np.int64)
    cut = np.arange(400) % length == length - 1
    how: dict[str, Any] = {"truncated": cut, "learning_rate": 1e-2, "epochs": 150, "patience": 150}
    agent.clone(seen, seen, rewards=np.ones(400), **how)
    to_the_cut = np.mean([(1 - gamma**left) / (1 - gamma) for left in range(1, length + 1)])
    wanted = 1 / (1 - gamma) if bootstrap else to_the_cut
    assert float(agent.value(np.zeros(1, np.int64))[0]) == pytest.approx(wanted, rel=0.05)


def test_values_are_in_the_units_of_normalised_rewards() -> None:
    agent = pg.PPO(partial(IdentityEnv, spaces.Discrete(3)), **SMALL, normalize_reward=True, gamma=0.5)
    seen = np.tile(np.arange(3), 100)
    ends = seen == 2
    agent.clone(seen, seen, rewards=100.0 * (seen + 1), terminated=ends, learning_rate=1e-2, epochs=120)
    assert agent.agent.reward_normalizer.std > 50
    assert agent.agent.reward_normalizer.running_return is None
    np.testing.assert_allclose(agent.value(np.arange(3)), [275.0, 350.0, 300.0], rtol=0.05)


def test_the_normaliser_is_fitted_to_the_demonstrations_first() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL, normalize_observation=True)
    draw = np.random.default_rng(1)
    seen = (draw.normal(size=(500, 4)) * [1, 10, 0.1, 5] + [3, 0, -1, 2]).astype(np.float32)
    agent.clone(seen, (seen[:, 1] > 0).astype(np.int64), epochs=2)
    count, mean, squares = agent.model.normalizer.moments_0
    assert int(count[0]) == 500
    np.testing.assert_allclose(mean, seen.mean(0, dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(squares / 500, seen.var(0, dtype=np.float64), rtol=1e-4)


def test_it_is_a_function_of_seed_and_data() -> None:
    seen, actions = steps_of_identity(spaces.Discrete(4))
    weights = []
    for seed, noise in ((3, 0), (3, 99), (4, 0)):
        torch.manual_seed(noise)
        agent = pg.PPO(partial(IdentityEnv, spaces.Discrete(4)), **{**SMALL, "seed": seed})
        agent.clone(seen, actions, epochs=3)
        weights.append(agent.flat.data.clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_dict_and_masks_and_stacks_and_memories_are_cloned(tmp_path: Path) -> None:
    """Each from the steps of an evaluation, as a file."""
    made: list[tuple[Any, dict[str, Any]]] = [
        (DictIdentityEnv, {}),
        (MaskedIdentityEnv, {}),
        (partial(CountingEnv, "key"), {}),
        (partial(RecallEnv, 3), {"frame_stack": 2}),
        (partial(RecallEnv, 3), {"memory": "gru", "memory_size": 16}),
    ]
    for number, (env, fields) in enumerate(made):
        file = tmp_path / f"{number}.npz"
        teacher = pg.PPO(env, **SMALL, **fields)
        played = teacher.evaluate(6, seed=1, save_steps=file)
        arrays = np.load(file)
        assert len(arrays["actions"]) == sum(played.lengths)
        np.testing.assert_allclose(sorted(arrays["returns"]), sorted(played.returns))
        ends = arrays["terminated"] | arrays["truncated"]
        assert int(ends.sum()) == 6
        returns = [part.sum() for part in np.split(arrays["rewards"], np.flatnonzero(ends)[:-1] + 1)]
        np.testing.assert_allclose(returns, arrays["returns"])
        pupil = pg.PPO(env, **{**SMALL, "seed": 8}, **fields)
        result = pupil.clone(file, learning_rate=1e-2, epochs=60)
        assert result.episodes == 6
        assert result.loss < 0.7, (env, fields)


@pytest.mark.parametrize("fields", [{"memory": "lstm", "memory_size": 16}, {"frame_stack": 2}], ids=str)
def test_what_is_remembered_is_cloned(fields: dict[str, Any]) -> None:
    """The demonstrator names the symbol of the step before, which only a policy that remembers can."""
    draw = np.random.default_rng(0)
    shown = draw.integers(3, size=(60, 16))
    named = np.concatenate([np.zeros((60, 1), np.int64), shown[:, :-1]], 1)
    named[:, 0] = shown[:, 0]  # nothing came before: with a stack the first stands in
    ends = np.zeros((60, 16), bool)
    ends[:, -1] = True
    agent = pg.PPO(partial(RecallEnv, 3), **SMALL, **fields)
    result = agent.clone(
        shown.ravel(), named.ravel(), terminated=ends.ravel(), learning_rate=1e-2, epochs=40, minibatch_size=64
    )
    assert result.agreement > 0.95


# Actions back to what a policy stores


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([[-2.0, 1.0]], np.float32), np.array([[2.0, 5.0]], np.float32)),
        spaces.Discrete(4, start=-1), spaces.MultiDiscrete([[2, 3]], start=[[1, 5]]), spaces.MultiBinary((2, 2)),
    ],
    ids=["box", "discrete", "multi-discrete", "multi-binary"],
)  # fmt: skip
def test_stored_actions_lead_back_to_the_environment_s(space: Any, bounds: str) -> None:
    from phasegrad.envs import ActionAdapter

    own = ActionAdapter(space)
    there = ActionBounds(own.space, distribution_for(own.space), bounds)
    space.seed(2)
    actions = np.stack([space.sample() for _ in range(50)])
    stored = stored_actions(actions, space, there)
    assert stored.dtype == there.distribution.action_dtype
    assert stored.shape == (50, *there.distribution.action_shape)
    again = own.to_environment(there(stored.numpy()), 50)
    np.testing.assert_allclose(again, actions, atol=1e-6)


def test_a_distribution_that_is_not_known_is_refused() -> None:
    class Other(type(distribution_for(spaces.Box(-1, 1, (2,))))):  # type: ignore[misc]
        bounded = True

    box = spaces.Box(-1.0, 1.0, (2,))
    with pytest.raises(ConfigError, match="cannot be turned back into samples of a Other"):
        stored_actions(np.zeros((3, 2), np.float32), box, ActionBounds(box, Other(2), "rescale"))


# What is refused, in a sentence


def written(folder: Path, **arrays: Any) -> Path:
    path = folder / "demo.npz"
    np.savez(path, **arrays)
    return path


GOOD = {"observations": np.zeros((20, 4), np.float32), "actions": np.zeros(20, np.int64)}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no actions": ({"observations": GOOD["observations"]}, "has no entry 'actions'"),
    "no observations": ({"actions": GOOD["actions"]}, "has no entry 'observations'"),
    "unknown": ({**GOOD, "reward": np.zeros(20)}, "unknown entry 'reward'.*Did you mean rewards"),
    "both": ({**GOOD, "observations.a": np.zeros(20)}, "both observations and observations.KEY"),
    "entries": ({"observations.a": np.zeros((20, 4)), "actions": GOOD["actions"]}, "needs one array"),
    "shape": ({**GOOD, "observations": np.zeros((20, 5), np.float32)}, r"need \(20, 4\)"),
    "length": ({**GOOD, "observations": np.zeros((19, 4), np.float32)}, r"need \(20, 4\)"),
    "dtype": ({**GOOD, "observations": np.zeros((20, 4), np.complex64)}, "not an array of numbers"),
    "nan": ({**GOOD, "observations": np.full((20, 4), np.nan, np.float32)}, "observations has NaN"),
    "action shape": ({**GOOD, "actions": np.zeros((20, 1), np.int64)}, r"actions has shape \(20, 1\)"),
    "action dtype": ({**GOOD, "actions": np.zeros(20)}, "needs whole numbers"),
    "action": ({**GOOD, "actions": np.full(20, 2)}, "actions has 2 at step 0, which is not in"),
    "texts": ({**GOOD, "actions": np.array(["left"] * 20)}, "actions is not an array of numbers"),
    "empty": ({"observations": np.zeros((0, 4), np.float32), "actions": np.zeros(0, np.int64)}, "actions is empty"),
    "rewards alone": ({**GOOD, "rewards": np.zeros(20)}, "rewards needs to know where episodes end"),
    "rewards": ({**GOOD, "rewards": np.zeros(3), "terminated": np.zeros(20, bool)}, r"rewards has shape \(3,\)"),
    "reward nan": ({**GOOD, "rewards": np.full(20, np.inf), "terminated": np.zeros(20, bool)}, "rewards has NaN"),
    "flags": ({**GOOD, "terminated": np.full(20, 7)}, "terminated must be true or false"),
    "masks": ({**GOOD, "masks": np.ones((20, 2), bool)}, "the environment has no action masks"),
    "pickle": ({**GOOD, "actions": np.array([object()] * 20)}, "Python objects, which are not read"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    arrays, sentence = BAD[name]
    agent = pg.PPO("CartPole-v1", **SMALL)
    before = {name: tensor.clone() for name, tensor in agent.tensors().items()}
    with pytest.raises(ConfigError, match=sentence) as caught:
        agent.clone(written(tmp_path, **arrays))
    assert str(caught.value).count("\n") == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in agent.tensors().items())
    assert agent.run.cloned is None


@pytest.mark.parametrize("content", ["text", "cut", "npy"])
def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "demo.npz"
    whole = written(tmp_path, **GOOD).read_bytes()
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    path.write_bytes({"text": b"not a zip", "cut": whole[: len(whole) // 2], "npy": array.getvalue()}[content])
    with pytest.raises(ConfigError, match=r"cannot be read as an \.npz|is not an \.npz"):
        pg.PPO("CartPole-v1", **SMALL).clone(path)


def test_other_mistakes_get_a_sentence(tmp_path: Path) -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    seen, actions = GOOD["observations"], GOOD["actions"]
    for call, sentence in (
        (lambda: agent.clone(tmp_path / "none.npz"), "does not exist"),
        (lambda: agent.clone(seen), "actions is missing"),
        (lambda: agent.clone(tmp_path / "none.npz", rewards=actions), "without actions"),
        (lambda: agent.clone(seen, actions, epoch=3), "no setting 'epoch'.*Did you mean epochs"),
        (lambda: agent.clone(seen, actions, epochs=0), "epochs must be"),
        (lambda: agent.clone({"a": seen}, actions), "needs one array"),
        (lambda: agent.clone("minari:no/such/data-v0"), "minari"),
        (lambda: pg.PPO("CartPole-v1", **SMALL, frame_stack=2).clone(seen, actions), "frame_stack needs to know"),
        (lambda: pg.PPO("CartPole-v1", **SMALL, memory="gru").clone(seen, actions), "memory needs to know"),
        (lambda: pg.PPO(MaskedIdentityEnv, **SMALL).clone(actions, actions), "give masks"),
        (
            lambda: pg.PPO(MaskedIdentityEnv, **SMALL).clone(actions, actions, masks=np.eye(6, dtype=bool)[actions + 1]),
            "masks forbids an action",
        ),
        (lambda: pg.PPO(DictIdentityEnv, **SMALL).clone({"noise": np.zeros((20, 2))}, actions), "has no entry"),
        (lambda: pg.PPO(DictIdentityEnv, **SMALL).clone(seen, actions), "needs an entry for each"),
        (lambda: pg.PPO("Pendulum-v1", **SMALL).clone(seen[:, :3], np.full((20, 1), 2.5)), "not in Box"),
        (lambda: pg.PPO("Pendulum-v1", **SMALL).clone(seen[:, :3], np.full((20, 1), np.nan)), "actions has NaN"),
        (lambda: agent.evaluate(1, save_steps=tmp_path / "demo.txt"), "that ending"),
        (lambda: agent.evaluate(1, save_steps=tmp_path / "none" / "demo.npz"), "a folder that exists"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=sentence) as caught:
            call()
        assert "\n" not in str(caught.value)
    agent.learn(64)
    with pytest.raises(ConfigError, match="clone comes before training"):
        agent.clone(seen, actions)


# Minari


def test_a_minari_data_set_is_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    import gymnasium as gym
    from minari.data_collector import EpisodeBuffer  # a DataCollector would need jax

    env, buffers = gym.make("CartPole-v1"), []
    for number in range(6):
        seen, _ = env.reset(seed=number)
        buffer = EpisodeBuffer(id=number, observations=[seen], actions=[])
        over = False
        while not over:
            action = int(seen[2] + seen[3] > 0)
            seen, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            for place, entry in (
                (buffer.observations, seen), (buffer.actions, action), (buffer.rewards, reward),
                (buffer.terminations, terminated), (buffer.truncations, truncated),
            ):  # fmt: skip
                place.append(entry)
        buffers.append(buffer)
    count = sum(len(buffer.rewards) for buffer in buffers)
    data = minari.create_dataset_from_buffers("test/cartpole-v0", buffers, env=env)
    results = []
    for source in ("minari:test/cartpole-v0", f"minari:{tmp_path / 'test' / 'cartpole-v0'}", data):
        agent = pg.PPO("CartPole-v1", **SMALL)
        results.append(agent.clone(source, epochs=20, learning_rate=1e-2))
        assert agent.run.cloned is not None
    assert results[0] == results[1] == results[2]
    assert (results[0].steps, results[0].episodes) == (count, 6)
    assert results[0].agreement > 0.9
    assert results[0].value_explained is not None
    with pytest.raises(ConfigError, match="There is no Minari data set test/other-v0 here"):
        agent.clone("minari:test/other-v0")
    with pytest.raises(ConfigError, match=r"need \(\d+, 3\)"):
        pg.PPO("Pendulum-v1", **SMALL).clone("minari:test/cartpole-v0")


def test_without_minari_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ConfigError, match=r"pip install 'phasegrad\[minari\]'"):
        pg.PPO("CartPole-v1", **SMALL).clone("minari:any/data-v0")


# The command line


def test_the_commands_lead_from_an_agent_to_a_clone_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2", "--quiet"]
    train = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "128", "--run-dir", "teacher", *sizes]
    assert main(train) == 0
    assert main(["eval", "teacher", "--episodes", "3", "--deterministic", "--save-steps", "demo.npz"]) == 0
    assert "wrote demo.npz" in capsys.readouterr().out
    clone = [
        "clone",
        "ppo",
        "--env",
        "CartPole-v1",
        "--data",
        "demo.npz",
        "--run-dir",
        "cloned",
        "--total-steps",
        "256",
    ]
    assert main([*clone, *sizes[:-1], "--clone-epochs", "3"]) == 0
    told = capsys.readouterr().out
    assert "cloned " in told
    assert "`phasegrad resume cloned` trains it on" in told
    assert [folder.name for folder in (tmp_path / "cloned" / "checkpoints").iterdir()] == ["step-000000000000"]
    state = json.loads((tmp_path / "cloned" / "checkpoints" / "step-000000000000" / "state.json").read_text())
    assert state["cloned"]["episodes"] == 3
    assert main(["resume", "cloned", "--quiet"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "cloned" / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("leash") for row in rows] == [1.0, 0.5, None, None]
    assert pg.load("cloned").progress.step == 256


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["clone", "ppo", "--env", "CartPole-v1"], "--data is missing"),
        (["clone", "ppo", "--env", "CartPole-v1", "--data", "none.npz"], "--data none.npz does not exist"),
        (["clone", "ppo", "--data", "none.npz"], "--data none.npz does not exist"),
        (["clone"], "ALGORITHM is missing: `phasegrad clone ppo"),
        (["clone", "ppo", "--env", "CartPole-v1", "--data", "minari:x", "--clone-epochs", "x"], "clone_epochs must be"),
        (["train", "ppo", "--env", "CartPole-v1", "--leash", "1"], "begin the run with `phasegrad clone`"),
        (["train", "a2c", "--env", "CartPole-v1", "--leash", "1"], "Unknown option '--leash'"),
    ],
)  # fmt: skip
def test_mistakes_of_the_commands_get_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
