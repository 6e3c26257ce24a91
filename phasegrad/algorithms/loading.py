"""Agents from disk: a saved agent, a checkpoint, or a run directory's latest checkpoint that is sound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.leash import PREFIX as LEASH
from phasegrad.config import Config, make_config
from phasegrad.envs.spaces import flatten
from phasegrad.errors import ConfigError, DamagedError, PhasegradError, PhasegradWarning, RunError
from phasegrad.machine.paths import as_path
from phasegrad.models import build_model
from phasegrad.runs.carried import carried_by, carried_limit
from phasegrad.runs.checkpoint import read_state, require_fit, restore, saved_spaces
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.files import checked_header, require_checksum
from phasegrad.runs.reading import CONFIG
from phasegrad.runs.replacing import STATE, TENSORS, current
from phasegrad.versions import versions


def load(
    path: str | Path,
    env: Any = None,
    *,
    encoder: Any = None,
    checkpoint: int | str | None = None,
    device: str | None = None,
    allow_import: bool = False,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
) -> Algorithm:
    """The agent saved at `path`: a folder of `agent.save`, a checkpoint, or a run directory.

    `env` and `encoder` are needed again where they were given in Python; `checkpoint` picks a step of a run directory,
    or "best" by evaluation. An environment id of the form module:Id-v0 is imported only where `env` repeats it or
    `allow_import` is set, since the file may be a stranger's.

    An agent from a run directory trains on there, if it is that of the last checkpoint. `run_dir` has it train on in
    another directory; `overwrite` lets it replace the run in that one, or what its own run holds of later steps.
    """
    path = as_path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist.")
    if (path / STATE).exists() or not (path / CONFIG).exists():
        agent = _from_checkpoint(path, env, encoder, device)
    else:
        agent = _from_run(RunDirectory(path), env, encoder, device, checkpoint)
        agent.run.run_dir, agent.run.takes_over = path, True
    if run_dir is not None and as_path(run_dir).resolve() != path.resolve():
        agent.run.run_dir, agent.run.takes_over, agent.run.metrics_bytes = as_path(run_dir), False, 0
    agent.run.overwrite = overwrite
    agent.agent.may_import = allow_import or env is not None
    return agent


def restart(path: str | Path, *, allow_import: bool = False) -> Algorithm:
    """A new agent by the config of a run that was killed before its first checkpoint."""
    directory = RunDirectory(path)
    fields = directory.read_config()
    name = fields.pop("algorithm", None)
    fields.pop("versions", None)
    require_known(name, directory.path / CONFIG)
    config = _config(directory.path / CONFIG, ALGORITHMS[name].config_class, fields)
    if ":" in config.env and not allow_import:
        raise RunError(
            f"{directory.path / CONFIG} asks to import {config.env.split(':')[0]!r} for its environment {config.env}: "
            "where you trust it, allow that with --allow-import."
        )
    agent = ALGORITHMS[name](run_dir=path, **{**config.to_json(), "preset": "none"})  # every field is resolved already
    agent.config.settle(preset=config.preset)
    agent.run.takes_over = True
    return agent


def _from_run(run: RunDirectory, env: Any, encoder: Any, device: str | None, step: int | str | None) -> Algorithm:
    """The agent of a step's checkpoint, or of the latest that is sound, with the run's total."""
    configured = run.read_config()
    if step is not None:
        agent = _from_checkpoint(run.checkpoint(step), env, encoder, device)
    else:
        agent = _latest_sound(run, env, encoder, device)
    _require_same_config(run, configured, agent, ignored={"device"} if device is not None else set())
    total = configured.get("total_steps")
    if isinstance(total, int) and total > agent.config.total_steps:
        agent.config.settle(total_steps=total)  # it was raised after the checkpoint was written
    return agent


def _latest_sound(run: RunDirectory, env: Any, encoder: Any, device: str | None) -> Algorithm:
    run.checkpoint()  # says so where there is none
    found = run.checkpoints()
    for to_train in (True, False):  # at last one that can still be used, if not trained further
        for folder in reversed(found):
            try:
                agent = _from_checkpoint(folder, env, encoder, device, to_train)
                agent.run.passed_over = [later.name for later in found[found.index(folder) + 1 :]]
                return agent
            except DamagedError as error:
                if not to_train and folder == found[0]:
                    raise
                if folder != found[0]:
                    warnings.warn(f"{error} The checkpoint before it is used.", PhasegradWarning, stacklevel=4)
    raise AssertionError("unreachable: the loop returns or raises")


def _require_same_config(run: RunDirectory, configured: dict[str, Any], agent: Algorithm, ignored: set[str]) -> None:
    """Refuse a config.json that was changed after the run began: a run is a function of one config."""
    mine = {"algorithm": agent.name, **agent.run.as_begun(agent.config.to_json())}
    for name in sorted((mine.keys() & configured.keys()) - {"total_steps", "encoder"} - ignored):
        if mine[name] != configured[name]:
            raise RunError(
                f"{run.path / CONFIG} has {name} {str(configured[name])[:40]}, but the run was started with "
                f"{str(mine[name])[:40]}: put it back, or start another run with the new value."
            )


def _from_checkpoint(folder: Path, env: Any, encoder: Any, device: str | None, to_train: bool = False) -> Algorithm:
    state = read_state(folder)
    try:
        agent = _build(folder, state, env, encoder, device)
        agent.run.carried_from = carried_by(state, folder)
        agent.run.stands_on = (agent.progress.step, str(state.get("sha256")))
        if to_train and agent.run.carried_from is not None:
            agent.run.carried_from["store"].require_sound(agent.run.carried_from["files"], carried_limit(agent))
        return agent
    except PhasegradError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError, RuntimeError) as error:
        raise DamagedError(f"{folder / STATE} is damaged: {type(error).__name__} {str(error)[:80]}.") from None


def _build(folder: Path, state: dict[str, Any], env: Any, encoder: Any, device: str | None) -> Algorithm:
    require_known(state.get("algorithm"), folder)
    algorithm = ALGORITHMS[state["algorithm"]]
    fields = dict(state["config"])
    if encoder is not None:
        fields["encoder"] = encoder
    elif str(fields.get("encoder", "")).startswith("custom:"):
        raise RunError(
            f"{folder} uses an encoder given in Python ({str(fields['encoder'])[:80]}): "
            "load it with phasegrad.load(path, encoder=...)."
        )
    if device is not None:
        fields["device"] = device
    config = _config(folder, algorithm.config_class, fields)
    spaces = saved_spaces(state)
    file = current(folder / TENSORS, state.get("sha256"))
    require_checksum(file, state.get("sha256"))
    cloned = any(name.startswith(LEASH) for name in checked_header(file))
    if encoder is None:  # a network of the claimed size, without memory: the file must hold one like it
        with torch.device("meta"):
            flat = flatten(spaces.observation)
            model = build_model(flat, spaces.action, config, algorithm.auxiliary_head, algorithm.model_class)
        require_fit(file, {f"model.{name}": tensor for name, tensor in model.state_dict().items()}, "model.")
    agent = algorithm(env, config=config, spaces=spaces)
    if cloned:
        agent.leash.take()
    restore(agent, folder, state)
    if agent.progress.step:
        agent.config.freeze()
    _compare_versions(folder, state)
    extra = state.get("extra", {})
    agent.run.metrics_bytes, agent.run.seconds_before = (
        int(extra.get("metrics_bytes", 0)),
        float(extra.get("seconds", 0.0)),
    )
    agent.run.seconds_evaluating = float(extra.get("seconds_evaluating", 0.0))
    return agent


def require_known(name: Any, where: Path) -> None:
    """Refuse an algorithm that is not registered."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise RunError(
            f"{where} is of an unknown algorithm {str(name)[:40]!r}: where it is one of your own, import its module and "
            "register it with phasegrad.register first."
        )


def _config(where: Path, config_class: type[Config], fields: dict[str, Any]) -> Config:
    try:
        return make_config(config_class, fields)
    except ConfigError as error:
        raise RunError(f"The config in {where} is not valid: {error}") from None


def _compare_versions(folder: Path, state: dict[str, Any]) -> None:
    """Say where a run goes on with other versions than it was started with: its bits may then differ."""
    saved, now = state.get("versions"), versions()
    if not isinstance(saved, dict):
        raise DamagedError(f"{folder / STATE} is damaged: it has no versions.")
    for name in ("phasegrad", "torch", "envpool", "gymnasium"):
        if name in saved and name in now and saved[name] != now[name]:
            warnings.warn(
                f"{folder} was written with {name} {str(saved[name])[:40]} and is read with {now[name]}: "
                "training can go on, but perhaps not to the same bits.",
                PhasegradWarning,
                stacklevel=6,
            )
