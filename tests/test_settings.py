"""Settings that change while an agent trains: checked, and heeded alike by every way of computing an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute import compiled, native, traced
from phasegrad.compute.plain import PlainSteps
from phasegrad.config import FIXED_FIELDS, WEIGHTS
from phasegrad.errors import ConfigError

SIZES: dict[str, Any] = {
    "preset": "none",
    "num_envs": 4,
    "num_steps": 16,
    "hidden_sizes": (8,),
    "seed": 3,
    "policy_gain": 1.0,
}
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"num_minibatches": 2, "epochs": 2},
    "ppg": {"num_minibatches": 2, "n_pi": 1, "aux_minibatches": 2, "e_aux": 2},
    "a2c": {"updates_per_iteration": 1},
    "acer": {"updates_per_iteration": 1, "replay_start": 0, "replay_ratio": 1.0},
    "vpg": {"value_steps": 2},
    "trpo": {"num_minibatches": 2, "value_epochs": 1},
}
WAYS = ["replay", pytest.param("on", marks=pytest.mark.skipif(native.compiler() is None, reason="no C compiler"))]
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ppo", {}, {"entropy_coef": 0.3}),
    ("ppo", {"entropy_coef": 0.3}, {"entropy_coef": 0.0}),
    ("ppo", {"arch": "shared"}, {"value_coef": 3.0}),
    ("ppo", {"objective": "kl"}, {"kl_beta": 30.0}),
    ("ppo", {}, {"value_clip": 0.01}),
    ("ppo", {"clip_range": 0.5}, {"clip_range": 0.001}),
    ("ppo", {}, {"critic_learning_rate": 1e-5}),
    ("ppg", {}, {"beta_clone": 30.0}),
    ("ppg", {}, {"aux_learning_rate": 1e-5}),
    ("trpo", {}, {"max_kl": 1e-4}),
    ("a2c", {}, {"entropy_coef": 0.5, "value_coef": 5.0}),
    ("acer", {}, {"q_coef": 5.0, "entropy_coef": 0.5}),
    ("acer", {"trust_region_delta": 0.0}, {"trust_region_delta": 9.0}),
    ("vpg", {}, {"entropy_coef": 0.5}),
    ("trpo", {}, {"entropy_coef": 0.5}),
]


def made(name: str, **fields: Any) -> Any:
    return ALGORITHMS[name]("CartPole-v1", **SIZES | OWN[name] | fields)


def trained(name: str, fields: dict[str, Any], changes: dict[str, Any], compile: str) -> tuple[Any, Tensor]:
    large_steps = {} if name == "trpo" else {"learning_rate": 1e-2}  # so that a change is soon seen
    agent = made(name, compile=compile, **large_steps | fields)

    def callback(row: dict[str, Any]) -> None:
        if row["iteration"] == 2:
            agent.change(**changes)

    agent.learn(64 * 4, callback=callback)
    return agent, agent.flat.data.clone()


@pytest.mark.parametrize(("name", "fields", "changes"), CHANGES)
@pytest.mark.parametrize("how", WAYS)
def test_a_change_in_a_callback_is_heeded_by_every_way(
    name: str, fields: dict[str, Any], changes: dict[str, Any], how: str
) -> None:
    _, plain = trained(name, fields, changes, "off")
    agent, found = trained(name, fields, changes, how)
    _, unchanged = trained(name, fields, {}, "off")
    assert agent.computation.steppers[0].way == {"replay": "traced", "on": "compiled"}[how], (
        "nothing in these losses defies the tracing"
    )
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-5)
    assert (plain - unchanged).abs().max() > 1e-4, "the change matters"


@pytest.mark.parametrize("how", WAYS)
def test_a_weight_that_changes_needs_no_new_program_unless_it_is_0(how: str) -> None:
    agent = made("ppo", compile=how, entropy_coef=0.1)
    counts: list[int] = []
    weights = [0.1, 0.1, 0.2, 0.3, 0.0, 0.4]

    def callback(row: dict[str, Any]) -> None:
        counts.append(len(agent.stepper.compiled.programs) + len(agent.stepper.traced.traces))
        agent.change(entropy_coef=weights[row["iteration"] - 1], learning_rate=1e-3 / row["iteration"])

    agent.learn(64 * 6, callback=callback)
    assert counts == [0, 1, 1, 1, 1, 2]


def test_metrics_say_no_more_than_before() -> None:
    rows: list[dict[str, Any]] = []
    made("ppg").learn(64, callback=rows.append)
    assert not set(rows[0]) & set(WEIGHTS)
    assert {"clip_range", "kl_beta"} <= set(rows[0])


class Noting:
    """A config that notes which of its settings are read while a loss is computed."""

    def __init__(self, config: Any) -> None:
        self.__dict__.update(config=config, names=set(), noting=False)

    def __getattr__(self, name: str) -> Any:
        if self.noting:
            self.names.add(name)
        return getattr(self.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.config, name, value)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("arch", ["dual", "shared"])
def test_what_a_loss_reads_is_given_to_it_or_part_of_its_programs_key(
    name: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arch != "dual" and name in ("vpg", "trpo"):
        pytest.skip("dual only")
    agent = made(name, compile="off", arch=arch)
    noted = agent.config = Noting(agent.config)
    gradient = PlainSteps.gradient

    def watched(*arguments: Any) -> Any:
        noted.__dict__["noting"] = True
        try:
            return gradient(*arguments)
        finally:
            noted.__dict__["noting"] = False

    monkeypatch.setattr(PlainSteps, "gradient", watched)
    agent.learn(64 * 3)
    assert noted.names or name in ("a2c", "vpg", "trpo"), "which take all from their coefficients"
    known = set(dict(noted.config.read_by_losses())) | FIXED_FIELDS | {"weight", "batch_size"}
    assert noted.names <= known, "a change of these would be ignored by compiled and traced updates"


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("how", WAYS)
def test_a_shorter_last_rollout_is_not_traced(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[int] = []
    counts: list[int] = []
    for module, kind in ((traced, "Traced"), (compiled, "EpochProgram")):
        real = getattr(module, kind)
        monkeypatch.setattr(module, kind, lambda *given, real=real: (records.append(1), real(*given))[1])
    agent = made(name, compile=how)
    agent.learn(64 * 3 + 20, callback=lambda row: counts.append(len(records)))
    assert agent.progress.step == 212
    assert counts[-2] > 0
    assert counts[-1] == counts[-2]


# Assignment


def test_a_setting_is_checked_when_it_is_changed() -> None:
    agent = made("ppo")
    config = agent.config
    with pytest.raises(
        ConfigError, match=r"learning_rate must be a finite number or a schedule such as linear:1e-3:1e-5, .* not 'abc'"
    ):
        config.learning_rate = "abc"
    with pytest.raises(ConfigError, match="gamma must be from 0 to 1, not 2"):
        config.gamma = 2
    with pytest.raises(ConfigError, match=r"Unknown setting 'entropy_coeff' for ppo. Did you mean entropy_coef"):
        config.entropy_coeff = 0.1
    with pytest.raises(ConfigError, match="num_minibatches 1000 is more than the 64 samples"):
        config.num_minibatches = 1000
    assert (config.learning_rate, config.gamma, config.num_minibatches) == (3e-4, 0.99, 2), "as it was"
    config.learning_rate = "1e-3"
    assert config.learning_rate == 1e-3
    agent.learn(64)


@pytest.mark.parametrize(
    ("field", "value"), [("num_envs", 16), ("num_steps", 8), ("hidden_sizes", (4,)), ("max_grad_norm", 9.0)]
)
def test_what_an_agent_was_made_for_cannot_change(field: str, value: Any, tmp_path: Any) -> None:
    agent = made("ppo")
    agent.save(tmp_path / "agent")
    for each in (agent, pg.load(tmp_path / "agent")):
        with pytest.raises(ConfigError, match=f"{field} is .* cannot become .* once the agent exists"):
            setattr(each.config, field, value)
        setattr(each.config, field, getattr(each.config, field))  # no change
    agent.learn(64)


# Arguments


def test_steps_to_learn_are_a_whole_number() -> None:
    agent = made("ppo")
    for wrong in ("abc", -4, 0, 64.5, None.__class__, float("nan")):
        with pytest.raises(ConfigError, match="total_steps must be"):
            agent.learn(wrong)
    agent.learn(64.0)
    assert agent.progress.step == 64


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (("MlpPolicy", "CartPole-v1"), {}),
        (("MlpPolicy",), {"env": "CartPole-v1"}),
        (("MlpPolicy",), {}),
        (("CartPole-v1", "MlpPolicy"), {}),
    ],
)
def test_the_environment_comes_first(arguments: tuple[str, ...], fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="PPO takes the environment first and no policy name"):
        pg.PPO(*arguments, **fields)


def test_an_environment_may_be_a_keyword() -> None:
    assert pg.PPO(env="CartPole-v1", **SIZES).config.env == "CartPole-v1"
    with pytest.raises(ConfigError, match="and then settings as keywords"):
        pg.PPO("CartPole-v1", 3e-4)


@pytest.mark.parametrize("wrong", ["x", {"a": 1}, [["a", "b"]], object()])
def test_what_is_no_observation_is_said_to_be_none(wrong: Any) -> None:
    agent = made("ppo")
    for act in (agent.predict, agent.value):
        with pytest.raises(pg.PhasegradError, match="observation"):
            act(wrong)
