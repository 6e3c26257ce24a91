"""Learning curves as a picture: one run as a line, several as their mean and range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from phasegrad.errors import RunError
from phasegrad.machine.paths import as_path
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.metrics import read_metrics


def plot_runs(paths: Sequence[str | Path], out: str | Path, title: str | None = None) -> None:
    """Training return against steps of the runs in `paths` as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.backend_bases import FigureCanvasBase

    out = as_path(out)
    if out.is_dir():
        raise RunError(f"--out {out} is a directory: name a picture, such as {out / 'curve.png'}.")
    if out.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise RunError(f"--out {out} is no picture: name a file such as {out.with_suffix('.png')}.")
    groups: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for path in paths:
        directory = RunDirectory(path)
        config = directory.read_config()
        label = f"{str(config.get('algorithm')).upper()} on {config.get('env')}"
        groups.setdefault(label, []).append(learning_curve(directory))
    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=140, layout="constrained")
    for label, curves in groups.items():
        end = min(steps[-1] for steps, _ in curves)
        start = max(steps[0] for steps, _ in curves)
        grid = np.linspace(start, end, 400)
        lines = np.stack([np.interp(grid, steps, returns) for steps, returns in curves])
        [line] = axes.plot(
            grid,
            lines.mean(0),
            linewidth=2,
            label=label if len(curves) == 1 else f"{label}, mean of {len(curves)} seeds",
        )
        if len(curves) > 1:
            axes.fill_between(
                grid,
                lines.min(0),
                lines.max(0),
                color=line.get_color(),
                alpha=0.2,
                linewidth=0,
                label="lowest to highest seed",
            )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return (mean of the last 100 training episodes)")
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value else "0"
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    if title:
        axes.set_title(title)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out)
    except OSError as error:
        raise RunError(f"--out {out} cannot be written: {error.strerror or error}.") from None
    finally:
        plt.close(figure)


def learning_curve(directory: RunDirectory) -> tuple[np.ndarray, np.ndarray]:
    """(steps, returns) of a run, from its first finished episode on."""
    rows = [row for row in read_metrics(directory.metrics_path) if isinstance(row.get("return_mean"), float)]
    if not rows:
        raise RunError(f"{directory.path} has no finished episode in its metrics yet.")
    return np.array([row["step"] for row in rows], dtype=float), np.array(
        [row["return_mean"] for row in rows], dtype=float
    )
