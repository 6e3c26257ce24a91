"""From a batch of observations to features: MLP, Nature CNN, IMPALA, a CNN for small grids, and their join for Dicts.

An encoder takes observations as the environment gave them (uint8 images, integers, float vectors; a flat dict of
those for Dict spaces) and returns [B, features]. A user's own encoder needs just that: a module built from the
observation space, with a `features` attribute. Nothing here knows about policies or values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phasegrad.config import ENCODERS
from phasegrad.errors import ConfigError
from phasegrad.models.images import CNNS, SMALLEST_GRID, ImageSpace, channels_first, with_images
from phasegrad.models.initialisation import fixed_norm_, orthogonal_

ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    # With the gain of the orthogonal weights before it: 1 / sqrt(E[f(z)^2]) of a standard normal z, with which what a
    # layer puts out is as large as what it takes in. tanh has ReLU's, as is the custom.
    "tanh": (nn.Tanh, math.sqrt(2)),
    "relu": (nn.ReLU, math.sqrt(2)),
    "leaky_relu": (nn.LeakyReLU, math.sqrt(2)),
    "elu": (nn.ELU, 1.245),
    "gelu": (nn.GELU, 1.534),
    "silu": (nn.SiLU, 1.677),
}
SMALLEST_IMAGE = 36  # what the Nature CNN's kernels need; smaller images get the grid CNN


class Encoder(nn.Module):
    """Base of the encoders here; a user's own may be any module with `features`."""

    features: int
    head_initialisation = "orthogonal"  # or "fixed_norm", which the IMPALA network's heads use


class MLP(Encoder):
    """Fully connected layers over a flat float vector [B, inputs], each with a LayerNorm where asked for."""

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str, layer_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        make, gain = ACTIVATIONS[activation]
        for width in hidden_sizes:
            norm = [nn.LayerNorm(width)] if layer_norm else []
            layers += [orthogonal_(nn.Linear(inputs, width), gain), *norm, make()]
            inputs = width
        self.layers = nn.Sequential(*layers)
        self.features = inputs

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.layers(observation)
        return features


class CompiledLayers(Protocol):
    """The layers of an image encoder as machine code (compute/native/convolutions.py)."""

    def __call__(self, frames: Tensor) -> Tensor: ...

    def hold(self, held: bool) -> None:
        """Whether the weights stay as they are for a while."""


class ImageEncoder(Encoder):
    """Common to the CNNs: [B, H, W, C] or [B, C, H, W] in, or stacks [B, F, ...] of those, channels_last floats to the layers.

    Bytes are scaled by the class's `scale`, other numbers by what their space says (models/images.py).
    """

    scale = 1 / 255

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        self.is_bytes = space.dtype == np.uint8
        self.frames_first = channels_first(space) if len(space.shape) == 4 else None  # of a stack's frames
        self.channels_first = self.frames_first is not None or channels_first(space)  # of what is made of them
        shape = space.shape
        if isinstance(space, ImageSpace):
            self.image_shape: tuple[int, ...] = space.image_shape
            self.scale = type(self).scale if space.scale is None else space.scale
        else:
            self.image_shape = tuple(shape) if self.channels_first else (shape[2], shape[0], shape[1])
        self.compiled_layers: CompiledLayers | None = None  # while an agent trains

    @property
    def layers(self) -> nn.Sequential:
        """From pixels to a flat vector."""
        raise NotImplementedError

    def flat_features(self, observation: Tensor) -> Tensor:
        """What the layers make of the images, [B, width]."""
        observation = self.folded(observation)
        if self.compiled_layers is not None and observation.device.type == "cpu":
            if self.is_bytes and observation.dtype == torch.uint8:
                return self.compiled_layers(observation)
            if not self.is_bytes:
                return self.compiled_layers(observation.float())
        features: Tensor = self.layers(self.pixels(observation))
        return features

    def folded(self, observation: Tensor) -> Tensor:
        """Stacks of frames [B, F, ...] as images [B, F C, H, W]; images as they are."""
        if self.frames_first is None:
            return observation
        frames = observation if self.frames_first else observation.permute(0, 1, 4, 2, 3)
        return frames.reshape(-1, *self.image_shape)

    def pixels(self, observation: Tensor) -> Tensor:
        """[B, C, H, W] floats in channels_last memory: an HWC batch seen as NCHW is that already."""
        image = observation if self.channels_first else observation.permute(0, 3, 1, 2)
        floats = image.to(memory_format=torch.channels_last, dtype=torch.get_default_dtype())
        if observation.dtype == torch.uint8:
            return floats.mul_(self.scale)
        return floats if self.scale == 1 else floats * self.scale  # which may be the observation itself

    def width_after(self, layers: nn.Module) -> int:
        """Numbers that `layers`, which end in a flattening, make of one image."""
        with torch.no_grad():
            return int(layers(torch.zeros(1, *self.image_shape)).shape[1])


class NatureCNN(ImageEncoder):
    """Mnih et al. (2015): three convolutions and a dense layer of 512."""

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        gain = math.sqrt(2)
        self.convolutions = nn.Sequential(
            orthogonal_(nn.Conv2d(self.image_shape[0], 32, 8, stride=4), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(32, 64, 4, stride=2), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(64, 64, 3), gain),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.features = 512
        self.dense = orthogonal_(nn.Linear(self.width_after(self.convolutions), self.features), gain)

    @property
    def layers(self) -> nn.Sequential:
        return self.convolutions

    def forward(self, observation: Tensor) -> Tensor:
        return F.relu(self.dense(self.flat_features(observation)))


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, norm: float) -> None:
        super().__init__()
        self.first = fixed_norm_(nn.Conv2d(channels, channels, 3, padding=1), norm)
        self.second = fixed_norm_(nn.Conv2d(channels, channels, 3, padding=1), norm)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class ImpalaCNN(ImageEncoder):
    """Espeholt et al. (2018): stacks of (conv, max-pool, two residual blocks), then a dense layer.

    Initialised as in the published PPG code. `pooling="mean"` replaces the flattening by a global average (Impoola);
    `stem` shrinks the image first by one convolution of so many channels and such a stride.
    """

    head_initialisation = "fixed_norm"

    def __init__(
        self,
        space: gym.spaces.Box,
        channels: Sequence[int],
        pooling: str,
        stem: tuple[int, int] = (0, 2),
        dense: int = 256,
    ) -> None:
        super().__init__(space)
        block_norm = math.sqrt(1 / math.sqrt(len(channels)) / math.sqrt(2))
        inputs = self.image_shape[0]
        layers: list[nn.Module] = []
        width, stride = stem
        if width:
            shrink = nn.Conv2d(inputs, width, 2 * stride, stride=stride, padding=stride // 2)
            layers += [fixed_norm_(shrink, 1.0), nn.ReLU()]
            inputs = width
        for width in channels:
            layers += [
                fixed_norm_(nn.Conv2d(inputs, width, 3, padding=1), 1.0),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(width, block_norm),
                ResidualBlock(width, block_norm),
            ]
            inputs = width
        layers += [nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if pooling == "mean" else [nn.Flatten()]
        self.stacks = nn.Sequential(*layers)
        self.features = dense
        self.dense = fixed_norm_(nn.Linear(self.width_after(self.stacks), dense), 1.4)

    @property
    def layers(self) -> nn.Sequential:
        return self.stacks

    def forward(self, observation: Tensor) -> Tensor:
        return F.relu(self.dense(self.flat_features(observation)))


class GridCNN(ImageEncoder):
    """For small symbolic grids such as MiniGrid's 7 x 7 x 3, whose entries are codes and not brightness."""

    scale = 1 / 10  # MiniGrid's codes go up to 10

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        gain = math.sqrt(2)
        self.convolutions = nn.Sequential(
            orthogonal_(nn.Conv2d(self.image_shape[0], 16, 2), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(16, 32, 2), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(32, 64, 2), gain),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.features = 64
        self.dense = orthogonal_(nn.Linear(self.width_after(self.convolutions), self.features), gain)

    @property
    def layers(self) -> nn.Sequential:
        return self.convolutions

    def forward(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.dense(self.flat_features(observation)))


class JointEncoder(Encoder):
    """A Dict of images and vectors: each image through its CNN, the rest side by side, then one MLP over all."""

    def __init__(
        self, images: dict[str, Encoder], vectors: Sequence[tuple[str, gym.Space]], mlp: Callable[[int], MLP]
    ) -> None:
        super().__init__()
        self.image_names = list(images)
        self.images = nn.ModuleList(images.values())
        self.vectors = list(vectors)
        width = sum(flat_width(space) for _, space in vectors) + sum(encoder.features for encoder in images.values())
        self.mlp = mlp(width)
        self.features = self.mlp.features

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        parts = [flat_floats(observation[name], space) for name, space in self.vectors]
        parts += [encoder(observation[name]) for name, encoder in zip(self.image_names, self.images, strict=True)]
        return self.mlp(torch.cat(parts, -1))


class VectorEncoder(Encoder):
    """One vector, integer or bit observation as floats into an MLP."""

    def __init__(self, space: gym.Space, mlp: Callable[[int], MLP]) -> None:
        super().__init__()
        self.space = space
        self.mlp = mlp(flat_width(space))
        self.features = self.mlp.features

    def forward(self, observation: Tensor) -> Tensor:
        return self.mlp(flat_floats(observation, self.space))


def flat_width(space: gym.Space) -> int:
    """Floats that `flat_floats` makes of one observation."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(np.sum(space.nvec))
    return int(np.prod(space.shape or (1,)))


def one_hot(indices: Tensor, n: int) -> Tensor:
    """[B] to [B, n] bits; torch's own looks at the numbers first, which waits for the device and cannot be traced."""
    return indices.unsqueeze(-1) == torch.arange(n, device=indices.device)


def flat_floats(observation: Tensor, space: gym.Space) -> Tensor:
    """[B, width] floats: one-hot for integers, flattened otherwise."""
    dtype = torch.get_default_dtype()
    if isinstance(space, gym.spaces.Discrete):
        return one_hot(observation, int(space.n)).to(dtype)
    if isinstance(space, gym.spaces.MultiDiscrete):
        parts = observation.long().flatten(1).unbind(1)
        return torch.cat([one_hot(p, int(n)) for p, n in zip(parts, space.nvec.reshape(-1), strict=True)], 1).to(dtype)
    return (observation.unsqueeze(1) if observation.dim() == 1 else observation.flatten(1)).to(dtype)


OWN_ENCODERS: dict[str, Callable[[gym.Space], Any]] = {}  # those registered from outside


def register_encoder(name: str, make: Callable[[gym.Space], Any]) -> None:
    """Make an encoder of your own known as `encoder` `name`; `make` is its class, called with the observation space.

    Agents that have it are then loaded and resumed without being given it again. A name registered twice is replaced.
    """
    if not name.isidentifier() or (name in ENCODERS and name not in OWN_ENCODERS):
        raise ConfigError(f"An encoder's name is a word that is not taken, such as two_stream, not {name!r}.")
    if not callable(make):
        raise ConfigError(
            "An encoder is registered with its class, or a function from the observation space to a module."
        )
    if name not in ENCODERS:
        ENCODERS.append(name)
    OWN_ENCODERS[name] = make


def build_encoder(
    space: gym.Space,
    encoder: str | Callable[[gym.Space], Any],
    *,
    hidden_sizes: Sequence[int],
    activation: str,
    impala_channels: Sequence[int],
    impala_pooling: str,
    impala_stem: tuple[int, int] = (0, 2),
    layer_norm: bool = False,
    images: str = "all",
) -> nn.Module:
    """The encoder for an observation space: by name, chosen by the space ("auto"), or the user's own."""
    space = with_images(space, encoder, images)
    own = OWN_ENCODERS.get(encoder) if isinstance(encoder, str) else encoder
    if own is not None:
        module = own(space)
        if not isinstance(module, nn.Module) or not isinstance(getattr(module, "features", None), int):
            raise ConfigError(
                "encoder must return a torch module with an integer attribute `features`: its output width."
            )
        return module
    assert isinstance(encoder, str)

    def mlp(width: int) -> MLP:
        return MLP(width, hidden_sizes, activation, layer_norm)

    def image(box: ImageSpace, name: str) -> Encoder:
        side = min(box.image_shape[1:])
        if name == "auto":
            name = "grid" if side < SMALLEST_IMAGE else "nature"
        if name == "nature" and side < SMALLEST_IMAGE:
            others = "grid or impala" if side >= SMALLEST_GRID else "impala, mlp or auto"
            raise ConfigError(
                f"encoder nature needs images of at least {SMALLEST_IMAGE} pixels a side, not {box.shape}; use {others}."
            )
        if name == "grid" and side < SMALLEST_GRID:
            raise ConfigError(
                f"encoder grid needs images of at least {SMALLEST_GRID} pixels a side, not {box.shape}; use impala, mlp "
                "or auto."
            )
        width, stride = impala_stem
        smallest = 2 * (stride - stride // 2)  # what the stem's kernel of twice its stride needs, but for its padding
        if name == "impala" and width and side < smallest:
            raise ConfigError(
                f"encoder impala with impala_stem_stride {stride} needs images of at least {smallest} pixels a side, not "
                f"{box.shape}; lower impala_stem_stride, or use mlp or auto."
            )
        if name == "impala":
            return ImpalaCNN(box, impala_channels, impala_pooling, impala_stem)
        return NatureCNN(box) if name == "nature" else GridCNN(box)

    if isinstance(space, gym.spaces.Dict):
        cnns = {name: image(part, encoder) for name, part in space.items() if isinstance(part, ImageSpace)}
        return JointEncoder(cnns, [(name, part) for name, part in space.items() if name not in cnns], mlp)
    if isinstance(space, ImageSpace):
        return image(space, encoder)
    if encoder in CNNS:
        kind = "three dimensions, or four of a stack of frames" if images == "all" else "three-dimensional uint8"
        raise ConfigError(f"encoder {encoder} needs an image observation ({kind}), not {space}; use mlp or auto.")
    return VectorEncoder(space, mlp)
