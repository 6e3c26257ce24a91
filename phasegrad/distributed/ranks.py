"""What several processes of one run can say to each other: their few ways of agreeing on numbers.

What is averaged, gathered or compared, and when, is said where it happens; nothing here knows about learning, or about
how the processes were started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from phasegrad import errors
from phasegrad.distributed import shared_memory
from phasegrad.distributed.shared_memory import SharedMemory
from phasegrad.errors import PhasegradError, RanksError

LOST = (
    "Another process of this run has ended, has failed or does not answer, so this one ends too; torchrun's "
    "--max-restarts or `phasegrad resume` continues from the last checkpoint."
)
OUT_OF_STEP = (
    "The processes of this run are no longer in step since one of them failed: start them again, or have each of them "
    "leave and join anew."
)
SECONDS_TO_FAIL_ALIKE = 3.0  # for the others to meet the error that this process has met
Result = TypeVar("Result")


class Ranks:
    """This process's number `rank` among `size`; on this machine `local_rank` among `local_size`.

    Of one process alone every method gives back what it was given, at no cost.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        shared_memory: bool = False,
        store: Any = None,
    ) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self.may_share = shared_memory and local_size == size  # memory, where all are on one machine
        self.out_of_step = False  # since an error that not all of them met: nothing is exchanged any more
        self._memory: SharedMemory | None = None
        self._store, self._exchanges, self._lost = store, 0, False

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run directory."""
        return self.rank == 0

    # What is divided among the processes

    def share(self, count: int) -> int:
        """One process's part of `count` samples, rounded up."""
        return -(-count // self.size)

    def own(self, tensor: Tensor, dim: int) -> Tensor:
        """This process's environments out of all of them along `dim`."""
        if self.size == 1:
            return tensor
        part = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * part, part)

    def whole(self, tensor: Tensor, dim: int) -> Tensor:
        """On the first process all environments along `dim`, in their order; on the others their own still."""
        if self.size == 1:
            return tensor
        sent = _bytes(tensor)
        parts = [torch.empty_like(sent) for _ in range(self.size)] if self.is_first else None
        self._together(dist.gather, sent, parts)
        if parts is None:
            return tensor
        return torch.cat([part.view(tensor.dtype).view(tensor.shape) for part in parts], dim)

    # How they reach each other

    def _exchanged(self, tensor: Tensor) -> list[Tensor] | None:
        """Every process's tensor through memory they share, readable until the next call; None where there is none."""
        if not self.may_share or tensor.device.type != "cpu":
            return None
        self._begin()
        length = tensor.numel() * tensor.element_size()
        if self._memory is None or self._memory.capacity < length:
            self._memory = self._shared_memory(1 << max(16, (length - 1).bit_length()))
            if self._memory is None:
                self.may_share = False
                return None
        parts = self._memory.exchange(tensor)
        if parts is None:
            self._lost = True
            raise RanksError(LOST)
        return parts

    def _together(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """An operation of all processes; that one of them has ended becomes a sentence."""
        self._begin()
        try:
            collective(*arguments)
        except RuntimeError as error:
            self._lost = True
            raise RanksError(LOST) from error

    def _begin(self) -> None:
        if self.out_of_step:
            raise RanksError(OUT_OF_STEP)
        self._exchanges += 1

    def wait_for_all(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            self._together(dist.barrier)

    # When one of them fails

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """A call that every process makes.

        Where it fails on all of them at the same place, as most errors do, they go on together. Where it fails here
        alone, the others wait for an answer, and would take that to the next question for it: so they are told, and no
        process exchanges anything any more until it has left and joined anew.
        """
        try:
            yield
        except BaseException:
            if self.size > 1 and not self.out_of_step and (self._lost or not self._all_fail_here()):
                self._give_up()
            raise

    def _all_fail_here(self) -> bool:
        """Whether the call fails soon on every process, after as many exchanges as on this one."""
        key, deadline = f"phasegrad-failed-{self._exchanges}", time.monotonic() + SECONDS_TO_FAIL_ALIKE
        self._exchanges += 1  # so that another error without an exchange between has its own key
        try:
            count = self._store.add(key, 1)
            while count < self.size and time.monotonic() < deadline:
                time.sleep(0.01)
                count = self._store.add(key, 0)
        except RuntimeError:  # whoever kept count is gone
            return False
        return bool(count >= self.size)

    def _give_up(self) -> None:
        self.out_of_step = True
        if self._memory is not None:
            self._memory.give_up()
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group()  # which hangs up on those that wait

    def _shared_memory(self, capacity: int) -> SharedMemory | None:
        """Memory that every process sees; None, for all of them, where one does not."""
        self.may_share, may_share = False, self.may_share  # while they agree about it
        path = self.from_first(lambda: shared_memory.create(self.size, capacity))
        processes = self.gather(torch.tensor([os.getpid()])).flatten().tolist()
        found = None
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                found = shared_memory.SharedMemory(path, self.rank, self.size, capacity, processes)
        failed = self.any(found is None)
        if self.is_first and path is not None:
            os.unlink(path)  # it lives as long as somebody sees it, and no longer
        self.may_share = may_share
        return None if failed else found

    # What all know

    def mean_(self, tensor: Tensor) -> Tensor:
        """The mean over the processes, in place: the same bits on each."""
        if self.size > 1:
            parts = self._exchanged(tensor)
            if parts is None:
                self._together(dist.all_reduce, tensor)
            else:
                torch.add(parts[0], parts[1], out=tensor)
                for part in parts[2:]:
                    tensor.add_(part)
            tensor.div_(self.size)
        return tensor

    def mean(self, *values: float) -> list[float]:
        """The means over the processes of some numbers."""
        if self.size == 1:
            return list(values)
        return self.mean_(torch.tensor(values, dtype=torch.float64)).tolist()

    def mean_of(self, *numbers: Tensor) -> list[Any]:
        """The same of numbers that may be on a device: those of one process alone stay there, unread."""
        if self.size == 1:
            return list(numbers)
        return self.mean(*torch.stack([number.detach().double() for number in numbers]).tolist())

    def most(self, *values: int) -> list[int]:
        """The largest that a process gives of each value."""
        if self.size == 1:
            return list(values)
        return self.gather(torch.tensor(values, dtype=torch.int64)).amax(0).tolist()

    def any(self, flag: bool) -> bool:
        """Whether a process raises the flag."""
        return bool(self.most(int(flag))[0])

    def gather(self, tensor: Tensor) -> Tensor:
        """Every process's tensor [size, ...], all of one shape."""
        if self.size == 1:
            return tensor[None]
        tensor = tensor.contiguous()
        parts = self._exchanged(tensor)
        if parts is None:
            parts = [torch.empty_like(tensor) for _ in range(self.size)]
            self._together(dist.all_gather, parts, tensor)
        return torch.stack(parts)

    def rows(self, own: Tensor) -> Tensor:
        """The rows of all processes' tables [..., K] of float64, in the order of their first column, 0 or more."""
        if self.size == 1:
            return own
        longest = self.most(len(own))[0]
        if longest == 0:
            return own
        padded = torch.full((longest, own.shape[1]), -1.0, dtype=torch.float64)
        padded[: len(own)] = own
        table = self.gather(padded).flatten(0, 1)
        table = table[table[:, 0] >= 0]
        return table[table[:, 0].argsort(stable=True)]

    def copy_first_(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        if self.size > 1:
            for tensor in tensors.values():
                sent = tensor.detach().clone(memory_format=torch.contiguous_format)
                self._together(dist.broadcast, sent, 0)
                if not self.is_first:
                    tensor.detach().copy_(sent)

    def from_first(self, function: Callable[[], Result]) -> Result:
        """What the first process's call of `function` gives, as far as JSON carries it; its error is everybody's."""
        if self.size == 1:
            return function()
        told, own_error = b"", None
        if self.is_first:
            try:
                told = json.dumps({"result": function()}).encode()
            except PhasegradError as error:
                told = json.dumps({"error": type(error).__name__, "sentence": str(error)}).encode()
            except BaseException as error:  # the others wait for a word, whatever happened here
                own_error = error
                sentence = f"The first process of this run has failed ({type(error).__name__}: {error})."
                told = json.dumps({"error": "RanksError", "sentence": sentence}).encode()
        message = torch.frombuffer(bytearray(told or b" "), dtype=torch.uint8)
        length = self.most(len(message) if self.is_first else 0)[0]
        message = message if self.is_first else torch.empty(length, dtype=torch.uint8)
        self._together(dist.broadcast, message, 0)
        if own_error is not None:
            raise own_error
        answer = json.loads(bytes(message.tolist()))
        if "error" in answer:
            raise getattr(errors, answer["error"], PhasegradError)(answer["sentence"])
        result: Result = answer["result"]
        return result

    def require_alike(self, tensors: Mapping[str, Tensor], when: str) -> None:
        """Stop where the processes no longer hold the same bits, and say from which tensor and process on."""
        if self.size == 1:
            return
        digests = torch.tensor([_digest(tensor) for tensor in tensors.values()])
        whole = _digest(digests)
        found = self.gather(torch.tensor([whole]))
        if (found == found[0]).all():
            return
        self._name_difference(list(tensors), digests, when)

    def _name_difference(self, names: list[str], digests: Tensor, when: str) -> NoReturn:
        table = self.gather(digests)  # [size, tensors]
        tensor, rank = (table != table[0]).T.nonzero()[0].tolist()
        raise RanksError(
            f"The processes have diverged by {when}: {names[tensor]} of process {rank} differs from that of process 0. "
            "The run stops; are all machines identical, and is nothing in the networks random?"
        )


ALONE = Ranks()


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor's memory as numbers that every backend can send."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _digest(tensor: Tensor) -> int:
    """63 bits of a checksum of a tensor's bits."""
    payload: Any = _bytes(tensor.cpu()).numpy()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1
