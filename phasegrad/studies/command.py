"""The `study` verb: what to run, what is done already, the runs, the table."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phasegrad.errors import ConfigError, RunError
from phasegrad.machine.paths import as_path
from phasegrad.machine.processors import usable_processors
from phasegrad.report import write_report
from phasegrad.runs.files import MOST_JSON_BYTES, read_json_object, write_json
from phasegrad.runs.reading import METRICS, REPORT, is_report
from phasegrad.studies.checking import whole
from phasegrad.studies.cluster import Cluster, connect
from phasegrad.studies.cluster_place import Place, parse_place
from phasegrad.studies.cluster_runs import run_on_cluster
from phasegrad.studies.curves import CURVES, write_curves
from phasegrad.studies.definition import Study, builtin_names, load_study
from phasegrad.studies.figure import FIGURE, draw_study
from phasegrad.studies.forecast import forecast, grid_lines, sentences
from phasegrad.studies.grid import PlannedRun, build_grid
from phasegrad.studies.pages import PAGE, definition_data, page_data
from phasegrad.studies.progress import make_study_display
from phasegrad.studies.record import Record
from phasegrad.studies.recorded import is_record, recorded_scores
from phasegrad.studies.runner import Outcome, StudyStopped, exclusive, failure_of, run_locally
from phasegrad.studies.scores import score_runs
from phasegrad.studies.selection import parse_overrides, select
from phasegrad.studies.standing import DEFINITION
from phasegrad.studies.table import build_table
from phasegrad.studies.table_views import TABLES, print_table, write_table


def run_study(options: argparse.Namespace) -> int:
    if options.name is None:
        for name in builtin_names():
            study = load_study(name)
            _say(f"{name:20} {study.about}")
        return 0
    whole_study = select(
        load_study(options.name, allow_import=options.allow_import),
        steps=options.steps,
        eval_episodes=options.eval_episodes,
    )
    study = select(whole_study, environments=options.envs, variants=options.variants, seeds=options.seeds)
    jobs = None if options.jobs is None else whole("--jobs", options.jobs, 1)
    place = parse_place(options.cluster, options.cpus_per_run, options.gpus_per_run)
    root = as_path(options.dir or Path("studies", study.name)).absolute()
    overrides = parse_overrides(options.set)
    runs = build_grid(study, root, overrides)
    record = None
    if options.record:
        kept = as_path(options.record).absolute()
        if kept == root:
            raise ConfigError(f"--record {options.record} is the study's own folder: choose another, or leave it out.")
        _require_own(kept, study, "--record")
        record = Record(kept, whole_study, study, overrides, root)
    if options.dry_run:
        return _list_runs(runs, record, jobs or usable_processors(), options.quiet)
    _require_own(root, study)
    if options.table_only:
        if not root.is_dir():
            raise RunError(f"{root} does not exist: run the study first, or name its folder with --dir.")
        if record:
            record.update(figure=True)
        return (
            _table_of_record(study, runs, root, options.quiet)
            if is_record(root)
            else _finish(study, runs, [], root, options.quiet, record)
        )
    with exclusive(root) as held:
        write_json(root / DEFINITION, definition_data(study, runs), "start the study again")
        write_json(root / PAGE, page_data(study, runs, [], root), "start the study again")
        todo = [run for run in runs if run.state() != "finished" and not (record and record.has(run))]
        ended = record.noticing if record else None
        if record:
            record.update()  # a folder that cannot be written to is refused now, not after hours
        try:
            with _cluster(place if todo else None, options.quiet) as cluster:
                display = make_study_display(todo, len(runs) - len(todo), not options.quiet)
                if cluster is not None:
                    outcomes = run_on_cluster(cluster, todo, jobs, display, root, ended)
                else:
                    outcomes = run_locally(todo, jobs or usable_processors(), display, (held,), ended)
        except StudyStopped as stopped:
            if record:
                record.update(figure=True)
            done = sum(run.state() == "finished" or bool(record and record.has(run)) for run in runs)
            sys.stderr.write(f"phasegrad: stopped with {done} of {len(runs)} runs done; the same command continues.\n")
            return 130 if stopped.number == signal.SIGINT else 143
        if record:
            record.update(figure=True)
        return _finish(study, runs, outcomes, root, options.quiet, record)


@contextmanager
def _cluster(place: Place | None, quiet: bool) -> Iterator[Cluster | None]:
    """The cluster that was asked for; None for the processes of this machine."""
    cluster = None if place is None else connect(place)
    if cluster is None:
        yield None
        return
    with cluster:
        described = cluster.describe()
        if not quiet:
            _say(described)
        yield cluster


def _finish(
    study: Study, runs: list[PlannedRun], outcomes: list[Outcome], root: Path, quiet: bool, record: Record | None
) -> int:
    """Write and print the table, that of the record where there is one; name what failed."""
    failed = {outcome.run.folder: outcome.message for outcome in outcomes if outcome.status == "failed"}
    told = {run.folder: message for run in runs if (message := failure_of(run)) is not None} | failed
    scored = score_runs(study, runs, told, root)
    table = build_table(study, scored)
    write_table(table, root)
    write_json(root / PAGE, page_data(study, runs, scored, root), "start the study again")
    print_table(build_table(record.study, record.scored()) if record else table)
    written = f"{root / 'table.md'}, table.json, table.csv"
    readable = [run.folder for run in runs if (run.folder / METRICS).exists()]
    if readable:
        write_report(readable, root / REPORT, title=study.title, links=False)
        written += ", report.html"
    if write_curves(runs, root):
        written += f", {CURVES}"
        written += f", {FIGURE}" if draw_study(root, study.title, study.score == "last100") else ""
    if not quiet:
        _say(f"Written: {written}" + (f"; the record in {record.root}" if record else ""))
    for outcome in outcomes:
        if outcome.status == "failed":
            sys.stderr.write(f"phasegrad: {outcome.run.label} failed: {outcome.message} (log: {outcome.run.log})\n")
    return 1 if failed else 0


def _table_of_record(study: Study, runs: list[PlannedRun], root: Path, quiet: bool) -> int:
    """The table anew where only a table is left of the study, with what is reckoned from the runs' scores."""
    table = build_table(study, recorded_scores(study, runs, root))
    write_table(table, root)
    print_table(table)
    written = f"{root / 'table.md'}, table.json, table.csv"
    written += f", {FIGURE}" if draw_study(root, study.title, study.score == "last100") else ""
    if not quiet:
        _say(f"Written from the recorded scores: {written}")
    return 0


def _list_runs(runs: list[PlannedRun], record: Record | None, jobs: int, quiet: bool) -> int:
    """Every run with its command, then the grid and what it will take; nothing is written."""
    recorded = [run for run in runs if record and record.has(run)]
    for run in runs:
        command = shlex.join(["phasegrad", *run.train_command()[4:]])
        _say(
            f"{'recorded' if run in recorded else run.state():10} {run.label}, {run.config.total_steps:,} steps: {command}"
        )
    _say(f"{len(runs)} runs, {sum(run.config.total_steps for run in runs):,} steps")
    if not quiet:
        runs = [run for run in runs if run not in recorded]
        plan = forecast(runs, jobs)
        for line in ("", *grid_lines(runs, plan), "", *sentences(runs, plan)):
            _say(line)
    return 0


def _require_own(root: Path, study: Study, option: str = "--dir") -> None:
    """A folder holds one study; its grid may grow and shrink, but another study needs another folder."""
    held = read_json_object(root / DEFINITION, MOST_JSON_BYTES).get("name")
    if held is None:
        taken = [name for name in (DEFINITION, PAGE, *TABLES, CURVES, FIGURE) if os.path.lexists(root / name)]
        if os.path.lexists(root / REPORT) and not is_report(root / REPORT):
            taken.append(REPORT)
        if taken:
            raise RunError(f"{root} holds a {taken[0]} that is no study's: choose another {option}.")
    if held is not None and held != study.name:
        raise RunError(f"{root} holds the study {str(held)[:80]!r}, not {study.name!r}: choose another {option}.")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
