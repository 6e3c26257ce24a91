"""When Python looks for garbage in cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_looked_for() -> Iterator[None]:
    """For imports, which leave next to none: to look through all that they make, again and again, is a fifth of torch's."""
    looked_for = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked_for:
            gc.enable()
