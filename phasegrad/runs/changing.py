"""Settings that change while an agent trains: learning rates, coefficients, clip range.

A change is made between two iterations and holds from the next one on. The run directory's changes.jsonl remembers it
at once, so that a run which is killed and resumed from an earlier checkpoint makes the same change at the same place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phasegrad.config import coerce_fields, live_fields
from phasegrad.errors import ConfigError, DamagedError, RunError, nearest
from phasegrad.runs.continuing import ENVIRONMENT
from phasegrad.runs.contract import Trainer
from phasegrad.runs.files import read_limited, replace_synced, writing
from phasegrad.runs.state import Change, RunState
from phasegrad.schedules import Schedule, as_given, completed, is_scheduled

CHANGES = "changes.jsonl"
MOST_BYTES = 1 << 26


def change(trainer: Trainer, settings: Mapping[str, Any]) -> None:
    """Check the settings, apply and remember them."""
    config = trainer.config
    allowed = live_fields(type(config))
    values = {
        name: completed(name, value, getattr(config, name))
        for name, value in coerce_fields(type(config), settings).items()
    }
    for name in values:
        if name not in allowed:
            raise ConfigError(
                f"{name} cannot change while an agent trains: {', '.join(sorted(allowed))} can.{nearest(name, allowed)}"
            )
        if config.is_frozen and is_scheduled(values[name]) and not isinstance(values[name].schedule, Schedule):
            raise ConfigError(
                f"{name} can become a number or a schedule such as linear:1e-3:1e-5 while an agent trains, not a function, "
                "which the run directory cannot remember."
            )
    make_change(trainer, values, trainer.apply)


def make_change(trainer: Trainer, values: Mapping[str, Any], apply: Callable[[Mapping[str, Any]], None]) -> None:
    """Have `apply` set what differs of the valid `values`, and remember it."""
    config, run = trainer.config, trainer.run
    if run.on_change is None:  # between sessions: they hold against what the file may have of later
        run.asked |= values.keys()
    here = run.progress.iteration
    run.planned = [each for each in run.planned if each.iteration > here or values.keys().isdisjoint(each.after)]
    now = {name: as_given(getattr(config, name)) for name in values}
    adapted = trainer.scalars  # what has moved on from its setting is put back by it
    after = {
        name: value
        for name, value in values.items()
        if now[name] != as_given(value) or adapted.get(name, value) != value
    }
    apply(after)
    if after and config.is_frozen:  # before training these are its settings, and no change of them
        before = {name: now[name] for name in after}
        made = Change(here, run.progress.step, before, {name: as_given(value) for name, value in after.items()})
        run.changes.append(made)
        if run.on_change is not None:
            run.on_change(made)


def apply_planned(trainer: Trainer) -> None:
    """Make the changes that the run had made here before it was killed."""
    run, here = trainer.run, trainer.run.progress.iteration
    due = [each for each in run.planned if each.iteration == here]
    run.planned = [each for each in run.planned if each.iteration > here]
    for each in due:
        moved = {name: each.after[name] for name in ENVIRONMENT if name in each.after}
        if moved:
            trainer.move_back(coerce_fields(type(trainer.config), moved))
        change(trainer, {name: value for name, value in each.after.items() if name not in moved})


class ChangesFile:
    """The list of changes in a run directory, for the session that writes it."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / CHANGES
        self.is_cut = False  # whether a kill has left half a line at the end
        self.recorded = self._read()

    def _read(self) -> list[Change]:
        """Those in the file, in their order; a last line that a kill has cut was never in force."""
        if not os.path.lexists(self.path):
            return []
        if self.path.is_symlink() or not self.path.is_file():
            raise RunError(f"{self.path} is not a plain file, as a run writes it: move it away, then resume the run.")
        *lines, rest = read_limited(self.path, MOST_BYTES).split(b"\n")
        self.is_cut = bool(rest)
        try:
            return [change_from_json(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise RunError(f"{self.path} is damaged: {str(error)[:80]}.") from None

    def take_up(self, run: RunState, anew: bool) -> list[Change]:
        """Add what the run has changed since it was loaded; what the file has of later iterations is still to be made.

        A run that goes `anew` from an earlier step is not to repeat that: it is forgotten. So is what the file has of
        settings that were given since the run was loaded.
        """
        later = [each for each in self.recorded if each not in run.changes and each.iteration >= run.progress.iteration]
        known = [] if anew else [each for each in (_without(each, run.asked) for each in later) if each.after]
        run.asked.clear()
        wanted = [*run.changes, *known]
        if wanted != self.recorded or self.is_cut:
            with writing(self.path):
                payload = b"".join((json.dumps(each.to_json()) + "\n").encode() for each in wanted)
                replace_synced(self.path, payload)
            self.recorded = wanted
        return known

    def add(self, made: Change) -> None:
        """Add a line, on the disk before training goes on."""
        if made in self.recorded:
            return
        self.recorded.append(made)
        with writing(self.path), open(self.path, "ab") as file:
            file.write((json.dumps(made.to_json()) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _without(made: Change, names: set[str]) -> Change:
    """A change of the other settings in it."""
    if names.isdisjoint(made.after):
        return made
    before, after = ({key: values[key] for key in values.keys() - names} for values in (made.before, made.after))
    return Change(made.iteration, made.step, before, after)


def change_from_json(data: Any) -> Change:
    """A change as a file has it."""
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("before"), dict)
        or not isinstance(data.get("after"), dict)
    ):
        raise DamagedError("What is saved of changed settings is damaged.")
    return Change(int(data["iteration"]), int(data["step"]), data["before"], data["after"])
