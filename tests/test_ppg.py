"""PPG: gradients of every loss against independent formulas, what each phase may touch, and how often it does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from identity_envs import IdentityEnv
from interrupted import resumed_to_the_same_bits
from torch import Tensor

import phasegrad as pg
from phasegrad.algorithms import ppg
from phasegrad.algorithms.estimates import estimate_advantages
from phasegrad.config import Config
from phasegrad.data.minibatches import Batch
from phasegrad.data.phase_buffer import AuxiliaryBatch, BufferedStates, buffered_tensors
from phasegrad.data.storage import Rollout

ARCHITECTURES = ("dual", "detach", "shared")
TINY = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "n_pi": 2, "aux_minibatches": 3, "hidden_sizes": (5,)}


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tiny_agent(arch: str, env: str = "CartPole-v1", **fields: object) -> pg.PPG:
    return pg.PPG(env, preset="none", arch=arch, **{**TINY, "normalize_advantage": "none", **fields})


def random_batch(agent: pg.PPG, size: int = 7, seed: int = 0) -> Batch:
    """Inputs in general position: away from the kinks of clipping, with every term active."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    observations = normal(size, *agent.agent.observation_space.shape)
    with torch.no_grad():
        params = agent.model.policy(observations)
    old_params = params + 0.3 * normal(*params.shape)
    if agent.distribution.noise_is_normal:
        actions = normal(size, *agent.distribution.action_shape)
    else:
        actions = torch.randint(agent.distribution.parameter_size, (size,), generator=generator)
    return Batch(
        observations=observations,
        masks=None,
        value_targets=normal(size),
        behaviour_params=old_params,
        actions=actions,
        old_log_probs=agent.distribution.log_prob(old_params, actions),
        advantages=normal(size),
        old_values=normal(size),
    )


# An independent model: numpy, from the weights by name.


def weights(agent: pg.PPG) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in agent.model.named_parameters()}


def forward(w: dict[str, np.ndarray], x: np.ndarray, trunk: str, head: str) -> np.ndarray:
    hidden = np.tanh(x @ w[f"{trunk}.mlp.layers.0.weight"].T + w[f"{trunk}.mlp.layers.0.bias"])
    return hidden @ w[f"{head}.weight"].T + w[f"{head}.bias"]


def policy(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    outputs = forward(w, x, "policy_encoder", "policy_head.linear")
    if "policy_head.log_std" in w:
        return np.concatenate([outputs, np.broadcast_to(w["policy_head.log_std"], outputs.shape)], 1)
    return outputs


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def log_prob(params: np.ndarray, actions: np.ndarray) -> np.ndarray:
    if actions.ndim == 1:
        return log_softmax(params)[np.arange(len(params)), actions]
    mean, log_std = np.split(params, 2, 1)
    density = np.exp(-((actions - mean) ** 2) / (2 * np.exp(2 * log_std))) / np.sqrt(2 * np.pi * np.exp(2 * log_std))
    return np.log(density).sum(1)


def entropy(params: np.ndarray, discrete: bool) -> np.ndarray:
    if discrete:
        return -(np.exp(log_softmax(params)) * log_softmax(params)).sum(1)
    return (0.5 * np.log(2 * np.pi * np.e * np.exp(2 * np.split(params, 2, 1)[1]))).sum(1)


def kl(p: np.ndarray, q: np.ndarray, discrete: bool) -> np.ndarray:
    if discrete:
        return (np.exp(log_softmax(p)) * (log_softmax(p) - log_softmax(q))).sum(1)
    (mean_p, log_p), (mean_q, log_q) = np.split(p, 2, 1), np.split(q, 2, 1)
    variance_p, variance_q = np.exp(2 * log_p), np.exp(2 * log_q)
    return (
        np.log(np.sqrt(variance_q / variance_p)) + (variance_p + (mean_p - mean_q) ** 2) / (2 * variance_q) - 0.5
    ).sum(1)


def policy_objective(w: dict[str, np.ndarray], b: Batch, objective: str, entropy_coef: float) -> float:
    discrete, params = b.actions.ndim == 1, policy(w, b.observations.numpy())
    ratio = np.exp(log_prob(params, b.actions.numpy())) / np.exp(b.old_log_probs.numpy())
    advantages = b.advantages.numpy()
    per_sample = {
        "clip": np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages),
        "kl": ratio * advantages - 0.7 * kl(b.behaviour_params.numpy(), params, discrete),
    }[objective]
    return float(np.mean(per_sample) + entropy_coef * np.mean(entropy(params, discrete)))


def numeric_gradient(
    function: Callable[[dict[str, np.ndarray]], float], w: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Five-point differences: their error is far below 1e-9 for these functions in float64."""
    gradient = {name: np.zeros_like(value) for name, value in w.items()}
    step = 1e-3
    for name, value in w.items():
        for index in np.ndindex(value.shape):
            kept = value[index]
            samples = []
            for offset in (-2, -1, 1, 2):
                value[index] = kept + offset * step
                samples.append(function(w))
            value[index] = kept
            gradient[name][index] = (samples[0] - 8 * samples[1] + 8 * samples[2] - samples[3]) / (12 * step)
    return gradient


def gradients(agent: pg.PPG, loss: Tensor) -> dict[str, np.ndarray]:
    agent.flat.grad.zero_()
    loss.backward()
    return {name: parameter.grad.numpy().copy() for name, parameter in agent.model.named_parameters()}


def assert_gradients(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-9, rtol=1e-7, err_msg=name)
    assert max(np.abs(value).max() for value in wanted.values()) > 1e-3  # else the comparison says nothing


def value_trunk(arch: str) -> str:
    return "value_encoder" if arch == "dual" else "policy_encoder"


def without(gradient: dict[str, np.ndarray], *prefixes: str) -> dict[str, np.ndarray]:
    """The gradient with some parameters' entries made zero: what a detached path leaves."""
    return {n: np.zeros_like(g) if n.startswith(prefixes) else g for n, g in gradient.items()}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("objective", ["clip", "kl"])
def test_policy_phase_gradient(float64: None, arch: str, env: str, objective: str) -> None:
    agent = tiny_agent(arch, env, objective=objective, entropy_coef=0.03, value_coef=0.6, policy_gain=1.0)
    batch = random_batch(agent)
    loss, _ = agent.policy_and_value_loss(batch, {**agent.config.weights(), "clip_range": 0.2, "kl_beta": 0.7})

    def policy_part(w: dict[str, np.ndarray]) -> float:
        return -policy_objective(w, batch, objective, 0.03)

    def value_part(w: dict[str, np.ndarray]) -> float:
        values = forward(w, batch.observations.numpy(), value_trunk(arch), "value_head")[:, 0]
        return 0.6 * 0.5 * float(np.mean((values - batch.value_targets.numpy()) ** 2))

    w = weights(agent)
    wanted_policy, wanted_value = numeric_gradient(policy_part, w), numeric_gradient(value_part, w)
    if arch == "detach":
        wanted_value = without(wanted_value, "policy_encoder")
    assert_gradients(gradients(agent, loss), {n: wanted_policy[n] + wanted_value[n] for n in w})

    policy_only, _ = agent.policy_loss(batch, {**agent.config.weights(), "clip_range": 0.2, "kl_beta": 0.7})
    assert_gradients(gradients(agent, policy_only), wanted_policy)
    value_only, _ = agent.value_loss(batch, agent.config.weights())
    assert_gradients(gradients(agent, value_only), wanted_value)


AUXILIARY_VARIANTS = [(arch, "returns", True) for arch in ARCHITECTURES]
AUXILIARY_VARIANTS += [("dual", "returns", False), ("dual", "value_network", True), ("dual", "value_network", False)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("arch", "target", "value_loss"), AUXILIARY_VARIANTS)
def test_auxiliary_phase_gradient(float64: None, arch: str, env: str, target: str, value_loss: bool) -> None:
    agent = tiny_agent(arch, env, beta_clone=1.7, aux_target=target, aux_value_loss=value_loss, policy_gain=1.0)
    whole = random_batch(agent)
    batch = AuxiliaryBatch(whole.observations, None, whole.value_targets, whole.behaviour_params)
    loss, _ = agent.auxiliary_loss(batch, agent.config.weights())
    x, targets, old = (t.numpy() for t in (batch.observations, batch.value_targets, batch.old_params))
    w = weights(agent)
    held = forward(w, x, "value_encoder", "value_head")[:, 0] if arch == "dual" else None

    def total(w: dict[str, np.ndarray]) -> float:
        clone = 1.7 * np.mean(kl(old, policy(w, x), env == "CartPole-v1"))
        if arch != "dual":  # one head: its error reaches the trunk in this phase, detached or not
            values = forward(w, x, "policy_encoder", "value_head")[:, 0]
            return float(clone + 0.5 * np.mean((values - targets) ** 2))
        auxiliary = forward(w, x, "policy_encoder", "auxiliary_head")[:, 0]
        errors = (
            np.mean((auxiliary - held) ** 2) if target == "value_network" else 0.5 * np.mean((auxiliary - targets) ** 2)
        )
        values = forward(w, x, "value_encoder", "value_head")[:, 0]
        return float(clone + errors + (0.5 * np.mean((values - targets) ** 2) if value_loss else 0.0))

    assert_gradients(gradients(agent, loss), numeric_gradient(total, w))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("arch", ["detach", "shared"])
@pytest.mark.parametrize(
    ("target", "value_loss"), [("returns", True), ("returns", False), ("value_network", True), ("value_network", False)]
)
def test_gradient_of_an_auxiliary_head_beside_the_value_head(
    float64: None, env: str, arch: str, target: str, value_loss: bool
) -> None:
    """The form of the published code: the auxiliary head's error reaches the trunk, the value head's only where shared."""
    how = {"aux_target": target, "aux_value_loss": value_loss}
    agent = tiny_agent(arch, env, beta_clone=1.7, policy_gain=1.0, aux_head=True, **how)
    whole = random_batch(agent)
    batch = AuxiliaryBatch(whole.observations, None, whole.value_targets, whole.behaviour_params)
    loss, _ = agent.auxiliary_loss(batch, agent.config.weights())
    x, targets, old = (t.numpy() for t in (batch.observations, batch.value_targets, batch.old_params))
    w = weights(agent)
    held = forward(w, x, "policy_encoder", "value_head")[:, 0] if target == "value_network" else targets

    def joint(w: dict[str, np.ndarray]) -> float:
        auxiliary = forward(w, x, "policy_encoder", "auxiliary_head")[:, 0]
        clone = 1.7 * np.mean(kl(old, policy(w, x), env == "CartPole-v1"))
        return float(clone + (1.0 if target == "value_network" else 0.5) * np.mean((auxiliary - held) ** 2))

    def own(w: dict[str, np.ndarray]) -> float:
        values = forward(w, x, "policy_encoder", "value_head")[:, 0]
        return float(0.5 * np.mean((values - targets) ** 2)) if value_loss else 0.0

    wanted_joint, wanted_own = numeric_gradient(joint, w), numeric_gradient(own, w)
    if arch == "detach":
        wanted_own = without(wanted_own, "policy_encoder")
    assert_gradients(gradients(agent, loss), {name: wanted_joint[name] + wanted_own[name] for name in w})


@pytest.mark.parametrize("arch", ["detach", "shared"])
@pytest.mark.parametrize("value_loss", [True, False])
def test_an_auxiliary_head_beside_the_value_head_trains(arch: str, value_loss: bool) -> None:
    rows: list[dict[str, Any]] = []
    agent = tiny_agent(arch, e_aux=2, aux_head=True, aux_value_loss=value_loss)
    before = agent.model.auxiliary_head.weight.clone()
    agent.learn(32, callback=rows.append)
    assert not torch.equal(before, agent.model.auxiliary_head.weight)
    assert "aux_head_explained_variance_after_aux" in rows[-1]
    assert ("aux_value_loss" in rows[-1]) == value_loss


def test_hold_value_keeps_v_where_it_was(float64: None) -> None:
    agent = tiny_agent("shared", hold_value=True, value_coef=1.0)
    batch = random_batch(agent)
    with torch.no_grad():
        batch.old_values = agent.model.value(batch.observations)
    loss, _ = agent.value_loss(batch, agent.config.weights())
    assert float(loss.detach()) == 0.0  # the error is to the old value, not to the target
    batch.old_values = batch.old_values + 2.0
    loss, _ = agent.value_loss(batch, agent.config.weights())
    assert float(loss.detach()) == pytest.approx(0.5 * 4.0)


def test_shared_without_auxiliary_phase_is_ppo_bit_for_bit() -> None:
    common = {"preset": "none", "seed": 5, "arch": "shared", "num_envs": 4, "num_steps": 16, "num_minibatches": 4}
    common |= {"entropy_coef": 0.01, "normalize_reward": True, "anneal_learning_rate": True, "checkpoint_every": 128}
    ppo = pg.PPO("CartPole-v1", epochs=3, **common).learn(640)
    ppg = pg.PPG("CartPole-v1", e_pi=3, e_v=3, e_aux=0, n_pi=4, **common).learn(640)
    mine, theirs = ppg.model.state_dict(), ppo.model.state_dict()
    assert set(mine) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(mine[name], tensor), name
    assert torch.equal(ppg.optimizers["policy"].second, ppo.optimizers["policy"].second)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_gradient_steps_of_each_kind_are_what_the_settings_say(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tiny_agent(arch, e_pi=2, e_v=3, e_aux=4, n_pi=3, aux_minibatches=5)
    counts: Counter[str] = Counter()
    for stepper in (agent.stepper, agent.auxiliary_stepper):

        def step(*args: object, original: Callable[..., None] = stepper.step, **kwargs: object) -> None:
            counts[str(args[0])] += 1
            original(*args, **kwargs)

        monkeypatch.setattr(stepper, "step", step)
    agent.learn(3 * 16)  # one phase: 3 iterations of 2 x 8
    assert counts == {"policy_and_value_loss": 3 * 2 * 2, "value_loss": 3 * 1 * 2, "auxiliary": 4 * 5}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("epochs", [(1, 3), (3, 1)])
def test_traced_and_plain_gradients_end_with_the_same_bits(arch: str, epochs: tuple[int, int]) -> None:
    """Each kind of loss needs a trace of its own, also where one group of parameters takes them all."""
    e_pi, e_v = epochs
    plain, traced = (
        tiny_agent(arch, seed=4, e_pi=e_pi, e_v=e_v, entropy_coef=0.01, compile=how).learn(64)
        for how in ("off", "replay")
    )
    assert traced.stepper.way == traced.auxiliary_stepper.way == "traced"
    assert plain.stepper.way == "plain"
    for name, tensor in plain.tensors().items():
        assert torch.equal(tensor, traced.tensors()[name]), name


def test_no_policy_epochs_leave_the_policy_alone() -> None:
    agent = tiny_agent("dual", e_pi=0, e_v=2, e_aux=0)
    before = {name: tensor.clone() for name, tensor in agent.model.state_dict().items()}
    agent.learn(64)
    after = agent.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before if n.startswith(("policy", "auxiliary")))
    assert not torch.equal(before["value_head.weight"], after["value_head.weight"])


def test_last_shorter_phase_still_gets_its_auxiliary_phase() -> None:
    agent = tiny_agent("dual", n_pi=4)
    rows: list[dict[str, object]] = []
    agent.learn(16 * 5 + 6, callback=rows.append)  # a phase of 4 iterations, one of 1 and a shorter rollout
    assert agent.progress.step == 86
    assert [("aux_clone_kl" in row) for row in rows] == [False, False, False, True, False, True]


def test_pi_old_is_stored_once_and_targets_are_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tiny_agent("dual", n_pi=2, e_aux=3, aux_learning_rate=0.05)
    targets: list[Tensor] = []

    def estimate(rollout: Rollout, config: Config) -> None:
        estimate_advantages(rollout, config)
        targets.append(rollout.value_targets.clone())

    monkeypatch.setattr(ppg, "estimate_advantages", estimate)
    seen: list[tuple[Tensor, Tensor]] = []
    original_step = agent.auxiliary_stepper.step

    def step(*args: object) -> None:
        assert agent.buffer._old_params is not None
        seen.append((agent.buffer._old_params.clone(), agent.experience.storage().whole.value_targets.clone()))
        original_step(*args)

    monkeypatch.setattr(agent.auxiliary_stepper, "step", step)
    policies: list[Tensor] = []
    original_store = agent.buffer.store_policy

    def store(*args: Any) -> BufferedStates:
        states = original_store(*args)
        with torch.no_grad():
            observations = agent.experience.storage().whole.observations
            policies.append(agent.model.policy(observations.flatten(0, 2)).reshape(2, 8, 2, 2))
        return states

    monkeypatch.setattr(agent.buffer, "store_policy", store)
    agent.learn(32)
    assert len(policies) == 1
    assert len(seen) == 9
    for params, value_targets in seen:
        torch.testing.assert_close(params, policies[0])  # pi_old is the policy as it was when the phase began
        assert torch.equal(params, seen[0][0])  # and does not change while it is trained away from
        assert torch.equal(value_targets, torch.stack(targets))  # never bootstrapped anew
    with torch.no_grad():
        now = agent.model.policy(agent.experience.storage().whole.observations.flatten(0, 2)).reshape(2, 8, 2, 2)
    assert not torch.allclose(now, policies[0])


def test_huge_beta_clone_keeps_the_policy_while_the_auxiliary_head_learns() -> None:
    def drift(beta_clone: float) -> tuple[float, float, float]:
        agent = pg.PPG(
            "CartPole-v1", preset="none", seed=2, num_envs=4, num_steps=64, num_minibatches=4, n_pi=4, e_pi=0, e_v=2,
            e_aux=60, aux_minibatches=8, beta_clone=beta_clone, aux_learning_rate=1e-2, max_grad_norm=0.0, policy_gain=1.0,
            normalize_reward=False,
        )  # fmt: skip
        rows: list[dict[str, float]] = []
        agent.learn(1024, callback=rows.append)
        row = rows[-1]
        return (
            row["aux_clone_kl"],
            row["aux_head_explained_variance_before_aux"],
            row["aux_head_explained_variance_after_aux"],
        )

    held, before, after = drift(1e4)
    free, _, _ = drift(0.0)
    assert held < 1e-5
    assert free > 1e-3
    assert after > before + 0.2


def test_the_kl_objective_changes_the_result() -> None:
    def trained(**fields: object) -> Tensor:
        agent = tiny_agent("dual", seed=3, e_pi=3, **fields)
        return agent.learn(64).flat.data.clone()

    clip, fixed, strong = trained(), trained(objective="kl"), trained(objective="kl", kl_beta=50.0)
    assert not torch.equal(clip, fixed)
    assert not torch.equal(fixed, strong)
    adaptive = tiny_agent("dual", seed=3, e_pi=3, objective="kl", kl_target=1e-9)
    adaptive.learn(64)
    assert adaptive.scalars["kl_beta"] == 2.0**4  # every one of the four updates moved further than the target


def test_auxiliary_phase_has_an_adam_of_its_own_that_is_kept() -> None:
    agent = tiny_agent("dual", n_pi=1, e_pi=1, e_v=1, e_aux=1)
    agent.learn(16)
    assert float(agent.optimizers["policy"].steps) == 2
    assert float(agent.optimizers["auxiliary_policy"].steps) == 3
    agent.learn(32)
    assert float(agent.optimizers["auxiliary_policy"].steps) == 6
    assert float(agent.optimizers["auxiliary_value"].steps) == 6


def test_reloaded_schedule_counts_and_window() -> None:
    agent = tiny_agent(
        "detach", n_pi=4, aux_interval=1, aux_buffer=3, aux_steps=7, aux_minibatch_size=4, aux_minibatches=0
    )
    rows: list[dict[str, object]] = []
    agent.learn(16 * 5, callback=rows.append)
    assert all("aux_clone_kl" in row for row in rows)
    assert float(agent.optimizers["auxiliary_policy"].steps) == 5 * 7
    assert len(agent.experience.storage().rollouts) == 3


def test_reloaded_minibatches_come_from_the_window_only() -> None:
    from phasegrad.data.phase_buffer import PhaseBuffer

    buffer = PhaseBuffer(kept=3, interval=1, num_steps=4, num_envs=2)
    buffer.add(4)
    [drawn] = buffer.epochs(0, 1, 5, 6, False, torch.Generator().manual_seed(0))
    assert [len(index) for index in drawn] == [4, 4, 4, 4, 4, 4]  # 8 samples in ceil(8 / 5) parts, three passes
    assert set(torch.cat(drawn).tolist()) == set(range(8))  # slot 0 alone holds data
    for _ in range(3):
        buffer.add(4)
    [first_pass, second_pass] = buffer.epochs(2, 4, 0, 0, True, torch.Generator().manual_seed(0))
    for minibatches in (first_pass, second_pass):
        assert sorted(torch.cat(minibatches).tolist()) == list(range(24))  # every sample once an epoch
    environments = {int(i) % 2 for i in first_pass[0]} if len(first_pass[0]) == 4 else {0, 1}
    assert len(first_pass) == 4
    assert environments <= {0, 1}


@pytest.mark.parametrize("whole_segments", [True, False])
def test_auxiliary_minibatches_of_whole_segments(whole_segments: bool) -> None:
    from phasegrad.data.phase_buffer import PhaseBuffer

    buffer = PhaseBuffer(kept=2, interval=2, num_steps=8, num_envs=4)
    buffer.add(8)
    buffer.add(3)  # a shorter last rollout: its unused steps must not be drawn
    [minibatches] = buffer.epochs(1, 8, 0, 0, whole_segments, torch.Generator().manual_seed(1))
    drawn = torch.cat(minibatches)
    assert sorted(drawn.tolist()) == [*range(32), *range(32, 44)]
    whole = all(len({(int(i) // 32, int(i) % 4) for i in index}) == 1 for index in minibatches)
    assert whole == whole_segments


SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3]),
    "binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,)),
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("space", SPACES)
def test_every_action_space_trains_in_every_architecture(arch: str, space: str) -> None:
    agent = pg.PPG(lambda: IdentityEnv(SPACES[space]), preset="none", arch=arch, **TINY)
    before = agent.flat.data.clone()
    agent.learn(64)
    assert torch.isfinite(agent.flat.data).all()
    changed = (agent.flat.data != before).float().mean()
    assert changed > 0.5


def test_interference_is_the_cosine_of_the_two_gradients_on_the_trunk(float64: None) -> None:
    from phasegrad.algorithms.interference import interference

    agent = tiny_agent("shared", policy_gain=1.0)
    batch, scalars = random_batch(agent), {**agent.config.weights(), "clip_range": 0.2, "kl_beta": 1.0}
    found = interference(agent.model, batch, agent.config, scalars)
    parts = []
    for each in (agent.policy_loss, agent.value_loss):
        loss, _ = each(batch, scalars)
        gradient = gradients(agent, loss)
        parts.append(np.concatenate([g.ravel() for n, g in gradient.items() if n.startswith("policy_encoder")]))
    lengths = [math.sqrt(float(part @ part)) for part in parts]
    assert found["interference_cosine"] == pytest.approx(
        float(parts[0] @ parts[1]) / (lengths[0] * lengths[1]), abs=1e-9
    )
    assert found["interference_norm_ratio"] == pytest.approx(lengths[1] / lengths[0], rel=1e-9)


def test_interference_is_logged_on_request() -> None:
    rows: list[dict[str, float]] = []
    tiny_agent("shared", measure_interference=True).learn(32, callback=rows.append)
    assert all(-1 <= row["interference_cosine"] <= 1 for row in rows)


def test_metrics_of_each_auxiliary_epoch() -> None:
    rows: list[dict[str, object]] = []
    tiny_agent("dual", e_aux=3).learn(32, callback=rows.append)
    row = rows[-1]
    for name in ("aux_clone_kl", "aux_joint_loss", "aux_value_loss"):
        assert len(row[f"{name}_by_epoch"]) == 3
    for head in ("explained_variance", "aux_head_explained_variance"):
        assert f"{head}_before_aux" in row
        assert f"{head}_after_aux" in row
    assert row["time_auxiliary"] > 0
    assert row["sps_policy_phase"] > row["sps"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"arch": "shared", "aux_value_loss": False}, "aux_value_loss off needs arch dual"),
        ({"arch": "detach", "aux_target": "value_network"}, "aux_target value_network needs arch dual"),
        ({"aux_interval": 4, "aux_buffer": 2}, "aux_buffer 2 is shorter"),
        ({"aux_minibatch_size": 4}, "aux_minibatches and aux_minibatch_size exclude each other"),
        ({"measure_interference": True}, "measure_interference needs a trunk"),
        ({"n_pi": 0}, "n_pi must be at least 1"),
        ({"arch": "dula"}, "arch must be one of dual, detach, shared"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(pg.ConfigError, match=sentence):
        tiny_agent(**{"arch": "dual", **fields})


def test_a_buffer_that_cannot_fit_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tiny_agent("dual")
    assert agent.storage_bytes() == 2 * 8 * 2 * (4 * 4 + 8 + 4 * 2 + 2 + 8 + 4 * 6)
    monkeypatch.setattr("phasegrad.machine.memory.available_bytes", lambda: 1000)
    with pytest.raises(pg.ConfigError, match=r"stored rollouts need .* lower n_pi, num_envs or num_steps"):
        agent.learn(64)
    assert agent.progress.step == 0


@pytest.mark.parametrize(
    "schedule", [{}, {"aux_interval": 1, "aux_buffer": 3, "aux_steps": 4}], ids=["phases", "reloaded"]
)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_resumed_run_ends_with_the_same_bits(arch: str, schedule: dict[str, int], tmp_path: Path) -> None:
    agent = tiny_agent(arch, seed=6, checkpoint_every=48, run_dir=tmp_path / "whole", **schedule)
    resumed_to_the_same_bits(agent, 192, 112)  # past a checkpoint, inside a phase


@pytest.mark.parametrize("counted", [None, 5])
def test_a_run_without_an_auxiliary_phase_resumes(tmp_path: Path, counted: int | None) -> None:
    """Also from a checkpoint of an earlier version, which counted its iterations as those of one long phase."""
    fields = {**TINY, "e_aux": 0, "checkpoint_every": 16, "run_dir": tmp_path / "run"}
    agent: Any = pg.PPG("CartPole-v1", preset="none", **fields)
    agent.learn(160, callback=lambda row: row["iteration"] < 5)
    if counted is not None:
        pieces = {1: {name: tensor.clone() for name, tensor in buffered_tensors(agent.rollout).items()}}
        agent.buffer.restore({"filled": [8], "numbers": [1], "next_slot": 0, "since_phase": counted}, pieces)
    else:
        agent = pg.load(tmp_path / "run")
    agent.learn(160)
    whole = pg.PPG("CartPole-v1", preset="none", **{**fields, "run_dir": None})
    whole.learn(160)
    assert torch.equal(agent.flat.data, whole.flat.data)
