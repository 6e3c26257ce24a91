"""Which runs are seeds of one configuration, and what tells the configurations apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phasegrad.report.collect import RecordedRun, text

# Fields that say how a run was computed, not what was trained: runs that differ in these alone are seeds of one group.
MEANS_ONLY = {
    "seed",
    "device",
    "compile",
    "torch_threads",
    "env_threads",
    "checkpoint_every",
    "keep_checkpoints",
    "eval_episodes",
    "eval_checkpoints",
    "eval_every",
    "stop_at",
    "track",
    "env_timeout",
    "vectorization",
    "preset",
}


@dataclass
class RunGroup:
    """Runs of one configuration that differ in their seed."""

    label: str
    env: str
    variant: str  # the label without the environment: what a profile over environments compares
    runs: list[RecordedRun] = field(default_factory=list)


def differing_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields that all configs have with unlike values, in the config's order."""
    shared = [name for name in configs[0] if name != "versions" and all(name in config for config in configs)]
    return [name for name in shared if len({_key(config[name]) for config in configs}) > 1]


def _key(value: Any) -> str:
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)


def group_runs(runs: Sequence[RecordedRun]) -> list[RunGroup]:
    """Runs whose configs agree in all that matters, together; named by what tells the groups apart."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        trained = {k: _key(v) for k, v in sorted(run.config.items()) if k not in MEANS_ONLY | {"versions"}}
        groups.setdefault(repr(trained), []).append(run)
    found = []
    for members in groups.values():
        first = members[0]
        siblings = [other[0] for other in groups.values() if other[0].algorithm == first.algorithm]
        in_env = [other for other in siblings if other.env == first.env]
        # a field that only follows from the environment (its preset's sizes, say) is no variant of the algorithm
        fields = [
            name
            for name in differing_fields([run.config for run in in_env])
            if name not in MEANS_ONLY | {"env", "algorithm"}
        ]
        variant = first.algorithm.upper()
        shown = [f"{name}={_short(first.config[name])}" for name in fields[:4]]
        if len(fields) > 4:
            shown.append(f"and {len(fields) - 4} more")
        if shown:
            variant += " " + ", ".join(shown)
        found.append(RunGroup(f"{variant} on {first.env}", first.env, variant, list(members)))
    make_distinct(found)
    return sorted(found, key=lambda group: (group.env, _natural(group.variant)))


def make_distinct(groups: Sequence[RunGroup]) -> None:
    """Labels that occur once each: the later ones of a label are counted."""
    taken: set[str] = set()
    for group in groups:
        name, count = group.label, 2
        while group.label in taken:
            group.label, count = f"{name} ({count})", count + 1
        taken.add(group.label)


def _natural(label: str) -> list[tuple[int, float, str]]:
    """A sort key that puts 2 before 10 and 1e-4 before 1e-3."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", label)
    return [(1, float(part[:300]), "") if index % 2 else (0, 0.0, part) for index, part in enumerate(parts)]


def _short(value: Any) -> str:
    return text(f"{value:g}" if isinstance(value, float) else value)[:40]
