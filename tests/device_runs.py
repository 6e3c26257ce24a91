"""Short runs of every algorithm, for tests that have them compute on a device that is not there (stand_in_device.py)."""

from __future__ import annotations

from typing import Any

import torch

from phasegrad.algorithms import ALGORITHMS

STEPS, ENVS, ITERATIONS = 8, 4, 2
FIELDS: dict[str, Any] = {
    "preset": "none", "num_envs": ENVS, "num_steps": STEPS, "hidden_sizes": (8,), "seed": 3, "normalize_reward": True,
    "normalize_observation": True, "compile": "off", "total_steps": ITERATIONS * STEPS * ENVS, "eval_episodes": 0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "num_minibatches": 2},
    "ppg": {"n_pi": 2, "e_aux": 2, "aux_minibatches": 4, "num_minibatches": 2},
    "a2c": {"updates_per_iteration": 1},
    "vpg": {"value_steps": 2},
    "trpo": {"cg_iterations": 2, "value_epochs": 1, "num_minibatches": 2},
    "acer": {"replay_capacity": 256, "replay_start": 32, "updates_per_iteration": 1, "normalize_reward": False},
}


def trained(name: str, device: str, until: int = 0, **fields: Any) -> Any:
    """An agent of the algorithm `name` after `until` steps of its run, or all of them."""
    fields = {**FIELDS, **OWN[name], **fields, "device": device}
    env = fields.pop("env", "CartPole-v1")
    stop = (lambda row: row["step"] < until) if until else None
    return ALGORITHMS[name](env, **fields).learn(callback=stop)


def tensors(agent: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in agent.tensors().items()}


def require_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
