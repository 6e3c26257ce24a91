"""What a stranger with an account on the machine does to a folder he may write to, over and over: no test by itself."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path


def exchange(root: Path, name: str, evil: bytes) -> None:
    """Below `root` the folders of the cache come and go, theirs or a link to theirs, for ever.

    In them is the library `evil`, under the `name` that is looked for and in place of whatever is put there.
    """
    own, link, shown = root / "of-a-stranger", root / "link-of-a-stranger", root / "phasegrad"
    (own / "native").mkdir(parents=True)
    for folder in (own, own / "native"):
        folder.chmod(0o777)
    link.symlink_to(own)
    plant(own / "native", name, evil)
    while True:
        for hidden in (own, own, own, link):
            for _ in range(200):  # there, gone, there: a check and a use are microseconds apart
                with contextlib.suppress(OSError):
                    os.rename(hidden, shown)
                if has_begun(own / "native") or has_begun(shown / "native"):
                    wait_for_the_binary(shown / "native", evil)
                with contextlib.suppress(OSError):
                    os.rename(shown, hidden)
                until = time.perf_counter() + random.uniform(0, 1e-4)
                while time.perf_counter() < until:
                    pass


def has_begun(folder: Path) -> bool:
    """Whether a victim builds there."""
    with contextlib.suppress(OSError):
        return any(entry.startswith("phasegrad-") for entry in os.listdir(folder))
    return False


def wait_for_the_binary(folder: Path, evil: bytes) -> None:
    """And exchange it, and whatever lies beside it."""
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder):
                if entry.endswith(".so"):
                    plant(folder, entry, evil)
                elif not has_begun(folder):
                    return


def plant(folder: Path, name: str, evil: bytes) -> None:
    with contextlib.suppress(OSError):
        (folder / ".evil").write_bytes(evil)
        (folder / ".evil").chmod(0o755)
        (folder / ".evil").rename(folder / name)
