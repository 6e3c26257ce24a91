"""Learning curves as a picture: the score of runs, their training return fainter, seeds as their mean and range."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phasegrad.errors import PhasegradWarning, RunError
from phasegrad.machine.paths import as_path
from phasegrad.report.cells import csv_cell
from phasegrad.report.collect import read_runs
from phasegrad.report.grouping import group_runs
from phasegrad.report.lines import HEAD, Line, as_table, lines_of
from phasegrad.runs.below import named_output, read_named
from phasegrad.runs.files import replacing_file, write_atomically


def plot_runs(
    paths: Sequence[str | Path],
    out: str | Path,
    title: str | None = None,
    *,
    smooth: float = 0.0,
    table: str | Path | None = None,
) -> list[str]:
    """Return against steps of the runs in `paths`, as a picture in the format that the ending of `out` names, or a .csv.

    Drawn are the scores of evaluations, and the training returns beneath them; the latter alone where nothing was
    evaluated. `smooth` averages over so many steps. `table` is a CSV file for what was drawn. Returned is a sentence for
    each run that could not be read.
    """
    out = as_path(out)
    if not out.is_dir():  # which is told apart
        out = named_output(out, "--out")
    only_table = out.suffix.lower() == ".csv"
    tables = [path for path in (out if only_table else None, None if table is None else as_path(table)) if path]
    tables = [_require_table(path) for path in tables]
    if not only_table:
        _require_picture(out)
    runs, problems = read_runs(paths)
    lines = lines_of(group_runs(runs), smooth)
    for path in tables:
        _write_table(lines, path)
    if not only_table:
        _draw(lines, out, title, smooth)
    return [*problems, *(f"{run.path}: {run.gaps}; the curve shows what is there." for run in runs if run.gaps)]


def _require_picture(out: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    if out.is_dir():
        raise RunError(f"--out {out} is a directory: name a picture, such as {out / 'curve.png'}.")
    if out.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise RunError(f"--out {out} is no picture: name a file such as {out.with_suffix('.png')}.")


def _require_table(path: Path) -> Path:
    """Where a table is written; refuses a file that is no table of curves."""
    if path.suffix.lower() != ".csv":
        raise RunError(f"--csv {path} is no .csv file: name one such as {path.with_suffix('.csv')}.")
    if path.is_dir():
        raise RunError(f"{path} is a directory: name a .csv file.")
    path = named_output(path)
    if path.exists() and read_named(path, 200).split(b"\n")[0].strip() not in (b"", ",".join(HEAD).encode()):
        raise RunError(f"{path} exists and is no table of curves: name another file.")
    return path


def _write_table(lines: Sequence[Line], path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([HEAD, *(map(csv_cell, row) for row in as_table(lines))])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from None
    write_atomically(path, text.getvalue().encode(), "try again")


def _draw(lines: Sequence[Line], out: Path, title: str | None, smooth: float) -> None:
    from phasegrad.runs.drawing import drawn

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _save(drawn(lines, title, smooth, dots_per_inch=140), out)
    except OSError as error:
        raise RunError(f"--out {out} cannot be written: {error.strerror or error}.") from None


def _save(figure: Any, out: Path) -> None:
    """Draw it into its file; letters that the font does not have are boxes, which is told in a sentence."""
    import matplotlib

    with warnings.catch_warnings(record=True) as told, matplotlib.rc_context({"text.usetex": False}):
        warnings.simplefilter("always")
        with replacing_file(out) as unfinished:
            figure.savefig(unfinished, format=out.suffix.lstrip(".").lower())
    glyphs = [each for each in told if "missing from" in str(each.message)]
    if glyphs:
        warnings.warn(f"Some letters in {out} are not in its font and show as boxes.", PhasegradWarning, stacklevel=4)
    for each in told:
        if each not in glyphs:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
