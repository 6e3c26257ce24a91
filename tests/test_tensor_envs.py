"""Environments that are tensors: gymnasium's physics, the contract, rollouts that stay on the device, exact resume, libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stand_in_device import TO_DEVICE, TO_HOST, StandIn
from torch import Tensor

import phasegrad as pg
from phasegrad import envs
from phasegrad.algorithms import ALGORITHMS
from phasegrad.envs.tensor_contract import FINAL
from phasegrad.envs.tensor_tasks import TensorCartPole, TensorPendulum, mixed_bits
from phasegrad.errors import ConfigError, EnvError

STEPS, ENVS = 8, 4
FIELDS: dict[str, Any] = {
    "preset": "none", "num_steps": STEPS, "hidden_sizes": (8,), "seed": 3, "normalize_reward": True,
    "normalize_observation": True, "compile": "off", "total_steps": 4 * STEPS * ENVS, "eval_episodes": 0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "num_minibatches": 2},
    "ppg": {"n_pi": 2, "e_aux": 1, "aux_minibatches": 4, "num_minibatches": 2},
    "a2c": {"updates_per_iteration": 1},
    "vpg": {"value_steps": 2},
    "trpo": {"cg_iterations": 2, "value_epochs": 1, "num_minibatches": 2},
    "acer": {"replay_capacity": 256, "replay_start": 32, "updates_per_iteration": 1, "normalize_reward": False},
}
TASKS = {"CartPole-v1": TensorCartPole, "Pendulum-v1": TensorPendulum}


class Short(TensorCartPole):
    """Episodes that a time limit cuts, some of them in every rollout."""

    time_limit = 5


def tensors(agent: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in agent.tensors().items()}


def require_same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


# Physics


@pytest.mark.parametrize("name", list(TASKS))
def test_the_physics_is_gymnasiums(name: str) -> None:
    """Step by step from the same states, with the same actions: observations, rewards and ends."""
    mine = TASKS[name](3)
    mine.reset(seed=5)
    theirs: list[Any] = [gym.make(name).unwrapped for _ in range(3)]
    for index, env in enumerate(theirs):
        env.reset(seed=0)
        env.state = mine.physics[index].numpy().copy()
    random = np.random.default_rng(0)
    for _ in range(60):
        actions = (
            random.integers(2, size=3) if name == "CartPole-v1" else random.uniform(-3, 3, (3, 1)).astype(np.float32)
        )
        _, reward, terminated, truncated, info = mine.step(torch.from_numpy(actions))
        for index, env in enumerate(theirs):
            observation, wanted, ended, _, _ = env.step(
                actions[index] if name == "Pendulum-v1" else int(actions[index])
            )
            np.testing.assert_allclose(info[FINAL][index].numpy(), observation, rtol=1e-6, atol=1e-7)
            assert float(reward[index]) == pytest.approx(float(wanted), rel=1e-6)
            assert bool(terminated[index]) == ended
            if ended or truncated[index]:
                env.reset(seed=0)
                env.state = mine.physics[index].numpy().copy()


@pytest.mark.parametrize("name", list(TASKS))
def test_spaces_and_limits_are_gymnasiums(name: str) -> None:
    mine, theirs = TASKS[name](2), gym.make(name)
    assert mine.single_observation_space == theirs.observation_space
    assert mine.single_action_space == theirs.action_space
    assert mine.time_limit == theirs.spec.max_episode_steps  # type: ignore[union-attr]


def test_starts_are_uniform_and_belong_to_seed_and_episode() -> None:
    task = TensorPendulum(4000)
    task.reset(seed=1)
    angle, turning = task.physics.unbind(1)
    for values, reach in ((angle, np.pi), (turning, 1.0)):
        assert values.abs().max() <= reach
        assert float(values.mean()) == pytest.approx(0.0, abs=0.05 * reach)
        assert float(values.std()) == pytest.approx(reach / np.sqrt(3), rel=0.05)
    assert abs(float(torch.corrcoef(task.physics.T)[0, 1])) < 0.06
    first = task.physics.clone()
    task.reset(seed=list(range(2, 4002)))
    assert torch.equal(task.physics[:-1], first[1:])  # of the seed alone, whatever the place
    # Steele et al.'s generator, in Python's whole numbers
    state, mask = 1234567, (1 << 64) - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    assert int(mixed_bits(torch.tensor(state))) & mask == z ^ (z >> 31)


# Training


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in OWN),
        ("ppo", {"memory": "gru"}),
        ("ppg", {"memory": "lstm"}),
        ("ppo", {"frame_stack": 2}),
        ("ppg", {"arch": "shared"}),
    ],
)
def test_rollouts_that_stay_on_the_device_are_those_of_the_host(name: str, fields: dict[str, Any]) -> None:
    """The same weights, scores and running statistics whether steps go through the host's contract or stay there."""
    found, scores = [], []
    for device in ("cpu", "cuda"):
        with StandIn().on():
            agent: Any = ALGORITHMS[name](Short(ENVS, device), **{**FIELDS, **OWN[name], **fields, "device": device})
            agent.learn()
            found.append(tensors(agent))
            scores.append(
                (agent.progress.episodes, list(agent.progress.recent_returns), agent.progress.longest_episode)
            )
    require_same(*found)
    assert scores[0] == scores[1]
    assert scores[0][0] == 4 * (4 * STEPS // 5)


def test_nothing_of_a_step_crosses() -> None:
    """Of a rollout the host reads once, and of an update once; it sends noise, indices of what was cut and of minibatches."""
    here = StandIn()
    with here.on():
        agent = pg.PPO(Short(ENVS, "cuda"), **{**FIELDS, **OWN["ppo"], "device": "cuda", "num_steps": 32})
        agent.learn(32 * ENVS)
        here.log.entries.clear()
        agent.learn(2 * 32 * ENVS)
    assert here.log.count(TO_HOST) == here.log.count(waits=True) == 3, (
        here.log.summary()
    )  # rollout, metrics, parameters
    assert here.log.count(TO_DEVICE) <= 6, here.log.summary()  # noise, running scores, what was cut (2), 2 epochs


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("fields", [{}, {"memory": "lstm"}])
def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path: Path, device: str, fields: dict[str, Any]) -> None:
    """Through the environments' own state: nothing is played back."""
    given = {**FIELDS, **OWN["ppo"], **fields, "device": device}
    with StandIn().on():
        whole = pg.PPO(Short(ENVS, device), **given).learn()
        pg.PPO(Short(ENVS, device), **given).learn(callback=lambda row: row["step"] < 2 * STEPS * ENVS).save(
            tmp_path / "a"
        )
        agent: Any = pg.load(tmp_path / "a", env=Short(ENVS, device))
        assert agent.run.legs.kept() is None
        agent.learn()
        require_same(tensors(agent), tensors(whole))
        assert agent.progress.recent_returns == whole.progress.recent_returns


class Unsaved(Short):
    """One that cannot say what state it is in."""

    def state(self) -> Any:
        return None


def test_without_a_state_actions_are_played_back(tmp_path: Path) -> None:
    given = {**FIELDS, **OWN["ppo"]}
    for device in ("cpu", "cuda"):
        with StandIn().on():
            whole = pg.PPO(Unsaved(ENVS, device), **given, device=device).learn()
            begun = pg.PPO(Unsaved(ENVS, device), **given, device=device)
            begun.learn(callback=lambda row: row["step"] < 2 * STEPS * ENVS).save(tmp_path / device)
            agent: Any = pg.load(tmp_path / device, env=Unsaved(ENVS, device))
            assert len(agent.run.legs.kept()) == 2 * STEPS
            agent.learn()
            require_same(tensors(agent), tensors(whole))


def test_an_evaluation_in_between_leaves_no_trace() -> None:
    """It borrows the environments, which are then put back to the state they were in."""
    given = {**FIELDS, **OWN["ppo"]}
    whole = pg.PPO(Short(ENVS), **given).learn()
    disturbed = pg.PPO(Short(ENVS), **given).learn(callback=lambda row: row["step"] < 2 * STEPS * ENVS)
    disturbed.evaluate(3)
    disturbed.learn()
    require_same(tensors(disturbed), tensors(whole))


def test_a_state_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    given = {**FIELDS, **OWN["ppo"]}
    pg.PPO(Short(ENVS), **given).learn(callback=lambda row: False).save(tmp_path)

    class Other(Short):
        def load_state(self, state: Any) -> Any:
            return super().load_state({"physics": state["physics"]})

    agent: Any = pg.load(tmp_path, env=Other(ENVS))
    with pytest.raises(EnvError, match="saved state of the environments does not fit Other"):
        agent.learn()


def test_learning_works() -> None:
    agent = pg.PPO(
        TensorCartPole(16), preset="none", num_steps=64, total_steps=30_000, seed=1, compile="off", learning_rate=1e-3
    )
    agent.learn()
    assert np.mean(agent.progress.recent_returns) > 100


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda answer: (*answer[:4], {}), r"no info\['final_obs'\]"),
        (lambda answer: answer[:4], "must return"),
        (lambda answer: (answer[0][:2], *answer[1:]), r"observation of Spoilt is \(2, 4\)"),
        (lambda answer: (answer[0].numpy(), *answer[1:]), "is a ndarray"),
        (lambda answer: (answer[0], answer[1][:1], *answer[2:]), "for reward"),
        (lambda answer: (answer[0], answer[1], None, *answer[3:]), "NoneType for terminated"),
        (lambda answer: (*answer[:4], answer[4] | {"success": torch.ones(1)}), r"for info\['success'\]"),
        (lambda answer: answer[0].no_such_thing, "Spoilt raised AttributeError on step 1: .*no_such_thing"),
    ],
)
def test_a_wrong_answer_is_one_sentence(spoil: Any, sentence: str) -> None:
    class Spoilt(TensorCartPole):
        def step(self, actions: Tensor) -> Any:
            return spoil(super().step(actions))

    with pytest.raises(EnvError, match=sentence):
        pg.PPO(Spoilt(ENVS), **{**FIELDS, **OWN["ppo"]}).learn()


def test_spaces_that_tensors_cannot_have_are_refused() -> None:
    class Offset(TensorCartPole):
        def __init__(self) -> None:
            super().__init__(ENVS)
            self.single_action_space = gym.spaces.Discrete(2, start=1)

    class Counting(TensorCartPole):
        def __init__(self) -> None:
            super().__init__(ENVS)
            self.single_observation_space = gym.spaces.Discrete(3, start=1)

    with pytest.raises(EnvError, match="counts from 0"):
        pg.PPO(Offset(), **FIELDS)
    with pytest.raises(EnvError, match=r"observation must count from 0, not as in Discrete\(3, start=1\)"):
        pg.PPO(Counting(), **FIELDS)


@pytest.mark.parametrize(("name", "error"), [("num_envs", ConfigError), ("device", EnvError)])
def test_what_a_class_forgot_to_set_is_named(name: str, error: type[Exception]) -> None:
    class Forgetful(TensorCartPole):
        def __init__(self) -> None:
            super().__init__(ENVS)
            delattr(self, name)

    with pytest.raises(error, match=f"Forgetful has no {name}: set it"):
        pg.PPO(Forgetful(), **FIELDS)


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (lambda x: {"seen": x.float()}, "'action_mask' of Half is missing on reset"),
        (lambda x: x.float(), "'seen' of Half is missing"),
        (lambda x: {"seen": x.float(), "action_mask": torch.ones(len(x), 3)}, r"'action_mask' of Half is \(\d+, 3\)"),
        (lambda x: {"seen": x.float(), "action_mask": np.ones((len(x), 2))}, "'action_mask' of Half is a ndarray"),
    ],
)
def test_an_entry_that_is_missing_or_misshapen_is_named(seen: Any, sentence: str) -> None:
    class Half(Masked):
        def _observe(self, state: Tensor) -> Any:
            return seen(state)

    with pytest.raises(EnvError, match=sentence):
        pg.PPO(Half(ENVS), **{**FIELDS, **OWN["ppo"]}).learn()


class Masked(Short):
    """An action mask in a Dict observation: to push left is never allowed."""

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        super().__init__(num_envs, device)
        mask = gym.spaces.MultiBinary(2)
        self.single_observation_space = gym.spaces.Dict({"seen": self.single_observation_space, "action_mask": mask})

    def _observe(self, state: Tensor) -> Any:
        allowed = torch.stack([torch.zeros(len(state)), torch.ones(len(state))], 1).bool()
        return {"seen": state.float(), "action_mask": allowed.to(state.device)}


def test_masks_hold_on_the_device_too() -> None:
    found = []
    for device in ("cpu", "cuda"):
        with StandIn().on():
            agent: Any = pg.PPO(Masked(ENVS, device), **{**FIELDS, **OWN["ppo"], "device": device})
            agent.learn()
            assert (agent.rollout.actions == 1).all()
            found.append(tensors(agent))
    require_same(*found)


# Libraries, as far as stand-ins of their interfaces tell


class IsaacLike(gym.Env):
    """The interface of Isaac Lab's ManagerBasedRLEnv: a dict of groups, buffers that are written over, no last observation."""

    def __init__(self, num_envs: int) -> None:
        self.task, self.num_envs, self.device, self.cfg = Short(num_envs), num_envs, "cpu", object()
        self.single_observation_space: Any = gym.spaces.Dict({"policy": self.task.single_observation_space})
        self.single_action_space: Any = self.task.single_action_space
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.buffer = torch.zeros(num_envs, 4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert isinstance(seed, int)
        self.buffer.copy_(self.task.reset(seed=seed)[0])
        return {"policy": self.buffer}, {}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = self.task.step(action)
        self.buffer.copy_(observation)
        return {"policy": self.buffer}, reward.float(), terminated, truncated, {"log": {}}


class ManiSkillLike(gym.vector.VectorEnv):
    """The interface of ManiSkillVectorEnv: whole tensors under final_observation on steps that end an episode."""

    auto_reset = True

    def __init__(self, num_envs: int) -> None:
        self.task, self.num_envs, self.device = Short(num_envs), num_envs, torch.device("cpu")
        self.single_observation_space = self.task.single_observation_space
        self.single_action_space = self.task.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.task.reset(seed=seed)[0], {}

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self.task.step(actions)
        told: dict[str, Any] = {"success": torch.zeros(self.num_envs, dtype=torch.bool)}
        if (terminated | truncated).any():
            told = {"final_observation": info[FINAL], "final_info": {"success": truncated}}
        return observation, reward, terminated, truncated, told


class BraxLike:
    """The interface of a batched Brax environment: a state in, a state out, arrays that DLPack knows."""

    observation_size, action_size = 3, 1

    def __init__(self) -> None:
        self.task = TensorPendulum(ENVS)
        self.task.time_limit = 5

    def reset(self, keys: Any) -> Any:
        observation, _ = self.task.reset(seed=int(keys[0]))
        return SimpleNamespace(obs=observation.numpy(), reward=np.zeros(ENVS), done=np.zeros(ENVS), info={})

    def step(self, state: Any, action: np.ndarray) -> Any:
        observation, reward, _, truncated, _ = self.task.step(torch.from_numpy(np.array(action)))
        done = truncated.float().numpy()
        return SimpleNamespace(obs=observation.numpy(), reward=reward.numpy(), done=done, info={"truncation": done})


JAX = SimpleNamespace(
    jit=lambda function: function,
    random=SimpleNamespace(PRNGKey=lambda seed: seed, split=lambda key, count: np.arange(key, key + count)),
    numpy=SimpleNamespace(from_dlpack=np.from_dlpack),
)


@pytest.mark.parametrize("kind", ["isaac", "isaac as it is", "maniskill", "maniskill as it is", "brax"])
def test_libraries_are_taken_by_their_interfaces(kind: str) -> None:
    made: dict[str, Any] = {
        "isaac": lambda: envs.from_isaac_lab(IsaacLike(ENVS)),
        "isaac as it is": lambda: IsaacLike(ENVS),
        "maniskill": lambda: envs.from_maniskill(ManiSkillLike(ENVS)),
        "maniskill as it is": lambda: ManiSkillLike(ENVS),
        "brax": lambda: envs.from_brax(BraxLike(), ENVS, "cpu", JAX),
    }
    agent: Any = pg.PPO(made[kind](), **{**FIELDS, **OWN["ppo"]})
    assert agent.config.num_envs == ENVS
    agent.learn()
    assert agent.experience.env.backend == "tensor"
    assert agent.progress.episodes >= 4 * (4 * STEPS // 5) - 4
    if "maniskill" in kind:
        assert agent.progress.success_rate == 1.0
    again: Any = pg.PPO(made[kind](), **{**FIELDS, **OWN["ppo"]}).learn()
    require_same(tensors(again), tensors(agent))


def test_what_was_seen_last_of_an_isaac_episode_is_the_observation_before() -> None:
    env = envs.from_isaac_lab(IsaacLike(ENVS))
    before, _ = env.reset(seed=1)
    for _ in range(5):
        kept = before.clone()
        before, _, _, truncated, info = env.step(torch.ones(ENVS, dtype=torch.int64))
        assert torch.equal(info[FINAL], kept)
    assert truncated.all()


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(EnvError, match="pip install jax"):
        envs.from_brax(BraxLike(), ENVS, "cpu")
