"""Frames a second of forward and backward passes through the image encoders: torch as usual, torch with channels last,
and compiled, in turn within one process.

python benchmarks/frames.py --out results/frames.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phasegrad.bench import product_gflops
from phasegrad.compute.native import compile_convolutions
from phasegrad.models.encoders import ImageEncoder, ImpalaCNN, NatureCNN


def box(*shape: int) -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, shape, np.uint8)


ENCODERS: dict[str, Callable[[], ImageEncoder]] = {
    "impala": lambda: ImpalaCNN(box(64, 64, 3), (16, 32, 32), "flatten"),
    "nature": lambda: NatureCNN(box(84, 84, 4)),
}


def measure(name: str, batch: int, repeats: int) -> dict[str, object]:
    torch.manual_seed(1)
    encoder = ENCODERS[name]()
    frames = torch.randint(0, 256, (batch, *(encoder.image_shape[i] for i in (1, 2, 0))), dtype=torch.uint8)
    trunk = compile_convolutions(encoder)

    def usual() -> Tensor:
        pixels = frames.permute(0, 3, 1, 2).contiguous().float() / 255
        return F.relu(encoder.dense(encoder.layers(pixels)))

    def channels_last() -> Tensor:
        encoder.compiled_layers = None
        return encoder(frames)

    def compiled() -> Tensor:
        encoder.compiled_layers = trunk
        return encoder(frames)

    with FlopCounterMode(display=False) as counter:
        channels_last().sum().backward()
    flops = counter.get_total_flops() / batch
    ways: dict[str, Callable[[], Tensor]] = {"usual": usual, "channels last": channels_last, "compiled": compiled}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    peaks = []
    for _ in range(repeats):
        peaks.append(product_gflops(1.0, torch.get_num_threads()))
        for way, function in ways.items():
            encoder.zero_grad()
            begun = time.perf_counter()
            function().sum().backward()
            rates[way].append(batch / (time.perf_counter() - begun))
    kept = trunk.tape_size * 4
    print(f"{name}: {kept / 1024:,.0f} KB an image are kept for the gradient")
    result: dict[str, object] = {
        "threads": torch.get_num_threads(),
        "peak_gflops": statistics.median(peaks),
        "flops_a_frame": flops,
        "bytes_kept_an_image": kept,
    }
    for way, found in rates.items():
        rate = statistics.median(found)
        ratios = [mine / other for mine, other in zip(rates["compiled"], found, strict=True)]
        share = rate * flops / 1e9 / statistics.median(peaks)
        result[way] = {"frames_a_second": found, "share_of_peak": share}
        print(
            f"{name}, {way}: {rate:,.0f} frames/s, {share:.0%} of {statistics.median(peaks):,.0f} GFLOPS; compiled is "
            f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", default="results/frames.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {name: measure(name, options.batch, options.repeats) for name in ENCODERS}
    Path(options.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
