"""The three standard file descriptors of a process: where one is closed, the next file opened would take its number;
where its terminal has gone, whatever is printed would be an error.
"""

from __future__ import annotations

import contextlib
import errno
import os


def hold_standard() -> None:
    """Put the null device where standard input, output or error were closed: what is printed must not get into a file."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                taken = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
                if taken != descriptor:
                    os.close(taken)


def leave_lost_terminal() -> None:
    """Put the null device where a terminal was that has been closed."""
    try:
        import termios
    except ImportError:  # Windows
        return
    for descriptor in range(3):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                with contextlib.suppress(OSError):
                    null = os.open(os.devnull, os.O_RDWR)
                    os.dup2(null, descriptor)
                    os.close(null)
