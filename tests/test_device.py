"""The way to a GPU, checked without one: on a device that is not there, which counts what crosses (stand_in_device.py)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_runs import ENVS, FIELDS, ITERATIONS, OWN, STEPS, require_same, tensors, trained
from stand_in_device import TO_DEVICE, TO_HOST, MixedDevices, Race, StandIn

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.compute.devices import pick_storage
from phasegrad.data.transfers import fetch, fetched, send, to_device
from phasegrad.errors import ConfigError, NonFiniteError

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OWN),
    ("ppo", {"memory": "gru"}),
    ("ppg", {"memory": "lstm"}),
    ("ppo", {"frame_stack": 3}),
    ("ppo", {"env": "Pendulum-v1", "action_distribution": "tanh"}),
    ("ppg", {"env": "Pendulum-v1", "action_distribution": "beta"}),
    ("ppg", {"arch": "detach", "aux_head": True, "objective": "kl", "kl_target": 0.01}),
    ("ppg", {"aux_target": "value_network", "aux_buffer": 3, "aux_interval": 1}),
    ("ppo", {"arch": "shared", "measure_interference": True, "recompute_advantages": True, "whole_segments": True}),
]


@pytest.mark.parametrize(("name", "fields"), CASES)
def test_an_update_neither_waits_nor_fetches(name: str, fields: dict[str, Any]) -> None:
    """And what is learnt is what the CPU learns, bit for bit, so nothing was read before it had arrived."""
    here = StandIn()
    with here.on():
        found = tensors(trained(name, "cuda", **fields))
    waiting = here.log.found(section="update", waits=True) + here.log.found(section="auxiliary", waits=True)
    own = {"trpo": {"algorithms/trpo.py"}, "acer": {"data/replay_memory.py"}, "ppg": {"algorithms/ppg.py"}}
    # TRPO's line search asks after each try, ACER's memory is the host's, PPG reads a phase's metrics at its end; constants
    # of a distribution are put there once
    allowed = own.get(name, set()) | {"distributions/beta_functions.py"}
    assert {each.where.split(":")[0] for each in waiting} <= allowed, here.log.summary()
    assert here.log.count(TO_HOST, "update") <= {"trpo": 2 * ITERATIONS + 10, "acer": ITERATIONS}.get(name, 0)
    phases = here.log.count(TO_HOST, "auxiliary")
    assert phases <= (2 if name == "ppg" else 0), here.log.summary()
    require_same(found, tensors(trained(name, "cpu", **fields)))


def test_the_copies_of_an_iteration_are_counted() -> None:
    """A step: one copy there, one back. A rollout: noise, rewards with flags, what followed. An epoch: its indices."""
    here = StandIn()
    with here.on():
        agent = trained("ppo", "cuda", total_steps=STEPS * ENVS)
        assert agent.config.storage == "device"
        here.log.entries.clear()
        agent.learn(2 * STEPS * ENVS)
    log = here.log
    rollout = 1 + 1 + 1  # noise; rewards and flags; observations that followed
    assert log.count(TO_DEVICE) == STEPS + rollout + OWN["ppo"]["epochs"], log.summary()
    assert log.count(TO_DEVICE, waits=True) == 0, log.summary()
    # actions of each step; whether the rollout is sound; metrics; whether the parameters are numbers
    assert log.count(TO_HOST) == log.count(waits=True) == STEPS + 3, log.summary()
    observation = 4 * 4 * ENVS
    assert max(each.size for each in log.found(TO_DEVICE)) < 20 * observation  # no rollout, no minibatch


def test_a_phase_of_ppg_reads_once() -> None:
    here = StandIn()
    with here.on():
        trained("ppg", "cuda")
    assert here.log.count(TO_HOST, "auxiliary") == 1, here.log.summary()


@pytest.mark.parametrize("name", ["ppo", "ppg", "trpo", "acer"])
def test_storage_of_the_host_learns_the_same(name: str) -> None:
    """Where rollouts do not fit: one copy a step in each direction still, and minibatches that do not wait."""
    here = StandIn()
    here.free_bytes = 1000
    with here.on():
        agent = trained(name, "cuda")
        assert agent.config.storage == "host"
        found = tensors(agent)
    require_same(found, tensors(trained(name, "cpu")))
    assert here.log.count(TO_DEVICE, "update", waits=True) == 0, here.log.summary()
    acting = [each for each in here.log.found(section="inference") if each.where.startswith("compute/acting")]
    assert sum(each.kind == TO_HOST for each in acting) == ITERATIONS * STEPS
    assert sum(each.kind == TO_DEVICE for each in acting) == ITERATIONS * (STEPS + 1)


@pytest.mark.parametrize("name", ["ppo", "ppg"])
def test_a_checkpoint_goes_from_one_device_to_the_other(name: str, tmp_path: Path) -> None:
    """Saved on the device, resumed on the CPU, and the other way round: as if it had never moved."""
    own = {"n_pi": 3, "checkpoint_every": STEPS * ENVS} if name == "ppg" else {}
    fields = {**FIELDS, **OWN[name], **own, "total_steps": 4 * STEPS * ENVS}
    wanted = tensors(ALGORITHMS[name]("CartPole-v1", **fields, device="cpu").learn())
    here = StandIn()
    for first, second in (("cuda", "cpu"), ("cpu", "cuda")):
        with here.on():
            begun = ALGORITHMS[name]("CartPole-v1", **fields, device=first)
            begun.learn(callback=lambda row: row["step"] < 2 * STEPS * ENVS).save(tmp_path / first)
            agent: Any = pg.load(tmp_path / first, device=second)
            agent.learn()
            found = tensors(agent)
        require_same(found, wanted)


def test_acting_evaluating_and_predicting_cross_once_a_step() -> None:
    here = StandIn()
    with here.on():
        agent = trained("ppo", "cuda", memory="gru")
        here.log.entries.clear()
        agent.evaluate(2, max_steps=10)
        steps = here.log.count(TO_HOST)
        assert steps <= 10
        assert here.log.count(waits=True) == steps, here.log.summary()
        before = here.log.count(TO_DEVICE)
        assert before <= 2 * steps + 1
        here.log.entries.clear()
        action, state = agent.predict(np.zeros((3, 4), np.float32), deterministic=False)
        agent.predict(np.zeros((3, 4), np.float32), state, episode_start=np.array([True, False, True]))
        assert np.isfinite(agent.value(np.zeros((3, 4), np.float32))).all()
        assert action.shape == (3,)


def test_what_is_no_number_is_found_on_the_device_too() -> None:
    """The same sentence as on the CPU: the reward of which environment, at which step."""
    import gymnasium as gym

    class Spoilt(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return np.zeros(2, np.float32), math.nan if self.steps == 5 else 0.0, False, False, {}

    told = []
    for device in ("cpu", "cuda"):
        with StandIn().on(), pytest.raises(NonFiniteError) as error:
            trained("ppo", device, env=Spoilt)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "reward of environment 0" in told[0]


def test_storage_is_decided_by_free_memory_and_refused_where_it_cannot_be() -> None:
    assert pick_storage("auto", torch.device("cpu"), 1 << 60) == "auto"
    here = StandIn()
    with here.on():
        device = torch.device("cuda")
        assert pick_storage("auto", device, here.free_bytes // 2) == "device"
        assert pick_storage("auto", device, here.free_bytes // 2 + 1) == "host"
        assert pick_storage("host", device, 1) == "host"
        with pytest.raises(ConfigError, match=r"storage device does not fit.*storage host"):
            pick_storage("device", device, here.free_bytes)


# The stand-in itself


def test_the_stand_in_refuses_a_mix_of_devices() -> None:
    here = StandIn()
    with here.on():
        there, host = torch.ones(3, device="cuda"), torch.ones(3)
        assert [str(each.device) for each in (there, 2 * there, host)] == ["cuda:0", "cuda:0", "cpu"]
        for wrong in (lambda: there + host, lambda: torch.cat([there, host]), lambda: there[torch.tensor([0])]):
            with pytest.raises(MixedDevices):
                wrong()
        with pytest.raises(TypeError, match="cpu"):
            there.numpy()
        with pytest.raises(TypeError, match="cpu"):
            np.asarray(there)


@pytest.mark.parametrize(
    "waits",
    [
        lambda there: float(there.sum()),
        lambda there: there.tolist(),
        lambda there: there[0].item(),
        lambda there: bool(there.any()),
        lambda there: int(there[0]),
        lambda there: there.nonzero(),
        lambda there: there[there > 0],
        lambda there: there.masked_select(there > 0),
        lambda there: there.cpu(),
        lambda there: there.to("cpu"),
        lambda there: torch.zeros(3).copy_(there),
        lambda there: there.copy_(torch.zeros(3)),
        lambda there: torch.tensor([1.0], device="cuda"),
        lambda there: torch.equal(there, there),
        lambda there: there.unique(),
        lambda there: torch.ones(2).to("cuda", non_blocking=True),  # of memory that is not pinned
    ],
)
def test_the_stand_in_sees_every_wait(waits: Any) -> None:
    here = StandIn()
    with here.on():
        there = torch.ones(3, device="cuda")
        assert here.log.count() == 0
        waits(there)
    assert here.log.count(waits=True) >= 1


def test_the_stand_in_spoils_what_is_not_waited_for_and_finds_races() -> None:
    here = StandIn()
    with here.on():
        there, host = torch.ones(3, device="cuda"), torch.zeros(3, pin_memory=True)
        host.copy_(there, non_blocking=True)
        assert host.isnan().all()
        torch.cuda.synchronize()
        assert (host == 1).all()
        there.copy_(host, non_blocking=True)
        host.zero_()
        with pytest.raises(Race):
            torch.cuda.synchronize()


# Copies


def test_tensors_that_cross_together_arrive_as_they_were() -> None:
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.rand(3, 2, generator=generator), torch.tensor([True, False, True]), torch.tensor(7), torch.zeros(0, 4),
        torch.rand(5, generator=generator, dtype=torch.float64).flip(0)[::2], torch.arange(6, dtype=torch.uint8).view(2, 3).T,
        torch.zeros(1).expand(1),
    ]  # fmt: skip
    here = StandIn()
    with here.on():
        there = send(given, torch.device("cuda"))
        assert here.log.count(TO_DEVICE, waits=False) == here.log.count() == 1
        back = fetch(there)
        assert here.log.count(TO_HOST) == here.log.count(waits=True) == 1
        mixed = send([there[0], given[1]], torch.device("cuda"))
        assert mixed[0] is there[0]
        assert here.log.count(TO_DEVICE) == 2
    for before, after in zip(given, back, strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    assert to_device(given[0], torch.device("cpu")) is given[0]
    assert all(mine is theirs for mine, theirs in zip(send(given, torch.device("cpu")), given, strict=True))


def test_metrics_are_read_in_one_transfer_and_keep_their_bits() -> None:
    third = torch.tensor(1.0) / 3
    here = StandIn()
    with here.on():
        device = torch.device("cuda")
        metrics = {
            "a": third.to(device),
            "b": 2.5,
            "c": [third.to(device), torch.tensor(2).to(device)],
            "d": None,
            "e": third,
        }
        here.log.entries.clear()
        read = fetched(metrics)
    assert read == {"a": float(third), "b": 2.5, "c": [float(third), 2.0], "d": None, "e": float(third)}
    assert list(read) == list(metrics)
    assert here.log.count() == 1
