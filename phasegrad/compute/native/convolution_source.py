"""The C source of an image encoder's convolutions, forward and backward, written from its layers.

Knows shapes and places in memory only; convolutions.py runs what is written here. An image passes through all layers inside
two blocks of memory: `tape` holds what the backward pass reads again, `scratch` what may be overwritten by the next
image. Images that a convolution reads lie in a frame of zeros, its padding, which nothing ever writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from phasegrad.compute.native.graph import Unsupported
from phasegrad.models.encoders import ResidualBlock

LANES = 8  # channels come in vectors of so many
WASTED = 0.2  # share of products with zeros that a gradient by convolution may have


@dataclass
class Plane:
    """An image of floats in a frame of zeros, somewhere in a block of memory."""

    where: str  # the C expression of its block
    start: int  # of the frame
    height: int
    width: int
    channels: int
    pad: int

    @property
    def row(self) -> int:
        return (self.width + 2 * self.pad) * self.channels

    @property
    def size(self) -> int:
        return (self.height + 2 * self.pad) * self.row

    @property
    def frame(self) -> str:
        """Where the zeros begin."""
        return f"{self.where} + {self.start}"

    @property
    def inside(self) -> str:
        """The first pixel."""
        return f"{self.where} + {self.start + self.pad * (self.row + self.channels)}"


class Block:
    """Memory that planes are cut from."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self.shared: dict[Any, Plane] = {}

    def plane(self, height: int, width: int, channels: int, pad: int = 0) -> Plane:
        plane = Plane(self.name, self.size, height, width, channels, pad)
        self.size += -(-plane.size // 16) * 16
        return plane

    def reused(self, role: str, height: int, width: int, channels: int, pad: int) -> Plane:
        """The same plane for every request alike: its frame stays zero, whatever it holds."""
        key = (role, height, width, channels, pad)
        if key not in self.shared:
            self.shared[key] = self.plane(height, width, channels, pad)
        return self.shared[key]


@dataclass
class Convolution:
    """A layer with its place among the packed weights: kernels [K, K, in, out], then biases."""

    layer: nn.Conv2d
    height: int  # of the output
    width: int
    start: int  # of the weights
    transposed: int  # of the weights for the gradient of the input

    @property
    def sizes(self) -> str:
        kernel, stride = self.kernel, self.stride
        return f"{kernel}, {stride}, {self.height}, {self.width}, {self.layer.in_channels}, {self.layer.out_channels}"

    @property
    def kernel(self) -> int:
        return self.layer.kernel_size[0]

    @property
    def stride(self) -> int:
        return self.layer.stride[0]

    @property
    def pad(self) -> int:
        return int(self.layer.padding[0])

    @property
    def count(self) -> int:
        return self.layer.weight.numel()

    @property
    def spreads(self) -> bool:
        """Whether the input's gradient is spread from the output's, tap by tap, and not a convolution of it.

        The latter would need steps of one, and without padding much of it would be products with zeros.
        """
        larger = self.kernel - 1 - 2 * self.pad  # the input than the output
        wasted = (self.height + larger) * (self.width + larger) / (self.height * self.width) - 1
        return self.stride > 1 or (self.pad == 0 and wasted > WASTED)

    @property
    def gradient_pad(self) -> int:
        """The frame that the output's gradient needs for the input's to be a convolution of it."""
        return 0 if self.spreads else self.kernel - 1 - self.pad


class ConvolutionWriter:
    """Walks the layers once and writes the C of both directions."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        shape: tuple[int, int, int],
        first: bool,
        scale: float,
        pixel: str = "uint8_t",
    ) -> None:
        self.pixel = pixel  # the type of what a frame holds
        self.tape, self.scratch = Block("tape"), Block("scratch")
        self.convolutions: list[Convolution] = []
        self.forward: list[str] = []
        self.backward: list[list[str]] = []  # a piece for each part, to be run in the reverse order
        self.weights = self.transposed = 0
        self.functions: dict[str, str] = {}
        self._walk(layers, shape, first, scale)

    def _walk(self, layers: Sequence[nn.Module], shape: tuple[int, int, int], first: bool, scale: float) -> None:
        channels, height, width = shape
        self.features_of_mean = any(isinstance(layer, nn.AdaptiveAvgPool2d) for layer in layers)
        queue = list(layers)
        opening = self._convolution(queue.pop(0), height, width, channels)
        self.frame = self.scratch.plane(height, width, channels, opening.pad)
        unpack = f"unpack({height}, {width}, {channels}, {int(first)}, {scale!r}f, frame, {self.frame.inside}, {self.frame.row});"
        self.forward.append(unpack)
        self.backward.append([unpack])
        current, source, masked, gradient_of_source = opening, self.frame, False, None
        while True:
            # `current` is a convolution of `source`; what follows decides where its result goes.
            following = queue.pop(0) if queue else None
            if isinstance(following, nn.ReLU):
                after = queue[0] if queue else None
                if isinstance(after, nn.Conv2d):
                    queue.pop(0)
                    then = self._convolution(after, current.height, current.width, current.layer.out_channels)
                    plane = self._plane_after(current, then.pad)
                else:
                    then, plane = None, self._plane_after(current, 0)
                gradient = self._gradient_plane("main", current)
                self._run(current, source, plane, "BIAS | RELU")
                self._learn(current, source, gradient, gradient_of_source, masked)
                if then is None:
                    self._finish(plane, gradient, queue)
                    return
                current, source, masked, gradient_of_source = then, plane, True, gradient
            elif isinstance(following, nn.MaxPool2d) and _is_usual(following):
                blocks = []
                while queue and isinstance(queue[0], ResidualBlock):
                    blocks.append(queue.pop(0))
                then, plane, gradient = self._stack(current, source, blocks, queue, masked, gradient_of_source)
                if then is None:
                    self._finish(plane, gradient, queue)
                    return
                current, source, masked, gradient_of_source = then, plane, False, gradient
            else:
                raise Unsupported(f"a {type(following).__name__} after a convolution")

    def _stack(
        self,
        opening: Convolution,
        source: Plane,
        blocks: list[Any],
        queue: list[nn.Module],
        masked: bool,
        gradient_of_source: Plane | None,
    ) -> tuple[Convolution | None, Plane, Plane]:
        """Convolution, pooling and residual blocks; what comes next, the plane it reads, and that plane's gradient."""
        if not blocks:
            raise Unsupported("pooling without residual blocks")
        high, wide, channels = opening.height, opening.width, opening.layer.out_channels
        height, width = (high + 1) // 2, (wide + 1) // 2
        full = self.scratch.reused("full", high, wide, channels, 0)
        raw = self.scratch.reused("raw", height, width, channels, 0)
        winners = self.tape.plane(height, width, channels)
        pairs = [[self._convolution(layer, height, width, channels) for layer in (b.first, b.second)] for b in blocks]
        for pair in pairs:
            if any(c.stride != 1 or (c.height, c.width) != (height, width) for c in pair):
                raise Unsupported("a residual block that changes the size")
        seen = self.tape.plane(height, width, channels, pairs[0][0].pad)
        self._run(opening, source, full, "BIAS")
        self.forward.append(
            f"max_pool({high}, {wide}, {channels}, {full.inside}, {raw.inside}, {seen.inside}, {seen.row}, "
            f"(int32_t *)({winners.frame}));"
        )
        main = self._gradient_plane("main", pairs[0][1])
        down = self._gradient_plane("full", opening)
        self._learn(opening, source, down, gradient_of_source, masked)
        self.backward.append(
            [
                f"unpool({high}, {wide}, {channels}, {main.inside}, {main.row}, (const int32_t *)({winners.frame}), "
                f"{down.inside}, {down.row});"
            ]
        )
        then: Convolution | None = None
        for number, (one, two) in enumerate(pairs):
            middle = self.tape.plane(height, width, channels, two.pad)
            self._run(one, seen, middle, "BIAS | RELU")
            flags = "BIAS | RESIDUAL"
            if number + 1 < len(pairs):
                following = self.tape.plane(height, width, channels, pairs[number + 1][0].pad)
                flags += " | RELU"
            elif queue and isinstance(queue[0], nn.Conv2d):
                then = self._convolution(queue.pop(0), height, width, channels)
                following = self.tape.plane(height, width, channels, then.pad)
            elif queue and isinstance(queue[0], nn.ReLU):
                queue.pop(0)
                following = self.tape.plane(height, width, channels)
                flags += " | RELU"
            else:
                raise Unsupported("residual blocks that end the network without a ReLU")
            self._run(two, middle, following, flags, raw)
            between = self._gradient_plane("middle", one)
            # Written forwards, run backwards: the second convolution's part comes first.
            self._learn(one, seen, between, main, masked=True, add=True)
            self._learn(two, middle, main, between, masked=True)
            seen = following
        return then, seen, main

    def _finish(self, plane: Plane, gradient: Plane, queue: list[nn.Module]) -> None:
        """The last plane as features in torch's order, and its gradient from theirs."""
        kinds = [type(layer) for layer in queue]
        if kinds not in ([nn.Flatten], [nn.AdaptiveAvgPool2d, nn.Flatten]):
            raise Unsupported(f"{', '.join(kind.__name__ for kind in kinds)} at the end")
        pixels, channels = plane.height * plane.width, plane.channels
        self.features = channels if self.features_of_mean else channels * pixels
        at = f"(y * {plane.width} + x)"
        loops = f"for (int y = 0; y < {plane.height}; y++) for (int x = 0; x < {plane.width}; x++) for (int c = 0; c < {channels}; c++)"
        value = f"({plane.inside})[{at} * {channels} + c]"
        into = f"({gradient.inside})[y * {gradient.row} + x * {channels} + c]"
        if self.features_of_mean:
            self.forward.append(f"memset(features, 0, sizeof(float) * {channels});")
            self.forward.append(f"{loops} features[c] += {value} / {pixels}.0f;")
            self.backward.append([f"{loops} {into} = {value} > 0 ? down[c] / {pixels}.0f : 0.0f;"])
        else:
            self.forward.append(f"{loops} features[c * {pixels} + {at}] = {value};")
            self.backward.append([f"{loops} {into} = {value} > 0 ? down[c * {pixels} + {at}] : 0.0f;"])

    # Pieces

    def _convolution(self, layer: nn.Module, height: int, width: int, channels: int) -> Convolution:
        if (
            not isinstance(layer, nn.Conv2d) or layer.groups != 1 or set(layer.dilation) != {1} or layer.bias is None
            or len(set(layer.kernel_size)) != 1 or len(set(layer.stride)) != 1 or isinstance(layer.padding, str)
            or len(set(layer.padding)) != 1 or layer.padding_mode != "zeros" or layer.in_channels != channels
        ):  # fmt: skip
            raise Unsupported(f"the layer {layer}")
        if layer.out_channels % LANES or (self.convolutions and layer.in_channels % LANES):
            raise Unsupported(f"channels that are no multiple of {LANES}")
        kernel, stride, pad = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        if pad >= kernel or (stride > 1 and pad and self.convolutions):
            raise Unsupported(f"the padding of {layer}")
        high, wide = (height + 2 * pad - kernel) // stride + 1, (width + 2 * pad - kernel) // stride + 1
        made = Convolution(layer, high, wide, self.weights, self.transposed)
        self.weights += made.count + layer.out_channels
        self.transposed += made.count
        self.convolutions.append(made)
        return made

    def _plane_after(self, convolution: Convolution, pad: int) -> Plane:
        return self.tape.plane(convolution.height, convolution.width, convolution.layer.out_channels, pad)

    def _gradient_plane(self, role: str, convolution: Convolution) -> Plane:
        size = (convolution.height, convolution.width, convolution.layer.out_channels)
        return self.scratch.reused(f"gradient {role}", *size, convolution.gradient_pad)

    def _function(self, arguments: str, body: str) -> str:
        """One compiled copy of a kernel for each set of sizes."""
        if body not in self.functions:
            self.functions[body] = f"kernel_{len(self.functions)}"
            self.functions[body + "#"] = (
                f"static __attribute__((noinline)) void {self.functions[body]}({arguments}) {{ {body} }}"
            )
        return self.functions[body]

    def _run(self, c: Convolution, source: Plane, to: Plane, flags: str, raw: Plane | None = None) -> None:
        kernel = self._function(
            "const float *in, const float *weights, const float *bias, float *out, float *raw",
            f"convolve({flags}, {c.sizes}, in, {source.row}, weights, bias, out, {to.row}, raw, 0, 0);",
        )
        weights = f"weights + {c.start}, weights + {c.start + c.count}"
        self.forward.append(f"{kernel}({source.frame}, {weights}, {to.inside}, {raw.inside if raw else 0});")

    def _learn(
        self, c: Convolution, source: Plane, down: Plane, to: Plane | None, masked: bool, add: bool = False
    ) -> None:
        """The gradients of a convolution's weights and, unless `to` is None, of its input, given that of its output."""
        kernel = self._function(
            "const float *in, const float *g, float *weights, float *bias",
            f"weight_gradient({c.sizes}, in, {source.row}, g, {down.row}, weights, bias);",
        )
        gradients = f"gradients + {c.start}, gradients + {c.start + c.count}"
        piece = [f"{kernel}({source.frame}, {down.inside}, {gradients});"]
        if to is not None:
            high, wide, inputs, outputs = source.height, source.width, c.layer.in_channels, c.layer.out_channels
            weights = f"transposed + {c.transposed}"
            if not c.spreads:
                flags = " | ".join([*(["MASK"] if masked else []), *(["ADD"] if add else [])]) or "0"
                kernel = self._function(
                    "const float *g, const float *weights, float *out, const float *mask",
                    f"convolve({flags}, {c.kernel}, 1, {high}, {wide}, {outputs}, {inputs}, g, {down.row}, weights, 0, out, "
                    f"{to.row}, 0, mask, {source.row});",
                )
                piece.append(f"{kernel}({down.frame}, {weights}, {to.inside}, {source.inside});")
            else:
                kernel = self._function(
                    "const float *g, const float *weights, float *out, const float *mask",
                    f"for (int y = 0; y < {high}; y++) memset(out + y * {to.row}, 0, sizeof(float) * {wide * inputs}); "
                    f"spread({c.sizes}, g, {down.row}, weights, out, {to.row}); "
                    + (
                        f"for (int y = 0; y < {high}; y++) for (int i = 0; i < {wide * inputs}; i++) "
                        f"if (!(mask[y * {source.row} + i] > 0)) out[y * {to.row} + i] = 0.0f;"
                        if masked
                        else ""
                    ),
                )
                piece.append(f"{kernel}({down.inside}, {weights}, {to.inside}, {source.inside});")
        self.backward.append(piece)

    def source(self) -> str:
        folder = Path(__file__).parent
        kernels = [text for name, text in self.functions.items() if name.endswith("#")]
        forward = "\n        ".join(self.forward)
        # The frames are unpacked again first; then every part in the reverse of its order.
        unpack, *parts = self.backward
        backward = "\n        ".join(line for part in [unpack, *reversed(parts)] for line in part)
        return "\n".join(
            [
                (folder / "prelude.h").read_text(),
                f"typedef {self.pixel} pixel;",
                (folder / "convolution.h").read_text(),
                *kernels,
                "void forward(const uint8_t *frames, int64_t frame_bytes, int64_t count, const float *weights, float *tapes,",
                "             int64_t tape_step, float *scratch, float *all_features) {",
                "    for (int64_t image = 0; image < count; image++) {",
                "        const pixel *frame = (const pixel *)(frames + image * frame_bytes);",
                f"        float *tape = tapes + image * tape_step, *features = all_features + image * {self.features};",
                f"        {forward}",
                "    }",
                "}",
                "void backward(const uint8_t *frames, int64_t frame_bytes, int64_t count, const float *transposed,",
                "              float *tapes, int64_t tape_step, float *scratch, const float *all_down, float *gradients) {",
                "    for (int64_t image = 0; image < count; image++) {",
                "        const pixel *frame = (const pixel *)(frames + image * frame_bytes);",
                f"        float *tape = tapes + image * tape_step; const float *down = all_down + image * {self.features};",
                f"        {backward}",
                "    }",
                "}",
            ]
        )


def _is_usual(pool: nn.MaxPool2d) -> bool:
    sizes = [pool.kernel_size, pool.stride, pool.padding, pool.dilation]
    return [size[0] if isinstance(size, tuple) else size for size in sizes] == [3, 2, 1, 1] and not pool.ceil_mode
