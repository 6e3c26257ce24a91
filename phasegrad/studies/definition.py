"""What a study is: a small TOML file read into variants, environments, seeds and the way a run is scored.

A file is data. Nothing it says is imported or executed, and every key that is not known is refused with the nearest one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from phasegrad.algorithms import ALGORITHMS
from phasegrad.config import documented_fields
from phasegrad.errors import ConfigError, nearest
from phasegrad.machine.data_files import parse_toml, read_text
from phasegrad.machine.paths import as_path
from phasegrad.studies.checking import (
    checked_seeds,
    distinct_folders,
    finite_number,
    folder_name,
    known_only,
    one_line,
    typed,
    whole,
)

SCORES = {
    "last100": ("return",),  # mean return of the last 100 training episodes
    "eval": ("return",),  # deterministic evaluation after training
    "levels": ("train", "test"),  # Procgen: sampled actions on the training levels and on all levels
}
SCORE_NAMES = {
    "last100": "mean of the last 100 training episodes",
    "eval": "mean return of the evaluation after training, greedy actions, {episodes} episodes",
    "levels": "mean return of {episodes} episodes after training, sampled actions, on training levels and on all levels",
}
NORMALISATIONS = ("constants", "random-best", "none")
STUDY_KEYS = (
    "title", "about", "algorithm", "steps", "seeds", "score", "score_note", "eval_episodes", "normalise", "fields",
    "environments", "variants", "published_from",
)  # fmt: skip
ENVIRONMENT_KEYS = ("env", "name", "low", "high", "random", "aim", "steps")
VARIANT_KEYS = ("algorithm", "published")
SET_BY_THE_STUDY = {
    "env": "environments", "seed": "seeds", "total_steps": "steps", "eval_episodes": "eval_episodes",
    "torch_threads": None, "env_threads": None,
}  # fmt: skip
OPTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")
MOST_RUNS = 10_000
LONGEST_SENTENCE = 600


@dataclass(frozen=True)
class Environment:
    """One environment of a study, with the constants that put its scores on a common scale."""

    env: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    low: float | None = None  # the score that counts as 0
    high: float | None = None  # the score that counts as 1
    random: float | None = None  # what uniformly random actions score
    aim: float | None = None  # what every seed should reach
    steps: int | None = None


@dataclass(frozen=True)
class Variant:
    """One way to train, with the figure published for it where there is one."""

    name: str
    algorithm: str
    fields: Mapping[str, Any]
    published: Mapping[str, float]  # by measure


@dataclass(frozen=True)
class Study:
    """Variants x environments x seeds, and how a run is scored."""

    name: str
    title: str
    about: str
    environments: tuple[Environment, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    steps: int
    score: str
    eval_episodes: int
    normalise: str
    fields: Mapping[str, Any]
    published_from: str = ""
    score_note: str = ""  # why it is scored that way, such as "the paper's measure"

    @property
    def measures(self) -> tuple[str, ...]:
        return SCORES[self.score]

    @property
    def score_name(self) -> str:
        """The measure in words, as every table and page of the study has it."""
        name = SCORE_NAMES[self.score].format(episodes=self.eval_episodes)
        return f"{name} ({self.score_note})" if self.score_note else name

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def builtin_names() -> list[str]:
    folder = resources.files("phasegrad.studies") / "builtin"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_study(name: str, *, allow_import: bool = False) -> Study:
    """A built-in study by its name, or the one in a TOML file."""
    if name in builtin_names():
        text = (resources.files("phasegrad.studies") / "builtin" / f"{name}.toml").read_text()
        return parse_study(text, name, allow_import=True)
    path = as_path(name)
    if not name.endswith(".toml") and not path.is_file():
        close = nearest(name, builtin_names())
        raise ConfigError(f"Unknown study {name!r}.{close} `phasegrad study` lists all; a file of yours ends in .toml.")
    name, text, where = folder_name(path.stem) or "study", read_text("Study file", path), f"Study file {path}"
    return parse_study(text, name, allow_import=allow_import, where=where, folder=path.parent)


def parse_study(
    text: str, name: str, *, allow_import: bool = False, where: str = "The study", folder: Path | None = None
) -> Study:
    """The study that a TOML text describes; `allow_import` lets it name environments of other modules, and paths.

    Preset files that it names lie in `folder`.
    """
    from phasegrad.studies.strangers import as_allowed

    data = parse_toml(where, text)
    try:
        return as_allowed(_study(data, name), folder, allow_import)
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error)[:LONGEST_SENTENCE]}") from None


def _study(data: Mapping[str, Any], name: str) -> Study:
    known_only(data, STUDY_KEYS, "the study")
    score = typed(data, "score", str, "eval")
    if score not in SCORES:
        raise ConfigError(f"score must be one of {', '.join(SCORES)}, not {score!r}.{nearest(score, SCORES)}")
    normalise = typed(data, "normalise", str, "constants")
    if normalise not in NORMALISATIONS:
        listed = ", ".join(NORMALISATIONS)
        raise ConfigError(f"normalise must be one of {listed}, not {normalise!r}.{nearest(normalise, NORMALISATIONS)}")
    algorithm = algorithm_of(data, "ppo")
    tables = typed(data, "variants", dict, {})
    variants = tuple(_variant(key, table, algorithm, SCORES[score]) for key, table in tables.items())
    if not variants:
        variants = (Variant(algorithm, algorithm, {}, {}),)
    listed = typed(data, "environments", list, None)
    if not listed:
        raise ConfigError('environments is missing: give a list of environment ids, such as ["CartPole-v1"].')
    known = set().union(*(documented_fields(ALGORITHMS[variant.algorithm].config_class) for variant in variants))
    environments = tuple(_environment(entry, known) for entry in listed)
    for what, names in (("environments", environments), ("variants", variants)):
        distinct_folders(what, [entry.name for entry in names])
    if len(environments) * len(variants) > MOST_RUNS:
        raise ConfigError(
            f"{len(environments):,} environments with {len(variants):,} variants are more than {MOST_RUNS:,} runs."
        )
    common = typed(data, "fields", dict, {})
    check_fields(common, known, "fields")
    return Study(
        name=name,
        title=one_line(typed(data, "title", str, name)),
        about=one_line(typed(data, "about", str, "")),
        environments=environments,
        variants=variants,
        seeds=checked_seeds(typed(data, "seeds", list, [1, 2, 3])),
        steps=whole("steps", data.get("steps", 1_000_000), 1),
        score=score,
        eval_episodes=whole("eval_episodes", data.get("eval_episodes", 20), 1),
        normalise=normalise,
        fields=common,
        published_from=one_line(typed(data, "published_from", str, "")),
        score_note=one_line(typed(data, "score_note", str, "")),
    )


def _environment(entry: Any, known: Iterable[str]) -> Environment:
    if isinstance(entry, str):
        entry = {"env": entry}
    if not isinstance(entry, dict):
        raise ConfigError(f"environments must hold ids or tables with an env, not {entry!r}.")
    env = typed(entry, "env", str, None)
    if not env:
        raise ConfigError("an entry of environments has no env: give the environment's id.")
    where = f"environment {env}"
    fields = {key: value for key, value in entry.items() if key not in ENVIRONMENT_KEYS}
    check_fields(fields, known, where, ENVIRONMENT_KEYS)
    constants = {key: finite_number(f"{key} of {where}", entry.get(key)) for key in ("low", "high", "random", "aim")}
    low, high = constants["low"], constants["high"]
    if (low is None) != (high is None) or (low is not None and high is not None and low >= high):
        raise ConfigError(f"low and high of {where} go together, low below high: the scores that count as 0 and 1.")
    steps = None if entry.get("steps") is None else whole(f"steps of {where}", entry["steps"], 1)
    return Environment(env, typed(entry, "name", str, env), fields, steps=steps, **constants)


def _variant(name: str, table: Any, algorithm: str, measures: tuple[str, ...]) -> Variant:
    where = f"variant {name}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table of settings, such as [variants.{name}].")
    algorithm = algorithm_of(table, algorithm)
    fields = {key: value for key, value in table.items() if key not in VARIANT_KEYS}
    check_fields(fields, documented_fields(ALGORITHMS[algorithm].config_class), where, VARIANT_KEYS)
    published = table.get("published", {})
    if not isinstance(published, dict):
        published = {measures[0]: published}
    known_only(published, measures, f"published of {where}")
    figures = {key: finite_number(f"published of {where}", value) for key, value in published.items()}
    return Variant(name, algorithm, fields, {key: value for key, value in figures.items() if value is not None})


def check_fields(fields: Mapping[str, Any], known: Iterable[str], where: str, keys: Iterable[str] = ()) -> None:
    """Refuse settings that do not exist or that the study sets itself."""
    for name in fields:
        if name in SET_BY_THE_STUDY:
            instead = SET_BY_THE_STUDY[name]
            raise ConfigError(
                f"{name} cannot be set in {where}: " + (f"use {instead}." if instead else "each run has one thread.")
            )
        if name not in known:
            raise ConfigError(f"unknown setting {name!r} in {where}.{nearest(name, [*known, *keys])}")
    options = fields.get("env_options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"env_options in {where} must be a table.")
    for name, value in options.items():
        if not OPTION_NAME.fullmatch(name):
            raise ConfigError(f"env_options in {where} has {name[:80]!r}, which is no name of an option.")
        if not all(
            isinstance(item, (str, int, float, bool)) for item in (value if isinstance(value, list) else [value])
        ):
            raise ConfigError(f"env_options.{name} in {where} must be a number, true, false, text or a list of those.")


def algorithm_of(data: Mapping[str, Any], default: str) -> str:
    name: str = typed(data, "algorithm", str, default)
    if name not in ALGORITHMS:
        raise ConfigError(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {name!r}.{nearest(name, ALGORITHMS)}")
    return name
