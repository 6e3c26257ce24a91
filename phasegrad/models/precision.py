"""Networks in bfloat16 for a while: their large products alone, by torch's autocast; parameters and results stay float32.

Nothing here knows what for. Distributions, losses and statistics are computed from the float32 results as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from phasegrad.models.actor_critic import ActorCritic
from phasegrad.models.encoders import ImageEncoder

FULL, LOWER = "float32", "bfloat16"


@contextlib.contextmanager
def in_precision(model: ActorCritic, precision: str) -> Iterator[None]:
    """While it lasts, encoders and linear heads compute in `precision`, without compiled code."""
    if precision == FULL:
        yield
        return
    parts = lowered_parts(model)
    images = [module for module in model.modules() if isinstance(module, ImageEncoder)]
    compiled = [image.compiled_layers for image in images]
    for image in images:
        image.compiled_layers = None
    for part in parts:
        part.forward = _lowered(part.forward)
    try:
        yield
    finally:
        for part in parts:
            del part.forward
        for image, layers in zip(images, compiled, strict=True):
            image.compiled_layers = layers


def lowered_parts(model: ActorCritic) -> list[nn.Module]:
    """Encoders whole, and of heads the linear layers: what follows those needs its digits."""
    encoders = [encoder for encoder in (model.policy_encoder, model.value_encoder) if encoder is not None]
    heads = [model.policy_head, model.value_head, model.auxiliary_head]
    linear = [part for head in heads if head is not None for part in head.modules() if isinstance(part, nn.Linear)]
    return [*encoders, *linear]


def _lowered(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def computed(*arguments: Any) -> Tensor:
        with torch.autocast(_device_type(arguments), dtype=torch.bfloat16):
            return forward(*arguments).float()

    return computed


def _device_type(arguments: tuple[Any, ...]) -> str:
    first = arguments[0]
    tensor: Tensor = next(iter(first.values())) if isinstance(first, dict) else first
    return tensor.device.type
