"""Breakout's environments and its network in turn, against one half of the environments stepping while the other is acted on.

python benchmarks/overlap.py --rounds 6
"""

import argparse
import statistics
import time
from typing import Any

import envpool
import gymnasium as gym
import numpy as np
import torch

from phasegrad.compute.native import compile_convolutions
from phasegrad.models.encoders import NatureCNN

ENVS, THREADS = 8, 2


def pool(num_envs: int, threads: int) -> Any:
    made = envpool.make_gymnasium("Breakout-v5", num_envs=num_envs, batch_size=num_envs, num_threads=threads, seed=1)
    made.reset()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=250, help="of every environment, in each measurement")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    encoder = NatureCNN(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8))
    encoder.compiled_layers = compile_convolutions(encoder)
    encoder.compiled_layers.hold(True)
    random = np.random.default_rng(1)

    def act(frames: np.ndarray) -> np.ndarray:
        """The network's work, and random actions."""
        with torch.inference_mode():
            encoder(torch.from_numpy(frames))
        return random.integers(0, 4, len(frames), dtype=np.int32)

    def run(pools: list[Any]) -> float:
        """Milliseconds for a step of all environments."""
        each = ENVS // len(pools)
        ids = np.arange(each, dtype=np.int32)
        for one in pools:
            one.send(random.integers(0, 4, each, dtype=np.int32), ids)
        begun = time.perf_counter()
        for _ in range(options.steps):
            for one in pools:
                one.send(act(one.recv()[0]), ids)
        spent = time.perf_counter() - begun
        for one in pools:
            one.recv()
        return 1e3 * spent / options.steps

    ways = {"in turn": [pool(ENVS, THREADS)], "in halves": [pool(ENVS // 2, THREADS) for _ in range(2)]}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, pools in ways.items():
            found[name].append(run(pools))
    for name, times in found.items():
        print(f"{name}: {statistics.median(times):.1f} ms a step ({min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    main()
