"""The parts of a report that need no script: final scores, time, settings, runs and videos as plain HTML.

All text from files passes `escape` here; nothing else writes it into the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from phasegrad.report.collect import RecordedRun, text
from phasegrad.report.curves import time_spent
from phasegrad.report.grouping import RunGroup
from phasegrad.report.scoring import EVALUATION, FEWEST_FOR_INTERVAL, run_score
from phasegrad.report.statistics import Estimate
from phasegrad.runs.reading import number_or_none

SECTION_NAMES = {
    "environment": "environments",
    "inference": "acting (inference)",
    "update": "policy and value update",
    "auxiliary": "auxiliary phase",
    "compile": "compiling",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
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


def share(value: Any) -> str:
    """A part of a whole, from 0 to 1, in percent."""
    found = number_or_none(value)
    return "–" if found is None else f"{100 * found:.0f} %"


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


def interval(estimate: Estimate, seeds: int) -> str:
    """The 95 % interval, from three seeds on: below that it says nothing."""
    if estimate.low is None or estimate.high is None or seeds < FEWEST_FOR_INTERVAL:
        return "–"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 1, words: Sequence[str] = ()
) -> str:
    """A table of cells that are HTML already; columns from `numeric` on are numbers, those named in `words` lists or text."""
    style = [
        ' class="words"' if name in words else ' class="number"' if index >= numeric else ""
        for index, name in enumerate(head)
    ]
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


def time_bars(groups: Sequence[RunGroup]) -> str:
    """Where the time went: a bar and its numbers for each group, mean of its runs."""
    by_group = {id(group): [time_spent(run) for run in group.runs] for group in groups}
    found = {name for spent in by_group.values() for entry in spent for name in entry}
    # Sections of an algorithm from outside stand by their own names before what is left.
    named = [name for name in list(SECTION_NAMES)[:-1] if name in found]
    sections = [*named, *sorted(found - set(SECTION_NAMES)), *(["other"] if "other" in found else [])]
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
        f'<li><span class="swatch piece-{name if name in SECTION_NAMES else "more"}"></span>{escape(SECTION_NAMES.get(name, name))}</li>'
        for name in sections
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
        parts.append("<p>The runs differ only in their seed.</p>")
    if some:
        only = table("Settings of some algorithms", heads, ([f"<code>{escape(n)}</code>", *cells(n)] for n in some), 99)
        parts.append(f"<details><summary>{len(some)} settings that only some algorithms have</summary>{only}</details>")
    same = table(
        "Settings in common", ["field", "value"], ([f"<code>{escape(n)}</code>", cells(n)[0]] for n in alike), 99
    )
    first = f"{len(alike)} settings in common" if len(groups) > 1 else f"All {len(alike)} settings"
    parts.append(f"<details><summary>{first}</summary>{same}</details>")
    versions = {json.dumps(run.config.get("versions"), sort_keys=True) for group in groups for run in group.runs}
    shown = [
        ", ".join(f"{name} {value}" for name, value in found.items())
        for found in map(json.loads, sorted(versions))
        if isinstance(found, dict)
    ]
    parts += [f'<p class="quiet">Versions: {escape(text(entry))}.</p>' for entry in shown[:10]]
    return "\n".join(parts)


def successes_of(run: RecordedRun) -> float | None:
    """The success rate of a run: of its last evaluation, or where there was none of its training; None if not told."""
    for name in ("eval_success_rate", "success_rate"):
        values = run.column(name)[1]
        if len(values):
            return float(values[-1])
    return None


def runs_table(groups: Sequence[RunGroup]) -> str:
    rows = []
    told = any(successes_of(run) is not None for group in groups for run in group.runs)
    for group in groups:
        for run in group.runs:
            seconds = run.result.get("seconds", float(run.seconds[-1]))
            score = run_score(run)
            evaluated = score is not None and score.kind == EVALUATION
            speed = run.steps[-1] / run.seconds[-1] if run.seconds[-1] > 0 else None
            rows.append(
                [
                    escape(run.name),
                    escape(group.label),
                    escape(run.seed),
                    escape(run.status),
                    number(run.steps[-1]),
                    number(score.value) if score and evaluated else "–",
                    *([share(successes_of(run))] if told else []),
                    number(
                        run.result.get(
                            "return_mean", values[-1] if len(values := run.column("return_mean")[1]) else None
                        )
                    ),
                    duration(seconds),
                    number(speed, 3) if speed is None or speed < 100 else f"{speed:,.0f}",
                    f"{found:,.0f} MB" if (found := number_or_none(run.result.get("peak_rss_mb"))) else "–",
                    f"{len(run.steps):,}" + (f" ({run.ignored_lines:,} unreadable)" if run.ignored_lines else ""),
                ]
            )
    head = [
        "run",
        "group",
        "seed",
        "status",
        "steps",
        "score",
        *(["successes"] if told else []),
        "training return",
        "time",
        "steps/s",
        "peak memory",
        "rows",
    ]
    return table("Every run", head, rows, numeric=4)
