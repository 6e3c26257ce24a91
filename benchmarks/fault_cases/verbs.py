"""The commands that are given a harmed run directory, and what must hold of each beside what holds of all."""

from __future__ import annotations

from pathlib import Path

from fault_cases.case import Outcome
from fault_cases.scene import Scene
from fault_cases.templates import PPO, train

VERBS: dict[str, list[str]] = {
    "resume": ["resume", "run", "--quiet"],
    "eval": ["eval", "run", "--episodes", "2", "--max-steps", "30"],
    "plot": ["plot", "run", "--out", "curve.csv"],
    "report": ["report", "run", "--out", "page.html"],
    "watch": ["watch", "run", "--once"],
    "overwrite": [*train("ppo", "run", PPO, 128), "--overwrite"],
    "video": ["video", "run", "--max-steps", "4", "--size", "64", "--out", "film.gif"],
    "export": ["export", "run", "--onnx", "policy.onnx"],
    "record": ["eval", "run", "--episodes", "2", "--max-steps", "4", "--record", "best"],
    "page": ["report", "run"],
}
READERS = ("resume", "eval", "plot", "report", "watch")  # export imports for seconds: a few cases of its own
WRITERS = ("resume", "overwrite", "record", "page")
STUDY_VERBS: dict[str, list[str]] = {
    "report": ["report", "run", "--out", "page.html"],
    "watch": ["watch", "run", "--once"],
    "table": ["study", "study.toml", "--dir", "run", "--table-only", "--quiet"],
    "study": ["study", "study.toml", "--dir", "run", "--jobs", "1", "--quiet"],
    "dry": ["study", "study.toml", "--dir", "run", "--dry-run", "--quiet"],
}
WRITTEN = ("curve.csv", "page.html", "run/report.html", "run/table.md", "run/table.csv", "run/table.json")


def use(scene: Scene, verb: str, template: str, total: bool = True, seconds: float = 60, **how: object) -> Outcome:
    """The verb on the scene's run; where a killed run is said to be done, it has the bits of one never stopped."""
    outcome = scene.run(*(STUDY_VERBS if template == "study" else VERBS)[verb], seconds=seconds, **how)
    scene.require_unmarked(*(scene.work / name for name in WRITTEN))
    if verb == "resume" and template == "killed" and outcome.code == 0 and total:
        scene.require_same_bits(scene.work / "run")
    return outcome


def prepare(scene: Scene, template: str) -> Path:
    """A copy of a template as the run of the case, with the study's file beside it where it needs one."""
    if template == "study":
        (scene.work / "study.toml").write_bytes((scene.templates.folder / "study.toml").read_bytes())
    return scene.copy(template)
