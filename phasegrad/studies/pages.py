"""What a page or a display of a study needs to know of it, as small files in its folder: study.json and page.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phasegrad.studies.definition import Study
from phasegrad.studies.grid import PlannedRun
from phasegrad.studies.scores import Scored, scales_of
from phasegrad.studies.table import SCALE_NAMES

PAGE = "page.json"
SCORED_FROM = {"last100": "training", "eval": "evaluation", "levels": "levels"}


def definition_data(study: Study, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """study.json: the study as resolved; constants that the package knows stand with those that the study gives."""
    data = study.to_json() | {"score_name": study.score_name}
    if study.normalise == "constants":
        scales = common_scales(study, runs, [], None)
        for entry in data["environments"]:
            if entry["low"] is None and entry["name"] in scales:
                entry |= scales[entry["name"]]
    return data


def page_data(study: Study, runs: Sequence[PlannedRun], scored: Sequence[Scored], root: Path) -> dict[str, Any]:
    """page.json: title, measure, the scale and aim of each environment, the variants, and which run is which."""
    return {
        "study": study.name,
        "title": study.title,
        "about": study.about,
        "score": {
            "kind": study.score,
            "name": study.score_name,
            "from": SCORED_FROM[study.score],
            "episodes": None if study.score == "last100" else study.eval_episodes,
            "measures": list(study.measures),
        },
        "scale": {
            "kind": study.normalise,
            "name": SCALE_NAMES[study.normalise],
            "environments": common_scales(study, runs, scored, root),
        },
        "aims": {entry.name: entry.aim for entry in study.environments if entry.aim is not None},
        "variants": {
            variant.name: {
                "label": variant.name,
                "algorithm": variant.algorithm,
                "published": dict(variant.published),
            }
            for variant in study.variants
        },
        "runs": [
            {
                "folder": run.folder.relative_to(root).as_posix(),
                "environment": run.environment.name,
                "variant": run.variant.name,
                "seed": run.seed,
            }
            for run in runs
        ],
    }


def common_scales(
    study: Study, runs: Sequence[PlannedRun], scored: Sequence[Scored], root: Path | None
) -> dict[str, dict[str, float]]:
    """low and high of each environment whose runs all have the same ones, by the environment's name."""
    found = {(entry.run.folder, entry.measure): entry.score for entry in scored}
    by_name: dict[str, set[tuple[float, float]]] = {}
    for (name, _), scale in scales_of(study, runs, found, root).items():
        by_name.setdefault(name, set()).add(scale)
    unique = {name: next(iter(scales)) for name, scales in by_name.items() if len(scales) == 1}
    return {name: {"low": low, "high": high} for name, (low, high) in unique.items()}
