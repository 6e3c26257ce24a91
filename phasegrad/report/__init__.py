"""Reports: one self-contained HTML page on any number of runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.errors import PhasegradWarning, RunError
from phasegrad.machine.paths import as_path

if TYPE_CHECKING:
    from phasegrad.report.trying import Runtime

__all__ = ["write_report"]


def write_report(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    title: str | None = None,
    *,
    links: bool = True,
    policy: Mapping[str, Any] | None = None,
    runtime: Runtime | str | Path | None = None,
) -> Path:
    """Write the page on the runs in (or below) `run_dirs` to the file `out`; runs without metrics are named on it.

    Where `out` is a link, the file that it leads to is written; not `links`: it is refused. With a `policy`, as
    `phasegrad.export.browser.playable` gives it, the page's last section runs it by the npm package onnxruntime-web at `runtime`. Raises RunError where no run can be read or the file cannot be written.
    """
    from phasegrad.report.collect import read_runs
    from phasegrad.report.page import render
    from phasegrad.report.trying import Runtime, read_runtime
    from phasegrad.runs.below import named_output
    from phasegrad.runs.files import reading, replace_synced
    from phasegrad.runs.reading import is_report

    path = as_path(out)
    with reading(path):
        is_folder = path.is_dir()
    if is_folder:
        raise RunError(f"--out {path} is a directory: name an HTML file, such as {path / 'report.html'}.")
    if links:
        path = named_output(path, "--out")
    if os.path.lexists(path) and not is_report(path):
        raise RunError(f"--out {path} exists and is not a report: name another file, or move it away.")
    carried = None
    if policy is not None:
        carried = runtime if isinstance(runtime, Runtime) else read_runtime(runtime)
    runs, problems = read_runs(run_dirs)
    for run in runs:
        if run.gaps:
            warnings.warn(f"{run.path}: {run.gaps}; the page shows what is there.", PhasegradWarning, stacklevel=2)
    page = render(runs, problems, title, policy, carried)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(path, page.encode(errors="replace"))
    except OSError as error:
        raise RunError(f"--out {path} cannot be written: {error.strerror or error}.") from None
    return path
