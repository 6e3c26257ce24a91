"""What an agent may have beside a plain network, on a device that is not there: memories, stacks, masks, Dicts, hybrid actions.

Each learns the CPU's bits and crosses as often as docs/gpu.md says, wherever its rollouts lie.
"""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from device_runs import ENVS, FIELDS, ITERATIONS, OWN, STEPS, require_same, tensors, trained
from gymnasium import spaces
from hybrid_envs import HybridIdentityEnv, choices_space
from identity_envs import DictIdentityEnv, MaskedIdentityEnv
from memory_envs import RecallEnv
from stand_in_device import TO_DEVICE, TO_HOST, StandIn

import phasegrad as pg
from phasegrad.data.soundness import observation_flags
from phasegrad.errors import ConfigError, EnvError, RunError
from phasegrad.machine import memory


class MaskedDict(gym.Env):
    """An image, a vector, choices and a mask in one Dict; episodes are cut, and end, at times of their own."""

    observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(3),
            "choices": spaces.MultiDiscrete([2, 4]),
            "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
            "vector": spaces.Box(-1.0, 1.0, (2,)),
        }
    )
    action_space = spaces.Discrete(3)

    def seen(self) -> dict[str, Any]:
        found = {name: space.sample() for name, space in self.observation_space.items()}
        found["action_mask"] = np.array([1, self.steps % 2, 1], np.int8)
        return found

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        chance = self.np_random.random()
        return self.seen(), float(action), chance < 0.1, chance > 0.8, {}


def hybrid() -> gym.Env:
    return HybridIdentityEnv()


def only_choices() -> gym.Env:
    return HybridIdentityEnv(choices_space())


KINDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "gru": (["ppo", "ppg", "a2c", "trpo", "vpg"], {"env": RecallEnv, "memory": "gru"}),
    "lstm": (["ppo", "ppg"], {"env": RecallEnv, "memory": "lstm", "arch": "shared"}),
    "stack": (["ppo", "ppg", "a2c", "trpo", "acer"], {"frame_stack": 3}),
    "stack and memory": (["ppo"], {"frame_stack": 2, "memory": "gru"}),
    "masked dict": (["ppo", "ppg", "trpo", "acer"], {"env": MaskedDict}),
    "masked dict, stack": (["ppg"], {"env": MaskedDict, "frame_stack": 2}),
    "masked dict, memory": (["ppo"], {"env": MaskedDict, "memory": "gru"}),
    "masks": (["ppo", "acer"], {"env": MaskedIdentityEnv}),
    "choices": (["ppo"], {"env": DictIdentityEnv}),
    "hybrid": (["ppo", "ppg", "a2c", "trpo"], {"env": hybrid}),
    "hybrid choices, memory": (["ppo"], {"env": only_choices, "memory": "gru"}),
    "separate critic": (["ppo"], {"env": DictIdentityEnv, "critic_only": ("noise",), "arch": "dual"}),
}
ALSO_ON_THE_HOST = ("ppo", "acer")  # algorithms that are tried with rollouts there too
RUNS = [
    pytest.param(name, fields, storage, id=f"{name}, {kind}, {storage}")
    for kind, (names, fields) in KINDS.items()
    for name in names
    for storage in (["device", "host"] if name in ALSO_ON_THE_HOST else ["device"])
]
ONE = STEPS * ENVS  # steps of an iteration


@pytest.mark.parametrize(("name", "fields", "storage"), RUNS)
def test_every_kind_learns_the_same_and_crosses_no_more_than_it_must(
    name: str, fields: dict[str, Any], storage: str
) -> None:
    here = StandIn()
    here.free_bytes = 1 << 34 if storage == "device" else 1000
    with here.on():
        agent = trained(name, "cuda", **fields, total_steps=ITERATIONS * ONE, until=ONE)
        assert agent.config.storage == storage
        here.log.entries.clear()
        agent.learn()
        found, log = tensors(agent), here.log
    require_same(found, tensors(trained(name, "cpu", **fields)))
    assert log.count(TO_DEVICE, waits=True) == 0, log.summary()
    own = {"trpo": "algorithms/trpo.py", "acer": "data/replay_memory.py", "ppg": "algorithms/ppg.py"}.get(name, "none")
    inside = log.found(section="update", waits=True) + log.found(section="auxiliary", waits=True)
    if storage == "device":
        assert {each.where.split(":")[0] for each in inside} <= {own}, log.summary()
        # actions of each step; whether the rollout is sound, metrics, whether the parameters are numbers; whose episodes start
        reads = [each for each in log.found(TO_HOST) if not each.where.startswith(own)]
        assert len(reads) == STEPS + 3 + ("memory" in fields), log.summary()
        acting = log.found(TO_DEVICE, "inference")
        assert sum(each.where.startswith("data/landing.py") for each in acting) == STEPS, log.summary()
    else:
        acting = [each for each in log.found(section="inference") if each.where.startswith("compute/acting.py")]
        assert [each.kind for each in acting].count(TO_HOST) == STEPS, log.summary()
        assert [each.kind for each in acting].count(TO_DEVICE) == STEPS + 1, log.summary()  # and the noise


RESUMED: list[tuple[str, Any, dict[str, Any]]] = [
    ("ppg", "CartPole-v1", {"memory": "gru", "n_pi": 3}),
    ("ppo", "CartPole-v1", {"frame_stack": 3}),
    ("acer", MaskedDict, {}),
    ("ppo", hybrid, {}),
]


@pytest.mark.parametrize(("name", "env", "fields"), RESUMED, ids=["memory", "stack", "masked dict", "hybrid"])
@pytest.mark.parametrize(("first", "then"), [("device", "host"), ("host", "device")])
def test_a_checkpoint_of_one_storage_goes_on_with_the_other(
    tmp_path: Path, name: str, env: Any, fields: dict[str, Any], first: str, then: str
) -> None:
    """In the middle of PPG's phase too; and its bits are those of a run on the CPU that was never stopped."""
    fields = {**fields, "env": env, "total_steps": 4 * ONE, "checkpoint_every": ONE}
    with StandIn().on():
        trained(name, "cuda", **fields, storage=first, until=2 * ONE).save(tmp_path)
        given: dict[str, Any] = {} if isinstance(env, str) else {"env": env}
        agent: Any = pg.load(tmp_path, **given, storage=then)
        assert (agent.device.type, agent.config.storage) == ("cuda", then)
        agent.learn()
        found = tensors(agent)
    require_same(found, tensors(trained(name, "cpu", **fields)))


@pytest.mark.parametrize(("first", "then"), [("device", "host"), ("host", "auto")])
def test_on_a_cpu_storage_changes_nothing(tmp_path: Path, first: str, then: str) -> None:
    fields = {"total_steps": 4 * ONE, "n_pi": 3, "checkpoint_every": ONE}
    trained("ppg", "cpu", **fields, storage=first, until=2 * ONE).save(tmp_path)
    agent: Any = pg.load(tmp_path, storage=then)
    assert agent.config.storage == then
    require_same(tensors(agent.learn()), tensors(trained("ppg", "cpu", **fields)))


@pytest.mark.parametrize("fields", [{}, {"memory": "gru"}, {"frame_stack": 2}], ids=["plain", "memory", "stack"])
def test_a_cloned_agent_is_held_to_its_policy_on_the_device(fields: dict[str, Any]) -> None:
    draw = np.random.default_rng(0)
    seen = draw.normal(size=(120, 4)).astype(np.float32)
    given = {"rewards": np.ones(120), "terminated": np.arange(120) % 10 == 9}
    here, found = StandIn(), []
    with here.on():
        for device in ("cpu", "cuda"):
            agent: Any = pg.PPO("CartPole-v1", **{**FIELDS, **OWN["ppo"], **fields, "device": device})
            result = agent.clone(seen, (seen[:, 0] > 0).astype(np.int64), **given, epochs=2)
            here.log.entries.clear()
            agent.learn()
            found.append({name: tensor.cpu() for name, tensor in tensors(agent).items()} | {"": result.loss})
    assert found[0].pop("") == found[1].pop("")
    assert any(name.startswith("leash.") for name in found[0]) == ("memory" not in fields)
    require_same(*found)
    assert here.log.count(section="update", waits=True) == 0, here.log.summary()


def test_verbs_of_an_agent_on_the_device(tmp_path: Path) -> None:
    """Copies, parameters, evaluation, values, logged steps and checkpoints while it trains."""
    with StandIn().on():
        agent = trained("ppo", "cuda", env=hybrid, run_dir=tmp_path / "run", log_steps=True, checkpoint_every=ONE)
        other = copy.deepcopy(agent)
        assert pickle.loads(pickle.dumps(agent)).device.type == "cuda"
        other.load_parameters(agent.parameters())
        observation, _ = hybrid().reset(seed=1)
        taken = agent.predict(observation)[0]
        assert HybridIdentityEnv().action_space.contains(taken)
        assert agent.value(observation) == other.value(observation)
        agent.evaluate(2)
        agent.change(learning_rate=1e-4)
        agent.learn(3 * ONE)
        assert pg.load(tmp_path / "run", env=hybrid).progress.step == 3 * ONE
    assert len(list((tmp_path / "run" / "steps").iterdir())) == 3


# What is refused


class Straying(gym.Env):
    """Leaves its space at the fifth step of every episode, where nobody told it to."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, strayed: Any) -> None:
        self.observation_space, self.strayed = space, strayed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros_like(self.strayed), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.strayed if self.steps == 5 else np.zeros_like(self.strayed), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "strayed"),
    [(spaces.Discrete(3), np.int64(7)), (spaces.MultiDiscrete([2, 3]), np.array([1, 3]))],
    ids=["Discrete", "MultiDiscrete"],
)
def test_choices_that_leave_their_space_are_told_in_the_same_sentence(space: spaces.Space, strayed: Any) -> None:
    told = []
    for device in ("cpu", "cuda"):
        with StandIn().on(), pytest.raises(EnvError) as error:
            trained("ppo", device, env=partial(Straying, space, strayed), backend="gymnasium")
        told.append(str(error.value))
    assert told[0] == told[1]


def test_flags_of_observations_count_what_is_asked_for() -> None:
    choices = [("a", spaces.MultiDiscrete([2, 3]))]
    tree = {"a": torch.tensor([[[0, 2]], [[1, 3]]]), "b": torch.tensor([[[1.0]], [[math.nan]]])}
    assert [bool(flag) for flag in observation_flags(tree, choices)] == [False, False]
    first = torch.tensor([[True], [False]])
    assert [bool(flag) for flag in observation_flags(tree, choices, first)] == [True, True]
    assert [bool(flag) for flag in observation_flags(tree, choices, ~first)] == [False, False]


def test_each_memory_is_asked_for_what_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts on the device need none of the host's memory; ACER's replay memory always does."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    here = StandIn()
    with here.on():
        trained("ppg", "cuda", storage="device")
        for name, storage in (("ppg", "host"), ("acer", "device")):
            with pytest.raises(ConfigError, match=r"stored rollouts need"):
                trained(name, "cuda", storage=storage)
        here.free_bytes = 1000
        with pytest.raises(ConfigError, match=r"storage device does not fit.*set storage host"):
            trained("ppg", "cuda", storage="device")
        here.free_bytes = 2 * pg.PPG("CartPole-v1", **{**FIELDS, **OWN["ppg"], "device": "cpu"}).storage_bytes()
        with pytest.raises(ConfigError, match="storage device does not fit"):  # pi_old lies beside the rollouts
            trained("ppg", "cuda", storage="device")


def test_memory_of_the_device_that_runs_out_names_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("phasegrad.data.collecting.Collector.collect", full)
    with StandIn().on():
        for storage, said in (("device", "set storage host, or lower num_envs"), ("host", "step 0: lower num_envs")):
            with pytest.raises(RunError, match=said):
                trained("ppo", "cuda", storage=storage)
