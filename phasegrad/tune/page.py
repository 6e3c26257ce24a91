"""The page on a search: one HTML file without scripts that needs nothing else, written where the trials are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from phasegrad.runs.console import duration, number
from phasegrad.tune.charts import against, history, setting_text
from phasegrad.tune.search_spaces import Range
from phasegrad.tune.trials import LEAST_FOR_IMPORTANCES, best_row
from phasegrad.versions import __version__

MOST_ROWS = 2000  # of the trials: more make a page that no browser likes
STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --surface: #fff; --ink: #1b2330; --quiet: #566072; --line: #dfe3ea;
  --grid: #e9ecf1; --accent: #2457c5; --best: #c2410c; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --page: #11151b; --surface: #191f28; --ink: #e6eaf0; --quiet: #9aa5b5;
  --line: #2b3441; --grid: #262e3a; --accent: #7aa5ff; --best: #ff9a52; --bad: #ff7f7a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 20px 60px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 2px 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 10px; }
h3 { font-size: .92rem; margin: 0 0 4px; font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.brand { margin: 0; color: var(--accent); font-weight: 600; font-size: .85rem; }
.quiet { color: var(--quiet); margin: 4px 0; font-size: .9rem; overflow-wrap: anywhere; }
.card, .cards > div { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 16px; }
.value { font-size: 1.5rem; font-weight: 600; line-height: 1.2; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 12px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.tick { fill: var(--quiet); font-size: 11px; }
.axis { stroke: var(--quiet); fill: none; opacity: .6; } .grid { stroke: var(--grid); }
.dot { fill: var(--accent); fill-opacity: .65; } .best { fill: var(--best); stroke: var(--surface); stroke-width: 1.5; }
.best-line { stroke: var(--best); fill: none; stroke-width: 1.5; opacity: .8; }
.pruned { stroke: var(--quiet); stroke-width: 1.4; } .failed { stroke: var(--bad); stroke-width: 1.6; fill: none; }
.narrow { display: none; }
@media (max-width: 640px) { .wide { display: none; } .narrow { display: block; } main { padding: 14px 12px 40px; }
  th, td { padding: 6px 8px; } .bar-row { grid-template-columns: 11.5em 1fr 2.6em; gap: 6px; } .bar-row code { font-size: .8rem; } }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 0; margin: 6px 0 0; font-size: .85rem;
  color: var(--quiet); }
.key svg { display: inline-block; width: 14px; height: 14px; vertical-align: -2px; margin-right: 6px; }
.bar-row { display: grid; grid-template-columns: 13em 1fr 3.2em; gap: 10px; align-items: center; }
.bar { background: var(--grid); border-radius: 4px; height: 14px; } .bar div { background: var(--accent); height: 100%;
  border-radius: 4px; min-width: 2px; }
code, pre { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .88rem; }
p code { overflow-wrap: anywhere; } td code { white-space: nowrap; }
td.long { min-width: 26em; } td.long code { white-space: normal; }
pre { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; background: var(--surface); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; } caption { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); }
th, td { padding: 6px 12px; text-align: left; border-bottom: 1px solid var(--line); font-weight: 400; }
thead th { color: var(--quiet); font-size: .85rem; white-space: nowrap; } tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
summary { cursor: pointer; color: var(--accent); margin: 8px 0; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
"""


@dataclass(frozen=True)
class SearchData:
    """What the page tells."""

    env: str
    algorithm: str
    steps: int
    episodes: int  # of a trial's evaluation
    rows: Sequence[Mapping[str, Any]]  # as trials.json has them
    importances: Mapping[str, float]
    spaces: Mapping[str, Range]  # what each setting was drawn from, by the name that `train` has for it
    preset: Path
    command: str


def render(data: SearchData) -> str:
    """The whole page; there must be a complete trial."""
    rows, best = data.rows[-MOST_ROWS:], best_row(data.rows)
    assert best is not None
    title = f"Settings for {data.algorithm.upper()} on {data.env}"
    about = (
        f"{len(data.rows)} trials of {data.steps:,} steps. Return is the mean of {data.episodes} evaluation episodes (greedy "
        "actions) at a trial's end. Each trial has one seed: a good one is partly luck, so confirm it with several."
    )
    sections = [
        ("The best settings", _best(data, best)),
        ("The trials", _history(rows, best)),
        ("How much each setting mattered", _importances(data)),
        ("Each setting against the return", _settings(data, rows, best)),
        ("Every trial", _table(rows, best)),
    ]
    body = "".join(f"<section><h2>{escape(name)}</h2>{part}</section>\n" for name, part in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="phasegrad {escape(__version__)}">
<title>{escape(title)} · phasegrad</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<header><p class="brand">phasegrad tune</p><h1>{escape(title)}</h1><p class="quiet">{escape(about)}</p></header>
{_cards(data, best)}
{body}<p class="quiet">Written by phasegrad {escape(__version__)}.</p>
</main>
</body>
</html>
"""


def _cards(data: SearchData, best: Mapping[str, Any]) -> str:
    states = [row["state"] for row in data.rows]
    ended = {"complete": states.count("complete"), "pruned": states.count("pruned"), "failed": states.count("fail")}
    counted = ", ".join(f"{count} {state}" for state, count in ended.items() if count)
    first = data.rows[0]
    cards = [("best return", number(best["return"]), f"trial {best['number']}, one seed")]
    if first["state"] == "complete" and first["number"] == 1:
        cards.append(("the environment's preset", number(first["return"]), "trial 1, one seed"))
    cards.append(("trials", str(len(data.rows)), counted))
    cards.append(("time", duration(sum(row["seconds"] or 0.0 for row in data.rows)), "of all trials together"))
    shown = "".join(
        f'<div><div class="quiet">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="quiet">{escape(note)}</div></div>'
        for name, value, note in cards
    )
    return f'<div class="cards">{shown}</div>'


def _best(data: SearchData, best: Mapping[str, Any]) -> str:
    first = data.rows[0]["settings"] if data.rows[0]["number"] == 1 else {}
    rows = [
        [f"<code>{escape(name)}</code>", f"<code>{escape(setting_text(value))}</code>"]
        + [f"<code>{escape(setting_text(first[name]))}</code>" if name in first else "–"]
        + ([f"{data.importances.get(name, 0.0):.0%}"] if data.importances else [])
        for name, value in sorted(best["settings"].items(), key=lambda entry: -data.importances.get(entry[0], 0.0))
    ]
    head = ["setting", "best", "preset", *(["importance"] if data.importances else [])]
    return (
        f"<p>They are in <code>{escape(str(data.preset))}</code>, a preset file that <code>train</code> takes:</p>"
        f'<pre tabindex="0">{escape(data.command)}</pre>{table("The best settings", head, rows, numeric=3)}'
    )


def _history(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    wide, narrow = history(rows, best, 1160, 320), history(rows, best, 340, 240)
    key = (
        ('<circle class="dot" cx="7" cy="7" r="4"/>', "evaluation of a trial"),
        ('<circle class="best" cx="7" cy="7" r="5"/>', "the best"),
        ('<path class="best-line" d="M0 7h14"/>', "the best so far"),
        ('<path class="pruned" d="M7 2v10"/>', "pruned: no evaluation"),
        ('<path class="failed" d="M3 3l8 8m0 -8l-8 8"/>', "failed"),
    )
    states = {row["state"] for row in rows}
    used = [entry for entry in key if (entry[1] != "failed" or "fail" in states)]
    used = [entry for entry in used if ("pruned" not in entry[1] or "pruned" in states)]
    items = "".join(f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>{text}</li>' for drawn, text in used)
    return f'<div class="card"><div class="wide">{wide}</div><div class="narrow">{narrow}</div><ul class="key">{items}</ul></div>'


def _importances(data: SearchData) -> str:
    complete = sum(row["state"] == "complete" for row in data.rows)
    if not data.importances:
        if complete < LEAST_FOR_IMPORTANCES:
            return f"<p>That takes {LEAST_FOR_IMPORTANCES} complete trials; there are {complete} so far.</p>"
        return "<p>All trials came to the same return.</p>"
    most = max(data.importances.values()) or 1.0
    bars = "".join(
        f'<div class="bar-row"><code>{escape(name)}</code><div class="bar" aria-hidden="true">'
        f'<div style="width:{100 * share / most:.1f}%"></div></div><span class="number">{share:.0%}</span></div>'
        for name, share in data.importances.items()
    )
    note = (
        f"By Optuna's PED-ANOVA from {complete} complete trials: how much a setting decides whether a trial is among the best. "
        "With few trials this is a rough guide."
    )
    return f'<div class="card">{bars}</div><p class="quiet">{escape(note)}</p>'


def _settings(data: SearchData, rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    """A chart for each setting, what mattered most first."""
    names = sorted(data.spaces, key=lambda name: -data.importances.get(name, 0.0))
    shown = "".join(
        f'<div class="card"><h3>{escape(name)}</h3>{against(name, data.spaces[name], rows, best, 340, 220)}</div>'
        for name in names
        if any(name in row["settings"] for row in rows)
    )
    return f'<div class="charts">{shown}</div>'


def _table(rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    shown = []
    for row in rows:
        outcome = {"complete": "complete", "pruned": f"pruned at {row['reached'] or 0:.0%}"}.get(row["state"], "failed")
        if row["error"]:
            outcome += f": {str(row['error'])[:200]}"
        if row["episodes_cut"]:
            outcome += f", {row['episodes_cut']} of {row['episodes']} episodes cut"
        value = "–" if row["return"] is None else number(row["return"])
        value = f"<strong>{value}</strong>" if row["number"] == best["number"] else value
        seconds = "–" if row["seconds"] is None else f"{row['seconds']:,.0f} s"
        settings = ", ".join(f"{name} {setting_text(found)}" for name, found in row["settings"].items())
        cells = [str(row["number"]), value, number(row["training_return"]), seconds, escape(outcome)]
        shown.append([*cells, f"<code>{escape(settings)}</code>"])
    head = ["trial", "return", "training return", "time", "outcome", "settings"]
    found = table("Every trial", head, shown, numeric=1, last=3)
    return f"<details><summary>All {len(rows)} as a table</summary>{found}</details>"


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], numeric: int, last: int | None = None
) -> str:
    """A table of cells that are HTML already; columns from `numeric` to `last` are numbers; a last one after them is long."""
    kinds = [""] * numeric + [' class="number"'] * ((len(head) if last is None else last + 1) - numeric)
    kinds += [""] * (len(head) - len(kinds) - 1) + [' class="long"'] * (len(kinds) < len(head))
    top = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}'
        f"</caption><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )
