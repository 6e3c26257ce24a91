"""The runs of a study: each with its resolved config, its folder, and the commands that train and evaluate it."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasegrad import envs
from phasegrad.algorithms import ALGORITHMS
from phasegrad.config import Config, documented_fields, first_difference
from phasegrad.errors import ConfigError, PhasegradError, RunError, nearest
from phasegrad.outside import require_importable
from phasegrad.presets import resolve_config
from phasegrad.runs.contents import LEVELS
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.files import read_json_object
from phasegrad.runs.reading import CONFIG, RESULT
from phasegrad.runs.tracking import trackers_in
from phasegrad.studies.checking import folder_name
from phasegrad.studies.definition import MOST_RUNS, SET_BY_THE_STUDY, Environment, Study, Variant
from phasegrad.studies.standing import RunPlace, Standing, recorded_evaluations

EVALUATION_FIELDS = ("eval_episodes", "eval_every", "eval_checkpoints")


@dataclass(frozen=True)
class PlannedRun:
    """One cell of the grid for one seed."""

    environment: Environment
    variant: Variant
    seed: int
    fields: Mapping[str, Any]  # what the study sets
    config: Config  # what that comes to
    folder: Path
    log: Path
    levels_episodes: int  # episodes on each kind of levels after training, 0 for none
    eval_episodes: int = 0  # episodes of the greedy evaluation that is the score, 0 where another measure is

    @property
    def label(self) -> str:
        return f"{self.environment.name} {self.variant.name} seed {self.seed}"

    def standing(self) -> Standing:
        """The run as displays see it."""
        measure = "levels" if self.levels_episodes else "eval" if self.eval_episodes else "last100"
        names = self.environment.name, self.variant.name, self.seed
        return Standing(RunPlace(*names, self.folder, self.log, self.config.total_steps), measure)

    def train_command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "phasegrad", "train", self.variant.algorithm, "--quiet"]
        for name, value in self.fields.items():
            if name == "env_options":
                command += [f"--env.{option}={json.dumps(setting)}" for option, setting in value.items()]
            else:
                command.append(f"--{name.replace('_', '-')}={as_text(value)}")
        return [*command, f"--run-dir={self.folder}"]

    def resume_command(self) -> list[str]:
        return [
            sys.executable,
            "-P",
            "-m",
            "phasegrad",
            "resume",
            str(self.folder),
            "--quiet",
            *self._imports(),
            *self._tracking(),
        ]

    def eval_command(self, levels: str) -> list[str]:
        command = [
            sys.executable,
            "-P",
            "-m",
            "phasegrad",
            "eval",
            str(self.folder),
            f"--episodes={self.levels_episodes or self.eval_episodes}",
        ]
        return [*command, "--levels", levels, "--json", *self._imports()]

    def _imports(self) -> list[str]:
        """Leave for a module to import, or an option that may be a path: the user gave it when the study was read."""
        env, config = self.environment.env, self.config
        asks = ":" in env or envs.beyond_files(env, config.env_options, config.backend)
        return ["--allow-import"] if asks else []

    def _tracking(self) -> list[str]:
        """The user's word, given with the study, that its runs may send: this may be another machine than one was begun on."""
        track = self.config.track
        return [f"--set=track={track}"] if trackers_in(track) else []

    def state(self) -> str:
        """new, unfinished, unscored or finished; a directory that holds another run is refused."""
        directory = RunDirectory(self.folder)
        if not directory.exists():
            return "new"
        if not (self.folder / CONFIG).exists():
            if any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
                raise RunError(f"{self.folder} is not a run directory (it has no {CONFIG}): move it away.")
            return "new"  # killed while it wrote its config
        self._require_same(directory.read_config())
        if not self.has_ended(self.result()):
            return "unfinished"
        scored = (not self.levels_episodes or self.levels()) and (not self.eval_episodes or self.evaluation())
        return "finished" if scored else "unscored"

    def has_ended(self, result: Mapping[str, Any]) -> bool:
        """Whether its training is over: at its last step, or where it reached the score it was to stop at."""
        if result.get("status") == "stopped":
            return result.get("reached") is not None and getattr(self.config, "stop_at", None) is not None
        return result.get("status") == "finished" and result.get("step") == self.config.total_steps

    def _require_same(self, found: Mapping[str, Any]) -> None:
        """Runs of different settings must never be counted as one."""
        differs = self.difference(found)
        if differs:
            name, there, value = differs
            raise RunError(
                f"{self.folder} holds a run with {name} {there!r}, and this study wants {value!r}: "
                "choose another --dir or move that run away."
            )

    def settings(self) -> dict[str, Any]:
        """Everything that decides how the run trains; evaluations leave no trace in that, and `state` asks for the one
        that the score needs.
        """
        fields = {"algorithm": self.variant.algorithm, **self.config.to_json()}
        return {name: value for name, value in fields.items() if name not in EVALUATION_FIELDS}

    def difference(self, found: Mapping[str, Any], ignored: Sequence[str] = ()) -> tuple[str, Any, Any] | None:
        """The first setting in which a run's recorded settings differ from those of this one: name, there, here."""
        defaults = {field.name: field.default for field in dataclasses.fields(self.config)}
        wanted = {name: value for name, value in self.settings().items() if name not in ignored}
        return first_difference(wanted, found, defaults)

    def result(self) -> dict[str, Any]:
        return read_json_object(self.folder / RESULT)

    def evaluation(self) -> dict[str, Any]:
        """The evaluation that is the run's score, if it is of as many episodes as wanted."""
        result = self.result()
        found = [result.get("eval"), *reversed(recorded_evaluations(self.folder, result.get("step")))]
        fitting = (entry for entry in found if isinstance(entry, dict) and entry.get("episodes") == self.eval_episodes)
        return next(fitting, {})

    def levels(self) -> dict[str, Any]:
        """Scores on training and test levels, if they are of as many episodes as wanted."""
        found = read_json_object(self.folder / LEVELS)
        parts = [found.get("train"), found.get("test")]
        fits = all(isinstance(part, dict) and part.get("episodes") == self.levels_episodes for part in parts)
        return found if fits else {}


def build_grid(study: Study, root: Path, overrides: Mapping[str, Any]) -> list[PlannedRun]:
    """Every run of the study, seeds innermost; bad settings are refused before anything starts."""
    count = len(study.environments) * len(study.variants) * len(study.seeds)
    if count > MOST_RUNS:
        raise ConfigError(f"The study has {count:,} runs; {MOST_RUNS:,} is the most.")
    check_overrides(study, overrides)
    runs, existing = [], set[str]()
    for environment in study.environments:
        for variant in study.variants:
            cell = _cell(study, environment, variant, overrides, existing)
            runs += [_run(study, environment, variant, seed, *cell, root) for seed in study.seeds]
    return runs


def _cell(
    study: Study, environment: Environment, variant: Variant, overrides: Mapping[str, Any], existing: set[str]
) -> tuple[dict[str, Any], Config]:
    """The settings of a variant on an environment, and the config they come to; `existing`: what was looked up."""
    config_class = ALGORITHMS[variant.algorithm].config_class
    require_importable(variant.algorithm, ALGORITHMS[variant.algorithm])
    known = documented_fields(config_class)
    layers = [study.fields, environment.fields, variant.fields, overrides]
    fields = {name: value for layer in layers for name, value in layer.items() if name in known}
    fields["env_options"] = {name: value for layer in layers for name, value in layer.get("env_options", {}).items()}
    fields |= {"env": environment.env, "torch_threads": 1, "env_threads": 1}
    if study.score == "eval":
        fields["eval_episodes"] = study.eval_episodes
    steps = environment.steps or study.steps
    try:
        config = resolve_config(config_class, {**fields, "total_steps": steps})
        looked_up = json.dumps([environment.env, config.env_options, config.backend])
        if looked_up not in existing:
            envs.resolve(environment.env, dict(config.env_options), backend=config.backend)
            existing.add(looked_up)
    except PhasegradError as error:
        raise ConfigError(f"Variant {variant.name} on {environment.name}: {error}") from None
    if study.score == "levels" and not environment.env.lower().startswith("procgen/"):
        raise ConfigError(f"score levels needs Procgen environments such as procgen/coinrun, not {environment.env}.")
    total = math.ceil(steps / config.num_envs) * config.num_envs  # a run ends after whole steps of all environments
    return {**fields, "total_steps": total}, dataclasses.replace(config, total_steps=total)


def _run(
    study: Study,
    environment: Environment,
    variant: Variant,
    seed: int,
    fields: dict[str, Any],
    config: Config,
    root: Path,
) -> PlannedRun:
    below = Path(folder_name(environment.name), folder_name(variant.name))
    return PlannedRun(
        environment,
        variant,
        seed,
        {**fields, "seed": seed},
        dataclasses.replace(config, seed=seed),
        root / "runs" / below / f"s{seed}",
        root / "logs" / below / f"s{seed}.log",
        study.eval_episodes if study.score == "levels" else 0,
        study.eval_episodes if study.score == "eval" else 0,
    )


def check_overrides(study: Study, overrides: Mapping[str, Any]) -> None:
    """What --set may set: a field that some algorithm of the study has and that no variant is about."""
    known = set().union(*(documented_fields(ALGORITHMS[v.algorithm].config_class) for v in study.variants))
    for name in overrides:
        if name in SET_BY_THE_STUDY:
            raise ConfigError(f"--set {name}: the study sets it; --envs, --seeds and --total-steps change the grid.")
        if name not in known:
            raise ConfigError(f"--set {name}: no algorithm of the study has that setting.{nearest(name, known)}")
        for variant in study.variants:
            clash = [name] if name != "env_options" else set(overrides[name]) & set(variant.fields.get(name, {}))
            if name in variant.fields and clash:
                what = name if name != "env_options" else f"env.{min(clash)}"
                raise ConfigError(f"--set {what}: variant {variant.name} sets it; leave it out with --variants.")


def as_text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(as_text(item) for item in value)
    return "none" if value is None else str(value)
