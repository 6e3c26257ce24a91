"""Agents from disk: a saved agent, a checkpoint, or a run directory's latest checkpoint that is sound."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from phasegrad import envs
from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.leash import PREFIX as LEASH
from phasegrad.compute import circumstances
from phasegrad.compute.devices import pick_device
from phasegrad.config import Config, coerce_fields, documented_fields, make_config, short
from phasegrad.envs.spaces import flatten
from phasegrad.errors import ConfigError, DamagedError, PhasegradError, PhasegradWarning, RunError, nearest
from phasegrad.machine.memory import available_bytes
from phasegrad.machine.paths import as_path
from phasegrad.models import build_model
from phasegrad.runs.carried import carried_by, carried_limit, take_up_carried
from phasegrad.runs.checkpoint import measured, newer_than_this, read_state, require_fit, restore, saved_spaces, whole
from phasegrad.runs.continuing import FREE_FIELDS, changed_settings
from phasegrad.runs.directory import RunDirectory
from phasegrad.runs.files import checked_header, reading, require_checksum
from phasegrad.runs.opening import is_packed, opened
from phasegrad.runs.reading import CONFIG
from phasegrad.runs.replacing import STATE, TENSORS, current
from phasegrad.schedules import CUSTOM, POINTS, FunctionSchedule, LostFunction, Scheduled
from phasegrad.versions import versions

MOST_COPIES = 16  # of a model's parameters in a checkpoint: optimisers' moments, averages, a cloned policy
ROOM_BESIDE = 1 << 26
OLDER = {"images": "uint8"}  # what files mean that were written before there was a setting


@dataclass(frozen=True)
class Given:
    """What files cannot hold, or what is to be otherwise than they say."""

    env: Any
    encoder: Any
    device: str | None
    schedules: Mapping[str, Any]


def load(
    path: str | Path,
    env: Any = None,
    *,
    encoder: Any = None,
    schedules: Mapping[str, Callable[[float], float]] | None = None,
    checkpoint: int | str | None = None,
    device: str | None = None,
    allow_import: bool = False,
    run_dir: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Algorithm:
    """The agent saved at `path`: a folder or .zip of `agent.save`, a checkpoint, a run directory, or hf://USER/NAME.

    `env` and `encoder` are needed again where they were given in Python, and to train on so are the functions that
    settings follow: `schedules` has them by name. Where the agent was trained in an environment known by its id, another
    `env` moves it there, as `agent.set_env` does. `checkpoint` picks a step of a run directory, or "best" by evaluation.
    The file may be a stranger's: an environment id of the form module:Id-v0 is imported, and an option of the environment
    that may name a file is passed on, only where `env` repeats the id or `allow_import` is set; a run that somebody else began
    sends nothing to a tracker unless `allow_import` is set or `track` is given again.

    An agent from a run directory trains on there, if it is that of the last checkpoint. `run_dir` has it train on in
    another directory; `overwrite` lets it replace the run in that one, or what its own run holds of later steps.

    `settings` hold from here on: those that `agent.change` changes, total_steps, and what leaves no trace in what is
    learnt, such as torch_threads or checkpoint_every. Any other is refused, with the reason.
    """
    given = Given(env, encoder, device, dict(schedules or {}))
    packed = is_packed(path)
    if packed:
        _require_no_choice(path, checkpoint)
        agent = _from_packed(path, given)
    path = as_path(path)
    with reading(path):
        is_there = packed or path.exists()
        is_save = os.path.lexists(path / STATE) or not os.path.lexists(path / CONFIG)
    if not is_there:
        raise RunError(f"{path} does not exist.")
    if packed:
        pass
    elif is_save:
        _require_no_choice(path, checkpoint)
        agent = _from_checkpoint(path, given)
    else:
        agent = _from_run(RunDirectory(path), given, checkpoint)
        agent.config.freeze()  # also at step 0: what changes from now on is a change
        agent.run.run_dir, agent.run.takes_over = path, True
    if run_dir is not None and as_path(run_dir).resolve() != path.resolve():
        agent.run.run_dir, agent.run.takes_over, agent.run.metrics_bytes = as_path(run_dir), False, 0
    agent.run.overwrite = overwrite
    agent.agent.may_import = allow_import or env is not None
    agent.run.may_send = allow_import
    if _is_another(env, agent.config.env):
        agent.set_env(env)
    go_on_with(agent, settings)
    return agent


def _require_no_choice(path: Any, checkpoint: int | str | None) -> None:
    """Refuse to pick a step where there is just one: it may not be the one that was asked for."""
    if checkpoint is not None:
        raise RunError(
            f"{path} is one saved agent: leave out checkpoint {checkpoint}, which picks a step of a run directory."
        )


def go_on_with(agent: Algorithm, settings: Mapping[str, Any]) -> None:
    """Give a run that is taken up again other settings, or say why not."""
    config = agent.config
    live, free = changed_settings(type(config), settings, vars(config))
    if free.get("total_steps", agent.progress.step) < agent.progress.step:
        raise ConfigError(
            f"total_steps {free['total_steps']} is below the {agent.progress.step} steps already taken: give a larger one."
        )
    if "device" in free and pick_device(free["device"], agent.ranks) != agent.device:
        raise ConfigError(f"device is chosen when an agent is made: phasegrad.load(path, device={free['device']!r}).")
    config.settle(**free)
    agent.run.may_send |= "track" in free
    agent.change(**live)


def _is_another(env: Any, saved: str) -> bool:
    """Whether an environment is not the one by whose id a file knows its own; what Python gave has no id to compare."""
    return env is not None and not saved.startswith("custom:") and env != saved


def restart(path: str | Path, *, allow_import: bool = False, device: str | None = None) -> Algorithm:
    """A new agent by the config of a run that was killed before its first checkpoint."""
    directory = RunDirectory(path)
    fields = directory.read_config()
    name = fields.pop("algorithm", None)
    fields.pop("versions", None)
    require_known(name, directory.path / CONFIG)
    if device is not None:
        fields["device"] = device
    config = _config(directory.path / CONFIG, ALGORITHMS[name].config_class, fields)
    if ":" in config.env and not allow_import:
        raise RunError(
            f"{directory.path / CONFIG} asks to import {config.env.split(':')[0]!r} for its environment {config.env}: "
            "where you trust it, allow that with --allow-import."
        )
    if not allow_import:
        envs.require_harmless(config.env, config.env_options, config.backend)
    agent = ALGORITHMS[name](run_dir=path, **{**config.to_json(), "preset": "none"})  # every field is resolved already
    agent.config.settle(preset=config.preset)
    agent.run.takes_over, agent.run.may_send = True, allow_import
    agent.config.freeze()  # the run had begun: what changes from now on is a change
    return agent


def _from_packed(path: Any, given: Given) -> Algorithm:
    """The agent of a .zip, or on the Hub. What is otherwise read when training goes on is read now: it will be gone."""
    with opened(path) as folder:
        agent = _from_checkpoint(folder, given)
        take_up_carried(agent)
        agent.config.settle(track="none")  # whom its training told of it is not whom this one's is to tell
        return agent


def _from_run(run: RunDirectory, given: Given, step: int | str | None) -> Algorithm:
    """The agent of a step's checkpoint, or of the latest that is sound, with the run's total."""
    configured = run.read_config()
    if given.device is None and isinstance(configured.get("device"), str):
        given = replace(
            given, device=configured["device"]
        )  # it may have been asked for since the checkpoint was written
    agent = _latest_sound(run, given) if step is None else _from_checkpoint(run.checkpoint(step), given)
    _require_same_config(run, configured, agent)
    config_class = type(agent.config)
    later = {name: configured[name] for name in FREE_FIELDS if name in configured and name != "device"}
    total = configured.get("total_steps")
    if isinstance(total, int) and total >= agent.progress.step:
        later["total_steps"] = total
    try:
        agent.config.settle(**coerce_fields(config_class, later))  # what was given after the checkpoint was written
    except ConfigError as error:
        raise RunError(f"The config in {run.path / CONFIG} is not valid: {error}") from None
    return agent


def _latest_sound(run: RunDirectory, given: Given) -> Algorithm:
    run.checkpoint()  # says so where there is none
    found = run.checkpoints()
    for to_train in (True, False):  # at last one that can still be used, if not trained further
        for folder in reversed(found):
            try:
                agent = _from_checkpoint(folder, given, to_train)
                agent.run.passed_over = [later.name for later in found[found.index(folder) + 1 :]]
                return agent
            except DamagedError as error:
                if not to_train and folder == found[0]:
                    raise
                if folder != found[0]:
                    warnings.warn(f"{error} The checkpoint before it is used.", PhasegradWarning, stacklevel=4)
    raise AssertionError("unreachable: the loop returns or raises")


def _require_same_config(run: RunDirectory, configured: dict[str, Any], agent: Algorithm) -> None:
    """Refuse a config.json that was changed after the run began: a run is a function of one config.

    What may be given anew whenever it goes on does not count.
    """
    scheduled = {name: field.metadata.get("scheduled") for name, field in documented_fields(type(agent.config)).items()}
    mine = {"algorithm": agent.name, **agent.run.as_begun(agent.config.to_json())}
    for name in sorted((mine.keys() & configured.keys()) - {"total_steps", "encoder", *FREE_FIELDS}):
        if scheduled.get(name) and all(str(each[name]).startswith(CUSTOM) for each in (mine, configured)):
            continue  # a function may have another name; its values are compared when it is given
        if mine[name] != configured[name]:
            raise RunError(
                f"{run.path / CONFIG} has {name} {_shown(configured[name])}, but the run was started with "
                f"{_shown(mine[name])}: put it back, or start another run with the new value."
            )


def _shown(value: Any) -> str:
    return " ".join(str(value)[:40].split())


def _from_checkpoint(folder: Path, given: Given, to_train: bool = False) -> Algorithm:
    state = read_state(folder)
    try:
        agent = _build(folder, state, given)
        agent.run.carried_from = carried_by(state, folder)
        agent.run.stands_on = (agent.progress.step, str(state.get("sha256")))
        if to_train and agent.run.carried_from is not None:
            agent.run.carried_from["store"].require_sound(agent.run.carried_from["files"], carried_limit(agent))
        return agent
    except PhasegradError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError, RuntimeError) as error:
        raise DamagedError(f"{folder / STATE} is damaged: {type(error).__name__} {str(error)[:80]}.") from None


def _build(folder: Path, state: dict[str, Any], given: Given) -> Algorithm:
    require_known(state.get("algorithm"), folder)
    algorithm = ALGORITHMS[state["algorithm"]]
    fields = dict(state["config"])
    if given.encoder is not None:
        fields["encoder"] = given.encoder
    elif str(fields.get("encoder", "")).startswith("custom:"):
        raise RunError(
            f"{folder} uses an encoder given in Python ({str(fields['encoder'])[:80]}): "
            "load it with phasegrad.load(path, encoder=...)."
        )
    if given.device is not None:
        fields["device"] = given.device
    fields |= functions_for(folder, fields, state.get("changes", []), given.schedules)
    config = _config(folder, algorithm.config_class, fields, newer_than_this(state))
    require_same_functions(folder, config, state.get("schedules", {}))
    spaces = saved_spaces(state)
    file = current(folder / TENSORS, state.get("sha256"))
    header, most = checked_header(file), available_bytes() or 1 << 63
    claimed: dict[str, torch.Tensor] = {}
    if given.encoder is None:  # a network of the claimed size, without memory: the file must hold one like it
        with torch.device("meta"):
            flat = flatten(spaces.observation)
            model = build_model(flat, spaces.action, config, algorithm.auxiliary_head, algorithm.model_class)
        claimed = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        most = MOST_COPIES * sum(tensor.nbytes for tensor in claimed.values()) + ROOM_BESIDE
    require_checksum(file, state.get("sha256"), most)
    cloned = any(name.startswith(LEASH) for name in header)
    if claimed:
        require_fit(file, header, claimed, "model.")
    agent = algorithm(given.env, config=config, spaces=spaces)
    if cloned:
        agent.leash.take()
    restore(agent, folder, state)
    if agent.progress.step:
        agent.config.freeze()
    if not state.get("agent_only"):  # of which nobody expects the same bits
        _compare_versions(folder, state)
    extra, file = state.get("extra", {}), folder / STATE
    agent.run.metrics_bytes = whole(extra, "metrics_bytes", file, 0)
    agent.run.seconds_before = measured(extra, "seconds", file)
    agent.run.seconds_evaluating = measured(extra, "seconds_evaluating", file)
    agent.run.computed = circumstances.from_json(state.get("computed"))
    agent.agent.kept_threads = circumstances.threads_to_keep(agent.run.computed)
    return agent


def functions_for(
    folder: Path, fields: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The functions that are `given` again, for settings which follow one; a setting that once did needs it no more."""
    found = {}
    for name, function in given.items():
        if name not in fields:
            raise RunError(f"schedules names {name!r}, which is no setting of {folder}.{nearest(name, fields)}")
        if not callable(function):
            raise RunError(f"schedules must have a function for {name}, not {short(function)}.")
        if str(fields[name]).startswith(CUSTOM):
            found[name] = function
        elif not any(str(change["before"].get(name)).startswith(CUSTOM) for change in changes):
            raise RunError(
                f"{folder} has {name} {str(fields[name])[:40]} and no function: leave it out of schedules; agent.change gives "
                "it another value."
            )
    return found


def require_same_functions(folder: Path, config: Config, saved: Mapping[str, Sequence[float]]) -> None:
    """Refuse a function that has other values than the one of the run: it would not go on as if it had never stopped.

    What is known of one that is not given is kept, for the next save.
    """
    for name, value in config.schedules().items():
        points = tuple(float(point) for point in saved.get(name, ()))
        if isinstance(value.schedule, LostFunction):
            config.settle(**{name: Scheduled(LostFunction(value.schedule.name, points))})
        if not isinstance(value.schedule, FunctionSchedule) or not points:
            continue
        for index, (here, there) in enumerate(zip(value.schedule.points(), points, strict=True)):
            if here != there:
                raise RunError(
                    f"The function given for {name} is not the one that {folder} was trained with: at progress "
                    f"{index / (POINTS - 1):g} it gives {here:g}, and that one {there:g}."
                )


def require_known(name: Any, where: Path) -> None:
    """Refuse an algorithm that is not registered."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise RunError(
            f"{where} is of an unknown algorithm {str(name)[:40]!r}: where it is one of your own, import its module and "
            "register it with phasegrad.register first."
        )


def _config(where: Path, config_class: type[Config], fields: dict[str, Any], newer: str = "") -> Config:
    try:
        return make_config(config_class, {**OLDER, **fields})
    except ConfigError as error:
        if newer:
            raise RunError(f"{where} was saved by {newer}: update phasegrad to load it ({error})") from None
        raise RunError(f"The config in {where} is not valid: {error}") from None


def _compare_versions(folder: Path, state: dict[str, Any]) -> None:
    """Say where a run goes on with other versions than it was started with: its bits may then differ."""
    saved, now = state.get("versions"), versions()
    if not isinstance(saved, dict):
        raise DamagedError(f"{folder / STATE} is damaged: it has no versions.")
    other = [name for name in now if name != "python" and name in saved and saved[name] != now[name]]
    if other:
        before, after = (", ".join(f"{name} {str(of[name])[:40]}" for name in other) for of in (saved, now))
        warnings.warn(
            f"{folder} was written with {before} and is read with {after}: training can continue, but perhaps not bit "
            "for bit.",
            PhasegradWarning,
            stacklevel=6,
        )
