"""Checkpoints: a folder of safetensors and JSON, written whole or not at all, checked by its checksum when read.

A saved agent has the same form. Nothing in it is executed when it is read: tensors and plain data only, and no memory
is taken for a size that the file merely claims.
"""

from __future__ import annotations

import contextlib
import glob
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
import torch
from torch import Tensor

from phasegrad.envs.spaces import flatten, same_form
from phasegrad.errors import DamagedError, RunError
from phasegrad.runs.files import checked_header, read_json, read_limited, sync_folder, write_synced, writing
from phasegrad.runs.segments import Pieces, SegmentStore
from phasegrad.runs.spaces import space_from_json, space_to_json
from phasegrad.versions import versions

if TYPE_CHECKING:
    import gymnasium as gym

    from phasegrad.algorithms.base import Algorithm

FORMAT = 1
TENSORS, STATE, LEG = "state.safetensors", "state.json", "leg.safetensors"
ROOM_FOR_HEADER = 1 << 20
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def write_checkpoint(
    path: Path,
    agent: Algorithm,
    extra: Mapping[str, Any] | None = None,
    leg: Mapping[str, Any] | None = None,
    pieces: Pieces | None = None,
) -> None:
    """The agent's whole state as the folder `path`: under a temporary name first, synced, then renamed.

    `leg` is what continuing inside a leg needs beyond it, as `unfinished_leg` gives it; `pieces` are carried data that
    the folder itself is to hold.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    replaced = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
    files = {TENSORS: _payload(agent.tensors())}
    state = {**_state(agent), "extra": dict(extra or {})}
    if leg is not None:
        files[LEG] = _payload(leg["tensors"])
        state["leg"] = {**leg["state"], "sha256": hashlib.sha256(files[LEG]).hexdigest()}
    state["sha256"] = hashlib.sha256(files[TENSORS]).hexdigest()
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for stray in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of a write that was killed
                shutil.rmtree(stray, ignore_errors=True)
            temporary.mkdir()
            if pieces:
                carried = {"files": SegmentStore(temporary).write(pieces), "state": agent.carried_state()}
                state["extra"] = {**state["extra"], "carried": carried}
            files[STATE] = json.dumps(state, indent=1).encode()
            for name, payload in files.items():
                write_synced(temporary / name, payload)
            sync_folder(temporary)
            if path.exists():  # only where the same step or name is saved again
                os.rename(path, replaced)
            os.rename(temporary, path)
            sync_folder(path.parent)
        except (OSError, RunError):
            if not path.exists() and replaced.exists():
                with contextlib.suppress(OSError):
                    os.rename(replaced, path)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)


def _payload(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def _state(agent: Algorithm) -> dict[str, Any]:
    progress = agent.progress
    return {
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
        "original_observation_space": space_to_json(agent.original_observation_space),
        "action_space": space_to_json(agent.action_space),
        "original_action_space": space_to_json(agent.original_action_space),
        "has_action_mask": agent.has_action_mask,
        "versions": versions(),
    }


def unfinished_leg(agent: Algorithm) -> dict[str, Any] | None:
    """What brings fresh environments to where the agent's are now; None where they could not be brought there.

    Of several processes the first gets what belongs to all environments, and the others must call this too.
    """
    from phasegrad.algorithms.base import observations_digest

    ranks, actions = agent.ranks, agent.leg_actions
    if ranks.any(not actions) or not actions:
        return None
    if ranks.any(len({part.dtype for part in actions}) > 1) or ranks.any(actions[0].dtype == agent.family.action_dtype):
        actions = [part.to(agent.family.action_dtype) for part in actions]
    tensors = {"actions": ranks.whole(torch.cat(actions), 1)}
    if agent.reward_normalizer.running_return is not None:
        tensors["running_return"] = ranks.whole(agent.reward_normalizer.running_return, 0)
    end = "" if agent.collector is None else observations_digest(agent)
    return {"tensors": tensors, "state": {"end": end, "due": agent.leg_due}}


def whole_pieces(agent: Algorithm, pieces: Pieces) -> Pieces:
    """On the first process carried data [T, N, ...] of all environments; every process must call this."""
    if agent.ranks.size == 1:
        return pieces
    return {
        number: {name: agent.ranks.whole(tensor, 1) for name, tensor in sorted(pieces[number].items())}
        for number in sorted(pieces)
    }


def read_state(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint, of this library's format."""
    try:
        state = read_json(path / STATE)
    except FileNotFoundError:
        raise RunError(f"{path} is not a checkpoint or saved agent: it has no {STATE}.") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else state
        raise RunError(
            f"{path} was written by another version of phasegrad (format {str(found)[:20]}): this one reads format {FORMAT}."
        )
    return state


def require_fit(path: Path, wanted: Mapping[str, Tensor], prefix: str = "") -> None:
    """Refuse a checkpoint whose tensors, by its header, are not `wanted` in name, shape and type."""
    header = {name: entry for name, entry in checked_header(path / TENSORS).items() if name.startswith(prefix)}
    if set(wanted) != set(header):
        odd = sorted(set(wanted) ^ set(header))[0]
        raise RunError(f"{path} does not fit this agent: tensor {odd[:80]!r} is in only one of them.")
    for name, tensor in wanted.items():
        dtype, shape = header[name]
        if tuple(tensor.shape) != shape or DTYPES[dtype] != tensor.dtype:
            raise RunError(f"{path} does not fit this agent: {name} is {dtype} {shape}, not {tuple(tensor.shape)}.")


def restore(agent: Algorithm, path: Path, state: Mapping[str, Any]) -> None:
    """Fill `agent` with a checkpoint's tensors and counters; refuses what does not fit it, before anything is changed."""
    mine = agent.tensors()
    room = sum(tensor.numel() * tensor.element_size() for tensor in mine.values()) + ROOM_FOR_HEADER
    payload = read_limited(path / TENSORS, room)
    if hashlib.sha256(payload).hexdigest() != state.get("sha256"):
        raise DamagedError(f"{path / TENSORS} is damaged: its checksum does not match.")
    require_fit(path, mine)
    tensors = _tensors(path / TENSORS, payload)
    progress, saved = agent.progress, state["progress"]
    counts = {name: int(saved[name]) for name in ("step", "iteration", "leg", "episodes")}
    if min(counts.values()) < 0:
        raise DamagedError(f"{path / STATE} is damaged: it counts {min(counts.values())} of something.")
    recent = {
        name: deque((float(value) for value in saved[name]), maxlen=getattr(progress, name).maxlen)
        for name in ("recent_returns", "recent_lengths")
    }
    scalars = {str(name): float(value) for name, value in state["scalars"].items()}
    if scalars.keys() != agent.scalars.keys():
        raise DamagedError(f"{path / STATE} is damaged: its scalars are not those of {agent.name}.")
    for name, tensor in mine.items():
        tensor.copy_(tensors[name])
    for name, value in (counts | recent).items():
        setattr(progress, name, value)
    agent.scalars = scalars
    if state.get("leg") is not None:
        _restore_leg(agent, path, state["leg"])


def _restore_leg(agent: Algorithm, path: Path, leg: Mapping[str, Any]) -> None:
    config, family = agent.config, agent.family
    row = config.num_envs * max(1, int(torch.Size(family.action_shape).numel())) * family.action_dtype.itemsize
    payload = read_limited(path / LEG, agent.progress.step // config.num_envs * row + ROOM_FOR_HEADER)
    if hashlib.sha256(payload).hexdigest() != leg.get("sha256"):
        raise DamagedError(f"{path / LEG} is damaged: its checksum does not match.")
    checked_header(path / LEG)
    tensors = _tensors(path / LEG, payload)
    actions, running = tensors.get("actions"), tensors.get("running_return")
    if actions is None or tuple(actions.shape[1:]) != (config.num_envs, *family.action_shape):
        raise DamagedError(f"{path / LEG} is damaged: its actions are not those of {config.num_envs} environments.")
    if running is not None and (running.shape != (config.num_envs,) or running.dtype != torch.float64):
        raise DamagedError(f"{path / LEG} is damaged: its returns are not those of {config.num_envs} environments.")
    actions = agent.ranks.own(actions, 1).clone()
    agent.leg_actions, agent.leg_bytes = [actions], actions.numel() * actions.element_size()
    agent.leg_end, agent.leg_due = str(leg["end"]), bool(leg["due"])
    agent.reward_normalizer.running_return = None if running is None else agent.ranks.own(running, 0).clone()


def _tensors(path: Path, payload: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(payload)
    except safetensors.SafetensorError as error:
        raise DamagedError(f"{path} is damaged: {error}.") from None


def saved_spaces(state: Mapping[str, Any]) -> tuple[gym.Space, gym.Space, gym.Space, bool]:
    """The environment's own observation space, the action space, its own one, and whether there is an action mask."""
    observation, action, own_action = (
        space_from_json(state[name]) for name in ("observation_space", "action_space", "original_action_space")
    )
    if "original_observation_space" in state:
        own = space_from_json(state["original_observation_space"])
        if not same_form(flatten(own), observation):
            raise DamagedError("The saved observation space is damaged: its flat form is that of another space.")
        observation = own
    return observation, action, own_action, bool(state["has_action_mask"])
