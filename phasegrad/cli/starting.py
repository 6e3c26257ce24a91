"""The first line of a training: what goes on while torch and the environments are imported, which takes seconds.

Imports nothing heavy and needs no parser, which knows the settings only after those imports.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

ENVIRONMENTS = "loading PyTorch and the environments"
LOADING = {"train": ENVIRONMENTS, "resume": "loading PyTorch and the run", "clone": ENVIRONMENTS}
SILENT = {"-h", "--help", "--quiet"}


def announce(arguments: Sequence[str]) -> None:
    """Say at once that a training is on its way; of several processes the first does."""
    verb = arguments[0] if arguments else ""
    if verb in LOADING and not SILENT.intersection(arguments) and os.environ.get("RANK", "0") == "0":
        print(LOADING[verb], flush=True)
