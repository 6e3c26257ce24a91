"""What a study would take: its grid, and the time on this machine, from its finished runs or from a short measurement."""

from __future__ import annotations

import heapq
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phasegrad.machine.processors import usable_processors
from phasegrad.outside import told_to_children
from phasegrad.runs.console import duration
from phasegrad.runs.reading import number_or_none
from phasegrad.studies.board import elided, short_count
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.progress import latest
from phasegrad.studies.runner import ONE_THREAD, in_order

MOST_SECONDS = 60.0  # of all measurements together
MOST_WIDE = (26, 14)  # characters of an environment's and a variant's name, for a table of 80
Kind = tuple[str, str]  # environment and variant: runs of one kind take the same time


@dataclass
class Measured:
    """What processes that trained for a second each have found."""

    speeds: dict[Kind, float] = field(default_factory=dict)  # seconds a step
    errors: dict[Kind, str] = field(default_factory=dict)
    setups: dict[Kind, float] = field(default_factory=dict)  # seconds that a run takes once: environments, compiling
    startup: float = 0.0  # seconds until a run begins to train
    took: float = 0.0


@dataclass
class Forecast:
    """The time that is left of a study, and where that figure comes from."""

    seconds: float | None
    speeds: dict[Kind, float]  # seconds a step
    from_runs: dict[Kind, int]  # of so many finished ones
    measured: Measured
    at_a_time: int


def kind_of(run: PlannedRun) -> Kind:
    return run.environment.name, run.variant.name


def forecast(runs: Sequence[PlannedRun], jobs: int, most_seconds: float = MOST_SECONDS) -> Forecast:
    """How long the runs that are not finished will take, `jobs` at a time."""
    finished = [run for run in runs if run.state() == "finished"]
    todo = [run for run in runs if run not in finished]
    speeds, counts = speeds_of_finished(finished)
    at_a_time = max(1, min(jobs, usable_processors(), len(todo) or 1))
    missing: dict[Kind, PlannedRun] = {}
    for run in todo:
        if kind_of(run) not in speeds:
            missing.setdefault(kind_of(run), run)
    measured = measure(list(missing.values()), at_a_time, most_seconds) if todo else Measured()
    speeds |= measured.speeds
    if not todo:
        return Forecast(0.0, speeds, counts, measured, at_a_time)
    durations = [_seconds(run, speeds, measured, steps_left(run)) for run in in_order(todo)]
    known = [seconds for seconds in durations if seconds is not None]
    total = makespan(known, at_a_time) if known else None
    return Forecast(total, speeds, counts, measured, at_a_time)


def speeds_of_finished(runs: Sequence[PlannedRun]) -> tuple[dict[Kind, float], dict[Kind, int]]:
    """Seconds a step of each kind that has finished runs, evaluations included, and how many there are."""
    found: dict[Kind, list[float]] = {}
    for run in runs:
        result = run.result()
        seconds, step = number_or_none(result.get("seconds")), number_or_none(result.get("step"))
        if seconds and step:
            found.setdefault(kind_of(run), []).append(seconds / step)
    return {kind: sum(each) / len(each) for kind, each in found.items()}, {kind: len(e) for kind, e in found.items()}


def _seconds(run: PlannedRun, speeds: Mapping[Kind, float], measured: Measured, steps: int) -> float | None:
    """Of so many steps of a run; None where nothing like it could be measured, or it fails."""
    speed = usual_speed(run, speeds)
    if speed is None or kind_of(run) in measured.errors:
        return None
    once = measured.startup + measured.setups.get(kind_of(run), 0.0)
    return once + speed * steps


def steps_left(run: PlannedRun) -> int:
    return max(run.config.total_steps - latest(run)[0], 0)


def usual_speed(run: PlannedRun, speeds: Mapping[Kind, float]) -> float | None:
    """Of its kind, or the mean of other variants in its environment, or of all."""
    if kind_of(run) in speeds:
        return speeds[kind_of(run)]
    near = [speed for (environment, _), speed in speeds.items() if environment == run.environment.name]
    near = near or list(speeds.values())
    return sum(near) / len(near) if near else None


def makespan(durations: Sequence[float], lanes: int) -> float:
    """When the last of the runs ends, each beginning in the given order as soon as a place is free."""
    ends = [0.0] * lanes
    for seconds in durations:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def measure(runs: Sequence[PlannedRun], at_a_time: int, most_seconds: float) -> Measured:
    """Train a run of each kind for a second, in as many processes as the study would have; what is late is left out."""
    found, begun = Measured(), time.monotonic()
    tasks = [(kind_of(run), run.variant.algorithm, run.config.to_json()) for run in spread(runs)]
    shares = [
        tasks[index::at_a_time] or tasks[:1] for index in range(at_a_time)
    ]  # none idle: the others would be faster
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), **told_to_children()}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "phasegrad.studies.calibration"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        for _ in shares
    ]
    readers = [
        threading.Thread(target=_read, args=(process, share, found, begun), daemon=True)
        for process, share in zip(processes, shares, strict=True)
    ]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, begun + most_seconds - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for reader in readers:
        reader.join()
    found.took = time.monotonic() - begun
    return found


def _read(process: subprocess.Popen[str], share: Sequence[Any], found: Measured, begun: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(share))
        process.stdin.close()
        for line in process.stdout:
            data = json.loads(line)
            if "ready" in data:
                found.startup = max(found.startup, time.monotonic() - begun)
            elif "seconds" in data:
                kind = tuple(data["key"])
                found.speeds[kind] = max(found.speeds.get(kind, 0.0), data["seconds"])
                found.setups[kind] = min(found.setups.get(kind, math.inf), data["setup"])
            else:
                found.errors[tuple(data["key"])] = data["error"]
    except (OSError, ValueError):  # it was ended, in the middle of a line
        return


def spread(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """One of each environment and algorithm first: where the time does not suffice for all, they stand for the rest."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for run in runs:
        key = (run.environment.name, run.variant.algorithm)
        seen[key] = seen.get(key, 0) + 1
        turns.append((seen[key], run))
    return [run for _, run in sorted(turns, key=lambda turn: turn[0])]


def grid_lines(runs: Sequence[PlannedRun], plan: Forecast) -> list[str]:
    """The grid: a line for each environment and variant, within 80 columns."""
    kinds: dict[Kind, list[PlannedRun]] = {}
    for run in runs:
        kinds.setdefault(kind_of(run), []).append(run)
    heads = ("environment", "variant")
    longest = [max(len(kind[part]) for kind in kinds) for part in range(2)]
    widths = [max(len(head), min(most, long)) for head, most, long in zip(heads, MOST_WIDE, longest, strict=True)]
    form = f"{{:{widths[0]}}} {{:{widths[1]}}} {{:>6}} {{:>5}} {{:>5}} {{:>9}} {{:>8}}"
    lines = [form.format(*heads, "steps", "seeds", "done", "steps/s", "each")]
    for kind, members in kinds.items():
        speed = usual_speed(members[0], plan.speeds)
        mark = "" if kind in plan.speeds else "~"  # taken from others like it
        total = members[0].config.total_steps
        seconds = _seconds(members[0], plan.speeds, plan.measured, total)
        done = sum(run.state() == "finished" for run in members)
        shown = "fails" if kind in plan.measured.errors else "?" if speed is None else f"{mark}{1 / speed:,.0f}"
        each = "-" if seconds is None else duration(seconds)
        names = (elided(name, width) for name, width in zip(kind, widths, strict=True))
        lines.append(form.format(*names, short_count(total), len(members), done, shown, each).rstrip())
    return lines


def sentences(runs: Sequence[PlannedRun], plan: Forecast) -> list[str]:
    """How long it will take, and how that is known."""
    todo = [run for run in runs if run.state() != "finished"]
    if not todo:
        return [f"All {len(runs)} runs are done."]
    steps = sum(map(steps_left, todo))
    what = f"{len(todo)} of {len(runs)} runs to do, {steps:,} steps"
    lines = []
    if plan.seconds is None:
        lines.append(f"{what}; how long they take could not be measured here.")
    else:
        lines.append(f"{what}: about {in_hours(plan.seconds)} on this machine, {plan.at_a_time} at a time.")
    kinds = list(dict.fromkeys(kind_of(run) for run in todo))
    used = [kind for kind in kinds if kind in plan.from_runs]
    here = [kind for kind in kinds if kind in plan.measured.speeds]
    guessed = [kind for kind in kinds if kind not in plan.speeds and kind not in plan.measured.errors]
    how = []
    if used:
        count = sum(plan.from_runs[kind] for kind in used)
        how.append(f"{len(used)} kinds by their {count} finished runs")
    if here:
        how.append(f"{len(here)} by training a second each here ({plan.measured.took:.0f} s)")
    if guessed:
        how.append(f"{len(guessed)} (~) by others like them")
    if how:
        lines.append(
            f"How: of {len(kinds)} environments x variants {', '.join(how)}; a start takes {plan.measured.startup:.0f} s."
        )
        if here:
            lines.append("Not included: evaluations and checkpoints, a few per cent of a long run.")
    for (environment, variant), error in plan.measured.errors.items():
        lines.append(f"{environment} {variant} would fail: {error}")
    return lines


def in_hours(seconds: float) -> str:
    """As one plans by it: minutes below an hour, hours below two days, then days."""
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} minutes" if seconds >= 90 else f"{max(1, round(seconds))} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
