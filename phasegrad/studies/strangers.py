"""What a study file may ask for by itself, and what only who runs it can allow, with --allow-import.

The file may be a stranger's. Without leave it imports no module, passes no option to an environment that may name a file or
code, reads no preset from beyond its own folder and sends nothing to a tracker.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from phasegrad import envs
from phasegrad.config import short
from phasegrad.errors import ConfigError
from phasegrad.machine.data_files import read_text
from phasegrad.machine.paths import as_path
from phasegrad.presets import PRESETS, parse_preset
from phasegrad.runs.tracking import trackers_in
from phasegrad.studies.definition import Environment, Study, Variant

TRUST = "add --allow-import if you trust the file"
Fields = Mapping[str, Any]


def as_allowed(study: Study, folder: Path | None, allow_import: bool) -> Study:
    """The study with its preset files found; refused is what it may not ask for."""

    def settled(fields: Fields) -> Fields:
        if not allow_import:
            _require_no_tracker(fields)
        return _with_preset(fields, folder, allow_import)

    environments = tuple(dataclasses.replace(each, fields=settled(each.fields)) for each in study.environments)
    variants = tuple(dataclasses.replace(each, fields=settled(each.fields)) for each in study.variants)
    study = dataclasses.replace(study, fields=settled(study.fields), environments=environments, variants=variants)
    if not allow_import:
        _require_no_module(study)
        _require_harmless_options(study)
    return study


def _require_no_tracker(fields: Fields) -> None:
    if trackers_in(str(fields.get("track", "none"))):
        raise ConfigError(f"track {short(fields['track'])} would send what you train to another program: {TRUST}.")


def _require_no_module(study: Study) -> None:
    for environment in study.environments:
        if ":" in environment.env:
            module = environment.env.split(":")[0]
            raise ConfigError(f"environment {environment.env} would import the module {module!r}: {TRUST}.")


def _require_harmless_options(study: Study) -> None:
    seen: list[tuple[str, str, dict[str, Any]]] = []
    for environment in study.environments:
        for variant in study.variants:
            options, backend = _options(study, environment, variant)
            if not options or (environment.env, backend, options) in seen:
                continue
            seen.append((environment.env, backend, options))
            for name in envs.beyond_files(environment.env, options, backend):
                raise ConfigError(
                    f"env_options.{name} = {short(options[name])} for {environment.env} may be a path or code: {TRUST}."
                )


def _options(study: Study, environment: Environment, variant: Variant) -> tuple[dict[str, Any], str]:
    layers = (study.fields, environment.fields, variant.fields)
    options = {name: value for layer in layers for name, value in layer.get("env_options", {}).items()}
    named = [str(layer["backend"]) for layer in layers if "backend" in layer]
    return options, next((name for name in reversed(named) if name in ("envpool", "gymnasium")), "auto")


def _with_preset(fields: Fields, folder: Path | None, allow_import: bool) -> Fields:
    """With the path of a preset file as every run's process finds it, and its options among those that are looked at."""
    name = fields.get("preset")
    if not isinstance(name, str) or name in (*PRESETS, "auto", "none") or not name.endswith(".json"):
        return fields  # what is no preset at all is told when the runs are put together
    if allow_import:
        path = (folder or Path()) / as_path(name)
        preset = parse_preset(read_text("preset file", path), f"preset file {path}")
    else:
        parts = PurePosixPath(name).parts
        if folder is None or not parts or not _is_below(name):
            raise ConfigError(
                f"preset {short(name)} must be a preset's name or a file beside the study's or below it: move it there, or "
                f"{TRUST}."
            )
        path = folder.joinpath(*parts)
        preset = parse_preset(read_text("preset file", folder, parts), f"preset file {path}")
    options = {**preset.get("env_options", {}), **fields.get("env_options", {})}
    return {**fields, "preset": str(path.absolute()), **({"env_options": options} if options else {})}


def _is_below(name: str) -> bool:
    """Whether a path leads down from where it starts, on any system."""
    parts = PurePosixPath(name).parts
    odd = ("\\" in name, ":" in name, "\0" in name, name.startswith(("~", "/")), os.path.isabs(name))
    return not any(odd) and ".." not in parts
