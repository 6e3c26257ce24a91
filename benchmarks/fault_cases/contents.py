"""Files with hostile or damaged contents: cut, flipped, too long, too deep, too large, of the wrong type, another run's.

Every verb ends in a sentence or does its work; a run that is resumed to its end has the bits of one that was not harmed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fault_cases.case import Case, require
from fault_cases.places import resolve
from fault_cases.scene import Scene, newest
from fault_cases.templates import KILLED_AT
from fault_cases.verbs import READERS, prepare, use

AREA = "contents"
JSON_FILES = ("config.json", "result.json", "checkpoints/NEWEST/state.json")
TENSOR_FILES = (
    "checkpoints/NEWEST/state.safetensors", "checkpoints/NEWEST/leg.safetensors", "segments/PIECE",
)  # fmt: skip
LINES = ("metrics.jsonl", "evaluations.jsonl", "changes.jsonl")
# What stands in the place of a whole file
WHOLE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "zeros": lambda: bytes(4096),
    "text": lambda: b"not what it should be\n",
    "latin-1": lambda: b'{"env": "\xe9\xff\xfe"}\n',
    "deep lists": lambda: b"[" * 100_000 + b"]" * 100_000,
    "deep objects": lambda: b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a list": lambda: b"[1, 2]",
    "null": lambda: b"null",
    "5,000 digits": lambda: b'{"step": 1' + b"0" * 5000 + b"}",
    "NaN": lambda: b'{"step": NaN, "return_mean": Infinity}',
    "60 MB": lambda: b'{"a": "' + b"x" * 60_000_000 + b'"}',
    "a huge header": lambda: struct.pack("<Q", 1 << 62) + b"{}",
    "a long header": lambda: struct.pack("<Q", 30_000_000) + b" " * 30_000_000,
}
BAD_VALUES: dict[str, Any] = {
    "a text": "x", "a list": [1], "an object": {"a": 1}, "null": None, "true": True, "-1": -1, "2^63": 2**63, "2^70": 2**70,
    "NaN": float("nan"), "1e400": float("inf"), "5,000 digits": 10**4999,
}  # fmt: skip
STATE_FIELDS = (
    "format", "algorithm", "config", "progress", "progress.step", "progress.iteration", "progress.episodes",
    "progress.recent_returns", "progress.longest_episode", "scalars", "schedules", "changes", "evaluations",
    "observation_space", "observation_space.shape", "action_space", "action_space.n", "versions", "versions.torch", "extra",
    "extra.metrics_bytes", "extra.seconds", "extra.carried", "extra.carried.files", "extra.carried.state", "leg", "leg.sha256",
    "leg.due", "sha256", "has_action_mask",
)  # fmt: skip
CONFIG_FIELDS = (
    "algorithm", "env", "env_options", "total_steps", "seed", "num_envs", "num_steps", "hidden_sizes", "gamma", "compile",
    "torch_threads", "checkpoint_every", "keep_checkpoints", "vectorization", "learning_rate", "n_pi", "versions", "track",
    "eval_episodes", "stop_at", "preset", "backend", "device",
)  # fmt: skip
RESULT_FIELDS = (
    "status",
    "step",
    "return_mean",
    "episodes",
    "seconds",
    "eval",
    "eval.return_mean",
    "eval.step",
    "best_eval",
)
ROW_FIELDS = ("step", "iteration", "return_mean", "episodes", "seconds", "kl_by_epoch", "time_update", "sps")


def cases(seed: int) -> list[Case]:
    found: list[Case] = []

    def add(name: str, template: str, verb: str, harm: Callable[[Scene, Path], None], exact: bool = False) -> None:
        act = partial(one, template=template, verb=verb, harm=harm, exact=exact)
        found.append(Case(AREA, f"{template}/{name}, {verb}", act))

    for place in (*JSON_FILES, *TENSOR_FILES, *LINES):
        for kind in WHOLE:
            verbs = ("resume", "eval") if place in TENSOR_FILES or "state" in place else READERS
            for verb in verbs:
                template = "killed" if verb == "resume" else "finished"
                add(f"{place} {kind}", template, verb, partial(replace, place=place, kind=kind), "changes" not in place)
    for place in (*JSON_FILES, *TENSOR_FILES, *LINES):
        for number in range(6):
            template, verb = ("killed", "resume") if place != "result.json" else ("finished", "report")
            exact = place in TENSOR_FILES
            add(
                f"{place} cut {number + 1}",
                template,
                verb,
                partial(cut, place=place),
                exact or place == "metrics.jsonl",
            )
            add(f"{place} flipped {number + 1}", template, verb, partial(flip, place=place), exact)
    for place, fields, verbs in (
        ("checkpoints/NEWEST/state.json", STATE_FIELDS, ("resume",)),
        ("config.json", CONFIG_FIELDS, ("resume", "report")),
        ("result.json", RESULT_FIELDS, ("report", "watch")),
    ):
        for index, field in enumerate(fields):
            for number, kind in enumerate(BAD_VALUES):
                if (number + index) % 3 and kind != "5,000 digits":
                    continue  # every third value of each field; all are tried across the fields
                verb = verbs[(index + number // 3) % len(verbs)]
                template = "killed" if verb == "resume" else "finished"
                add(
                    f"{place} {field} = {kind}", template, verb, partial(put_field, place=place, field=field, kind=kind)
                )
    for field in ROW_FIELDS:
        for number, kind in enumerate(BAD_VALUES):
            verb = ("plot", "report", "watch")[number % 3]
            add(f"metrics.jsonl {field} = {kind}", "finished", verb, partial(put_row, field=field, kind=kind))
    for verb in ("resume", "eval"):
        for name in ("state.json", "state.safetensors", "leg.safetensors", "all"):
            add(f"{name} of an older checkpoint", "killed", verb, partial(older, name=name))
        add("checkpoint of another run", "killed", verb, another_run)
    add("metrics.jsonl missing", "killed", "resume", lambda scene, run: (run / "metrics.jsonl").unlink())
    add("metrics.jsonl a line gone", "killed", "resume", line_gone)
    return found


def one(scene: Scene, template: str, verb: str, harm: Callable[[Scene, Path], None], exact: bool) -> None:
    run = prepare(scene, template)
    before = (run / "metrics.jsonl").read_bytes()
    harm(scene, run)
    harmed = not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_bytes() != before
    outcome = use(scene, verb, template, total=exact and not harmed)
    if verb != "resume" or outcome.code != 0:
        return
    if harmed:
        scene.require_same_bits(run, metrics=False)
        require_went_on(scene, run, outcome.told)
    elif not exact:
        require(newest(run).name == scene.templates.whole.name or outcome.told, "it ended elsewhere without a word")


def require_went_on(scene: Scene, run: Path, told: bool) -> None:
    """Whatever had happened to the metrics, what was added is whole; where something is missing, that was said."""
    steps = []
    for line in (run / "metrics.jsonl").read_text(errors="replace").splitlines():
        try:
            steps.append(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            steps.append(None)
    wanted = [json.loads(line)["step"] for line in (scene.templates.folder / "finished" / "metrics.jsonl").open()]
    added = [step for step in wanted if step > KILLED_AT]
    require(steps[-len(added) :] == added, "lines that were added to metrics.jsonl are not whole")
    require(steps == wanted or told, "lines of metrics.jsonl are missing or damaged, and nothing was said")


def replace(scene: Scene, run: Path, place: str, kind: str) -> None:
    path = resolve(run, place)
    payload = WHOLE[kind]()
    path.write_bytes(payload)
    if "header" in kind and place in TENSOR_FILES and "NEWEST" in place:  # one whose checksum is right
        state = path.with_name("state.json")
        found = json.loads(state.read_text())
        (found["leg"] if path.name.startswith("leg") else found)["sha256"] = hashlib.sha256(payload).hexdigest()
        state.write_text(json.dumps(found))


def cut(scene: Scene, run: Path, place: str) -> None:
    path = resolve(run, place)
    payload = path.read_bytes() if path.exists() else b'{"iteration": 2, "learning_rate": 0.001}\n'
    path.write_bytes(payload[: scene.chance.randrange(max(len(payload), 1))])


def flip(scene: Scene, run: Path, place: str) -> None:
    """One bit, at a place drawn by the seed."""
    path = resolve(run, place)
    payload = bytearray(path.read_bytes() if path.exists() else b'{"iteration": 2, "learning_rate": 0.001}\n')
    payload[scene.chance.randrange(len(payload))] ^= 1 << scene.chance.randrange(8)
    path.write_bytes(payload)


def put_field(scene: Scene, run: Path, place: str, field: str, kind: str) -> None:
    path = resolve(run, place)
    path.write_text(with_field(json.loads(path.read_text()), field, kind))


def put_row(scene: Scene, run: Path, field: str, kind: str) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    number = scene.chance.randrange(len(lines))
    lines[number] = with_field(json.loads(lines[number]), field, kind)
    path.write_text("\n".join(lines) + "\n")


def with_field(whole: dict[str, Any], field: str, kind: str) -> str:
    """The JSON text with another value at a dotted place."""
    *parents, name = field.split(".")
    inner = whole
    for parent in parents:
        inner = inner[parent]
    value = BAD_VALUES[kind]
    inner[name] = "PLACE" if kind == "5,000 digits" else value
    return json.dumps(whole).replace('"PLACE"', "1" + "0" * 4999).replace("Infinity", "1e400")


def older(scene: Scene, run: Path, name: str) -> None:
    """Files of the checkpoint before, under the name of the newest."""
    last = newest(run)
    before = sorted(last.parent.iterdir())[-2]
    for file in ("state.json", "state.safetensors", "leg.safetensors") if name == "all" else (name,):
        shutil.copy(before / file, last / file)


def another_run(scene: Scene, run: Path) -> None:
    last = newest(run)
    shutil.rmtree(last)
    shutil.copytree(newest(scene.templates.folder / "acer"), last)


def line_gone(scene: Scene, run: Path) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3] + lines[4:]))
