"""Learning curves of several runs as a figure for a notebook: what `phasegrad plot` draws, without a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from phasegrad.errors import PhasegradWarning
from phasegrad.report.collect import read_runs
from phasegrad.report.grouping import group_runs
from phasegrad.report.lines import lines_of
from phasegrad.runs.record import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(runs: Any, *, title: str | None = None, smooth: float = 0.0) -> Figure:
    """Return against steps of run directories, folders of them such as a study's, or what `read_run` gives.

    One or a list of these. Seeds of one configuration, three or more, become their mean with its range. `smooth` averages
    over so many environment steps. Returned is a matplotlib figure; nothing is written and no window opens.
    """
    from phasegrad.runs.drawing import drawn

    one = isinstance(runs, (str, os.PathLike, Run)) or not isinstance(runs, Iterable)
    found, problems = read_runs([each.path if isinstance(each, Run) else each for each in ([runs] if one else runs)])
    for told in problems:
        warnings.warn(told, PhasegradWarning, stacklevel=2)
    return drawn(lines_of(group_runs(found), smooth), title, smooth)
