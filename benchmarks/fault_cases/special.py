"""Pipes, sockets, devices and folders in place of files: no command waits for ever, none reads without end."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

from fault_cases.case import Case, Skipped, require
from fault_cases.places import FILES, STUDY_FILES, needs, resolve, take_away
from fault_cases.scene import Scene
from fault_cases.verbs import READERS, prepare, use

AREA = "special files"
DEVICES = {"zero": (1, 5), "full": (1, 7)}
KINDS = ("a pipe", "a socket", "/dev/zero", "/dev/full", "a folder")
SECONDS = 15
PLACES = tuple(place for place in FILES if place not in ("report.html", "videos/FILM"))


def cases(seed: int) -> list[Case]:
    found = []
    for place in PLACES:
        for kind in KINDS:
            for verb in (*READERS, "overwrite"):
                template = "killed" if verb in ("resume", "overwrite") else "finished"
                if kind in ("a socket", "/dev/full") and verb not in ("resume", "report"):
                    continue
                if verb in ("plot", "watch", "report") and place.startswith(
                    ("checkpoints", "steps", "segments", "tensor")
                ):
                    continue
                name = f"{template}/{place} {kind}, {verb}"
                found.append(Case(AREA, name, partial(one, template=template, place=place, kind=kind, verb=verb)))
    for place in STUDY_FILES:
        for kind in ("a pipe", "/dev/zero", "a folder"):
            for verb in ("table", "report") if kind != "a folder" else ("table",):
                name = f"study/{place} {kind}, {verb}"
                found.append(Case(AREA, name, partial(one, template="study", place=place, kind=kind, verb=verb)))
    for name, words in OUTPUTS.items():
        for kind in ("a pipe", "/dev/zero", "a folder", "/dev/full"):
            found.append(Case(AREA, f"{name} to {kind}", partial(output, words=words, kind=kind)))
    for kind in ("a pipe", "/dev/zero", "a folder", "a socket"):
        for name, words in INPUTS.items():
            found.append(Case(AREA, f"{name} is {kind}", partial(given, words=words, kind=kind)))
    return found


OUTPUTS = {
    "report --out": "report run --out TARGET",
    "plot --out": "plot run --out TARGET.csv",
    "plot --csv": "plot run --out curve.svg --csv TARGET",
    "export --onnx": "export run --onnx TARGET.onnx",
    "video --out": "video run --max-steps 4 --size 64 --out TARGET.gif",
    "eval --save-steps": "eval run --episodes 1 --max-steps 8 --save-steps TARGET.npz",
}
INPUTS = {
    "the study's file": "study TARGET.toml --dry-run --quiet",
    "the preset's file": "train ppo --env CartPole-v1 --total-steps 64 --preset TARGET.json --quiet",
    "the demonstrations": "clone ppo --env CartPole-v1 --data TARGET.npz --run-dir cloned --quiet",
    "the run": "eval TARGET",
    "the run to report on": "report TARGET",
    "the run to resume": "resume TARGET",
    "the run to watch": "watch TARGET --once",
}


def put(path: Path, kind: str) -> None:
    """One of these where a file should be."""
    take_away(path)
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
        (path / "somebody's").touch()
    elif kind == "a socket":
        here = os.getcwd()
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(path.parent)  # the name of a socket is short
            try:
                server.bind(path.name)
            finally:
                os.chdir(here)
    else:
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(*DEVICES[kind.rpartition("/")[2]]))
        except PermissionError:
            raise Skipped("device nodes cannot be made here") from None


def one(scene: Scene, template: str, place: str, kind: str, verb: str) -> None:
    run = prepare(scene, template)
    path = resolve(run, place)
    put(path, kind)
    before = path.lstat()
    outcome = use(scene, verb, template, total=False, seconds=SECONDS)
    if template != "study" and needs(verb, place, template):
        require(outcome.told, f"{kind} in place of {path.name}, and nothing was said")
    if template == "killed" and verb == "resume" and outcome.code == 0 and place != "metrics.jsonl":
        scene.require_same_bits(run)
    if kind == "a folder" and path.is_dir():
        require((path / "somebody's").exists(), "somebody's file in the folder was removed")
    if kind.startswith("/dev") and path.exists() and verb not in ("resume", "overwrite"):
        require(path.lstat().st_ino == before.st_ino, f"the device {path.name} was replaced")


def output(scene: Scene, words: str, kind: str) -> None:
    """What is written may be named anything; a device or a folder is not replaced by a file."""
    prepare(scene, "finished")
    arguments = words.split()
    (name,) = {word for word in arguments if word.startswith("TARGET")}
    path = scene.work / name
    put(path, kind)
    before = path.lstat()
    outcome = scene.run(*arguments, seconds=90 if "export" in arguments else SECONDS)
    after = path.lstat()
    require(after.st_ino == before.st_ino and after.st_mode == before.st_mode, f"{kind} was replaced by a file")
    require(outcome.code != 0, "exit code 0 though nothing can have been written")


def given(scene: Scene, words: str, kind: str) -> None:
    arguments = words.split()
    (name,) = {word for word in arguments if word.startswith("TARGET")}
    put(scene.work / name, kind)
    require(scene.run(*arguments, seconds=SECONDS).code == 2, f"{kind} was taken for what it is not")
