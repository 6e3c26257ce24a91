"""A study's table on screen, as Markdown, JSON and CSV. The same table gives the same bytes; what few seeds cannot say is left out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phasegrad.report.cells import csv_cell, markdown_text
from phasegrad.report.statistics import RESAMPLES
from phasegrad.runs.files import write_atomically
from phasegrad.studies.board import elided
from phasegrad.studies.pairs import note, shown_pairs
from phasegrad.studies.table import LEAST_FOR_INTERVAL, LEAST_FOR_WINNER, STATISTICS, missing, winners

COMPARED = (
    "difference", "difference_low", "difference_high", "improvement", "improvement_low", "improvement_high", "cost",
)  # fmt: skip
NAMES = ("environment", "variant", "measure")  # columns of words; the others hold numbers
CSV_COLUMNS = (
    "kind", "environment", "variant", "measure", "seed", "status", "score", "normalised", "seconds", "environments",
    "runs", *STATISTICS, "aim", "met", "published", "episodes", "episodes_cut", "success_rate", "against", "pairs", *COMPARED,
)  # fmt: skip


def shown_tables(table: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]], set[int]]]:
    """Title, header, rows and winning rows of the tables that are shown: the aggregate first, then the environments.

    What has no run yet is left out, unless nothing has.
    """
    several = len({row["measure"] for row in table["cells"]}) > 1
    tables = []
    aggregates, cells = _with_runs(table["aggregates"]), _with_runs(table["cells"])
    if aggregates:
        published = any(row["published"] is not None for row in aggregates)
        header = ["variant", *(["measure"] if several else []), "mean", "95 %", "IQM", "95 %", "environments", "runs"]
        rows = [
            [row["variant"], *([row["measure"]] if several else []), *_estimates(row, "{:.3f}")]
            + [str(row["environments"]), str(row["runs"])]
            + ([_number(row["published"], "{:.2f}")] if published else [])
            for row in aggregates
        ]
        title = f"All environments, {table['scale']}; score: {table['score']}"
        header += ["published"] if published else []
        tables.append((title, header, rows, _winners(table["aggregates"], ("measure",))))
    if table.get("comparisons"):
        tables.append((*shown_pairs(table["comparisons"], several), set()))
    aims = any(row["aim"] is not None for row in cells)
    header = ["environment", "variant", *(["measure"] if several else []), "mean", "95 %", "IQM", "95 %"]
    successes = any(row.get("success_rate") is not None for row in cells)
    header += ["seeds", "episodes", *(["successes"] if successes else []), *(["aim", "met"] if aims else [])]
    rows = []
    for row in cells:
        line = [row["environment"], row["variant"], *([row["measure"]] if several else [])]
        line += [*_estimates(row, "{:,.4g}"), str(row["runs"]), row["episodes"] or "-"]
        line += [_number(row.get("success_rate"), "{:.0%}")] if successes else []
        if aims:
            line += ["-", "-"] if row["aim"] is None else [f"{row['aim']:g}", f"{row['met']}/{row['runs']}"]
        rows.append(line)
    tables.append((f"Score: {table['score']}", header, rows, _winners(table["cells"], ("environment", "measure"))))
    return tables


def _with_runs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["runs"]] or list(rows)


def _winners(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> set[int]:
    """Which of the rows that are shown are in bold, where rows that agree in `kinds` are compared, those without runs too."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(tuple(row[kind] for kind in kinds), []).append(index)
    best = [rows[group[first]] for group in groups.values() for first in winners([rows[index] for index in group])]
    return {index for index, row in enumerate(_with_runs(rows)) if any(row is winner for winner in best)}


def _estimates(row: Mapping[str, Any], form: str) -> list[str]:
    cells = []
    for name in ("mean", "iqm"):
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        cells += [_number(row[name], form), "-" if low is None else f"{_number(low, form)} to {_number(high, form)}"]
    return cells


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def footnotes(table: Mapping[str, Any]) -> list[str]:
    lines = [
        f"Intervals: percentile bootstrap, {RESAMPLES:,} resamples of the seeds within each environment, from "
        f"{LEAST_FOR_INTERVAL} seeds on; IQM is the mean of the middle half of the runs. Episodes: of each seed.",
    ]
    if any(bold for _, _, _, bold in shown_tables(table)):
        lines.append(
            f"Bold: the highest IQM, where every variant has {LEAST_FOR_WINNER} seeds and its interval is above all others."
        )
    if table.get("comparisons"):
        lines.append(note())
    cut = sum(row["episodes_cut"] for row in table["cells"])
    if cut:
        lines.append(f"{cut:,} of the episodes were cut at the step limit and count with the return they had.")
    if table["aggregates"] and any(row["published"] is not None for row in table["aggregates"]):
        lines.append(f"Published: {table['published_from'] or 'as given in the study'}.")
    absent = missing(table)
    if absent:
        lines.append(f"{absent} of the study's runs have no score yet and are not in the table.")
        failed = len({(r["environment"], r["variant"], r["seed"]) for r in table["runs"] if r["status"] == "failed"})
        if failed:
            lines[-1] = lines[-1].rstrip(".") + f"; {failed} of them failed."
    return lines


def as_markdown(table: Mapping[str, Any]) -> str:
    steps = sorted({row["steps"] for row in table["runs"]}) or [table["steps"]]
    length = " to ".join(f"{count:,}" for count in dict.fromkeys((steps[0], steps[-1])))
    lines = [
        f"# {markdown_text(table['title'])}",
        "",
        f"{length} steps, seeds {', '.join(map(str, table['seeds']))}.",
        "",
    ]
    for title, header, rows, bold in shown_tables(table):
        left = sum(name in NAMES for name in header)
        lines += [f"**{markdown_text(title)}**", "", _markdown_row(header)]
        lines.append("|" + "---|" * left + "---:|" * (len(header) - left))
        for index, row in enumerate([list(map(markdown_text, row)) for row in rows]):
            if index in bold:
                row[header.index("IQM")] = f"**{row[header.index('IQM')]}**"
            lines.append(_markdown_row(row))
        lines.append("")
    return "\n".join([*lines, *map(markdown_text, footnotes(table)), ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_csv(table: Mapping[str, Any]) -> str:
    """One row a run, one a cell, one an aggregate, one a comparison; `kind` says which."""
    output = io.StringIO()
    writer = csv.DictWriter(output, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for kind in ("run", "cell", "aggregate", "comparison"):
        rows = [{"kind": kind, **row} for row in table.get(f"{kind}s", [])]
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return output.getvalue()


TABLES = ("table.md", "table.json", "table.csv")


def write_table(table: Mapping[str, Any], root: Path) -> None:
    """table.md, table.json and table.csv."""
    texts = (as_markdown(table), json.dumps(table, indent=1) + "\n", as_csv(table))
    for name, text in zip(TABLES, texts, strict=True):
        write_atomically(root / name, text.encode(), "start the study again")


def print_table(table: Mapping[str, Any]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from phasegrad.runs.consoles import PlainConsole

    console = PlainConsole()
    if not console.is_terminal:
        console = PlainConsole(width=200)
    for title, header, rows, bold in shown_tables(table):
        header, rows = fitted(header, rows, console.width)
        shown = Table(title=escape(title), title_justify="left", box=box.SIMPLE, padding=(0, 0, 0, 1), pad_edge=False)
        for name in header:
            shown.add_column(name, justify="left" if name in NAMES else "right", no_wrap=True)
        for index, row in enumerate(rows):
            shown.add_row(*map(escape, row), style="bold" if index in bold else None)
        console.print(shown)
    for line in footnotes(table):
        console.print(line, markup=False, highlight=False, style="dim")


def fitted(header: list[str], rows: list[list[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Made to fit the screen: without the mean and its interval, which the files have, then with names cut short."""

    def widths() -> list[int]:
        return [max(map(len, column)) + 2 for column in zip(header, *rows, strict=True)]

    if sum(widths()) > width and "mean" in header:
        place = header.index("mean")
        header, rows = header[:place] + header[place + 2 :], [row[:place] + row[place + 2 :] for row in rows]
    names = [index for index, name in enumerate(header) if name in NAMES]
    while (over := sum(widths()) - width) > 0:
        longest = max(names, key=lambda index: widths()[index])
        room = widths()[longest] - 2 - max(1, over // len(names))
        if room < len(header[longest]):
            break
        rows = [[elided(cell, room) if at == longest else cell for at, cell in enumerate(row)] for row in rows]
    return header, rows
