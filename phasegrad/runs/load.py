"""Agents from disk: a saved agent, a checkpoint, or a run directory's latest checkpoint that is sound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from phasegrad.algorithms import ALGORITHMS
from phasegrad.algorithms.base import Algorithm
from phasegrad.config import make_config
from phasegrad.errors import ConfigError, DamagedError, PhasegradError, PhasegradWarning, RunError
from phasegrad.runs.checkpoint import STATE, read_state, restore, saved_spaces
from phasegrad.runs.directory import CONFIG, RunDirectory


def load(
    path: str | Path, env: Any = None, *, encoder: Any = None, checkpoint: int | None = None, device: str | None = None
) -> Algorithm:
    """The agent saved at `path`: a folder of `agent.save`, a checkpoint, or a run directory.

    `env` and `encoder` are needed again where they were given in Python; `checkpoint` picks a step of a run directory.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist.")
    if (path / STATE).exists() or not (path / CONFIG).exists():
        return _from_checkpoint(path, env, encoder, device)
    agent = _from_run(RunDirectory(path), env, encoder, device, checkpoint)
    agent.run_dir = path
    return agent


def _from_run(run: RunDirectory, env: Any, encoder: Any, device: str | None, step: int | None) -> Algorithm:
    """The agent of a step's checkpoint, or of the latest that is sound."""
    if step is not None:
        return _from_checkpoint(run.checkpoint(step), env, encoder, device)
    run.checkpoint()  # says so where there is none
    found = run.checkpoints()
    for folder in reversed(found):
        try:
            return _from_checkpoint(folder, env, encoder, device)
        except DamagedError as error:
            if folder == found[0]:
                raise
            warnings.warn(f"{error} The checkpoint before it is used.", PhasegradWarning, stacklevel=3)
    raise AssertionError("unreachable: the loop returns or raises")


def _from_checkpoint(folder: Path, env: Any, encoder: Any, device: str | None) -> Algorithm:
    state = read_state(folder)
    try:
        return _build(folder, state, env, encoder, device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, PhasegradError):
            raise
        raise DamagedError(f"{folder / STATE} is damaged: {type(error).__name__} {str(error)[:80]}.") from None


def _build(folder: Path, state: dict[str, Any], env: Any, encoder: Any, device: str | None) -> Algorithm:
    if state.get("algorithm") not in ALGORITHMS:
        raise RunError(f"{folder} holds an agent of unknown kind {str(state.get('algorithm'))[:40]!r}.")
    algorithm = ALGORITHMS[state["algorithm"]]
    fields = dict(state["config"])
    if encoder is not None:
        fields["encoder"] = encoder
    elif str(fields.get("encoder", "")).startswith("custom:"):
        raise RunError(
            f"{folder} uses an encoder given in Python ({fields['encoder']}): "
            "load it with phasegrad.load(path, encoder=...)."
        )
    if device is not None:
        fields["device"] = device
    try:
        config = make_config(algorithm.config_class, fields)
    except ConfigError as error:
        raise RunError(f"The config in {folder} is not valid: {error}") from None
    agent = algorithm.restore(config, *saved_spaces(state))
    if env is not None:
        agent.source = env
    restore(agent, folder, state)
    extra = state.get("extra", {})
    agent.metrics_bytes, agent.seconds_before = int(extra.get("metrics_bytes", 0)), float(extra.get("seconds", 0.0))
    return agent
