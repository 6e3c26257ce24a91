"""Copies between this machine's memory and a device: as few as can be, and none that waits where nobody needs the answer.

Several tensors cross as one. What goes to the device leaves from pinned memory of its own, so the host goes on at once and
may write over what it sent; what comes back is waited for, since somebody wants to read it. On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phasegrad.tree import leaves, tree_map

CPU = torch.device("cpu")


def device_of(tree: Any) -> torch.device:
    """Where an observation's tensors lie."""
    found: torch.device = leaves(tree)[0].device
    return found


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """One tensor of the host on `device`; the same one where that is the CPU or it is there already."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the host on `device`, all in one copy; the same ones where that is the CPU or they are there already."""
    if device.type == "cpu":
        return list(tensors)
    found = {index: tensor for index, tensor in enumerate(tensors) if tensor.device.type != "cpu"}
    crossing = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    arrived = iter([to_device(crossing[0], device)] if len(crossing) == 1 else _sent(crossing, device))
    return [found[index] if index in found else next(arrived) for index in range(len(tensors))]


def _sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    if not tensors:
        return []
    order, sizes = _layout(tensors)
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    for index, piece in zip(order, packed.split([sizes[index] for index in order]), strict=True):
        piece.copy_(_as_bytes(tensors[index]))
    return _unpacked(packed.to(device, non_blocking=True), tensors, order, sizes)


def send_tree(trees: Sequence[Any], device: torch.device) -> list[Any]:
    """The same of observations, arrays or tensors, of which some may be None."""
    if device.type == "cpu":
        return [None if tree is None else tree_map(lambda leaf: as_tensor(leaf).to(device), tree) for tree in trees]
    flat = [as_tensor(leaf) for tree in trees if tree is not None for leaf in leaves(tree)]
    rest = iter(send(flat, device))

    def rebuilt(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return None if tree is None else next(rest)
        found = {name: next(rest) for name in sorted(tree)}
        return {name: found[name] for name in tree}

    return [rebuilt(tree) for tree in trees]


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device in this machine's memory, all in one copy that is waited for; the same ones on a CPU."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    if len(tensors) == 1:
        return [tensors[0].cpu()]
    order, sizes = _layout(tensors)
    packed = torch.cat([_as_bytes(tensors[index]) for index in order]).cpu()
    return _unpacked(packed, tensors, order, sizes)


def fetched(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with every number that is still a tensor, or a list of such, read from the device in one transfer."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in metrics.items()}
    waiting = {name: own for name, own in listed.items() if own and all(isinstance(each, Tensor) for each in own)}
    if not waiting:
        return dict(metrics)
    there = [
        each.detach().reshape(-1).double() for own in waiting.values() for each in own if each.device.type != "cpu"
    ]
    arrived = iter(torch.cat(there).tolist() if there else ())  # the one place where the host waits
    read = dict(metrics)
    for name, own in waiting.items():
        found: list[float] = []
        for each in own:
            if each.device.type == "cpu":
                found += map(float, each.detach().reshape(-1).tolist())
            else:
                found += [next(arrived) for _ in range(each.numel())]
        read[name] = found if isinstance(metrics[name], list) else found[0]
    return read


def _layout(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """The widest types first, so that each begins where one of its kind may; and the bytes of each."""
    order = sorted(range(len(tensors)), key=lambda index: -tensors[index].element_size())
    return order, [tensor.numel() * tensor.element_size() for tensor in tensors]


def _as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.stride(0) != 1:  # one number or none counts as contiguous whatever its stride
        flat = torch.empty(len(flat), dtype=flat.dtype, device=flat.device).copy_(flat)
    return flat.view(torch.uint8)


def _unpacked(packed: Tensor, tensors: Sequence[Tensor], order: Sequence[int], sizes: Sequence[int]) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for index, piece in zip(order, packed.split([sizes[index] for index in order]), strict=True):
        found[index] = piece.view(tensors[index].dtype).view(tensors[index].shape)
    return [found[index] for index in range(len(tensors))]


def as_tensor(leaf: Any) -> Tensor:
    """An array in memory that torch takes: one that is turned round or may not be written to is copied."""
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.require(leaf, requirements=["C", "W"]))
