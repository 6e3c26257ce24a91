"""What the options of a study change in it: fewer or other environments, variants and seeds, and settings of all runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from phasegrad import envs
from phasegrad.config import option_value
from phasegrad.errors import ConfigError, PhasegradError, nearest
from phasegrad.studies.checking import MOST_SEEDS, checked_seeds, distinct_folders, whole
from phasegrad.studies.definition import Environment, Study


def select(
    study: Study,
    *,
    environments: str | None = None,
    variants: str | None = None,
    seeds: str | None = None,
    steps: str | None = None,
    eval_episodes: str | None = None,
) -> Study:
    """The study made smaller or larger, as the command line asks."""
    changes: dict[str, Any] = {}
    if environments is not None:
        chosen = tuple(_pick_environment(name, study.environments) for name in split(environments, "--envs"))
        distinct_folders("--envs", [entry.name for entry in chosen])
        changes["environments"] = chosen
    if variants is not None:
        by_name = {variant.name: variant for variant in study.variants}
        names = split(variants, "--variants")
        for name in names:
            if name not in by_name:
                raise ConfigError(
                    f"The study has no variant {name!r}.{nearest(name, by_name)} It has {', '.join(by_name)}."
                )
        changes["variants"] = tuple(by_name[name] for name in dict.fromkeys(names))
    if seeds is not None:
        changes["seeds"] = parse_seeds(seeds)
    if steps is not None:
        changes["steps"] = whole("--total-steps", steps, 1)
        kept = changes.get("environments", study.environments)
        changes["environments"] = tuple(dataclasses.replace(entry, steps=None) for entry in kept)
    if eval_episodes is not None:
        if study.score == "last100":
            raise ConfigError("--eval-episodes: this study is scored by its training episodes, not by an evaluation.")
        changes["eval_episodes"] = whole("--eval-episodes", eval_episodes, 1)
    return dataclasses.replace(study, **changes)


def _pick_environment(name: str, known: Sequence[Environment]) -> Environment:
    """An environment of the study by its name or id (procgen/ may be left out), or any other that exists."""
    for environment in known:
        if name in (environment.name, environment.env, environment.env.removeprefix("procgen/")):
            return environment
    try:
        envs.resolve(name)
    except PhasegradError as error:
        close = nearest(name, [environment.env.removeprefix("procgen/") for environment in known])
        raise ConfigError(f"The study has no environment {name!r}.{close or f' {error}'}") from None
    return Environment(name, name)


def parse_seeds(text: str) -> tuple[int, ...]:
    """'5' is five seeds from 1, '1,2,7' these, '4-6' a range, '7,' the seed 7 alone."""
    if "," not in text and "-" not in text:
        count = whole("--seeds", text, 1)
        if count > MOST_SEEDS:
            raise ConfigError(f"--seeds {count:,} is more than the {MOST_SEEDS:,} seeds that a study may have.")
        return tuple(range(1, count + 1))
    seeds: list[int] = []
    for part in split(text, "--seeds"):
        first, dash, last = part.partition("-")
        low = whole("--seeds", first, 0)
        high = whole("--seeds", last, low) if dash else low
        if high - low >= MOST_SEEDS or len(seeds) > MOST_SEEDS:
            raise ConfigError(f"--seeds {part} is more than the {MOST_SEEDS:,} seeds that a study may have.")
        seeds += range(low, high + 1)
    return checked_seeds(seeds)


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """--set FIELD=VALUE, and --set env.NAME=VALUE for an option of the environments."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set takes FIELD=VALUE, not {pair!r}.")
        name = name.strip().replace("-", "_")
        if name.startswith("env."):
            found.setdefault("env_options", {})[name.removeprefix("env.")] = option_value(value)
        else:
            found[name] = value
    return found


def split(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{option} names nothing: give a list such as a,b.")
    return parts
