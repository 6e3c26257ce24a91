"""One run on several processes: who this process is among them, and the few ways they have of agreeing.

Every process (rank) owns an equal share of the environments and computes the same update from averaged gradients. What
is averaged, and when, is said where it happens; nothing here knows about learning. Importing this joins nothing: the
command line does under torchrun, and a script by calling `join`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from phasegrad import errors, shared_memory
from phasegrad.errors import PhasegradError, RanksError
from phasegrad.shared_memory import SharedMemory

PATIENCE = timedelta(minutes=30)  # for a rank that neither answers nor ends; one that has ended is noticed at once
LOST = (
    "Another process of this run has ended or does not answer, so this one ends too; torchrun's --max-restarts or "
    "`phasegrad resume` continues from the last checkpoint."
)
Result = TypeVar("Result")


class Ranks:
    """This process's number `rank` among `size`; on this machine `local_rank` among `local_size`.

    Of one process alone every method gives back what it was given, at no cost.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1, shared_memory: bool = False
    ) -> None:
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self.may_share = shared_memory and local_size == size  # memory, where all are on one machine
        self._memory: SharedMemory | None = None

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
        _together(dist.gather, sent, parts)
        if parts is None:
            return tensor
        return torch.cat([part.view(tensor.dtype).view(tensor.shape) for part in parts], dim)

    # How they reach each other

    def _exchanged(self, tensor: Tensor) -> list[Tensor] | None:
        """Every process's tensor through memory they share, readable until the next call; None where there is none."""
        if not self.may_share or tensor.device.type != "cpu":
            return None
        length = tensor.numel() * tensor.element_size()
        if self._memory is None or self._memory.capacity < length:
            self._memory = self._shared_memory(1 << max(16, (length - 1).bit_length()))
            if self._memory is None:
                self.may_share = False
                return None
        parts = self._memory.exchange(tensor)
        if parts is None:
            raise RanksError(LOST)
        return parts

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
                _together(dist.all_reduce, tensor)
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
            _together(dist.all_gather, parts, tensor)
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
                _together(dist.broadcast, sent, 0)
                if not self.is_first:
                    tensor.detach().copy_(sent)

    def from_first(self, function: Callable[[], Result]) -> Result:
        """What the first process's call of `function` gives, as far as JSON carries it; its error is everybody's."""
        if self.size == 1:
            return function()
        told: dict[str, Any] = {}
        if self.is_first:
            try:
                told = {"result": function()}
            except PhasegradError as error:
                told = {"error": type(error).__name__, "sentence": str(error)}
        message = torch.frombuffer(bytearray(json.dumps(told).encode()), dtype=torch.uint8)
        length = self.most(len(message) if self.is_first else 0)[0]
        message = message if self.is_first else torch.empty(length, dtype=torch.uint8)
        _together(dist.broadcast, message, 0)
        told = json.loads(bytes(message.tolist()))
        if "error" in told:
            raise getattr(errors, told["error"], PhasegradError)(told["sentence"])
        result: Result = told["result"]
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
            "The run stops; are all machines alike, and is nothing in the networks random?"
        )


ALONE = Ranks()
_current = ALONE
_store: Any = None  # of this attempt's processes
_launch_store: Any = None  # of torchrun, where it outlives the processes it restarts


def current() -> Ranks:
    """The ranks this process has joined; alone where it has not."""
    return _current


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isdigit() and int(size) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


def join(
    *, rank: int | None = None, size: int | None = None, init_method: str | None = None, shared_memory: bool = True
) -> Ranks:
    """Become one of the processes of a run: those that torchrun started, or by hand `rank` of `size`.

    Processes of one machine exchange gradients through memory they share, unless `shared_memory` is off. Agents made afterwards divide their environments among the processes. Every process must make the same calls of
    `learn` and `save`; the first alone writes files. Without torchrun and without arguments nothing happens.
    """
    global _current, _store, _launch_store
    if _current is not ALONE or (size is None and not launched()):
        return _current
    environment = {name: int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    rank = environment["RANK"] if rank is None else rank
    size = environment["WORLD_SIZE"] if size is None else size
    local_rank = environment["LOCAL_RANK"] if "LOCAL_RANK" in os.environ else rank
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    has_gpu = torch.cuda.is_available()
    if has_gpu and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    try:
        if init_method is None:
            _launch_store = next(rendezvous("env://", rank, size, timeout=PATIENCE))[0]
            store = fresh_corner(_launch_store, rank, size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        else:
            dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise RanksError(
            f"The processes of this run do not find each other ({str(error).splitlines()[0][:120]}): check torchrun's "
            "address and port, and GLOO_SOCKET_IFNAME where a machine has several networks."
        ) from error
    _store = dist.distributed_c10d._get_default_store()
    _current = Ranks(rank, size, local_rank, local_size, shared_memory)
    return _current


def fresh_corner(store: Store, rank: int, size: int) -> Store:
    """A part of a store that no earlier attempt has written to.

    torchrun's store outlives the processes it restarts, and their addresses with them. So the first process names a part
    that is new, tells each of the others as soon as it announces itself, and waits for its word: an announcement that an
    earlier attempt has left behind is never answered, and is replaced in time.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"phasegrad/here/{rank}", mine)
        name = store.get(f"phasegrad/part/{mine}").decode()
        store.set(f"phasegrad/heard/{mine}/{name}", "")
        return PrefixStore(name, store)
    deadline = time.monotonic() + PATIENCE.total_seconds()
    for other in range(1, size):
        while True:
            announced = store.get(f"phasegrad/here/{other}").decode()
            store.set(f"phasegrad/part/{announced}", mine)
            if store.check([f"phasegrad/heard/{announced}/{mine}"]):
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"process {other} has not come")
            time.sleep(0.01)
    return PrefixStore(mine, store)


def leave() -> None:
    """Be alone again; every process must."""
    global _current, _store, _launch_store
    if _current is not ALONE:
        _together(dist.barrier)  # nobody hangs up while another still speaks
        dist.destroy_process_group()
    _current, _store, _launch_store = ALONE, None, None


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Among the others until the block ends well; an error ends the process, and with it the others."""
    yield join()
    leave()


def first_to_say(sentence: str) -> bool:
    """Whether no other process has said this yet, so that what concerns all of them is printed once."""
    if _store is None:
        return not launched() or os.environ["RANK"] == "0"
    try:
        return bool(_store.add(f"phasegrad-said-{hashlib.sha256(sentence.encode()).hexdigest()[:16]}", 1) == 1)
    except RuntimeError:  # whoever kept count is gone
        return True


def launch_id() -> str | None:
    """What tells one torchrun from another and stays the same when it restarts its processes; None without it."""
    identity = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{socket.gethostname()}-{os.getppid()}" if identity == "none" else identity


def remember_start() -> None:
    """Tell later attempts of this torchrun that its run has begun."""
    if _launch_store is not None:
        _launch_store.set("phasegrad/begun", "")


def restarted() -> bool:
    """Whether torchrun is known here to have started its processes again: one failed, or their number changed."""
    counted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return counted or (_launch_store is not None and bool(_launch_store.check(["phasegrad/begun"])))


def _together(collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        collective(*arguments, **options)
    except RuntimeError as error:
        raise RanksError(LOST) from error


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor's memory as numbers that every backend can send."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _digest(tensor: Tensor) -> int:
    """63 bits of a checksum of a tensor's bits."""
    payload: Any = _bytes(tensor.cpu()).numpy()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1
