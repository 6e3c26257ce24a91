"""Text from files on terminals, pages and tables: no escape sequence, no HTML, no formula, no mathematics comes through."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fault_cases.case import Case, require
from fault_cases.scene import Scene, newest
from fault_cases.verbs import STUDY_VERBS, VERBS, prepare

AREA = "text"
HOSTILE = {
    "an escape": "\x1b]0;pwned\x07\x1b[2J", "a C1 code": "\x9b31m", "ends of lines": "a\r\nphasegrad: all is well\n",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>", "mathematics": r"$\bad{$", "right to left": "\u202egpj.exe",
    "a formula": "=cmd|' /C calc'!A0", "a surrogate": "\ud800", "long": "x" * 100_000,
}  # fmt: skip
CONFIG = (
    "env",
    "algorithm",
    "preset",
    "device",
    "objective",
    "activation",
    "versions.torch",
    "versions.phasegrad",
    "track",
)
STATE = (
    "format",
    "algorithm",
    "config.env",
    "versions.torch",
    "versions.phasegrad",
    "observation_space.kind",
    "leg.end",
    "sha256",
)
RESULT = ("status", "eval.return_mean", "score", "best_eval.step")
VERB_OF = {"resume": "killed", "eval": "finished", "plot": "finished", "report": "finished", "watch": "finished"}
FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0")


def cases(seed: int) -> list[Case]:
    found = []

    def add(name: str, verb: str, harm: Callable[[Path], None]) -> None:
        found.append(Case(AREA, f"{name}, {verb}", partial(one, verb=verb, harm=harm)))

    kinds = list(HOSTILE)
    for index, field in enumerate(CONFIG):
        for number, kind in enumerate(kinds):
            for verb in [list(VERB_OF)[(index + number) % 5], "plot-picture"] if number < 5 else ["report"]:
                add(f"config.json {field} {kind}", verb, partial(in_json, place="config.json", field=field, kind=kind))
    for index, field in enumerate(STATE):
        for kind in kinds[:5]:
            verb = ("resume", "eval")[index % 2]
            add(f"state.json {field} {kind}", verb, partial(in_json, place="NEWEST", field=field, kind=kind))
    for field in RESULT:
        for kind in kinds[:5]:
            for verb in ("report", "watch"):
                add(f"result.json {field} {kind}", verb, partial(in_json, place="result.json", field=field, kind=kind))
    for kind in ("an escape", "HTML", "ends of lines", "a C1 code"):
        for verb in ("report", "watch", "plot", "resume"):
            add(f"metrics.jsonl a name {kind}", verb, partial(in_rows, kind=kind))
            add(f"a checkpoint's name {kind}", verb, partial(checkpoint_name, kind=kind))
        add(f"a checkpoint's name {kind}", "eval", partial(checkpoint_name, kind=kind))
        add(f".lock {kind}", "watch", partial(lock, kind=kind))
        add(f"evaluations.jsonl {kind}", "report", partial(evaluations, kind=kind))
        add(f"changes.jsonl {kind}", "resume", partial(changes, kind=kind))
        for verb in ("report", "plot-picture", "eval", "watch"):
            found.append(Case(AREA, f"the run's own name {kind}, {verb}", partial(named, kind=kind, verb=verb)))
    for number, formula in enumerate(FORMULAS):
        for verb in ("plot", "table"):
            found.append(
                Case(AREA, f"a formula in a table {number + 1}, {verb}", partial(formulas, text=formula, verb=verb))
            )
    for field in ("title", "about", "variant", "name"):
        for kind in ("an escape", "HTML", "mathematics", "ends of lines"):
            found.append(Case(AREA, f"a study's {field} {kind}", partial(study, field=field, kind=kind)))
    for kind in ("HTML", "mathematics", "an escape", "a surrogate"):
        found.append(Case(AREA, f"report --title {kind}", partial(title, kind=kind)))
    return found


def words_of(verb: str) -> list[str]:
    return ["plot", "run", "--out", "curve.svg", "--csv", "curve.csv"] if verb == "plot-picture" else VERBS[verb]


def one(scene: Scene, verb: str, harm: Callable[[Path], None]) -> None:
    run = prepare(scene, VERB_OF.get(verb, "finished"))
    harm(run)
    scene.run(*words_of(verb))
    require_plain(scene)


def require_plain(scene: Scene) -> None:
    """Of everything written: pages without foreign tags, tables without formulas or tags, text without control characters."""
    for path in (*scene.work.glob("*"), *scene.work.glob("run/*")):
        if not path.is_file() or path.suffix not in (".html", ".svg", ".csv", ".md"):
            continue
        text = path.read_text(errors="replace")
        if path.suffix in (".html", ".svg", ".md"):
            require(not re.search(r"<script>alert|<img src=x", text), f"{path.name} holds foreign tags")
        # A page is read by a browser, a table also by a terminal; in XML an escape is an error
        bad = {".csv": "\x1b\x9b", ".md": "\x1b\x9b", ".svg": "\x1b"}.get(path.suffix, "")
        require(not set(bad) & set(text), f"{path.name} holds an escape sequence")
        if path.suffix == ".csv":
            with path.open(newline="") as file:
                cells = [cell for row in csv.reader(file) for cell in row]
            bad = [cell for cell in cells if re.match(r"[=+@\t\r]|-(?![\d.]|inf|nan)|-[\d.]+[^\d.e-]", cell)]
            require(not bad, f"{path.name} holds the formula {bad[:1]}")


def in_json(run: Path, place: str, field: str, kind: str) -> None:
    path = newest(run) / "state.json" if place == "NEWEST" else run / place
    whole = json.loads(path.read_text())
    *parents, name = field.split(".")
    inner: dict[str, Any] = whole
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[name] = HOSTILE[kind]
    path.write_text(json.dumps(whole))


def in_rows(run: Path, kind: str) -> None:
    path = run / "metrics.jsonl"
    rows = [json.loads(line) | {HOSTILE[kind]: 1.5, "phase": HOSTILE[kind]} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def checkpoint_name(run: Path, kind: str) -> None:
    """Further entries beside the checkpoints, and the newest one damaged, so that names are spoken of."""
    name = HOSTILE[kind].replace("/", "-")[:100]
    for entry in (f"step-{name}", name, f"damaged-step-{name}", f"step-000000009999{name}"):
        (run / "checkpoints" / entry).mkdir()
    (newest(run) / "state.json").write_text("{")


def lock(run: Path, kind: str) -> None:
    (run / ".lock").write_text(HOSTILE[kind])
    (run / "result.json").unlink()


def evaluations(run: Path, kind: str) -> None:
    row = {"step": HOSTILE[kind], "return_mean": HOSTILE[kind], "episodes": HOSTILE[kind], "levels": HOSTILE[kind]}
    (run / "evaluations.jsonl").write_text(json.dumps(row) + "\n")


def changes(run: Path, kind: str) -> None:
    (run / "changes.jsonl").write_text(json.dumps({"iteration": 3, HOSTILE[kind]: HOSTILE[kind]}) + "\n")


def named(scene: Scene, kind: str, verb: str) -> None:
    prepare(scene, "finished").rename(scene.work / HOSTILE[kind].replace("/", "-"))
    words = [HOSTILE[kind].replace("/", "-") if word == "run" else word for word in words_of(verb)]
    scene.run(*words)
    require_plain(scene)


def formulas(scene: Scene, text: str, verb: str) -> None:
    if verb == "plot":
        run = prepare(scene, "finished")
        config = run / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"env": text, "algorithm": text}))
        (scene.work / text.replace("/", "-")).symlink_to(run)
        scene.run("plot", text.replace("/", "-"), "--out", "curve.csv") if not text.startswith("-") else scene.run(
            *VERBS["plot"]
        )
    else:
        run = prepare(scene, "study")
        file = scene.work / "study.toml"
        file.write_text(file.read_text().replace("[variants.fast]", f"[variants.{json.dumps(text)}]"))
        scene.run(*STUDY_VERBS["table"])
    require_plain(scene)


def study(scene: Scene, field: str, kind: str) -> None:
    """A study whose texts are hostile; the folder is one that its runs have filled."""
    prepare(scene, "study")
    file, value = scene.work / "study.toml", json.dumps(HOSTILE[kind])
    text = file.read_text()
    if field == "variant":
        text = text.replace("[variants.fast]", f"[variants.{value}]")
    elif field == "name":
        text = text.replace('["CartPole-v1"]', f'[{{ env = "CartPole-v1", name = {value} }}]')
    else:
        text = text.replace('title = "Two learning rates"', f"{field} = {value}")
    file.write_text(text)
    scene.run(*STUDY_VERBS["table"])
    scene.run(*STUDY_VERBS["watch"])
    scene.run(*STUDY_VERBS["report"])
    require_plain(scene)


def title(scene: Scene, kind: str) -> None:
    prepare(scene, "finished")
    scene.run("report", "run", "--out", "page.html", "--title", HOSTILE[kind].replace("\ud800", "\udc80"))
    require_plain(scene)
