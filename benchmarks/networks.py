"""Steps a second with each activation, and with LayerNorm, as a share of those with tanh: rounds in turn, median of rounds.

python benchmarks/networks.py [COMPILE ...]        such as: on replay off

A round of each is a few iterations of PPO on HalfCheetah-v5. Time is the process's own (`time.process_time`), so that other
work on the machine counts little; the time of the environments is in it.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import phasegrad as pg

ROUNDS, ITERATIONS = 7, 2
SIZES: dict[str, Any] = {
    "preset": "none", "num_envs": 8, "num_steps": 256, "num_minibatches": 32, "epochs": 10, "seed": 1, "eval_episodes": 0,
    "total_steps": 1_000_000, "torch_threads": 1, "env_threads": 1,
}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    **{name: {"activation": name} for name in ("tanh", "relu", "leaky_relu", "elu", "silu", "gelu")},
    "tanh, layer_norm": {"activation": "tanh", "layer_norm": True},
}


def measure(compile: str) -> None:
    agents = {name: pg.PPO("HalfCheetah-v5", compile=compile, **SIZES, **fields) for name, fields in NETWORKS.items()}
    batch = SIZES["num_envs"] * SIZES["num_steps"]
    done = 2 * batch  # the first iteration is plain, the second compiles
    for agent in agents.values():
        agent.learn(done)
    rates: dict[str, list[float]] = {name: [] for name in agents}
    for _ in range(ROUNDS):
        done += ITERATIONS * batch
        for name, agent in agents.items():
            begun = time.process_time()
            agent.learn(done)
            rates[name].append(ITERATIONS * batch / (time.process_time() - begun))
    for name, own in rates.items():
        share = statistics.median(mine / theirs for mine, theirs in zip(own, rates["tanh"], strict=True))
        print(f"compile {compile:7}{name:18}{statistics.median(own):10,.0f} steps/s{share:8.2f} of tanh", flush=True)


if __name__ == "__main__":
    for how in sys.argv[1:] or ["on"]:
        measure(how)
