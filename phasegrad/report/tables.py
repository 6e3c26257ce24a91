"""The parts of a report that need no script: final scores, time, settings, runs and videos as plain HTML.

All text from files passes `escape` here; nothing else writes it into the page.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from phasegrad.report.collect import RecordedRun, RunGroup, text
from phasegrad.report.curves import final_scores, time_spent
from phasegrad.report.statistics import Estimate, summarise
from phasegrad.runs.reading import number_or_none

SECTION_NAMES = {
    "environment": "environments",
    "inference": "acting (inference)",
    "update": "policy and value update",
    "auxiliary": "auxiliary phase",
    "other": "everything else",
}
UNEXPLAINED = ("algorithm", "versions")


def number(value: Any, digits: int = 4) -> str:
    """A number as a reader wants it: few digits, thousands apart, a dash where there is none."""
    found = number_or_none(value)
    if found is None:
        return "–"
    if found == int(found) and abs(found) < 1e15:
        return f"{int(found):,}".replace("-", "−")
    size = abs(found)
    shown = f"{found:,.1f}" if 100 <= size < 1e9 else f"{found:.{digits}g}"
    return shown.replace("-", "−")


def duration(seconds: Any) -> str:
    found = number_or_none(seconds)
    if found is None:
        return "–"
    whole = round(found)
    if whole < 60:
        return f"{found:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole // 60 % 60:02d} min"


def interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "one seed"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 1) -> str:
    """A table of cells that are HTML already; columns from `numeric` on are numbers."""
    style = [' class="number"' if index >= numeric else "" for index in range(len(head))]
    top = "".join(f'<th scope="col"{style[index]}>{cell}</th>' for index, cell in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if index == 0 else f"<td{style[index]}>{cell}</td>"
            for index, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def score_table(groups: Sequence[RunGroup]) -> str:
    """Final scores by group: interquartile mean and mean with their intervals, and each seed's score."""
    rows = []
    best = {
        env: max((summarise([s], 100).iqm.value for g in groups if g.env == env and (s := final_scores(g))), default=0)
        for env in {group.env for group in groups}
    }
    for group in groups:
        scores = final_scores(group)
        cells = [escape(group.env), escape(group.variant)]
        if not scores:
            rows.append([*cells, str(len(group.runs)), "–", "–", "–", "no finished episode"])
            continue
        found = summarise([scores])
        shown = number(found.iqm.value)
        rival = sum(other.env == group.env for other in groups) > 1
        if rival and found.iqm.value == best[group.env]:
            shown = f"<strong>{shown}</strong>"
        each = ", ".join(number(score) for score in scores[:20]) + (", …" if len(scores) > 20 else "")
        rows.append([*cells, str(found.count), shown, interval(found.iqm), number(found.mean.value), each])
    evaluated = [run.evaluated() for group in groups for run in group.runs]
    source = "evaluation" if all(evaluated) else "last 100 training episodes"
    if any(evaluated) and not all(evaluated):
        source = "evaluation where there was one, otherwise the last 100 training episodes"
    head = ["environment", "variant", "seeds", "IQM", "95 % interval", "mean", "each seed"]
    return table(f"Final return ({source})", head, rows, numeric=2)


def time_bars(groups: Sequence[RunGroup]) -> str:
    """Where the time went: a bar and its numbers for each group, mean of its runs."""
    by_group = {id(group): [time_spent(run) for run in group.runs] for group in groups}
    found = {name for spent in by_group.values() for entry in spent for name in entry}
    # Sections of an algorithm from outside stand by their own names before what is left.
    sections = [*list(SECTION_NAMES)[:-1], *sorted(found - set(SECTION_NAMES)), "other"]
    bars, rows = [], []
    for group in groups:
        spent = by_group[id(group)]
        means = {name: float(np.mean([entry.get(name, 0.0) for entry in spent])) for name in sections}
        total = sum(means.values())
        if total <= 0:
            continue
        shares = {name: value / total for name, value in means.items() if value > 0}
        pieces = "".join(
            f'<span class="piece piece-{escape(name) if name in SECTION_NAMES else "more"}" style="flex-grow:{share:.4f}"'
            f' title="{escape(SECTION_NAMES.get(name, name))}: {share:.1%}">{f"{share:.0%}" if share > 0.06 else ""}</span>'
            for name, share in shares.items()
        )
        bars.append(
            f'<div class="bar-row"><span class="bar-label">{escape(group.label)}</span>'
            f'<div class="bar" aria-hidden="true">{pieces}</div></div>'
        )
        rows.append(
            [
                escape(group.label),
                duration(total),
                *(f"{shares[name]:.1%}" if name in shares else "–" for name in sections),
                number(np.mean([run.steps[-1] for run in group.runs]) / total, 3),
            ]
        )
    if not rows:
        return ""
    key = "".join(
        f'<li><span class="swatch piece-{name}"></span>{escape(shown)}</li>' for name, shown in SECTION_NAMES.items()
    )
    head = ["runs", "total", *(escape(SECTION_NAMES.get(name, name)) for name in sections), "steps/s"]
    numbers = table("Share of the time by section, mean over the seeds", head, rows)
    return f'<ul class="key">{key}</ul>{"".join(bars)}<details><summary>The numbers as a table</summary>{numbers}</details>'


def value_cell(value: Any) -> str:
    shown = json.dumps(value) if isinstance(value, (dict, list)) else "none" if value is None else str(value)
    return f"<code>{escape(text(shown))}</code>"


def settings_tables(groups: Sequence[RunGroup]) -> str:
    """What differs between the groups, then every field."""
    configs = [group.runs[0].config for group in groups]
    names = list(dict.fromkeys(name for config in configs for name in config if name not in UNEXPLAINED))[:500]

    def cells(name: str) -> list[str]:
        return [value_cell(config[name]) if name in config else "" for config in configs]

    heads = ["field", *(escape(group.label) for group in groups)]
    some = [name for name in names if not all(name in config for config in configs)]
    unlike = [name for name in names if name not in some and name != "seed" and len(set(cells(name))) > 1]
    alike = [name for name in names if name not in some and name not in unlike and name != "seed"]
    parts = []
    if unlike:
        parts.append(table("What differs", heads, ([f"<code>{escape(n)}</code>", *cells(n)] for n in unlike), 99))
    elif len(groups) == 1 and len(groups[0].runs) > 1:
        parts.append("<p>The runs have the same settings but for the seed.</p>")
    if some:
        only = table("Of some", heads, ([f"<code>{escape(n)}</code>", *cells(n)] for n in some), 99)
        parts.append(f"<details><summary>{len(some)} settings that only some algorithms have</summary>{only}</details>")
    same = table("Alike", ["field", "value"], ([f"<code>{escape(n)}</code>", cells(n)[0]] for n in alike), 99)
    first = f"{len(alike)} settings that are alike" if len(groups) > 1 else f"All {len(alike)} settings"
    parts.append(f"<details><summary>{first}</summary>{same}</details>")
    versions = {json.dumps(run.config.get("versions"), sort_keys=True) for group in groups for run in group.runs}
    shown = [
        ", ".join(f"{name} {value}" for name, value in found.items())
        for found in map(json.loads, sorted(versions))
        if isinstance(found, dict)
    ]
    parts += [f'<p class="quiet">Versions: {escape(text(entry))}.</p>' for entry in shown[:10]]
    return "\n".join(parts)


def runs_table(groups: Sequence[RunGroup]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            seconds = run.result.get("seconds", float(run.seconds[-1]))
            speed = run.steps[-1] / run.seconds[-1] if run.seconds[-1] > 0 else None
            rows.append(
                [
                    escape(run.name),
                    escape(group.label),
                    escape(run.seed),
                    escape(run.status),
                    number(run.steps[-1]),
                    number(run.final_score()),
                    duration(seconds),
                    number(speed, 3) if speed is None or speed < 100 else f"{speed:,.0f}",
                    f"{found:,.0f} MB" if (found := number_or_none(run.result.get("peak_rss_mb"))) else "–",
                    f"{len(run.steps):,}" + (f" ({run.ignored_lines:,} unreadable)" if run.ignored_lines else ""),
                ]
            )
    head = ["run", "group", "seed", "status", "steps", "return", "time", "steps/s", "peak memory", "rows"]
    return table("Every run", head, rows, numeric=4)


def newest_videos(run: RecordedRun) -> list[Path]:
    """The run's mp4 files, the newest first; links out of the folder and files of another kind are left out."""
    folder = run.path / "videos"
    if folder.is_symlink() or not folder.is_dir():
        return []
    files = [file for file in folder.glob("*.mp4") if file.is_file() and not file.is_symlink()]
    return sorted((file for file in files if _is_mp4(file)), key=lambda file: -file.stat().st_mtime)


def _is_mp4(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(12)[4:8] == b"ftyp"


def video_figures(runs: Sequence[RecordedRun], bytes_left: int) -> str:
    """The newest video of each run inside the page, as long as `bytes_left` last; the others by name."""
    shown, named = [], []
    for run in runs:
        for index, file in enumerate(newest_videos(run)):
            size = (file.stat().st_size + 2) // 3 * 4 + 400
            label = f"{run.name}: {file.name}"
            if index or size > bytes_left:
                named.append(label)
                continue
            bytes_left -= size
            data = base64.b64encode(file.read_bytes()).decode()
            shown.append(
                f'<figure><video controls loop muted playsinline preload="metadata" aria-label="{escape(label)}" '
                f'src="data:video/mp4;base64,{data}"></video><figcaption>{escape(label)}</figcaption></figure>'
            )
    if not shown and not named:
        return ""
    rest = f'<p class="quiet">Not inside this page: {escape(text(", ".join(named)))}.</p>' if named else ""
    return f'<div class="videos">{"".join(shown)}</div>{rest}'
