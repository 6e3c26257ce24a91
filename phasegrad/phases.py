"""When PPG's auxiliary phases are due, from settings alone: of a config, or as a run's config.json has them.

A pure function of a mapping, so that the algorithm, the displays, the benchmark and `phasegrad watch`, which needs no
torch, all have it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SETTINGS = (
    "n_pi",
    "e_aux",
    "aux_interval",
    "aux_buffer",
    "aux_steps",
)  # what it reads; one that is missing counts as 0


@dataclass(frozen=True)
class PhaseSchedule:
    """Policy iterations from one auxiliary phase to the next, and how many of the latest each trains on."""

    interval: int
    kept: int


def phase_schedule(settings: Mapping[str, int]) -> PhaseSchedule | None:
    """The schedule; None where the settings have no auxiliary phase, as those of other algorithms."""
    n_pi, e_aux, aux_interval, aux_buffer, aux_steps = (settings.get(name, 0) for name in SETTINGS)
    if e_aux <= 0 and aux_steps <= 0:
        return None
    interval = aux_interval or n_pi
    return PhaseSchedule(interval, aux_buffer or interval)
