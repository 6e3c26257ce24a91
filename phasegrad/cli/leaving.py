"""How a command leaves its process: without waiting for threads that an environment forgot."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Collection

from phasegrad.cli.messages import say

SECONDS_FOR_THREADS = 2.0


def leave_without(before: Collection[threading.Thread], code: int) -> None:
    """End the process now where threads that Python would wait for, begun since `before`, do not end."""
    deadline = time.monotonic() + SECONDS_FOR_THREADS
    for thread in _waited_for(before):
        thread.join(max(0.0, deadline - time.monotonic()))
    left = _waited_for(before)
    if not left:
        return
    say(f"a thread that was started meanwhile does not end ({left[0].name}): the command exits without it.")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _waited_for(before: Collection[threading.Thread]) -> list[threading.Thread]:
    mine = threading.current_thread()
    return [each for each in threading.enumerate() if each not in before and not each.daemon and each is not mine]
