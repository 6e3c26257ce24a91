"""Puts a report together: one HTML file that needs nothing else, neither a network nor a folder beside it.

The page's policy (CSP) lets run only the two scripts it carries, by their hash, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from phasegrad.report import score_tables, tables, trying
from phasegrad.report.catalogue import SECTIONS, Chart, charts_of
from phasegrad.report.collect import RecordedRun, text
from phasegrad.report.comparisons import aggregate_tables, pair_table
from phasegrad.report.curves import (
    GRID_POINTS,
    add_epoch_ends,
    bands,
    constant_value,
    epoch_profiles,
    points_a_curve,
    run_curves,
)
from phasegrad.report.epochs import EpochChart, epoch_charts
from phasegrad.report.grouping import RunGroup, group_runs
from phasegrad.report.profile import performance_profile
from phasegrad.report.scoring import is_evaluated
from phasegrad.report.study import StudyFolder, name_by_study, study_of
from phasegrad.report.trying import Runtime
from phasegrad.report.verdict import verdict_block
from phasegrad.report.videos import video_figures
from phasegrad.versions import __version__

MOST_BYTES = 10_000_000  # of a page
PAGE_SCRIPTS = ("drawing.js", "export.js", "page.js")  # one script of the page, in this order
BLOCKS = (  # in the order of the page
    ("verdict", "Verdict"),
    ("learning", "Learning"),
    ("videos", "Videos"),
    ("scores", "Scores"),
    ("time", "Where the time went"),
    ("settings", "Settings"),
    ("runs", "Runs"),
    ("about", "About this page"),
    ("try", "Try the policy"),
)


def section_id(name: str) -> str:
    """The address of a section of metrics, as page.js gives it."""
    return "section-" + re.sub(r"[^a-z0-9]+", "-", name.lower())


def asset(name: str) -> str:
    return (resources.files("phasegrad.report") / "assets" / name).read_text(encoding="utf-8")


def as_script_data(data: Any) -> str:
    """JSON that can stand inside a script element whatever the strings hold."""
    text_ = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text_.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def payload(
    groups: Sequence[RunGroup], runs: Sequence[RecordedRun], study: StudyFolder | None = None
) -> dict[str, Any]:
    """What the page's script draws from."""
    most = points_a_curve(runs)
    names = sorted({name for run in runs for name in run.values})
    sections: dict[str, list[Chart]] = charts_of(names)
    epochs = epoch_charts({name for run in runs for name in run.by_epoch})
    order = [name for name in (*SECTIONS, "More metrics") if name in {*sections, *(chart.section for chart in epochs)}]
    return {
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "group": index,
                **run_curves(run, most),
            }
            for index, group in enumerate(groups)
            for run in group.runs
        ],
        "groups": [
            {
                "label": group.label,
                "variant": group.variant,
                "env": group.env,
                "bands": bands(group),
                "evaluated": is_evaluated(group),
                "epochs": epoch_profiles(group),
            }
            for group in groups
        ],
        "sections": {name: section(name, sections.get(name, []), epochs, runs) for name in order},
        "profile": performance_profile(groups, study),
        "points": most,
    }


def section(
    name: str, charts: Sequence[Chart], epochs: Sequence[EpochChart], runs: Sequence[RecordedRun]
) -> dict[str, Any]:
    """A section's charts; where nothing ever changes, a few words in place of a chart."""
    drawn, constant = [], []
    for chart in charts:
        values = {metric: constant_value(runs, metric) for metric, _ in chart.metrics}
        if all(value is not None for value in values.values()):
            constant += [f"{metric} {tables.number(value)}" for metric, value in values.items()]
        else:
            drawn.append(
                {
                    "title": chart.title,
                    "metrics": [list(pair) for pair in chart.metrics],
                    "note": chart.note,
                    "healthy": chart.healthy,
                }
            )
    by_epoch = [dataclasses.asdict(chart) for chart in epochs if chart.section == name]
    return {"charts": drawn, "constant": constant, "epochs": by_epoch}


def heading_of(groups: Sequence[RunGroup], envs: Sequence[str]) -> str:
    """What the runs are, as long as it fits a line."""
    variants = list(dict.fromkeys(group.variant for group in groups))
    what = " and ".join(variants) if len(variants) <= 2 else f"{len(variants)} variants"
    where = " and ".join(envs) if len(envs) <= 2 else f"{len(envs)} environments"
    return f"{what} on {where}"


def score_block(groups: Sequence[RunGroup], study: StudyFolder | None) -> str:
    """The scores as tables, with the profile's chart among them."""
    parts = [score_tables.score_table(groups, study), aggregate_tables(groups, study), pair_table(groups, study)]
    parts += ['<div id="charts-profile" class="charts wide"></div>', score_tables.evaluations_table(groups)]
    return "".join(parts)


def about(groups: Sequence[RunGroup], runs: Sequence[RecordedRun], problems: Sequence[str], most: int) -> str:
    thinned = any(len(values) > most for run in runs for values in run.values.values())
    points = (
        [
            f"Curves of more than {most:,} points are drawn from {most:,} of them: each curve is cut into equal stretches, of "
            "which the lowest and the highest point stay where they are. No extreme is lost and nothing is averaged, but zooming shows no more points."
        ]
        if thinned
        else ["Every point of every curve is drawn; nothing is left out, and nothing smoothed unless you choose it."]
    )
    points += [
        "A run's score is the mean return of its evaluation: whole episodes with greedy actions in environments of their own. Where there "
        "was none, the training return (the mean of the last 100 training episodes, with sampled actions) stands in and is called so.",
        f"A band is the 95 % percentile bootstrap interval of the interquartile mean (IQM) over seeds, at up to {GRID_POINTS} places where all "
        "seeds have a value, linearly interpolated between iterations. Against wall-clock time a run that has ended keeps its last return. With fewer than four seeds the IQM is the mean; with fewer than three there is no interval, with fewer than five no winner.",
        "A gap in a curve is a value that was no number (NaN or infinite).",
        "Smoothing, where you choose it, is an exponential mean of each single curve with the curve itself faint behind it; bands, evaluations and downloaded numbers are never smoothed.",
    ]
    broken = sum(run.ignored_lines for run in runs)
    if broken:
        points.append(f"{broken:,} lines of the metrics files could not be read as iterations and were left out.")
    points += [f"Missing: {run.name}: {run.gaps}." for run in runs if run.gaps][:20]
    points += [f"Left out: {problem}" for problem in problems[:20]]
    items = "".join(
        f"<li>{escape(text(point) if point.startswith(('Left out', 'Missing')) else point)}</li>" for point in points
    )
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    return (
        f'<ul>{items}</ul><p class="quiet">Written by phasegrad {escape(__version__)} on {when}. '
        "Charts by uPlot 1.6.32, © Leon Sorokin, MIT licence.</p>"
    )


def render(
    runs: Sequence[RecordedRun],
    problems: Sequence[str] = (),
    title: str | None = None,
    policy: Mapping[str, Any] | None = None,
    runtime: Runtime | None = None,
) -> str:
    """The whole page; with a `policy` as data and a `runtime` for it, its last section runs it."""
    for run in runs:
        add_epoch_ends(run)
    groups, study = group_runs(runs), study_of(runs)
    name_by_study(groups, study)
    data = payload(groups, runs, study)
    named = title or (study.title if study is not None else None)
    heading = text(named or heading_of(groups, sorted({group.env for group in groups})))
    bodies = {
        "verdict": verdict_block(groups, study),
        "learning": '<div id="charts-learning" class="charts wide"></div>',
        "scores": score_block(groups, study),
        "time": tables.time_bars(groups),
        "settings": tables.settings_tables(groups),
        "runs": tables.runs_table(groups),
        "about": about(groups, runs, problems, data["points"]),
        "try": "" if policy is None else trying.block(policy),
    }
    script_data = as_script_data(data)
    scripts = [asset("uPlot.iife.min.js"), "\n".join(map(asset, PAGE_SCRIPTS))]
    carried = [] if policy is None or runtime is None else carried_policy(policy, runtime)
    beside = [script.text for script in carried]
    bytes_left = MOST_BYTES - 50_000 - len(script_data) - sum(map(len, [*scripts, *bodies.values(), *beside]))
    bodies["videos"] = video_figures(runs, bytes_left)
    steps = f"{tables.number(sum(run.steps[-1] for run in runs))} environment steps"
    plural = ("s" if len(runs) > 1 else "", "s" if len(groups) > 1 else "")
    count = f"{len(runs)} run{plural[0]} of {len(groups)} configuration{plural[1]}, {steps} in all"
    return document(heading, count, *laid_out(bodies, list(data["sections"])), script_data, scripts, carried)


def laid_out(bodies: Mapping[str, str], sections: Sequence[str]) -> tuple[str, str, str]:
    """Links in the order of the page, what stands above the controls, and what stands below them."""
    blocks = {
        key: f'<section id="{key}" aria-labelledby="head-{key}"><h2 id="head-{key}">{escape(name)}</h2>{bodies[key]}</section>'
        for key, name in BLOCKS
        if bodies[key]
    }
    metrics = {section_id(name): name for name in sections}
    order = list(blocks)
    first = order.index("time") if "time" in order else order.index("settings")  # the metrics' charts come before it
    titles = dict(BLOCKS) | metrics
    links = "".join(f'<a href="#{key}">{escape(titles[key])}</a>' for key in (*order[:first], *metrics, *order[first:]))
    below = [*(blocks[key] for key in order[1:first]), '<div id="metric-sections"></div>']
    return links, blocks["verdict"], "".join([*below, *(blocks[key] for key in order[first:])])


@dataclasses.dataclass(frozen=True)
class CarriedScript:
    """A script element of a page that runs a policy: code, or data that no browser runs."""

    opening: str
    text: str
    is_code: bool = False


def carried_policy(policy: Mapping[str, Any], runtime: Runtime) -> list[CarriedScript]:
    """What such a page has beside the charts: the policy, the runtime in two parts, and the script of the section."""
    return [
        CarriedScript('<script type="application/json" id="try-data">', as_script_data(policy)),
        CarriedScript('<script type="application/octet-stream" id="try-runtime">', runtime.binary),
        CarriedScript('<script type="module">', runtime.script, True),
        CarriedScript("<script>", asset("try.js"), True),
    ]


def document(
    heading: str,
    count: str,
    links: str,
    above: str,
    below: str,
    script_data: str,
    scripts: Sequence[str],
    carried: Sequence[CarriedScript] = (),
) -> str:
    """The parts as one HTML file, with the policy that lets its own scripts run and no other."""
    code = [*scripts, *(script.text for script in carried if script.is_code)]
    hashes = " ".join(f"'sha256-{digest(script)}'" for script in code)
    hashes += " 'wasm-unsafe-eval'" if carried else ""
    beside = "".join(f"{script.opening}{script.text}</script>\n" for script in carried)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; media-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="phasegrad {escape(__version__)}">
<title>{escape(heading)} · phasegrad</title>
<link rel="icon" href="data:,">
<style>{asset("uPlot.min.css")}
{asset("page.css")}</style>
</head>
<body>
<header>
<div><p class="brand">phasegrad report</p><h1>{escape(heading)}</h1><p class="quiet">{count}</p></div>
<button type="button" id="theme" aria-label="Switch between light and dark">◐</button>
</header>
<nav aria-label="Parts of the page">{links}</nav>
<main>
{above}
<div id="controls" role="group" aria-label="What the charts show" hidden></div>
<noscript><p class="warning">The charts need JavaScript, which this browser has switched off. The tables below do not.</p></noscript>
{below}
</main>
<script type="application/json" id="report-data">{script_data}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
{beside}</body>
</html>
"""


def digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
