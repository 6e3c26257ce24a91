"""Initial weights: orthogonal (MLP, Nature CNN) and the fixed-norm rows of the published PPG code (IMPALA)."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal_(layer: Layer, gain: float) -> Layer:
    """Orthogonal weights times `gain`, zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def fixed_norm_(layer: Layer, norm: float) -> Layer:
    """Scale each output unit's weight vector to length `norm`; zero biases."""
    weight = layer.weight.data
    lengths = weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.dim() - 1))
    weight.mul_(norm / lengths)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
