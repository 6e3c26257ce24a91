"""The files and folders of a run, named as they are in any run: NEWEST, NEXT and PIECE stand for what a run has there."""

from __future__ import annotations

from pathlib import Path

from fault_cases.scene import newest

STEPS = 64  # of an iteration of the templates
FILES = (
    ".lock", "config.json", "metrics.jsonl", "result.json", "evaluations.jsonl", "changes.jsonl", "report.html",
    "checkpoints/NEWEST/state.json", "checkpoints/NEWEST/state.safetensors", "checkpoints/NEWEST/leg.safetensors",
    "steps/NEXT", "tensorboard/EVENTS", "videos/FILM", "segments/PIECE",
)  # fmt: skip
FOLDERS = ("checkpoints", "checkpoints/NEWEST", "steps", "tensorboard", "videos", "segments")
STUDY_FILES = (
    "study.json", "page.json", "table.md", "table.json", "table.csv", "report.html", "random.json",
    "logs/CartPole-v1/fast/s1.log", "logs/CartPole-v1/fast/s1.failed", "runs/CartPole-v1/fast/s1/config.json",
    "runs/CartPole-v1/fast/s1/result.json", "runs/CartPole-v1/fast/s1/metrics.jsonl",
)  # fmt: skip
STUDY_FOLDERS = ("runs", "logs", "runs/CartPole-v1", "runs/CartPole-v1/fast/s1")
# What each verb cannot do without: where such a file is not one, somebody must be told
NEEDED = {
    "resume": (
        "config.json",
        "metrics.jsonl",
        "state.json",
        "state.safetensors",
        "leg.safetensors",
        "PIECE",
        "checkpoints",
    ),
    "eval": ("config.json", "state.json", "state.safetensors", "checkpoints"),
    "export": ("config.json", "state.json", "state.safetensors", "checkpoints"),
    "plot": ("config.json", "metrics.jsonl"),
    "report": ("config.json",),
    "watch": ("config.json",),
}


def resolve(run: Path, place: str) -> Path:
    """Where that is in this run, whether it exists or not; a folder above it is made where it is missing."""
    last = newest(run) if "NEWEST" in place or "NEXT" in place else None
    for word, value in (
        ("NEWEST", last.name if last else ""),
        ("NEXT", f"step-{int(last.name[5:]) + STEPS:012d}.npz" if last else ""),
        ("EVENTS", _last(run / "tensorboard", "events")),
        ("FILM", _last(run / "videos", "film.mp4")),
        ("PIECE", _last(run / "segments", "000000000000-000000000000.safetensors")),
    ):
        place = place.replace(word, value)
    path = run / place
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def needs(verb: str, place: str, template: str) -> bool:
    """Whether the verb cannot do its work without this file."""
    name = place.rpartition("/")[2]
    if name == "PIECE" and template != "killed":  # a finished run has none
        return False
    if name == "leg.safetensors" and template == "finished":  # it has nothing to play back
        return False
    return name in NEEDED.get(verb, ())


def take_away(path: Path) -> None:
    """Make room for what comes in its place."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.parent / f".was-{path.name}")
    else:
        path.unlink(missing_ok=True)


def _last(folder: Path, otherwise: str) -> str:
    return max((entry.name for entry in folder.iterdir()), default=otherwise) if folder.is_dir() else otherwise
