"""The README's bar charts of measured speed and time to score, as one SVG for light pages and one for dark ones.

    python tools/readme_chart.py            # writes docs/images/measured-light.svg and measured-dark.svg

It draws what stands in results/ and nothing else: `speed-sb3.json`, written by benchmarks/compare.py, and, where it exists,
`time-to-score.json` of benchmarks/time_to_score.py. A library without measurements has no bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIBRARIES = {"ours": "phasegrad", "sb3": "Stable-Baselines3", "cleanrl": "CleanRL"}
TASKS = {
    "cartpole-8": "CartPole-v1, 8 environments",
    "cartpole-4": "CartPole-v1, 4 environments",
    "halfcheetah-8": "HalfCheetah-v5, 8 environments",
    "halfcheetah-1": "HalfCheetah-v5, 1 environment",
    "breakout": "Breakout-v5, 8 environments, CNN",
}
MACHINE = "two threads of an AMD EPYC processor, no GPU"
SPEED = "python benchmarks/compare.py --repeats 5 --seconds 8"
SCORE = "python benchmarks/time_to_score.py"
THEMES = {  # of the text, and of what matters less
    "light": {"text": "#1f2328", "faint": "#59636e"},
    "dark": {"text": "#f0f6fc", "faint": "#9198a1"},
}
BARS = {
    "light": {"ours": "#0969da", "sb3": "#818b98", "cleanrl": "#bc7a1c"},
    "dark": {"ours": "#4493f8", "sb3": "#7d8590", "cleanrl": "#d29922"},
}
WIDTH, LEFT, RIGHT = 624, 8, 200  # narrow, to be read on a phone; RIGHT is for the label behind the longest bar
NAME, BAR, GAP, BETWEEN = 18, 16, 3, 9
HEADING = 28


@dataclass(frozen=True)
class Bar:
    library: str
    length: float  # as a share of the longest bar in the panel
    label: str


@dataclass(frozen=True)
class Panel:
    heading: str
    caption: tuple[str, str]
    rows: list[tuple[str, list[Bar]]]  # a task and its bars

    @property
    def height(self) -> int:
        rows = sum(NAME + len(found) * (BAR + GAP) + BETWEEN for _, found in self.rows)
        return HEADING + rows + 20 * len(self.caption) + 12


def measured(found: dict[str, Any]) -> dict[str, float | None]:
    """Each library's median; None where most of its runs never got there."""
    medians: dict[str, float | None] = {}
    for library in LIBRARIES:
        values = found.get(library) or []
        if values:
            middle = statistics.median([float("inf") if value is None else value for value in values])
            medians[library] = None if middle == float("inf") else middle
    return medians


def captioned(name: str, command: str) -> tuple[str, str]:
    return f"Medians of {command},", f"on {MACHINE}: results/{name}"


def speed_panel(found: dict[str, Any]) -> Panel:
    """A bar is as long as the library is fast beside Stable-Baselines3, since the tasks' rates differ fiftyfold."""
    tasks = {task: measured(found[task]) for task in TASKS if task in found}
    ratios = {
        task: {library: rate / rates["sb3"] for library, rate in rates.items() if rate and rates.get("sb3")}
        for task, rates in tasks.items()
    }
    longest = max((ratio for task in ratios.values() for ratio in task.values()), default=1.0)
    rows = []
    for task, rates in tasks.items():
        bars = []
        for library, rate in rates.items():
            ratio = ratios[task].get(library)
            if rate and ratio:
                times = "" if library == "sb3" else f" ({ratio:.1f}x)"
                bars.append(Bar(library, ratio / longest, f"{rate:,.0f} steps/s{times}"))
        rows.append((TASKS[task], bars))
    caption = captioned("speed-sb3.json", SPEED)
    return Panel("Training speed of PPO, as a multiple of Stable-Baselines3", caption, rows)


def score_panel(found: dict[str, Any]) -> Panel:
    """Seconds until the score: each task's longest wait fills the width, since tasks differ as much as libraries.

    Where most runs of a library have not reached the score, its bar is as long as they were waited for.
    """
    rows = []
    for entry in found["tasks"].values():
        runs = {library: list((entry.get(library) or {}).values()) for library in LIBRARIES}
        medians = measured(
            {name: [run["seconds"] if run["reached"] else None for run in of] for name, of in runs.items()}
        )
        waited = {
            name: min(run["seconds"] for run in runs[name] if not run["reached"])
            for name in medians
            if not medians[name]
        }
        shown = {name: seconds or waited[name] for name, seconds in medians.items()}
        bars = [
            Bar(library, seconds / max(shown.values()), told_seconds(medians[library], seconds))
            for library, seconds in shown.items()
        ]
        seeds = min((len(of) for of in runs.values() if of), default=0)
        rows.append((f"{entry['env']}, a score of {entry['score']:g}, {seeds} seed{'s' * (seeds != 1)}", bars))
    return Panel("Time to reach a score (shorter is better)", captioned("time-to-score.json", SCORE), rows)


def told_seconds(median: float | None, waited: float) -> str:
    return shown_seconds(median) if median else f"over {shown_seconds(waited)}"


def shown_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def panels(folder: Path) -> list[Panel]:
    drawn = []
    for name, panel in (("speed-sb3.json", speed_panel), ("time-to-score.json", score_panel)):
        if (folder / name).exists():
            drawn.append(panel(json.loads((folder / name).read_text())))
    return [panel for panel in drawn if panel.rows]


def svg(drawn: list[Panel], theme: str) -> str:
    height = 40 + sum(panel.height for panel in drawn)
    shown = [
        library
        for library in LIBRARIES
        if any(bar.library == library for panel in drawn for _, bars in panel.rows for bar in bars)
    ]
    font = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="{font}" font-size="14" role="img">',
        f"<title>{escape('; '.join(panel.heading for panel in drawn))}</title>",
        *legend(shown, theme),
    ]
    top = 40
    for panel in drawn:
        lines += panel_lines(panel, top, theme)
        top += panel.height
    return "\n".join([*lines, "</svg>", ""])


def legend(shown: list[str], theme: str) -> Iterator[str]:
    left = 8
    for library in shown:
        yield f'<rect x="{left}" y="9" width="12" height="12" rx="2" fill="{BARS[theme][library]}"/>'
        yield f'<text x="{left + 18}" y="19" fill="{THEMES[theme]["text"]}">{LIBRARIES[library]}</text>'
        left += 40 + 7 * len(LIBRARIES[library])


def panel_lines(panel: Panel, top: int, theme: str) -> Iterator[str]:
    colours = THEMES[theme]
    yield f'<text x="8" y="{top + 14}" fill="{colours["text"]}" font-size="16" font-weight="600">{escape(panel.heading)}</text>'
    below, full = top + HEADING, WIDTH - LEFT - RIGHT
    for task, bars in panel.rows:
        yield f'<text x="{LEFT}" y="{below + 13}" fill="{colours["text"]}">{escape(task)}</text>'
        below += NAME
        for bar in bars:
            length = max(2.0, full * bar.length)
            ours = bar.library == "ours"
            weight, colour = (' font-weight="600"', colours["text"]) if ours else ("", colours["faint"])
            yield f'<rect x="{LEFT}" y="{below}" width="{length:.1f}" height="{BAR}" rx="2" fill="{BARS[theme][bar.library]}"/>'
            yield f'<text x="{LEFT + length + 7:.1f}" y="{below + 12.5}" fill="{colour}"{weight}>{escape(bar.label)}</text>'
            below += BAR + GAP
        below += BETWEEN
    for line in panel.caption:
        yield f'<text x="{LEFT}" y="{below + 12}" fill="{colours["faint"]}" font-size="12.5">{escape(line)}</text>'
        below += 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="the folder to write to")
    options = parser.parse_args()
    drawn = panels(options.results)
    if not drawn:
        parser.exit(1, f"{options.results} has neither speed-sb3.json nor time-to-score.json.\n")
    for theme in THEMES:
        target = options.out / f"measured-{theme}.svg"
        target.write_text(svg(drawn, theme))
        print(f"wrote {target}")


if __name__ == "__main__":
    main()
