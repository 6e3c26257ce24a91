"""A run directory: config.json, metrics.jsonl, checkpoints/, result.json, tensorboard/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasegrad.config import Config
from phasegrad.errors import RunError
from phasegrad.runs.checkpoint import write_checkpoint
from phasegrad.runs.metrics import plain_json
from phasegrad.versions import versions

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.json", "metrics.jsonl", "result.json", "checkpoints"


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metrics_path = self.path / METRICS
        self.checkpoints_path = self.path / CHECKPOINTS

    def exists(self) -> bool:
        """Whether a run was started here; an empty folder is none."""
        return (self.path / CONFIG).exists() or (self.path.is_dir() and any(self.path.iterdir()))

    def require_free(self, overwrite: bool) -> None:
        """Refuse a directory in use; with `overwrite`, clear it if it holds a run and nothing else's files."""
        if not self.exists():
            return
        if not overwrite:
            raise RunError(
                f"Run directory {self.path} already holds files: use `phasegrad resume {self.path}`, --overwrite, or another --run-dir."
            )
        if not (self.path / CONFIG).exists():
            raise RunError(
                f"{self.path} is not a run directory (it has no {CONFIG}), so --overwrite will not delete it: choose another --run-dir."
            )
        shutil.rmtree(self.path)

    def write_config(self, algorithm: str, config: Config) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_json(CONFIG, {"algorithm": algorithm, **config.to_json(), "versions": versions()})

    def read_config(self) -> dict[str, Any]:
        """config.json as it is; a missing or damaged one is the user's to know."""
        try:
            data = json.loads((self.path / CONFIG).read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} is not a run directory: it has no {CONFIG}.") from None
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise RunError(f"{self.path / CONFIG} is damaged: it is not valid JSON.") from None
        if not isinstance(data, dict):
            raise RunError(f"{self.path / CONFIG} is damaged: it is not a JSON object.")
        return data

    def write_result(self, result: dict[str, Any]) -> None:
        self._write_json(RESULT, result)

    def save(self, agent: Algorithm, extra: dict[str, Any]) -> Path:
        """A checkpoint of the agent's current step; the oldest beyond `keep_checkpoints` go."""
        path = self.checkpoints_path / f"step-{agent.progress.step:012d}"
        write_checkpoint(path, agent, extra)
        for old in self.checkpoints()[: -agent.config.keep_checkpoints]:
            shutil.rmtree(old, ignore_errors=True)
        return path

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.checkpoints_path.glob("step-*"))

    def checkpoint(self, step: int | None = None) -> Path:
        """The latest checkpoint, or the one of a step."""
        found = self.checkpoints()
        if not found:
            raise RunError(f"{self.path} has no checkpoint yet: let it train until the first one is written.")
        if step is None:
            return found[-1]
        by_step = {int(path.name.removeprefix("step-")): path for path in found}
        if step not in by_step:
            raise RunError(f"{self.path} has no checkpoint of step {step}: it has {', '.join(map(str, by_step))}.")
        return by_step[step]

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(plain_json(data), indent=1) + "\n")
        temporary.replace(self.path / name)
