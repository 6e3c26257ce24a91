"""Standard output and error of a command: they may be closed, full or a pipe that nobody reads any more.

Imports nothing heavy. What a command came to is told by its exit code in any case.
"""

from __future__ import annotations

import contextlib
import os
import sys

from phasegrad.cli.messages import say
from phasegrad.machine.descriptors import hold_standard
from phasegrad.machine.failures import reason

NOBODY_READS = 141  # as a shell has it for a program that SIGPIPE ended
NOT_WRITTEN = 1


def open_missing_streams() -> None:
    """Put /dev/null where 0, 1 or 2 is closed, and a stream on it where Python found none."""
    hold_standard()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process


def settled(code: int) -> int:
    """The exit code of a command whose output is all written, or of one whose output could not be."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return lost_output(error, code)
    except ValueError:  # an environment has closed it: there is nothing left to write
        pass
    return code


def lost_output(error: OSError, code: int = 0) -> int:
    """What is still to be written is let go, so that Python does not stumble over it; the exit code."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout.flush()
    if isinstance(error, BrokenPipeError):
        return code or NOBODY_READS
    say(f"Standard output could not be written: {reason(error)}.")
    return code or NOT_WRITTEN


def is_output_lost() -> OSError | None:
    """Why standard output cannot be written, where that is so; what failed once stays to be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    except ValueError:  # closed
        return None
    return None
