"""The same-step contract on hand-made environments whose every row is known, for every way to make them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from counting_envs import SCHEDULES, CountingEnv, HandMadeVector, mask_of, reward_of
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from phasegrad.envs import VectorEnv, check, make
from phasegrad.errors import EnvError

SEEDS = [0, 1, 2, 3]
MODES = list(AutoresetMode)


def _instance(kind: type[gym.vector.VectorEnv], mode: AutoresetMode, mask: str | None = None) -> VectorEnv:
    source = kind([partial(CountingEnv, mask)] * 4, autoreset_mode=mode)  # type: ignore[call-arg]
    return make(source, num_envs=4, seeds=SEEDS)


def _hand_made(behaviour: str, label: AutoresetMode | None, mask: str | None = None) -> VectorEnv:
    return make(HandMadeVector(4, behaviour, label, mask), num_envs=4, seeds=SEEDS)


MAKERS: dict[str, Callable[[], VectorEnv]] = {
    "factory-sync": lambda: make(CountingEnv, num_envs=4, seeds=SEEDS),
    "factory-async": lambda: make(CountingEnv, num_envs=4, seeds=SEEDS, vectorization="async"),
    **{f"sync-{mode.name}": partial(_instance, SyncVectorEnv, mode) for mode in MODES},
    **{f"async-{mode.name}": partial(_instance, AsyncVectorEnv, mode) for mode in MODES},
    "hand-made-same": partial(_hand_made, "same", AutoresetMode.SAME_STEP),
    "hand-made-disabled": partial(_hand_made, "disabled", AutoresetMode.DISABLED),
    "mislabelled-next": partial(_hand_made, "same", AutoresetMode.NEXT_STEP),
    "mislabelled-disabled": partial(_hand_made, "same", AutoresetMode.DISABLED),
    "unlabelled": partial(_hand_made, "same", None),
}


class Oracle:
    """What one counting environment must show, computed from its schedule alone."""

    def __init__(self, seed: int) -> None:
        self.seed, self.episode, self.step, self.total = seed, 0, 0, 0.0

    def advance(self) -> tuple[float, bool, bool, list[int] | None, tuple[float, int] | None]:
        """(reward, terminated, truncated, final observation, (return, length)) of the next step."""
        length, kind = SCHEDULES[self.seed][self.episode % len(SCHEDULES[self.seed])]
        self.step += 1
        reward = reward_of(self.seed, self.episode, self.step)
        self.total += reward
        if self.step < length:
            return reward, False, False, None, None
        final, statistics = [self.seed, self.episode, self.step], (self.total, self.step)
        self.episode, self.step, self.total = self.episode + 1, 0, 0.0
        return reward, kind != "truncated", kind != "terminated", final, statistics


def _compare_with_oracles(env: VectorEnv, steps: int) -> int:
    """Step `env` and compare every row; the number of ends on the last step."""
    oracles = [Oracle(seed) for seed in SEEDS]
    observation, _ = env.reset()
    np.testing.assert_array_equal(observation, [[seed, 0, 0] for seed in SEEDS])
    assert isinstance(observation, np.ndarray)
    assert observation.dtype == np.float32
    earlier = []  # what was returned must stay as it was
    for _ in range(steps):
        step = env.step(np.full(4, 2))
        rows = [oracle.advance() for oracle in oracles]
        expected = np.array([[oracle.seed, oracle.episode, oracle.step] for oracle in oracles])
        np.testing.assert_array_equal(step.observation, expected)
        np.testing.assert_array_equal(step.reward, [row[0] for row in rows])
        np.testing.assert_array_equal(step.terminated, [row[1] for row in rows])
        np.testing.assert_array_equal(step.truncated, [row[2] for row in rows])
        ended = [index for index, row in enumerate(rows) if row[3] is not None]
        np.testing.assert_array_equal(step.ended, ended)
        assert step.ended.dtype == np.int64
        if ended:
            np.testing.assert_array_equal(step.final_observation, [rows[index][3] for index in ended])
        else:
            assert step.final_observation is None
        assert [(e.env, (e.episode_return, e.length)) for e in step.episodes] == [(i, rows[i][4]) for i in ended]
        earlier.append((step.observation, expected))
    for returned, expected in earlier:
        np.testing.assert_array_equal(returned, expected)
    return len(ended)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())
def test_every_row_is_the_transition_it_claims_to_be(maker: Callable[[], VectorEnv]) -> None:
    env = maker()
    try:
        _compare_with_oracles(env, 23)
        # A second reset starts on the seeds again; environments 0, 1 and 2 end together on step 6, 1 and 10.
        assert _compare_with_oracles(env, 6) == 3
        assert _compare_with_oracles(env, 1) == 1
    finally:
        env.close()
        env.close()


@pytest.mark.parametrize(
    ("behaviour", "label", "sentence"),
    [
        ("next", AutoresetMode.NEXT_STEP, "resets on the next step.*SAME_STEP"),
        ("next", None, "resets on the next step.*SAME_STEP"),
        ("next", AutoresetMode.SAME_STEP, "says it resets on the same step, but environment 1 ended on step 1 without"),
        ("disabled_resets_all", AutoresetMode.DISABLED, "also changed environments that had not ended"),
    ],
)
def test_vector_environments_that_cannot_be_adapted_are_refused(
    behaviour: str, label: AutoresetMode | None, sentence: str
) -> None:
    with pytest.raises(EnvError, match=sentence):
        _hand_made(behaviour, label)


def test_a_vector_environment_of_another_dtype_is_refused() -> None:
    source = HandMadeVector(2, "same", AutoresetMode.SAME_STEP)
    source.rows = source.rows.astype(complex)
    with pytest.raises(EnvError, match=r"returned observations of complex128 \(2, 3\), but its space promises float32"):
        make(source, num_envs=2, seeds=[0, 1])


MASKED: dict[str, Callable[[str], VectorEnv]] = {
    "sync": lambda mask: make(partial(CountingEnv, mask), num_envs=4, seeds=SEEDS),
    "async": lambda mask: make(partial(CountingEnv, mask), num_envs=4, seeds=SEEDS, vectorization="async"),
    "async-instance": lambda mask: _instance(AsyncVectorEnv, AutoresetMode.DISABLED, mask),
    "hand-made-same": lambda mask: _hand_made("same", AutoresetMode.SAME_STEP, mask),
    "hand-made-disabled": lambda mask: _hand_made("disabled", AutoresetMode.DISABLED, mask),
}


@pytest.mark.parametrize("mask", ["info", "key"])
@pytest.mark.parametrize("maker", MASKED.values(), ids=MASKED.keys())
def test_the_mask_belongs_to_the_observation_to_act_on(maker: Callable[[str], VectorEnv], mask: str) -> None:
    env = maker(mask)
    assert env.has_action_mask
    observation, allowed = env.reset()
    for _ in range(12):
        counts = observation["counts"] if isinstance(observation, dict) else observation
        np.testing.assert_array_equal(allowed, [mask_of(int(row[1]), int(row[2])) for row in counts])
        assert allowed is not None
        assert allowed.dtype == bool
        assert not isinstance(observation, dict) or set(observation) == {"counts"}
        step = env.step(allowed.argmax(axis=1))
        observation, allowed = step.observation, step.action_mask
    env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_render_shows_the_current_states(vectorization: str) -> None:
    env = make(
        lambda: CountingEnv(render_mode="rgb_array"), num_envs=4, seeds=SEEDS, render=True, vectorization=vectorization
    )
    env.reset()
    env.step(np.zeros(4, int))
    frames = env.render()
    assert frames is not None
    assert frames.shape == (4, 4, 5, 3)
    assert frames.dtype == np.uint8
    assert frames[:, 0, 0, 0].tolist() == [1, 0, 1, 1]  # environment 1 has begun its next episode
    env.close()


def test_render_is_none_without_render() -> None:
    assert make(CountingEnv, num_envs=1, seeds=[0]).render() is None


def test_check_passes_and_counts_on_a_good_environment() -> None:
    with pytest.warns(UserWarning, match="may ignore its seed"):
        report = check(lambda: _Blind(), 30)
    assert (report.episodes, report.terminated, report.truncated) == (60, 60, 0)
    assert report.deterministic is True
    assert report.mean_return == reward_of(1, 0, 1)


class _Blind(CountingEnv):
    """Always the row of seed 1 in episode 0: nothing distinguishes one seed from another. Returns copies."""

    def observe(self):  # type: ignore[no-untyped-def]
        observation, info = super().observe()
        return observation.copy(), info

    def reset(self, *, seed: int | None = None, options: dict | None = None):  # type: ignore[no-untyped-def,type-arg]
        return super().reset(seed=1)


class _Random(_Blind):
    def step(self, action: int):  # type: ignore[no-untyped-def]
        observation, _, *rest = super().step(action)
        return observation, float(np.random.default_rng().random()), *rest


class _Nan(_Blind):
    def step(self, action: int):  # type: ignore[no-untyped-def]
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (_Random, "same seeds and actions gave another trajectory"),
        (_Nan, "Environment 0 gave the reward nan on step 1"),
    ],
)
def test_check_names_what_is_wrong_with_an_environment(factory: type[CountingEnv], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        check(factory, 20)


def _broken(change: Callable[[object], None]) -> VectorEnv:
    env = make(CountingEnv, num_envs=4, seeds=SEEDS)
    honest = env.step

    def step(actions: np.ndarray):  # type: ignore[no-untyped-def]
        result = honest(actions)
        change(result)
        return result

    env.step = step  # type: ignore[method-assign]
    return env


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: setattr(s, "ended", s.ended[:0]), r"`ended` is \[\] on step 1, but the flags say \[1\]"),
        (lambda s: setattr(s, "final_observation", None), r"Environments \[1\] ended on step 1 without a final"),
        (lambda s: setattr(s, "final_observation", s.observation), "final observation on step 1 has shape"),
        (lambda s: setattr(s, "observation", s.observation.astype(np.float64)), "has dtype float64, but float32"),
        (lambda s: setattr(s, "reward", s.reward.astype(np.float32)), "reward on step 1 is float32"),
        (lambda s: setattr(s.episodes[0], "length", 7) if s.episodes else None, "an episode of 7 steps on step 1"),
        (lambda s: setattr(s.episodes[0], "episode_return", 7.0), "return of 7.0 on step 1, but its rewards add up"),
        (lambda s: setattr(s.episodes[0], "env", 3), "An episode of environment 3 is reported on step 1"),
        (
            lambda s: s.observation.__setitem__(s.ended, s.final_observation) if s.ended.size else None,
            "no new episode was begun",
        ),
    ],
)
def test_check_finds_every_breach_of_the_contract(change: Callable[[object], None], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        check(_broken(change), 20)
