"""One run on several processes: how this process becomes one of them, and learns which.

Every process (rank) owns an equal share of the environments and computes the same update from averaged gradients.
Importing this joins nothing: the command line does under torchrun, and a script by calling `join`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from phasegrad.distributed.ranks import ALONE, Ranks
from phasegrad.errors import RanksError

__all__ = ["ALONE", "Ranks", "current", "join", "joined", "launched", "leave"]

PATIENCE = timedelta(minutes=30)  # for a rank that neither answers nor ends; one that has ended is noticed at once

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
    _current = Ranks(rank, size, local_rank, local_size, shared_memory, _store)
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
                raise RuntimeError(f"process {other} did not join")
            time.sleep(0.01)
    return PrefixStore(mine, store)


def leave() -> None:
    """Be alone again; every process must."""
    global _current, _store, _launch_store
    if _current is not ALONE and not _current.out_of_step:
        _current.wait_for_all()  # nobody hangs up while another still speaks
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
