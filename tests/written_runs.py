"""Run directories written by hand, for tests of what reads them: quick to make, and of known content."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BASE = {"algorithm": "ppg", "env": "LunarLander-v3", "total_steps": 4096, "seed": 1, "n_pi": 4, "e_aux": 2}
BASE |= {"learning_rate": 0.001, "versions": {"phasegrad": "0.1.0", "torch": "2.13.0"}}


def rows_of(count: int, seed: int = 1, steps: int = 128, phase: int = 4) -> list[dict[str, Any]]:
    """Iterations like those of PPG: smooth curves that differ by seed, auxiliary metrics at the end of each phase."""
    rows = []
    for i in range(count):
        wave = math.sin(i / 7 + seed)
        row: dict[str, Any] = {"step": (i + 1) * steps, "iteration": i + 1, "seconds": (i + 1) * 0.5 + 0.1 * seed}
        row |= {"return_mean": None if i < 2 else -100.0 + 300.0 * i / count + 10 * wave, "episodes": i * 3}
        row |= {
            "length_mean": 200.0 + wave,
            "kl": 0.01 + 0.005 * wave,
            "entropy": 1.3 - i / count,
            "clip_fraction": 0.1,
        }
        row |= {"policy_loss": -0.01 * wave, "value_loss": 0.5 / (i + 1), "explained_variance": i / count}
        row |= {"value_mean": wave, "value_target_mean": wave + 0.1, "policy_grad_norm": 0.3, "value_grad_norm": 0.2}
        row |= {
            "clip_range": 0.2,
            "learning_rate": 1e-3 * (1 - i / count),
            "sps": 1000.0 * seed,
            "interference_cosine": wave,
        }
        row |= {"time_environment": 0.5, "time_inference": 0.125, "time_update": 0.25}
        if (i + 1) % phase == 0:
            row |= {
                "aux_clone_kl": 1e-4,
                "aux_clone_kl_by_epoch": [5e-5, 1e-4],
                "aux_joint_loss": 0.2,
                "time_auxiliary": 0.1,
            }
            row |= {"aux_value_loss": 0.1, "aux_value_loss_by_epoch": [0.3, 0.1], "aux_joint_loss_by_epoch": [0.4, 0.2]}
            row |= {"explained_variance_before_aux": 0.4, "explained_variance_after_aux": 0.6 + 0.1 * wave}
        rows.append(row)
    return rows


def write_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(BASE | config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder
