"""Forks of other people's code: what has to be so before several threads fork at once."""

from __future__ import annotations

import os
import warnings

from phasegrad.machine.garbage import not_looked_for


def settle() -> None:
    """One fork, alone, which sends OpenBLAS's threads home: they come back with its next large product.

    scipy's OpenBLAS waits for its threads before every fork, and two forks at the same moment wait for the
    same ones, the second for ever. Where a library starts processes from threads of its own, this has to come first.
    """
    if not hasattr(os, "fork"):
        return
    with warnings.catch_warnings(), not_looked_for():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads, whose child does nothing
        child = os.fork()
        if child == 0:
            os._exit(0)
    os.waitpid(child, 0)
