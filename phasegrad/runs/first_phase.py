"""How long PPG's first auxiliary phase is in coming: said at the start of a run where that is minutes.

A pure function of settings and of one iteration's metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasegrad.phases import phase_schedule
from phasegrad.presets import preset_for_cpu

WORTH_SAYING = 120.0  # seconds


def first_phase_notice(settings: Mapping[str, Any], row: Mapping[str, Any], on_cpu: bool) -> str:
    """The sentence, from the metrics of a run's first iteration; '' where the phase comes soon, or never."""
    schedule = phase_schedule(settings)
    if schedule is None or row["iteration"] != 1:
        return ""
    due = min(schedule.interval * settings["num_envs"] * settings["num_steps"], settings["total_steps"])
    without_compiling = row["sps"] / max(1e-3, 1.0 - row.get("time_compile", 0.0))
    expected = (due - row["step"]) / without_compiling
    if expected < WORTH_SAYING:
        return ""
    faster = preset_for_cpu(str(settings["preset"]), "ppg") if on_cpu else None
    advice = f"preset {faster} is made for CPUs" if faster else "a lower n_pi brings it sooner"
    return (
        f"PPG's first auxiliary phase comes after {due:,} steps, in about {round(expected / 60)} minutes at this speed; "
        f"{advice}."
    )
