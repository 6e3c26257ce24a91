"""Which cluster the runs go to and what each takes of it, from the options. Knows nothing of Ray itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from phasegrad.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Where runs go: a cluster's address ("" is the one of this machine, running or not) and a run's share of it."""

    address: str
    cpus: float
    gpus: float


def parse_place(cluster: str | None, cpus: str | float | None, gpus: str | float | None) -> Place | None:
    """What --cluster, --cpus-per-run and --gpus-per-run ask for; None without --cluster."""
    if cluster is None:
        for option, given in (("--cpus-per-run", cpus), ("--gpus-per-run", gpus)):
            if given is not None:
                raise ConfigError(f"{option} is what a run takes of a cluster: it needs --cluster.")
        return None
    found = re.fullmatch(r"ray(?:(://\S+:\d+)|:([^\s/]+:\d+))?", cluster)
    if not found:
        raise ConfigError(f"--cluster takes ray, ray://HOST:10001 or ray:HOST:PORT, not {cluster!r}.")
    client, plain = found.groups()
    return Place(
        f"ray{client}" if client else plain or "",
        _share("--cpus-per-run", 1 if cpus is None else cpus, least=0.01),
        _share("--gpus-per-run", 0 if gpus is None else gpus, least=0.0),
    )


def _share(option: str, given: str | float, least: float) -> float:
    try:
        share = float(given)
    except ValueError:
        share = float("nan")
    if not least <= share <= 10_000 or (share > 1 and share != int(share)):
        raise ConfigError(f"{option} must be a whole number, or a share such as 0.5 of one; not {given!r}.")
    return share
