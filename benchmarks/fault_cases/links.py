"""Links in place of the files and folders of runs and studies, also ones that another process exchanges while a command runs.

Nothing outside may be written, removed or shown; what a verb cannot do without is missed in a sentence.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

from fault_cases import processes
from fault_cases.case import Case, require
from fault_cases.places import FILES, FOLDERS, STUDY_FILES, STUDY_FOLDERS, needs, resolve, take_away
from fault_cases.scene import MARK, Scene
from fault_cases.templates import KILLED_AT
from fault_cases.verbs import READERS, VERBS, prepare, use

AREA = "links"
KINDS = COPY, STRANGERS, NOTHING = "to a copy", "to a stranger's", "to nothing"
PAIRS = {  # writers with every kind, readers with the one that they could be deceived by
    "killed": [(verb, kind) for verb in ("resume", "overwrite") for kind in KINDS] + [("eval", COPY)],
    "finished": [(verb, COPY) for verb in ("plot", "report", "watch", "page")]
    + [(verb, kind) for verb in ("record", "page") for kind in (STRANGERS, NOTHING)],
}
_RENAME_EXCHANGE = 2


def cases(seed: int) -> list[Case]:
    found = []
    for template, pairs in PAIRS.items():
        for place in (*FILES, *FOLDERS):
            for verb, kind in pairs:
                name = f"{template}/{place} a link {kind}, {verb}"
                found.append(Case(AREA, name, partial(one, template=template, place=place, kind=kind, verb=verb)))
    for place in (*STUDY_FILES, *STUDY_FOLDERS):
        for kind in KINDS:
            for verb in ("report", "watch", "table") if kind == COPY else ("table",):
                name = f"study/{place} a link {kind}, {verb}"
                found.append(Case(AREA, name, partial(one, template="study", place=place, kind=kind, verb=verb)))
    for verb in ("resume", "overwrite"):
        for place in ("checkpoints", "steps", "segments", "tensorboard", "metrics.jsonl", ".lock"):
            found.append(Case(AREA, f"killed/{place} exchanged, {verb}", partial(exchanged, place=place, verb=verb)))
    found += [Case(AREA, f"the run itself a link, {verb}", partial(through_a_link, verb=verb)) for verb in READERS]
    found += [Case(AREA, f"agent/{name} a link, eval", partial(saved_agent, name=name)) for name in AGENT_FILES]
    return found


def one(scene: Scene, template: str, place: str, kind: str, verb: str) -> None:
    run = prepare(scene, template)
    path = resolve(run, place)
    put_link(scene, path, kind, is_folder=place in (*FOLDERS, *STUDY_FOLDERS))
    outcome = use(scene, verb, template, total=False)
    if template != "study" and verb in READERS and needs(verb, place, template):
        require(outcome.told, f"a link in place of {path.name} was followed without a word")
    if template == "killed" and verb == "resume" and outcome.code == 0 and place != "metrics.jsonl":
        scene.require_same_bits(run)


def put_link(scene: Scene, path: Path, kind: str, is_folder: bool) -> None:
    target = scene.outside / "nowhere"
    if kind == STRANGERS:
        target = scene.outside / ("folder" if is_folder else "canary.txt")
    elif kind == COPY:
        target = scene.set_aside(path) if path.exists() else scene.outside / "canary.txt"
        mark(target)
    take_away(path)
    path.symlink_to(target)


def mark(path: Path) -> None:
    """Give a copy outside a value that its original does not have, where a reader would show it."""
    if path.name.endswith(("metrics.jsonl", "evaluations.jsonl")):
        rows = [json.loads(line) | {"return_mean": float(f"{MARK}.25")} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.name.endswith(("config.json", "result.json", "page.json")):
        found = json.loads(path.read_text())
        extra = (
            {"seed": int(MARK)} if path.name.endswith("config.json") else {"return_mean": float(MARK), "title": MARK}
        )
        if isinstance(found.get("eval"), dict):
            extra["eval"] = found["eval"] | {"return_mean": float(f"{MARK}.25")}
        path.write_text(json.dumps(found | extra))


def exchanged(scene: Scene, place: str, verb: str) -> None:
    """Another process exchanges a folder or file of the run for a link and back, as fast as it can."""
    run = prepare(scene, "killed")
    path = resolve(run, place)
    if not path.exists():
        path.touch()
    link = path.with_name(f"swap-{path.name}")
    aside = scene.outside / ("folder" if path.is_dir() else "canary.txt")
    if path.is_dir():
        for entry in path.iterdir():  # what may be written or removed there is outside under the same names
            copied = aside / entry.name
            shutil.copytree(entry, copied) if entry.is_dir() else shutil.copy(entry, copied)
        (aside / f"step-{KILLED_AT:012d}.npz").write_text("somebody's\n")
    link.symlink_to(aside)
    for _ in range(3):
        running = scene.start(*VERBS[verb])
        swapper = os.fork()
        if swapper == 0:
            exchange_for_ever(str(path), str(link))
        processes.helpers.add(swapper)
        try:
            scene.end(running)
        finally:
            os.kill(swapper, 9)
            os.waitpid(swapper, 0)
            processes.helpers.discard(swapper)


def exchange_for_ever(path: str, link: str) -> None:
    libc = ctypes.CDLL(None)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        libc.renameat2(-100, path.encode(), -100, link.encode(), _RENAME_EXCHANGE)
        time.sleep(0.0003)
    os._exit(0)


def through_a_link(scene: Scene, verb: str) -> None:
    """The user's own link to a run directory is theirs to use."""
    run = prepare(scene, "killed")
    run.rename(scene.work / "elsewhere")
    run.symlink_to("elsewhere")
    require(use(scene, verb, "killed").code == 0, "the user's own link to a run was refused")


AGENT_FILES = ("state.json", "state.safetensors")


def saved_agent(scene: Scene, name: str) -> None:
    agent = scene.copy("agent")
    path = agent / name
    put_link(scene, path, COPY, is_folder=False)
    require(scene.run("eval", "run", "--episodes", "2").told, f"a link in place of {name} was followed without a word")
