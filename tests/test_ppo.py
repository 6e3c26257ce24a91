"""PPO end to end on small problems: determinism, exact totals, every option, truncation, masks, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from identity_envs import FACTORIES, IdentityEnv, MaskedIdentityEnv

import phasegrad as pg
from phasegrad.algorithms.base import Algorithm
from phasegrad.data.minibatches import minibatch_indices
from phasegrad.errors import ConfigError, EnvError, NonFiniteError

SMALL: dict[str, Any] = {
    "preset": "none", "seed": 3, "num_envs": 4, "num_steps": 32, "epochs": 3, "num_minibatches": 4, "hidden_sizes": (16,),
    "learning_rate": 1e-2, "checkpoint_every": 1_000_000,
}  # fmt: skip
STEPS = 384  # three iterations of 128


def trained(env: Any = "CartPole-v1", steps: int = STEPS, callback: Any = None, **fields: Any) -> Algorithm:
    return pg.PPO(env, **SMALL | fields).learn(steps, callback=callback)


def rows_of(env: Any = "CartPole-v1", steps: int = STEPS, **fields: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    trained(env, steps, rows.append, **fields)
    return rows


def same(first: Algorithm, second: Algorithm) -> bool:
    mine, theirs = first.tensors(), second.tensors()
    assert mine.keys() == theirs.keys()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


# Determinism


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"arch": "shared", "whole_segments": True, "recompute_advantages": True}),
        ("Pendulum-v1", {"normalize_observation": True, "normalize_reward": True}),
        (MaskedIdentityEnv, {}),
        (FACTORIES["dict"], {}),
    ],
)
def test_same_seed_same_bits(env: Any, fields: dict[str, Any]) -> None:
    torch.manual_seed(1)
    first = trained(env, **fields)
    torch.manual_seed(2)  # the global generators must not matter
    np.random.seed(2)
    second = trained(env, **fields)
    assert same(first, second)
    assert first.progress == second.progress
    assert not same(first, trained(env, **fields | {"seed": 4}))


def test_evaluation_depends_on_its_seed_alone() -> None:
    agent = trained()
    first, second, other = (agent.evaluate(8, deterministic=False, seed=seed).returns for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ("CartPole-v1", {"anneal_clip_range": True, "entropy_coef": 0.01}),
        ("CartPole-v1", {"arch": "shared", "value_clip": 0.1}),
        ("Pendulum-v1", {"objective": "kl", "kl_target": 0.01, "normalize_observation": True}),
        (MaskedIdentityEnv, {}),
        (FACTORIES["dict"], {}),
    ],
)
def test_traced_gradients_are_those_of_autograd(env: Any, fields: dict[str, Any]) -> None:
    """Over several iterations, so that what a trace must not fix (schedules, normalisers, betas) has changed meanwhile."""
    traced, plain = (pg.PPO(env, **SMALL | fields | {"compile": how}) for how in ("replay", "off"))
    for agent in (traced, plain):
        agent.learn(STEPS)
    assert plain.stepper.way == "plain"
    assert traced.stepper.way == "traced", "nothing in these losses defies the tracing"
    assert same(traced, plain)


def test_random_numbers_depend_on_seed_iteration_and_purpose() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)

    def first() -> list[float]:
        return [torch.rand(1, generator=agent.generator(purpose)).item() for purpose in ("noise", "minibatches")]

    seen = first()
    assert first() == seen
    agent.progress.iteration = 1
    seen += first()
    agent.config.seed = 4
    seen += first()
    assert len(set(seen)) == 6


# Totals


def test_the_total_is_exact_with_a_shorter_last_iteration() -> None:
    rows = rows_of(steps=300)
    assert [row["step"] for row in rows] == [128, 256, 300]
    assert [row["iteration"] for row in rows] == [1, 2, 3]


def test_a_last_iteration_with_fewer_samples_than_minibatches() -> None:
    agent = trained(steps=128 + 4, num_minibatches=16)
    assert agent.progress.step == 132
    assert agent.optimizers["policy"].steps.item() == 3 * 16 + 3 * 4, "four samples make four minibatches"


def test_a_total_that_cannot_be_reached_is_refused() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    agent.learn(128)
    with pytest.raises(ConfigError, match="total_steps 128 is not beyond the 128 steps already taken"):
        agent.learn(128)
    assert agent.learn(256).progress.step == 256


@pytest.mark.parametrize("total", [0, -4])
def test_a_total_of_nothing_is_refused(total: int) -> None:
    with pytest.raises(ConfigError, match="total_steps"):
        pg.PPO("CartPole-v1", **SMALL).learn(total)


# Options: each runs, and changes the result where it should


@pytest.fixture(scope="module")
def plain() -> dict[str, Algorithm]:
    return {env: trained(env) for env in ("CartPole-v1", "Pendulum-v1")}


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": "pg"},
        {"objective": "cpi"},
        {"objective": "kl"},
        {"objective": "kl", "kl_beta": 10.0},
        {"clip_range": 0.01},
        {"anneal_clip_range": True, "clip_range": 0.02},
        {"anneal_learning_rate": True},
        {"value_clip": 0.01},
        {"value_coef": 0.01, "max_grad_norm": 0.0},
        {"entropy_coef": 0.1},
        {"max_grad_norm": 0.01},
        {"epochs": 1},
        {"num_minibatches": 2},
        {"whole_segments": True},
        {"recompute_advantages": True},
        {"normalize_advantage": "batch"},
        {"normalize_advantage": "none"},
        {"arch": "shared"},
        {"critic_learning_rate": 1e-4},
        {"adam_eps": 1e-3},
        {"gamma": 0.5},
        {"gae_lambda": 0.5},
        {"normalize_observation": True},
        {"normalize_reward": True},
        {"activation": "relu"},
        {"policy_gain": 1.0},
    ],
    ids=str,
)
def test_each_option_changes_what_is_learnt(fields: dict[str, Any], plain: dict[str, Algorithm]) -> None:
    agent = trained(**fields)
    assert agent.progress.step == STEPS
    assert all(torch.isfinite(tensor).all() for tensor in agent.tensors().values())
    mine, theirs = agent.tensors(), plain["CartPole-v1"].tensors()
    assert mine.keys() != theirs.keys() or not same(agent, plain["CartPole-v1"])


@pytest.mark.parametrize(
    "fields",
    [
        {"std": "state_dependent"},
        {"std": "fixed"},
        {"mean_tanh": True, "policy_gain": 1.0},
        {"action_bounds": "rescale"},
        {"initial_std": 0.3},
        {"bootstrap_truncated": False, "num_steps": 201, "num_minibatches": 4},
        {"clip_reward": 0.1, "normalize_reward": True},
        {"reward_gamma": 0.5, "normalize_reward": True},
        {"clip_observation": 0.1, "normalize_observation": True},
    ],
    ids=str,
)
def test_each_option_of_continuous_control_changes_what_is_learnt(
    fields: dict[str, Any], plain: dict[str, Algorithm]
) -> None:
    """Against the plain run, and against the same run with this option at its default."""
    steps = 4 * fields.get("num_steps", 96)
    agent = trained("Pendulum-v1", steps, **fields)
    option = next(iter(fields))
    rest = {name: value for name, value in fields.items() if name != option}
    other = trained("Pendulum-v1", steps, **rest)
    assert agent.tensors().keys() != other.tensors().keys() or not same(agent, other)


def test_objectives_differ_from_one_another() -> None:
    agents = [trained(objective=name) for name in ("pg", "cpi", "clip", "kl")]
    assert not any(same(a, b) for i, a in enumerate(agents) for b in agents[:i])


def test_a_value_clip_beyond_reach_changes_nothing(plain: dict[str, Algorithm]) -> None:
    mine, theirs = trained(value_clip=1e6).tensors(), plain["CartPole-v1"].tensors()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-2, atol=1e-3)  # it rounds otherwise, no more


def test_kl_stop_ends_the_epochs_early() -> None:
    assert [row["epochs"] for row in rows_of(kl_stop=1e-9)] == [1, 1, 1]
    assert [row["epochs"] for row in rows_of(kl_stop=1e9)] == [3, 3, 3]
    assert [row["epochs"] for row in rows_of()] == [3, 3, 3]
    agent = trained(kl_stop=1e-9)
    assert agent.optimizers["policy"].steps.item() == 3 * 4, "one epoch of four minibatches an iteration"


def test_the_kl_penalty_holds_the_policy_back() -> None:
    loose, tight = (max(row["kl"] for row in rows_of(objective="kl", kl_beta=beta)) for beta in (0.0, 30.0))
    assert tight < loose / 2


def test_the_kl_coefficient_adapts() -> None:
    rising = [row["kl_beta"] for row in rows_of(objective="kl", kl_beta=1.0, kl_target=1e-6)]
    falling = [row["kl_beta"] for row in rows_of(objective="kl", kl_beta=1.0, kl_target=1e3)]
    assert rising == [1.0, 2.0, 4.0]
    assert falling == [1.0, 0.5, 0.25]
    assert [row["kl_beta"] for row in rows_of(objective="kl", kl_beta=1.0)] == [1.0, 1.0, 1.0]


def test_annealing_is_a_pure_function_of_the_step() -> None:
    rows = rows_of(anneal_learning_rate=True, anneal_clip_range=True, clip_range=0.3)
    left = [1.0, 2 / 3, 1 / 3]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.01 * x for x in left])
    assert [row["clip_range"] for row in rows] == pytest.approx([0.3 * x for x in left])
    agent = trained()
    for step, fraction in ((0, 1.0), (96, 0.75), (384, 0.0), (96, 0.75)):
        agent.progress.step = step
        assert agent.remaining_fraction() == pytest.approx(fraction)
    constant = rows_of()
    assert {row["learning_rate"] for row in constant} == {0.01}
    assert {row["clip_range"] for row in constant} == {0.2}


def test_a_learning_rate_of_zero_moves_nothing() -> None:
    agent = trained(learning_rate=0.0, critic_learning_rate=0.05)
    fresh = pg.PPO("CartPole-v1", **SMALL)
    where = agent.flat.slices
    assert torch.equal(agent.flat.data[where["policy"]], fresh.flat.data[where["policy"]])
    assert not torch.equal(agent.flat.data[where["value"]], fresh.flat.data[where["value"]])


def test_metrics_of_an_iteration() -> None:
    row = rows_of()[-1]
    for name in (
        "step",
        "return_mean",
        "episodes",
        "policy_loss",
        "value_loss",
        "kl",
        "entropy",
        "clip_fraction",
        "explained_variance",
        "learning_rate",
        "sps",
    ):
        assert isinstance(row[name], int | float), name
    assert 0 <= row["clip_fraction"] <= 1
    assert 0 < row["entropy"] <= np.log(2)


# Minibatches


def test_minibatches_of_steps_cover_every_sample_once() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = minibatch_indices(7, 5, 4, False, generator)
    assert sorted(torch.cat(parts).tolist()) == list(range(35))
    assert [len(part) for part in parts] == [9, 9, 9, 8]
    again = minibatch_indices(7, 5, 4, False, generator)
    assert torch.cat(parts).tolist() != torch.cat(again).tolist(), "each epoch has its own order"


def test_minibatches_of_whole_segments_hold_whole_environments() -> None:
    parts = minibatch_indices(7, 5, 3, True, torch.Generator().manual_seed(0))
    seen: list[int] = []
    for part in parts:
        envs = sorted({int(i) % 5 for i in part})
        assert sorted(part.tolist()) == sorted(t * 5 + n for t in range(7) for n in envs)
        seen += envs
    assert sorted(seen) == list(range(5))


def batches_of(env: Any = "CartPole-v1", steps: int = STEPS, **fields: Any) -> list[Any]:
    """The minibatches of a run, in the order of its gradient steps."""
    agent = pg.PPO(env, **SMALL | fields)
    step, batches = agent.stepper.step, []

    def spy(*arguments: Any) -> Any:
        batches.extend(argument for argument in arguments if hasattr(argument, "observations"))
        return step(*arguments)

    agent.stepper.step = spy
    agent.learn(steps)
    return batches


class NumberedEnv(gym.Env):
    """Observes its own number, so that a batch shows which environments are in it."""

    made = 0

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1000, (1,)), spaces.Discrete(2)
        self.number = NumberedEnv.made
        NumberedEnv.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.array([self.number], np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([self.number], np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("whole", [False, True])
def test_training_uses_the_minibatches_it_was_told_to(whole: bool) -> None:
    batches = batches_of(NumberedEnv, 128, whole_segments=whole, epochs=1)
    assert len(batches) == 4
    assert all(len(batch) == 32 for batch in batches)
    assert all((len(batch.observations.unique()) == 1) == whole for batch in batches)


@pytest.mark.parametrize("kind", ["none", "minibatch", "batch"])
def test_advantages_are_normalised_over_what_the_setting_says(kind: str) -> None:
    batches = [batch.advantages for batch in batches_of(steps=128, epochs=1, normalize_advantage=kind)]
    every = torch.cat(batches)

    def standard(values: torch.Tensor) -> bool:
        return abs(values.mean().item()) < 1e-5 and abs(values.std(correction=0).item() - 1) < 1e-4

    assert len(every) == 128
    assert standard(every) == (kind != "none")
    assert all(standard(batch) for batch in batches) == (kind == "minibatch")


def test_advantages_are_recomputed_only_where_asked_for() -> None:
    """The targets of a sample stay the same over the epochs, unless they are estimated anew with the newer values."""
    for asked in (False, True):
        batches = batches_of(steps=128, epochs=2, recompute_advantages=asked, normalize_advantage="none")
        first, second = (
            torch.cat([b.value_targets for b in part]).sort().values for part in (batches[:4], batches[4:])
        )
        assert torch.equal(first, second) != asked


# The boundary of an episode


class ConstantEnv(gym.Env):
    """Pays 1 a step for ever, but is cut (or ends) after five steps. The state does not show how long is left."""

    ends = "truncated"

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == 5
        return np.ones(1, np.float32), 1.0, over and self.ends == "terminated", over and self.ends == "truncated", {}


class EndingEnv(ConstantEnv):
    ends = "terminated"


def learnt_value(env: Callable[[], gym.Env], **fields: Any) -> float:
    agent = pg.PPO(
        env, **SMALL | {"gamma": 0.9, "gae_lambda": 0.8, "learning_rate": 0.0, "critic_learning_rate": 0.02, "anneal_learning_rate": True,
        "max_grad_norm": 0.0, "num_steps": 16, "num_minibatches": 2} | fields,
    ).learn(64 * 60)  # fmt: skip
    return float(agent.value(np.ones((1, 1), np.float32))[0])


def test_a_truncated_episode_is_valued_as_if_it_went_on() -> None:
    """1 / (1 - 0.9) = 10 with the bootstrap; without it an episode is worth at most 1 + 0.9 + ... + 0.9^4 = 4.1."""
    assert learnt_value(ConstantEnv) == pytest.approx(10, abs=0.5)
    assert learnt_value(ConstantEnv, bootstrap_truncated=False) < 5
    assert learnt_value(EndingEnv) < 5, "a termination is never bootstrapped"


class TeleportEnv(gym.Env):
    """One step an episode, truncated: the final state is worth much (it is where env "rich" lives), the next start little.

    Observation 0 is the start, 1 the final state. From 1 nothing is ever seen to follow, so its value stays as
    initialised; what matters is which of the two observations the bootstrap looks at.
    """

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 0.0, False, True, {}


@pytest.mark.parametrize("arch", ["dual", "shared"])
def test_the_bootstrap_looks_at_the_final_observation_not_the_next_start(arch: str) -> None:
    agent = pg.PPO(TeleportEnv, **SMALL | {"arch": arch})
    agent.experience.be_ready()
    rollout = agent.collect(32)
    start, final = agent.value(np.array([[0.0], [1.0]], np.float32))
    assert abs(start - final) > 0.05, "the two must be told apart"
    np.testing.assert_allclose(rollout.values.numpy(), start, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rollout.next_values.numpy(), final, rtol=1e-4, atol=1e-5)
    assert rollout.truncated.all()


def test_a_rollout_holds_what_the_environments_did() -> None:
    """Old parameters, log-probabilities and the values of following states, over a rollout with real episode ends."""
    agent = pg.PPO("CartPole-v1", **SMALL | {"num_steps": 64})
    agent.experience.be_ready()
    rollout = agent.collect(64)
    done = rollout.terminated | rollout.truncated
    assert done.any()
    with torch.no_grad():
        params = agent.model.policy(rollout.observations.flatten(0, 1)).reshape(64, 4, 2)
        values = agent.model.value(rollout.observations.flatten(0, 1)).reshape(64, 4)
    torch.testing.assert_close(rollout.behaviour_params, params, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rollout.values, values, rtol=1e-4, atol=1e-5)
    expected = torch.distributions.Categorical(logits=params).log_prob(rollout.actions)
    torch.testing.assert_close(rollout.log_probs, expected, rtol=1e-4, atol=1e-5)
    inside = ~done[:-1]
    torch.testing.assert_close(rollout.next_values[:-1][inside], rollout.values[1:][inside])
    assert agent.progress.step == 256
    assert agent.progress.episodes == int(done.sum())


# Units of the value


class PayingEnv(ConstantEnv):
    """Pays 1000 or 3000 a step by the episode and ends after five steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.pay = float(self.rng.choice([1000.0, 3000.0]))
        return np.array([self.pay / 1000], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.pay / 1000], np.float32), self.pay, self.steps == 5, False, {}


def test_values_are_in_units_of_the_raw_reward() -> None:
    agent = pg.PPO(
        PayingEnv, **SMALL | {"gamma": 0.0, "learning_rate": 0.0, "critic_learning_rate": 0.02, "anneal_learning_rate": True,
        "normalize_reward": True, "max_grad_norm": 0.0},
    ).learn(128 * 25)  # fmt: skip
    low, high = agent.value(np.array([[1.0], [3.0]], np.float32))
    assert low == pytest.approx(1000, rel=0.15)
    assert high == pytest.approx(3000, rel=0.15)


# Acting


def test_predict_on_one_observation_and_on_a_batch() -> None:
    agent = trained("Pendulum-v1")
    batch = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    actions, state = agent.predict(batch, state="kept")
    assert actions.shape == (6, 1)
    assert state == "kept"
    for observation, action in zip(batch, actions, strict=True):
        alone, nothing = agent.predict(observation)
        assert alone.shape == (1,)
        assert nothing is None
        np.testing.assert_allclose(alone, action, rtol=1e-5)
        assert agent.value(observation) == pytest.approx(agent.value(batch[:1] * 0 + observation)[0], rel=1e-5)
    assert agent.value(batch).shape == (6,)
    assert (np.abs(agent.predict(1000 * batch, deterministic=False)[0]) <= 2).all(), "within the bounds of the space"
    drawn = np.concatenate([agent.predict(batch[0], deterministic=False)[0] for _ in range(20)])
    assert len(np.unique(drawn)) > 10
    assert len(np.unique([agent.predict(batch[0])[0] for _ in range(5)])) == 1


@pytest.mark.parametrize("name", FACTORIES)
def test_predicted_actions_belong_to_the_environment(name: str) -> None:
    env = FACTORIES[name]()
    agent = pg.PPO(FACTORIES[name], **SMALL)
    observation, _ = env.reset(seed=0)
    for _ in range(10):
        action, _ = agent.predict(observation, deterministic=False)
        action = action if isinstance(env.action_space, spaces.Box) else np.asarray(action, np.int64)
        assert env.action_space.contains(action if env.action_space.shape else np.int64(action))
        observation, *_ = env.step(action)


class ShiftedEnv(IdentityEnv):
    """Actions are numbered from 5."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3))
        self.action_space = spaces.Discrete(3, start=5)

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action), "training must speak the environment's numbers"
        return float(action - 5 == self.wanted)


def test_predict_speaks_the_numbers_of_the_environment() -> None:
    """In training the contract renumbers; a user who plays the environment by hand gets its own numbers too."""
    agent = trained(ShiftedEnv)
    actions, _ = agent.predict(np.array([0, 1, 2]))
    assert set(actions.tolist()) <= {5, 6, 7}


def test_predict_respects_a_mask() -> None:
    agent = pg.PPO(MaskedIdentityEnv, **SMALL)
    for allowed in range(6):
        mask = np.arange(6) == allowed
        assert agent.predict(3, mask=mask)[0] == allowed
        assert agent.predict(np.arange(6), mask=np.tile(mask, (6, 1)), deterministic=False)[0].tolist() == [allowed] * 6


def test_observations_of_the_wrong_shape_are_refused() -> None:
    agent = pg.PPO("CartPole-v1", **SMALL)
    with pytest.raises(EnvError, match="shape"):
        agent.predict(np.zeros((2, 3), np.float32))
    mixed = pg.PPO(FACTORIES["dict"], **SMALL)
    with pytest.raises(EnvError, match="keys"):
        mixed.predict({"part": 1})


def test_masks_are_respected_in_training_and_evaluation() -> None:
    made: list[MaskedIdentityEnv] = []

    def factory() -> gym.Env:
        made.append(MaskedIdentityEnv())
        return made[-1]

    agent = pg.PPO(factory, **SMALL).learn(STEPS)
    training = len(made)
    agent.evaluate(8)
    agent.evaluate(8, deterministic=False)
    assert sum(env.taken for env in made[:training]) == STEPS
    assert sum(env.taken for env in made[training:]) >= 2 * 8 * 20
    assert [env.forbidden_taken for env in made] == [0] * len(made)


# What goes wrong


class SpoiltEnv(ConstantEnv):
    """Gives NaN or infinity at a chosen step of its life, in the reward, the observation or the final observation."""

    def __init__(self, what: str, when: int, value: float, only: int, made: list[gym.Env]) -> None:
        super().__init__()
        self.what, self.when, self.value = what, when, value
        self.spoilt = len(made) == only
        self.life = 0
        made.append(self)

    def step(self, action: Any) -> Any:
        self.life += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.spoilt and self.life == self.when:
            if self.what == "reward":
                reward = self.value
            else:
                observation = np.full(1, self.value, np.float32)
        return observation, reward, terminated, truncated, info


def spoilt_run(what: str, when: int, value: float = float("nan"), **fields: Any) -> tuple[str, Algorithm]:
    """Environment 2 of 4 fails on its `when`-th step, from 1."""
    made: list[gym.Env] = []
    agent = pg.PPO(lambda: SpoiltEnv(what, when, value, 2, made), **SMALL | fields)
    with pytest.raises(NonFiniteError) as error:
        agent.learn(STEPS)
    return str(error.value), agent


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_named(value: float) -> None:
    message, agent = spoilt_run("reward", 7, value)
    assert "reward of environment 2" in message
    assert f"at step {6 * 4 + 2}" in message
    assert all(torch.isfinite(tensor).all() for tensor in agent.tensors().values())


def test_the_step_counts_from_the_start_of_the_run() -> None:
    message, _ = spoilt_run("reward", 40)
    assert f"at step {39 * 4 + 2}" in message


@pytest.mark.parametrize("normalize", [False, True])
def test_an_observation_that_is_no_number_is_named(normalize: bool) -> None:
    message, agent = spoilt_run("observation", 7, normalize_observation=normalize)
    assert "observation of environment 2" in message
    assert f"at step {7 * 4 + 2}" in message, "the step on which it would have been acted on"
    assert all(torch.isfinite(tensor).all() for tensor in agent.tensors().values())


@pytest.mark.parametrize(("when", "place"), [(32, "the last of a rollout"), (5, "the end of an episode")])
def test_an_observation_only_bootstrapped_from_is_named_too(when: int, place: str) -> None:
    """It is never acted on in this rollout, but its value enters the advantages."""
    message, agent = spoilt_run("observation", when)
    assert "environment 2" in message, place
    assert "observation" in message
    assert all(torch.isfinite(tensor).all() for tensor in agent.tensors().values()), "before it has spoilt the weights"


def test_an_environment_that_crashes_is_named() -> None:
    class Crashing(ConstantEnv):
        def step(self, action: Any) -> Any:
            raise RuntimeError("out of fuel")

    with pytest.raises(EnvError, match=r"Environment 0 .*RuntimeError.*out of fuel"):
        trained(Crashing)


def test_a_missing_or_unknown_environment_is_named() -> None:
    with pytest.raises(ConfigError, match="env is missing"):
        pg.PPO()
    with pytest.raises(EnvError, match="CartPole"):
        pg.PPO("CartPol-v1")


# Sources of environments


class SeedNotingEnv(ConstantEnv):
    seeds: list[int] = []  # noqa: RUF012 - shared on purpose

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
        return super().reset(seed=seed)


@pytest.mark.parametrize("vector", [False, True])
def test_each_leg_has_fresh_seeds(vector: bool) -> None:
    """Otherwise every leg replays the episodes of the first one."""
    SeedNotingEnv.seeds.clear()
    source: Any = gym.vector.SyncVectorEnv([SeedNotingEnv] * 4) if vector else SeedNotingEnv
    agent = trained(source, restart_every=4 * 20)  # four episodes of five steps in each of four environments
    assert len(set(SeedNotingEnv.seeds)) == 4 * (1 + agent.run.legs.numbers[0])
    assert agent.run.legs.numbers[0] >= 2


def test_a_vector_environment_learns_like_its_factory() -> None:
    source = gym.vector.SyncVectorEnv([FACTORIES["discrete"]] * 4)
    assert same(trained(source, 128), trained(FACTORIES["discrete"], 128))
    with pytest.raises(ConfigError, match="num_envs is 3"):
        pg.PPO(gym.vector.SyncVectorEnv([FACTORIES["discrete"]] * 4), num_envs=3)


def test_every_epoch_and_on_request_every_step_is_logged(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    agent = pg.PPO(
        "Pendulum-v1", preset="none", num_envs=2, num_steps=16, num_minibatches=2, epochs=3, seed=1,
        critic_learning_rate=1e-3, log_steps=True, run_dir=tmp_path / "run",
    )  # fmt: skip
    agent.learn(64, callback=rows.append)
    for row in rows:
        for name in ("policy_loss", "value_loss", "kl"):
            assert len(row[f"{name}_by_epoch"]) == 3
        assert row["value_loss"] == pytest.approx(np.mean(row["value_loss_by_epoch"]))
        assert row["kl"] == pytest.approx(row["kl_by_epoch"][-1])
        assert (row["learning_rate"], row["critic_learning_rate"]) == (3e-4, 1e-3)
    files = sorted((tmp_path / "run" / "steps").iterdir())
    assert [path.name for path in files] == ["step-000000000032.npz", "step-000000000064.npz"]
    last = np.load(files[-1])
    assert last["reward"].shape == (16, 2)
    assert last["action"].shape == last["mean"].shape == last["std"].shape == (16, 2, 1)
    assert np.array_equal(last["reward"], agent.experience.storage().rollouts[0].raw_rewards.numpy())
    noise = (last["action"] - last["mean"]) / last["std"]
    assert 0.5 < noise.std() < 1.5
