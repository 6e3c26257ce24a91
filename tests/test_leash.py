"""The leash: training is held to the policy that was cloned, by a KL whose weight falls to 0, and resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted import Killed
from machine import needs_compiler
from torch.distributions import Categorical, Independent, Normal, kl_divergence

import phasegrad as pg
from phasegrad.algorithms.surrogate import epoch_of_minibatches, surrogate_loss
from phasegrad.data.minibatches import Batch
from phasegrad.errors import ConfigError

ITERATION = 64
SMALL: dict[str, Any] = {
    "preset": "none", "num_envs": 4, "num_steps": 16, "hidden_sizes": (16,), "seed": 3, "compile": "off",
    "num_minibatches": 2, "eval_episodes": 0, "normalize_observation": True,
}  # fmt: skip
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (pg.PPO, {"epochs": 2}),
    "ppg": (pg.PPG, {"n_pi": 2, "e_aux": 1, "aux_minibatches": 2}),
}


def steps(env: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    if env == "Pendulum-v1":
        seen = draw.uniform(-1, 1, (300, 3)).astype(np.float32)
        return seen, (2 * np.tanh(seen[:, :1] - seen[:, 1:2])).astype(np.float32)
    seen = draw.normal(size=(300, 4)).astype(np.float32)
    return seen, (seen[:, 2] + seen[:, 3] > 0).astype(np.int64)


def cloned(name: str, run_dir: Path | None = None, env: str = "CartPole-v1", **fields: Any) -> Any:
    algorithm, own = ALGORITHMS[name]
    agent = algorithm(env, run_dir=run_dir, **{**SMALL, **own, **fields})
    agent.clone(*steps(env), epochs=3)
    return agent


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_term_is_the_analytic_kl_and_so_is_its_gradient(env: str) -> None:
    """Against torch.distributions, of the frozen network by hand: its own scaling, its own weights."""
    agent = cloned("ppo", env=env, total_steps=10 * ITERATION, leash=0.7, learning_rate=1e-2)
    frozen = {name: tensor.clone() for name, tensor in agent.tensors().items() if name.startswith("leash.")}
    agent.learn(3 * ITERATION)
    agent.config.settle(total_steps=10 * ITERATION)
    assert all(torch.equal(agent.tensors()[name], tensor) for name, tensor in frozen.items())
    agent.begin_iteration()
    step = agent.progress.step
    rollout = agent.collect(16)
    weight = agent.leash.hold(rollout)["leash"]
    assert weight == pytest.approx(0.7 * (1 - step / (5 * ITERATION)))
    rollout.advantages.normal_(generator=torch.Generator().manual_seed(0))
    whole = next(iter(epoch_of_minibatches(rollout, agent.config, torch.Generator(), torch.device("cpu"))))
    coefficients = {**agent.config.weights(), "clip_range": 0.2, "kl_beta": 1.0, "leash": weight}

    def by_hand(seen: torch.Tensor) -> torch.Tensor:
        scaled = ((seen - frozen["leash.normalizer.mean_0"]) * frozen["leash.normalizer.scale_0"]).clamp(-10, 10)
        layers = [name for name in frozen if name.startswith("leash.policy_encoder")]
        weights, bias = sorted(layers, key=lambda name: name.endswith("bias"))
        hidden = torch.tanh(torch.nn.functional.linear(scaled, frozen[weights], frozen[bias]))
        head = "leash.policy_head.linear"
        outputs = torch.nn.functional.linear(hidden, frozen[f"{head}.weight"], frozen[f"{head}.bias"])
        if env == "CartPole-v1":
            return outputs
        return torch.cat([outputs, frozen["leash.policy_head.log_std"].expand_as(outputs)], -1)

    def distribution(params: torch.Tensor) -> Any:
        if env == "CartPole-v1":
            return Categorical(logits=params)
        mean, log_std = params.chunk(2, -1)
        return Independent(Normal(mean, log_std.exp()), 1)

    params = agent.model.policy(whole.observations).detach().requires_grad_()
    with_term, metrics = surrogate_loss(agent.distribution, params, whole, agent.config, coefficients)
    without = Batch(**{**vars(whole), "leash_params": None})
    plain, told = surrogate_loss(agent.distribution, params, without, agent.config, coefficients)
    wanted = kl_divergence(distribution(by_hand(whole.observations)), distribution(params)).mean()
    assert "leash_kl" not in told
    assert float(metrics["leash_kl"].detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)
    assert float(wanted.detach()) > 1e-4
    assert float((with_term - plain).detach()) == pytest.approx(weight * float(wanted.detach()), rel=1e-3, abs=1e-6)
    found, own = (torch.autograd.grad(loss, params, retain_graph=True)[0] for loss in (with_term, plain))
    theirs = torch.autograd.grad(weight * wanted, params)[0]
    torch.testing.assert_close(found - own, theirs, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_falls_to_nothing_and_then_costs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = cloned(name, leash=2.0, leash_steps=2 * ITERATION, total_steps=5 * ITERATION)
    passes = []
    own = agent.leash.cloned.policy
    monkeypatch.setattr(agent.leash.cloned, "policy", lambda *given: (passes.append(1), own(*given))[1])
    rows: list[dict[str, Any]] = []
    agent.learn(callback=rows.append)
    assert [row.get("leash") for row in rows] == [2.0, 1.0, None, None, None]
    assert ["leash_kl" in row for row in rows] == [True, True, False, False, False]
    assert len(passes) == 2
    assert agent.rollout.leash_params is None


def test_it_holds_and_without_it_nothing_does() -> None:
    moved = {}
    for weight in (0.0, 100.0):
        agent = cloned("ppo", leash=weight, leash_steps=10**9, total_steps=10 * ITERATION, learning_rate=3e-3, epochs=8)
        start = agent.model.policy(torch.from_numpy(steps("CartPole-v1")[0])).detach()
        rows: list[dict[str, Any]] = []
        agent.learn(callback=rows.append)
        now = agent.leash.cloned.policy(torch.from_numpy(steps("CartPole-v1")[0]))
        torch.testing.assert_close(now, start)  # what it is held to does not move, whatever the normaliser learns
        moved[weight] = float(
            agent.distribution.kl(now, agent.model.policy(torch.from_numpy(steps("CartPole-v1")[0]))).mean()
        )
    assert moved[100.0] < 0.2 * moved[0.0]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("compiled", ["off", pytest.param("on", marks=needs_compiler)])
def test_a_run_killed_in_the_middle_of_the_leash_ends_with_the_same_bits(
    tmp_path: Path, name: str, compiled: str
) -> None:
    """Killed after the third of eight iterations, when the last checkpoint is one older and half of the leash is left."""
    fields = {"total_steps": 8 * ITERATION, "leash_steps": 6 * ITERATION, "checkpoint_every": 2 * ITERATION}
    how = {"compile": compiled, "critic_warmup": 1, **fields}
    whole = cloned(name, tmp_path / "whole", **how)
    rows: list[dict[str, Any]] = []
    whole.learn(callback=rows.append)
    assert sum("leash" in row for row in rows) == 6

    def die(row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            raise Killed

    with pytest.raises(Killed):
        cloned(name, tmp_path / "run", **how).learn(callback=die)
    resumed: Any = pg.load(tmp_path / "run")
    assert 0 < resumed.progress.iteration < 3
    resumed.learn()
    for key, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[key]), key
    assert any(key.startswith("leash.") for key in whole.tensors())


@needs_compiler
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_three_ways_of_computing_agree(name: str) -> None:
    ends = {}
    for compiled in ("off", "replay", "on"):
        agent = cloned(name, compile=compiled, total_steps=4 * ITERATION, leash_steps=3 * ITERATION)
        rows: list[dict[str, Any]] = []
        agent.learn(callback=rows.append)
        ends[compiled] = [agent.flat.data.clone(), torch.tensor([row.get("leash_kl", 0.0) for row in rows])]
    for compiled in ("replay", "on"):
        for mine, plain in zip(ends[compiled], ends["off"], strict=True):
            torch.testing.assert_close(mine, plain, rtol=2e-3, atol=2e-5)


def test_a_run_killed_before_its_first_step_begins_with_the_clone(tmp_path: Path) -> None:
    """Its settings alone would begin it with fresh weights."""
    whole = cloned("ppo", total_steps=4 * ITERATION)
    whole.learn()
    agent = cloned("ppo", tmp_path / "run", total_steps=4 * ITERATION)

    def die(_: dict[str, Any]) -> None:
        raise Killed

    with pytest.raises(Killed):
        agent.learn(callback=die)
    resumed: Any = pg.load(tmp_path / "run")
    assert resumed.progress.step == 0
    assert resumed.run.cloned == agent.run.cloned
    resumed.learn()
    assert torch.equal(resumed.flat.data, whole.flat.data)


def test_a_saved_clone_is_loaded_with_its_leash(tmp_path: Path) -> None:
    agent = cloned("ppo", total_steps=4 * ITERATION)
    agent.save(tmp_path / "saved")
    loaded: Any = pg.load(tmp_path / "saved")
    for key, tensor in agent.tensors().items():
        assert torch.equal(tensor, loaded.tensors()[key]), key
    agent.learn()
    loaded.learn()
    assert torch.equal(agent.flat.data, loaded.flat.data)


def test_the_leash_can_be_changed_while_it_trains() -> None:
    agent = cloned("ppo", leash_steps=8 * ITERATION, total_steps=4 * ITERATION)
    rows: list[dict[str, Any]] = []

    def change(row: dict[str, Any]) -> None:
        rows.append(row)
        if row["iteration"] == 2:
            agent.change(leash=0.0)

    agent.learn(callback=change)
    assert [row.get("leash") for row in rows] == [1.0, 0.875, None, None]


def test_an_agent_that_was_not_cloned_has_no_leash() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL, total_steps=2 * ITERATION)
    assert not [name for name in agent.tensors() if name.startswith("leash.")]
    rows: list[dict[str, Any]] = []
    agent.learn(callback=rows.append)
    assert all("leash" not in row and "leash_kl" not in row for row in rows)
    wanted = pg.PPO("CartPole-v1", **SMALL, total_steps=2 * ITERATION, leash=1.0)
    with pytest.raises(ConfigError, match="leash holds training to a policy that was cloned"):
        wanted.learn()


def test_a_policy_with_a_memory_is_cloned_but_not_held() -> None:
    with pytest.raises(ConfigError, match="leash holds policies without a memory only"):
        pg.PPO("CartPole-v1", **SMALL, memory="gru", leash=1.0)
    agent = pg.PPO("CartPole-v1", **SMALL, memory="gru", total_steps=ITERATION)
    seen, actions = steps("CartPole-v1")
    agent.clone(seen, actions, terminated=np.arange(300) % 50 == 49, epochs=1)
    rows: list[dict[str, Any]] = []
    agent.learn(callback=rows.append)
    assert "leash" not in rows[0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_critic_warms_up_alone(name: str) -> None:
    """For two iterations the policy keeps its bits and the value network learns; from then on both do."""
    phases = {} if name == "ppo" else {"n_pi": 8}  # an auxiliary phase is no part of it
    agent = cloned(name, critic_warmup=2, total_steps=3 * ITERATION, objective="kl", kl_target=0.01, **phases)
    where, before = agent.flat.slices, agent.flat.data.clone()
    moved, betas = [], []

    def note(row: dict[str, Any]) -> None:
        moved.append(
            [not torch.equal(agent.flat.data[where[group]], before[where[group]]) for group in ("policy", "value")]
        )
        betas.append(row["kl_beta"])

    agent.learn(callback=note)
    assert moved[:2] == [[False, True]] * 2
    assert betas[0] == betas[1]  # a policy that may not move says nothing of its penalty
    if name == "ppo":
        assert moved[2] == [True, True]
    with pytest.raises(ConfigError, match="critic_warmup needs a value network of its own"):
        pg.PPO("CartPole-v1", **SMALL, critic_warmup=1, arch="shared")


def test_a_cloned_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    """One whose leash is cut out of its tensors does not load in silence."""
    import hashlib
    import json

    from safetensors.torch import load_file, save

    cloned("ppo").save(tmp_path / "saved")
    file = next((tmp_path / "saved").glob("state*.safetensors"))
    tensors = load_file(file)
    del tensors["leash.policy_head.linear.bias"]
    payload = save(tensors)
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    file.write_bytes(payload)
    state["sha256"] = hashlib.sha256(payload).hexdigest()
    (tmp_path / "saved" / "state.json").write_text(json.dumps(state))
    with pytest.raises(pg.RunError, match=r"leash\.policy_head\.linear\.bias"):
        pg.load(tmp_path / "saved")
