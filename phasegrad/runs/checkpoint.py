"""Checkpoints: a folder of safetensors and JSON, written whole or not at all, checked by its checksum when read.

A saved agent has the same form. Nothing in it is executed when it is read: tensors and plain data only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch

from phasegrad.errors import DamagedError, RunError
from phasegrad.runs.spaces import space_from_json, space_to_json
from phasegrad.versions import versions

if TYPE_CHECKING:
    import gymnasium as gym

    from phasegrad.algorithms.base import Algorithm

FORMAT = 1
TENSORS, STATE = "state.safetensors", "state.json"


def write_checkpoint(path: Path, agent: Algorithm, extra: Mapping[str, Any] | None = None) -> None:
    """The agent's whole state as the folder `path`: under a temporary name first, synced, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in agent.tensors().items()}
    payload = safetensors.torch.save(tensors)
    progress = agent.progress
    state = {
        "format": FORMAT,
        "algorithm": agent.name,
        "config": agent.config.to_json(),
        "progress": {
            "step": progress.step,
            "iteration": progress.iteration,
            "leg": progress.leg,
            "episodes": progress.episodes,
            "recent_returns": list(progress.recent_returns),
            "recent_lengths": list(progress.recent_lengths),
        },
        "scalars": agent.scalars,
        "observation_space": space_to_json(agent.observation_space),
        "action_space": space_to_json(agent.action_space),
        "original_action_space": space_to_json(agent.original_action_space),
        "has_action_mask": agent.has_action_mask,
        "extra": dict(extra or {}),
        "versions": versions(),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    _write_synced(temporary / TENSORS, payload)
    _write_synced(temporary / STATE, json.dumps(state, indent=1).encode())
    _sync_folder(temporary)
    if path.exists():  # only where the same step or name is saved again
        shutil.rmtree(path)
    temporary.rename(path)
    _sync_folder(path.parent)


def read_state(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint, of this library's format."""
    try:
        state = json.loads((path / STATE).read_text())
    except FileNotFoundError:
        raise RunError(f"{path} is not a checkpoint or saved agent: it has no {STATE}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise DamagedError(f"{path / STATE} is damaged: it is not valid JSON.") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(
            f"{path} was written by another version of phasegrad (format {str(state)[:20]}): this one reads format {FORMAT}."
        )
    return state


def restore(agent: Algorithm, path: Path, state: Mapping[str, Any]) -> None:
    """Fill `agent` with a checkpoint's tensors and counters; refuses what does not fit it, before anything is changed."""
    try:
        payload = (path / TENSORS).read_bytes()
    except OSError as error:
        raise DamagedError(f"{path / TENSORS} cannot be read: {error.strerror}.") from None
    if hashlib.sha256(payload).hexdigest() != state.get("sha256"):
        raise DamagedError(f"{path / TENSORS} is damaged: its checksum does not match.")
    try:
        tensors = safetensors.torch.load(payload)
    except safetensors.SafetensorError as error:
        raise DamagedError(f"{path / TENSORS} is damaged: {error}.") from None
    mine = agent.tensors()
    if set(mine) != set(tensors):
        odd = sorted(set(mine) ^ set(tensors))[0]
        raise RunError(f"{path} does not fit this agent: tensor {odd!r} is in only one of them.")
    for name, tensor in mine.items():
        if tensor.shape != tensors[name].shape or tensor.dtype != tensors[name].dtype:
            raise RunError(
                f"{path} does not fit this agent: {name} is {tuple(tensors[name].shape)}, not {tuple(tensor.shape)}."
            )
    for name, tensor in mine.items():
        tensor.copy_(tensors[name])
    progress, saved = agent.progress, state["progress"]
    for name in ("step", "iteration", "leg", "episodes"):
        setattr(progress, name, int(saved[name]))
    for name in ("recent_returns", "recent_lengths"):
        setattr(progress, name, deque((float(value) for value in saved[name]), maxlen=getattr(progress, name).maxlen))
    agent.scalars = {name: float(value) for name, value in state["scalars"].items()}


def saved_spaces(state: Mapping[str, Any]) -> tuple[gym.Space, gym.Space, gym.Space, bool]:
    """Observation space, action space, the environment's own action space, and whether there is an action mask."""
    observation, action, original = (
        space_from_json(state[name]) for name in ("observation_space", "action_space", "original_action_space")
    )
    return observation, action, original, bool(state["has_action_mask"])


def _write_synced(path: Path, payload: bytes) -> None:
    with open(path, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
