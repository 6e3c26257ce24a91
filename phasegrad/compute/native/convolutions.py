"""The convolutions of an image encoder, forward and backward, as one compiled function over an image at a time.

torch walks layer by layer through a batch, each layer's images leaving the cache before the next one comes. Here an
image goes through all layers while it is in the cache; ReLU, residual sums and padding are part of the convolution that
writes them. Images are dealt out to threads in a fixed number of shares, each with a gradient of its own, so the result
does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from phasegrad.compute.native.build import library
from phasegrad.compute.native.convolution_source import LANES, Convolution, ConvolutionWriter
from phasegrad.models.encoders import ImageEncoder

SHARES = 8  # of a batch
FLOAT = 4  # bytes
TAPES_KEPT = 2


class CompiledConvolutions:
    """The compiled layers of an image encoder: frames [B, ...], uint8 or floats, to features [B, F], with their gradient."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        shape: tuple[int, int, int],
        channels_first: bool,
        scale: float,
        is_bytes: bool = True,
    ) -> None:
        """`layers` of convolutions over images of `shape` (channels, height, width) whose numbers are scaled by `scale`."""
        writer = ConvolutionWriter(layers, shape, channels_first, scale, "uint8_t" if is_bytes else "float")
        self.convolutions, self.features = writer.convolutions, writer.features
        self.tape_size, self.scratch_size, self.weight_count = writer.tape.size, writer.scratch.size, writer.weights
        binary = library(writer.source())
        self._forward, self._backward = binary.forward, binary.backward
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._forward.argtypes = [pointer, number, number, pointer, pointer, number, pointer, pointer]
        self._backward.argtypes = [pointer, number, number, pointer, pointer, number, pointer, pointer, pointer]
        self._forward.restype = self._backward.restype = None
        self._scratch = torch.zeros(SHARES, self.scratch_size)
        self._one_tape = torch.zeros(SHARES, self.tape_size)  # where nothing needs to be kept for a gradient
        self._tapes: list[Tensor] = []  # free ones: their frames are zero and stay so
        self._held: Tensor | None = None  # the packed weights, while nothing changes them

    def __call__(self, frames: Tensor) -> Tensor:
        parameters = [p for c in self.convolutions for p in (c.layer.weight, c.layer.bias)]
        if torch.is_grad_enabled() and any(p is not None and p.requires_grad for p in parameters):
            return _Run.apply(self, frames, *parameters)
        return self.run_forward(frames.contiguous(), None)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of an encoder computes by torch: it may be exported, or live longer than the training."""

    def run_forward(self, frames: Tensor, tape: Tensor | None) -> Tensor:
        weights = self._packed() if self._held is None else self._held
        features = torch.empty(len(frames), self.features)
        frame, step = frames.stride(0) * frames.element_size(), 0 if tape is None else self.tape_size
        kept = self._one_tape if tape is None else tape  # one for each share, or one for each image
        places = [tensor.data_ptr() for tensor in (frames, weights, kept, self._scratch, features)]

        def share(number: int, start: int, count: int) -> None:
            images, weight, tapes, scratch, results = places
            self._forward(
                images + start * frame, frame, count, weight,
                tapes + FLOAT * self.tape_size * (number if tape is None else start), step,
                scratch + FLOAT * number * self.scratch_size, results + FLOAT * start * self.features,
            )  # fmt: skip

        in_shares(share, len(frames))
        return features

    def run_backward(self, frames: Tensor, tape: Tensor, down: Tensor) -> list[Tensor]:
        """Gradients of the parameters, in the order of `__call__`."""
        transposed = torch.cat([self._transposed(c) for c in self.convolutions])
        gradients = torch.zeros(SHARES, self.weight_count)
        frame = frames.stride(0) * frames.element_size()
        places = [tensor.data_ptr() for tensor in (frames, transposed, tape, self._scratch, down, gradients)]

        def share(number: int, start: int, count: int) -> None:
            images, weights, tapes, scratch, downs, sums = places
            self._backward(
                images + start * frame, frame, count, weights, tapes + FLOAT * start * self.tape_size, self.tape_size,
                scratch + FLOAT * number * self.scratch_size, downs + FLOAT * start * self.features,
                sums + FLOAT * number * self.weight_count,
            )  # fmt: skip

        in_shares(share, len(frames))
        whole = gradients.sum(0)
        results: list[Tensor] = []
        for c in self.convolutions:
            outputs, inputs, kernel, _ = c.layer.weight.shape
            packed = whole[c.start : c.start + c.count].view(kernel, kernel, inputs, outputs)
            results += [packed.permute(3, 2, 0, 1), whole[c.start + c.count : c.start + c.count + outputs]]
        return results

    def take_tape(self, count: int) -> Tape:
        """Memory for what the gradient of `count` images needs."""
        for index, tensor in enumerate(self._tapes):
            if len(tensor) >= count:
                return Tape(self._tapes.pop(index), self._tapes)
        return Tape(torch.zeros(count, self.tape_size), self._tapes)

    def hold(self, held: bool) -> None:
        """Whether the weights stay as they are for a while: then they are packed once and not for every call."""
        self._held = self._packed() if held else None

    def _packed(self) -> Tensor:
        parts = [(c.layer.weight.detach(), c.layer.bias) for c in self.convolutions]
        return torch.cat([each for w, bias in parts for each in (_in_blocks(w.permute(2, 3, 1, 0)), bias.detach())])  # type: ignore[union-attr]

    @staticmethod
    def _transposed(c: Convolution) -> Tensor:
        weight = c.layer.weight.detach().permute(2, 3, 0, 1)
        if c.spreads or c.layer.in_channels % LANES:  # the latter is the first layer, whose input has no gradient
            return weight.reshape(-1)
        return _in_blocks(weight.flip(0, 1))


class Tape:
    """Memory that goes back to its owner with the last graph that could ask for a gradient."""

    def __init__(self, tensor: Tensor, free: list[Tensor]) -> None:
        self.tensor, self._free = tensor, free

    def __del__(self) -> None:
        self._free.insert(0, self.tensor)
        del self._free[TAPES_KEPT:]


class _Run(torch.autograd.Function):
    """The layers as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, compiled: CompiledConvolutions, frames: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layers, ctx.frames, ctx.tape = compiled, frames.contiguous(), compiled.take_tape(len(frames))
        return compiled.run_forward(ctx.frames, ctx.tape.tensor)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, down: Tensor) -> tuple[Any, ...]:
        return None, None, *ctx.layers.run_backward(ctx.frames, ctx.tape.tensor, down.contiguous())


def _in_blocks(weights: Tensor) -> Tensor:
    """Kernels [K, K, in, out] with the output channels that a tile computes side by side: [blocks, K, K, in, block]."""
    rows = weights.reshape(-1, weights.shape[-1])
    block = 2 * LANES if rows.shape[1] % (2 * LANES) == 0 else LANES
    return rows.unflatten(1, (-1, block)).transpose(0, 1).reshape(-1)


def in_shares(work: Callable[[int, int, int], None], count: int) -> None:
    """`work(number, start, count)` for each share of a batch, on as many threads as torch may use."""
    edges = [count * number // SHARES for number in range(SHARES + 1)]
    shares = [(n, start, end - start) for n, (start, end) in enumerate(itertools.pairwise(edges)) if end > start]
    waiting = iter(shares)  # a thread takes the next one; the interpreter's lock keeps two from taking the same

    def work_on() -> None:
        for each in waiting:
            work(*each)

    threads = min(torch.get_num_threads(), len(shares))
    others = [_pool(threads - 1).submit(work_on) for _ in range(threads - 1)]
    work_on()
    for other in others:
        other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(threads, 1), thread_name_prefix="phasegrad-compiled")


def compile_convolutions(encoder: ImageEncoder) -> CompiledConvolutions:
    """The encoder's layers compiled, shown on random images to compute what torch does, gradient included."""
    layers = list(encoder.layers)
    how = (encoder.image_shape, encoder.channels_first, encoder.scale, encoder.is_bytes)
    compiled = CompiledConvolutions(layers, *how)  # type: ignore[arg-type]
    for attempt in range(3):
        try:
            _compare(encoder, compiled, torch.Generator().manual_seed(attempt))
            break
        except AssertionError:  # rounding decides between two pixels that are nearly the largest: try other images
            if attempt == 2:
                raise
    return compiled


def _compare(encoder: ImageEncoder, compiled: CompiledConvolutions, generator: torch.Generator) -> None:
    channels, height, width = encoder.image_shape
    shape = (channels, height, width) if encoder.channels_first else (height, width, channels)
    frames = torch.randint(0, 256, (SHARES + 1, *shape), dtype=torch.uint8, generator=generator)
    if not encoder.is_bytes:
        frames = frames / 255 / encoder.scale
    down = torch.randn(len(frames), compiled.features, generator=generator)
    parameters = list(encoder.layers.parameters())

    def results(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            features = function(frames.clone())
            loss = (features * down).sum()  # a number, of which torch takes the gradient without importing sympy
            return [features.detach(), *torch.autograd.grad(loss, parameters)]

    for mine, wanted in zip(results(compiled), results(lambda x: encoder.layers(encoder.pixels(x))), strict=True):
        error, allowed = float((mine - wanted).abs().max()), 1e-4 * float(wanted.abs().max()) + 1e-6
        if mine.shape != wanted.shape or not error <= allowed:  # torch.testing would import torch.distributed for it
            raise AssertionError(f"its self-check failed: an output is off by {error:.1e}")
