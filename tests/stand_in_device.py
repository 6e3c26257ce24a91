"""A device that is not there: tensors said to be on cuda:0 are computed on the CPU, and every crossing is written down.

What CUDA would refuse is refused (a mix of devices, numpy of a tensor on the device); what it would do in silence, and
slowly, is counted: copies in each direction, and places where the host waits for the device. Copies that do not wait
behave as badly as they may: memory that is read before the copy into it is known to be over holds nonsense, and memory
that is written to while a copy from it may be under way is found out.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from phasegrad.machine.clock import Clock

aten: Any = torch.ops.aten
DEVICE = torch.device("cuda:0")
CPU = torch.device("cpu")
# Their results have sizes, or are numbers, that only the device knows: the host waits for it.
WAITING = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::equal",
    "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::bincount", "aten::argwhere",
}  # fmt: skip
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
COPYING = {"aten::copy_", "aten::_to_copy", "aten::to"}
READING = (Tensor.tolist, Tensor.item, Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__)
WAITS, TO_DEVICE, TO_HOST = "waits", "to device", "to host"


class MixedDevices(RuntimeError):
    """An operation was given tensors of two devices."""


class Race(RuntimeError):
    """Memory was changed while a copy from it could still be under way."""


@dataclass
class Crossing:
    """One thing that concerns both sides: a copy, or a wait."""

    kind: str
    section: str  # of the clock
    waits: bool
    size: int  # bytes
    where: str  # in the package


@dataclass
class Log:
    """All crossings since it was cleared."""

    entries: list[Crossing] = field(default_factory=list)

    def count(self, kind: str | None = None, section: str | None = None, waits: bool | None = None) -> int:
        return len(self.found(kind, section, waits))

    def found(self, kind: str | None = None, section: str | None = None, waits: bool | None = None) -> list[Crossing]:
        return [
            each
            for each in self.entries
            if (kind is None or each.kind == kind)
            and (section is None or each.section == section)
            and (waits is None or each.waits == waits)
        ]

    def summary(self) -> str:
        counted = Counter((e.section, e.kind, "waits" if e.waits else "goes on", e.where) for e in self.entries)
        return "\n".join(f"{number:4d} x {' | '.join(key)}" for key, number in sorted(counted.items()))


class _Labels:
    """Which memory is the device's and which is pinned, by storage; a storage that is gone is forgotten."""

    def __init__(self) -> None:
        self.known: dict[int, StorageWeakRef] = {}

    def add(self, tensor: Tensor) -> None:
        if len(self.known) > 20_000:
            self.known = {key: ref for key, ref in self.known.items() if not ref.expired()}
        storage = tensor.untyped_storage()
        self.known[storage._cdata] = StorageWeakRef(storage)

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.known


DEVICE_MEMORY = _Labels()  # of all devices that are not there: what the package keeps there outlives a test


class StandIn:
    """The device. While `on()` lasts, `cuda` means it."""

    def __init__(self) -> None:
        self.device_memory, self.pinned = DEVICE_MEMORY, _Labels()
        self.log = Log()
        self.arriving: list[tuple[Tensor, Tensor]] = []  # host memory, and what it will hold once the host has waited
        self.leaving: list[tuple[Tensor, bytes]] = []  # host memory that is being read, and what it held
        self.free_bytes = 1 << 34
        self.knows_bfloat16 = True
        self.backwards = 0  # how many gradients are being computed

    def is_on(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self.device_memory.has(tensor)

    def put(self, tensor: Tensor) -> Tensor:
        self.device_memory.add(tensor)
        return tensor

    def cross(self, kind: str, waits: bool, size: int = 0) -> None:
        clock = Clock._last
        section = clock.current if clock is not None else ""
        stack = traceback.extract_stack()
        own = [frame for frame in stack if "/phasegrad/" in frame.filename and "transfers.py" not in frame.filename]
        where = f"{own[-1].filename.rpartition('/phasegrad/')[2]}:{own[-1].lineno}" if own else "outside"
        self.log.entries.append(Crossing(kind, section, waits, size, where))
        if waits:
            self.wait()

    def wait(self) -> None:
        """All that was begun is over."""
        for host, held in self.leaving:
            if host.numpy().tobytes() != held:
                raise Race("memory was written to while a copy from it to the device could be under way")
        for host, coming in self.arriving:
            host.copy_(coming)
        self.leaving, self.arriving = [], []

    def copied_to_device(self, source: Tensor, non_blocking: bool) -> None:
        pinned = self.pinned.has(source)
        self.cross(TO_DEVICE, not (non_blocking and pinned), source.numel() * source.element_size())
        if non_blocking and pinned:
            self.leaving.append((source, source.numpy().tobytes()))

    def copied_to_host(self, target: Tensor, held: Tensor, non_blocking: bool) -> None:
        """`target` has just been written; where nobody has waited it is spoilt until somebody does."""
        size = held.numel() * held.element_size()
        if not non_blocking:
            self.cross(TO_HOST, True, size)
            return
        self.cross(TO_HOST, False, size)
        self.arriving.append((target, held.clone()))
        target.fill_(float("nan") if target.is_floating_point() else 77 if target.dtype != torch.bool else True)

    @contextlib.contextmanager
    def on(self) -> Iterator[StandIn]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "device_count", lambda: 1)
            patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (self.free_bytes, 1 << 35))
            patch.setattr(torch.cuda, "synchronize", lambda device=None: self.cross(WAITS, True))
            patch.setattr(torch.cuda, "current_device", lambda: 0)
            patch.setattr(torch.cuda, "get_device_name", _unnamed)
            patch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: self.knows_bfloat16)
            patch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state())
            patch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
            with _Operations(self), _Calls(self):
                yield self


class _Operations(TorchDispatchMode):
    """Every operation: what it puts out is where what it was given is, and all of that is in one place."""

    def __init__(self, stand_in: StandIn) -> None:
        super().__init__()
        self.stand_in = stand_in

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        here, name = self.stand_in, func._schema.name
        on_device = [here.is_on(each) for each in given]
        if not given and here.backwards:  # zeros that autograd makes for what no gradient came to
            return here.put(func(*args, **kwargs))
        if not any(on_device):
            return func(*args, **kwargs)
        if name == "aten::copy_":
            return self._copy(func, args, kwargs)
        if not all(is_on or each.dim() == 0 for each, is_on in zip(given, on_device, strict=True)) or (
            name in INDEXING and not all(here.is_on(each) for each in args[1] if each is not None)
        ):
            raise MixedDevices(
                f"{name} was given tensors of the device and of the host: {[tuple(g.shape) for g in given]}"
            )
        if name in INDEXING and any(each.dtype in (torch.bool, torch.uint8) for each in args[1] if each is not None):
            here.cross(WAITS, True)
        if name in WAITING or (name == "aten::repeat_interleave" and kwargs.get("output_size") is None):
            here.cross(WAITS, True)
        found = func(*args, **kwargs)
        for each in tree_flatten(found)[0]:
            if isinstance(each, Tensor):
                here.put(each)
        return found

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        here = self.stand_in
        to, frm = here.is_on(target), here.is_on(source)
        if to and not frm:
            here.copied_to_device(source, non_blocking)
        found = func(*args, **kwargs)
        if frm and not to:
            here.copied_to_host(target, target.clone(), non_blocking)
        return found


class _Calls(TorchFunctionMode):
    """Every call from Python: what names a device, or takes a tensor out of torch."""

    def __init__(self, stand_in: StandIn) -> None:
        super().__init__()
        self.stand_in = stand_in
        self.special: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda tensor: DEVICE if stand_in.is_on(tensor) else CPU,
            Tensor.is_cuda.__get__: stand_in.is_on,  # type: ignore[attr-defined]
            Tensor.is_cpu.__get__: lambda tensor: not stand_in.is_on(tensor),  # type: ignore[attr-defined]
            Tensor.to: self.to,
            Tensor.cpu: lambda tensor: self.moved(tensor, CPU),
            Tensor.cuda: lambda tensor, *_, non_blocking=False: self.moved(tensor, DEVICE, non_blocking),
            Tensor.pin_memory: self.pin,
            Tensor.is_pinned: stand_in.pinned.has,
            Tensor.numpy: self.numpy,
            Tensor.__array__: self.array,
            Tensor.backward: self.backward,
            torch.autograd.grad: self.grad,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.special:
            return self.special[func](*args, **kwargs)
        if func in READING and self.stand_in.is_on(args[0]):
            self.stand_in.cross(TO_HOST, True, args[0].numel() * args[0].element_size())
            return func(_unlabelled(args[0]), *args[1:], **kwargs)
        if _is_device(kwargs.get("device")):
            kwargs["device"] = None if func is torch.tensor else CPU
            found = func(*args, **kwargs)
            if func in (torch.tensor, torch.as_tensor):
                self.stand_in.cross(TO_DEVICE, True, found.numel() * found.element_size())
                found = found.clone()
            return self.stand_in.put(found)
        pinned = kwargs.pop("pin_memory", False)
        found = func(*args, **kwargs)
        if pinned:
            self.stand_in.pinned.add(found)
        return found

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        non_blocking = bool(kwargs.pop("non_blocking", False))
        named = [a for a in (*args, kwargs.get("device")) if isinstance(a, torch.device | str)]
        others = [a for a in (*args, kwargs.get("other")) if isinstance(a, Tensor)]
        rest = [a for a in args if not isinstance(a, torch.device | str | Tensor | bool) and a is not None]
        kwargs.pop("device", None), kwargs.pop("other", None)
        target = DEVICE if self.stand_in.is_on(tensor) else CPU
        if named:
            target = DEVICE if _is_device(named[0]) else torch.device(named[0])
        elif others:
            target = DEVICE if self.stand_in.is_on(others[0]) else CPU
            rest = [others[0].dtype]
        if len(args) > 1 and isinstance(args[-1], bool) and named:  # to(device, dtype, non_blocking)
            non_blocking = args[-1]
        moved = self.moved(tensor, target, non_blocking)
        return moved.to(*rest, **kwargs) if rest or kwargs else moved

    def moved(self, tensor: Tensor, target: torch.device, non_blocking: bool = False) -> Tensor:
        here = self.stand_in
        if target.type == "meta":
            return tensor.to(target)
        if here.is_on(tensor) == (target.type == "cuda"):
            return tensor
        if target.type == "cuda":
            here.copied_to_device(tensor, non_blocking)
            copy = _unlabelled(tensor).clone() if not tensor.requires_grad else tensor.clone()
            return here.put(copy)
        held = _unlabelled(tensor).clone()
        here.copied_to_host(held, held.clone(), non_blocking)
        return held

    def pin(self, tensor: Tensor, *_: Any) -> Tensor:
        if self.stand_in.is_on(tensor):
            raise RuntimeError("only memory of the host can be pinned")
        pinned = tensor.clone()
        self.stand_in.pinned.add(pinned)
        return pinned

    def numpy(self, tensor: Tensor, **kwargs: Any) -> np.ndarray:
        if self.stand_in.is_on(tensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return tensor.numpy(**kwargs)

    def array(self, tensor: Tensor, dtype: Any = None, **_: Any) -> np.ndarray:
        return np.asarray(self.numpy(tensor.detach()), dtype)

    def backward(self, tensor: Tensor, gradient: Any = None, **kwargs: Any) -> None:
        with self, self.going_back(tensor):  # gradients that are written out in Python ask for devices too
            torch.autograd.backward(tensor, gradient, **kwargs)

    def grad(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with self.going_back(outputs if isinstance(outputs, Tensor) else outputs[0]):
            return torch.autograd.grad(outputs, *args, **kwargs)

    @contextlib.contextmanager
    def going_back(self, tensor: Tensor) -> Iterator[None]:
        here, more = self.stand_in, int(self.stand_in.is_on(tensor))
        here.backwards += more
        try:
            yield
        finally:
            here.backwards -= more


def _unnamed(device: Any = None) -> str:
    raise RuntimeError("a device that is not there has no name")


def _is_device(device: Any) -> bool:
    return device is not None and not isinstance(device, int) and torch.device(device).type == "cuda"


def _unlabelled(tensor: Tensor) -> Tensor:
    """The same numbers without going through a mode."""
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().clone()
