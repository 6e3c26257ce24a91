"""The scene of a case: a folder of its own with a home, a place to work in and files outside that nobody may touch."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_cases import processes
from fault_cases.case import DOCUMENTED, Broke, Outcome, require, require_sound, strictly_increasing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = "987654"  # stands in files outside only: it must not come out of any command
SHOWN_MARK = re.compile("987,?654")
MOST_MB = 1500.0
MOST_OUTPUT = 4_000_000  # bytes kept of what a command says


@dataclass(frozen=True)
class Templates:
    """Where the runs lie that cases take copies of; `whole` is the checkpoint that `killed` ends with when it is resumed."""

    folder: Path
    cache: Path

    @property
    def whole(self) -> Path:
        return newest(self.folder / "finished")


def newest(run: Path) -> Path:
    """The last checkpoint of a run that was not harmed."""
    return sorted(path for path in (run / "checkpoints").iterdir() if path.name.startswith("step-"))[-1]


class Scene:
    def __init__(self, folder: Path, templates: Templates, seed: str) -> None:
        self.folder, self.templates = folder, templates
        self.chance = random.Random(seed)
        self.work, self.home, self.temporary, self.outside = (
            folder / name for name in ("work", "home", "tmp", "outside")
        )
        for place in (self.work, self.home, self.temporary, self.outside / "folder"):
            place.mkdir(parents=True)
        folder.chmod(0o755)
        self.cache = templates.cache
        (self.outside / "canary.txt").write_text(f"a file of somebody's, {MARK}\n")
        for name in ("own.txt", "step-000000000064.npz", "state.json"):
            (self.outside / "folder" / name).write_text(f"{MARK}\n")
        self._before: dict[str, Any] | None = None
        self._count = 0

    # What there is

    def copy(self, template: str, name: str = "run") -> Path:
        return Path(shutil.copytree(self.templates.folder / template, self.work / name, symlinks=True))

    def set_aside(self, path: Path) -> Path:
        """A copy of a run's file or folder outside, for a link to lead to."""
        to = self.outside / f"aside-{path.name}"
        return Path(shutil.copytree(path, to) if path.is_dir() else shutil.copy(path, to))

    def environment(self, **changes: str | None) -> dict[str, str]:
        """Of a command: little of this process's own."""
        found = {
            "PATH": os.environ.get("PATH", ""), "HOME": str(self.home), "TMPDIR": str(self.temporary), "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "PHASEGRAD_CACHE": str(self.cache),
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.templates.folder / "matplotlib"),
            "PYTHONDONTWRITEBYTECODE": "1", "SDL_VIDEODRIVER": "dummy",
        }  # fmt: skip
        for name, value in changes.items():
            found.pop(name, None)
            if value is not None:
                found[name] = value
        return found

    # What is done

    def start(
        self, *arguments: str | Path, real: bool = False, program: str | None = None,
        environment: Mapping[str, str] | None = None, prepare: Callable[[], None] | None = None,
        files: tuple[Path, Path] | None = None,
    ) -> Running:  # fmt: skip
        """Begin a command; `program` is a Python program in place of the command line."""
        if self._before is None:
            self._before = self._snapshot()
        self._count += 1
        words = [str(argument) for argument in arguments]
        out, err = files or (self.folder / f"out-{self._count}", self.folder / f"err-{self._count}")
        given = self.environment() if environment is None else environment
        if real:
            inner = ["-c", program] if program is not None else ["-m", "phasegrad"]
            process = processes.start_real([sys.executable, *inner, *words], (out, err), self.work, given, prepare)
        else:
            process = processes.fork_main(words, (out, err), self.work, given, prepare, program)
        return Running(words, process, out, err, time.monotonic())

    def run(
        self, *arguments: str | Path, codes: Sequence[int] = DOCUMENTED, seconds: float = 60, most_mb: float = MOST_MB,
        **how: Any,
    ) -> Outcome:  # fmt: skip
        """Run a command to its end; what holds for every command is looked at, and what is outside."""
        return self.end(self.start(*arguments, **how), codes, seconds, most_mb)

    def end(
        self, running: Running, codes: Sequence[int] = DOCUMENTED, seconds: float = 60, most_mb: float = MOST_MB
    ) -> Outcome:
        outcome = running.wait(seconds)
        self.require_outside_untouched()
        require_sound(outcome, codes, most_mb)
        require(not SHOWN_MARK.search(outcome.out + outcome.err), "what stands in a file outside was printed")
        return outcome

    # What must hold

    def require_outside_untouched(self) -> None:
        after = self._snapshot()
        for name, was in (self._before or {}).items():
            require(after.get(name) == was, f"outside/{name} was {'removed' if name not in after else 'changed'}")
        added = sorted(set(after) - set(self._before or {}))
        require(not added, f"outside/{added[:1]} was written")

    def _snapshot(self) -> dict[str, Any]:
        found = {}
        for path in sorted(self.outside.rglob("*")):
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[str(path.relative_to(self.outside))] = (
                status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_nlink, content,
            )  # fmt: skip
        return found

    def require_same_bits(self, run: Path, metrics: bool = True) -> None:
        """A run that was resumed to its end has what one has that never stopped; its `metrics` too, unless they were harmed."""
        whole = self.templates.whole
        state = run / "checkpoints" / whole.name / "state.safetensors"
        require(state.is_file(), f"it ended without {whole.name}")
        require(state.read_bytes() == (whole / "state.safetensors").read_bytes(), "it ended with other bits")
        if metrics:
            strictly_increasing(run / "metrics.jsonl")
        counters = [json.loads((path / "state.json").read_text())["progress"] for path in (whole, state.parent)]
        require(counters[0] == counters[1], "it ended with other counters")

    def require_unmarked(self, *paths: Path) -> None:
        """Nothing that stands outside only was copied into what was written."""
        for path in paths:
            if path.is_file() and not path.is_symlink():
                require(
                    MARK not in path.read_text(errors="replace"), f"{path.name} shows what stands in a file outside"
                )


@dataclass
class Running:
    """A command that has begun."""

    arguments: list[str]
    process: int
    out: Path
    err: Path
    begun: float
    drains: tuple[subprocess.Popen, ...] = ()  # what takes its output to the files, where it cannot write them itself

    def wait(self, seconds: float) -> Outcome:
        code, peak, late = processes.wait(self.process, seconds)
        took = time.monotonic() - self.begun
        orphans = processes.left_behind(self.process)
        for drain in self.drains:
            processes.helpers.discard(drain.pid)
            drain.wait(10)
        processes.reap()
        out, err = _text(self.out), _text(self.err)
        return Outcome(self.arguments, code, out, err, took, peak, late, orphans)

    def wait_for(self, what: Callable[[], bool], seconds: float = 60) -> None:
        """Until something is so; the command must still be running then."""
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline or not Path(f"/proc/{self.process}/stat").exists():
                raise Broke(f"it never came so far: {_text(self.err)[-150:]}")
            time.sleep(0.01)


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(MOST_OUTPUT).decode(errors="replace")
