"""What only a GPU can show; `pytest -m gpu tests/test_gpu.py -s` runs it and prints figures to send. Skipped without one.

tests/test_device.py checks the same on a device that is not there, everywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import phasegrad as pg
from phasegrad.algorithms import ALGORITHMS
from phasegrad.envs.tensor_tasks import TensorCartPole, TensorPendulum
from phasegrad.machine import clock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use on this machine"),
]
FIELDS: dict[str, Any] = {
    "preset": "none", "num_envs": 8, "num_steps": 32, "hidden_sizes": (32,), "seed": 3, "normalize_reward": True,
    "normalize_observation": True, "device": "cuda", "total_steps": 1024, "eval_episodes": 0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "num_minibatches": 4},
    "ppg": {"n_pi": 2, "e_aux": 2, "aux_minibatches": 4, "num_minibatches": 2},
    "a2c": {"updates_per_iteration": 1},
    "vpg": {"value_steps": 2},
    "trpo": {"cg_iterations": 2, "value_epochs": 1, "num_minibatches": 2},
    "acer": {"replay_capacity": 4096, "replay_start": 256, "normalize_reward": False},
}


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch itself raises an error where the host would wait for the device inside an update."""
    enter, leave = clock._Section.__enter__, clock._Section.__exit__

    def entered(section: Any) -> None:
        enter(section)
        torch.cuda.set_sync_debug_mode("error" if section.name == "update" else "default")

    def left(section: Any, *error: Any) -> None:
        leave(section, *error)
        torch.cuda.set_sync_debug_mode("error" if section.clock.current == "update" else "default")

    monkeypatch.setattr(clock._Section, "__enter__", entered)
    monkeypatch.setattr(clock._Section, "__exit__", left)
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("name", list(OWN))
def test_every_algorithm_learns_on_the_gpu(name: str, storage: str) -> None:
    agent: Any = ALGORITHMS[name]("CartPole-v1", **{**FIELDS, **OWN[name], "storage": storage}).learn()
    assert agent.device.type == "cuda"
    assert all(torch.isfinite(tensor).all() for tensor in agent.tensors().values() if tensor.is_floating_point())
    agent.evaluate(2, max_steps=50)


@pytest.mark.parametrize("name", ["ppo", "ppg", "a2c", "vpg"])
@pytest.mark.usefixtures("strict")
def test_an_update_does_not_wait(name: str) -> None:
    ALGORITHMS[name]("CartPole-v1", **{**FIELDS, **OWN[name]}).learn()


@pytest.mark.parametrize("fields", [{}, {"memory": "gru"}, {"frame_stack": 3}])
def test_the_first_iteration_is_that_of_the_cpu(fields: dict[str, Any]) -> None:
    """To rounding: from the same weights and noise, the same rollout's returns and nearly the same weights after it."""
    found = []
    for device in ("cpu", "cuda"):
        given = {**FIELDS, **OWN["ppo"], **fields, "device": device, "total_steps": 256, "compile": "off"}
        agent: Any = pg.PPO("CartPole-v1", **given).learn()
        found.append({name: tensor.cpu() for name, tensor in agent.tensors().items() if name.startswith("model.")})
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=2e-3, rtol=2e-2)


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """On the GPU and, from the same files, on the CPU."""
    fields = {**FIELDS, **OWN["ppo"]}
    pg.PPO("CartPole-v1", **fields).learn(callback=lambda row: row["step"] < 512).save(tmp_path)
    for device in ("cuda", "cpu"):
        agent: Any = pg.load(tmp_path, device=device)
        agent.learn()
        assert agent.progress.step == 1024


@pytest.mark.parametrize("task", [TensorCartPole, TensorPendulum])
def test_environments_on_the_gpu_start_and_move_as_on_the_cpu(task: Any) -> None:
    here, there = task(64), task(64, "cuda")
    first, second = here.reset(seed=1)[0], there.reset(seed=1)[0]
    torch.testing.assert_close(first, second.cpu())
    actions = torch.zeros(64, dtype=torch.int64) if task is TensorCartPole else torch.zeros(64, 1)
    for _ in range(20):
        first, second = here.step(actions)[0], there.step(actions.cuda())[0]
        torch.testing.assert_close(first, second.cpu(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"memory": "gru"}])
@pytest.mark.usefixtures("strict")
def test_tensor_environments_train_where_they_are(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in FIELDS.items() if name != "num_envs"}
    agent: Any = pg.PPO(
        TensorCartPole(64, "cuda"), **{**given, **OWN["ppo"], **fields, "total_steps": 64 * 32 * 3}
    ).learn()
    assert agent.progress.episodes > 0


@pytest.mark.parametrize("fields", [{"compile": "on"}, {"act_precision": "bfloat16", "aux_precision": "bfloat16"}])
def test_options_run(fields: dict[str, Any]) -> None:
    pg.PPG("CartPole-v1", **{**FIELDS, **OWN["ppg"], **fields}).learn()


def test_figures_to_send() -> None:
    """Steps a second once warm, of small and large rollouts, by storage and by compile; printed and in gpu-figures.json."""
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps a second": {}}
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        f"CartPole-v1 x 64, {storage}, compile {compile}": ("CartPole-v1", {"storage": storage, "compile": compile})
        for storage in ("device", "host")
        for compile in ("off", "on")
    }
    for count in (1024, 16_384):
        cases[f"TensorCartPole x {count}"] = (TensorCartPole(count, "cuda"), {"num_steps": 32})
    for name, (env, own) in cases.items():
        fields = {
            "preset": "none",
            "num_steps": 128,
            "num_minibatches": 8,
            "epochs": 4,
            "device": "cuda",
            "eval_episodes": 0,
            **own,
        }
        fields["num_envs"] = 64 if isinstance(env, str) else env.num_envs
        batch = fields["num_envs"] * fields["num_steps"]
        agent: Any = pg.PPO(env, **{**fields, "total_steps": 20 * batch})
        agent.learn(4 * batch)
        torch.cuda.synchronize()
        start = time.perf_counter()
        agent.learn(8 * batch)
        torch.cuda.synchronize()
        found["steps a second"][name] = round(4 * batch / (time.perf_counter() - start))
    Path("gpu-figures.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
