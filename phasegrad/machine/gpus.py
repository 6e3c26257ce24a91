"""Whether there is a GPU that torch can use, found without importing torch where its version tells."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version


def has_gpu() -> bool:
    """Whether the device `auto` is a GPU here."""
    if "torch" not in sys.modules:
        try:
            if version("torch").endswith("+cpu"):
                return False
        except PackageNotFoundError:
            return False
    import torch  # takes seconds, so only here

    return bool(torch.cuda.is_available())
