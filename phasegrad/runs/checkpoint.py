"""Checkpoints: a folder of safetensors and JSON, written whole or not at all, checked by its checksum when read.

A saved agent has the same form. Nothing in it is executed when it is read: tensors and plain data only, and no memory
is taken for a size that the file merely claims.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from phasegrad.agent import Spaces
from phasegrad.config import Config
from phasegrad.data.legs import can_be_taken, stored_dtype
from phasegrad.data.storage import stored_dtype as observation_dtype
from phasegrad.envs.spaces import flatten, same_form
from phasegrad.errors import DamagedError, RunError
from phasegrad.runs.card import Card, card_record
from phasegrad.runs.changing import change_from_json
from phasegrad.runs.contract import Trainer
from phasegrad.runs.files import checked_header, read_json, read_limited, replace_synced, write_synced, writing
from phasegrad.runs.pieces import Pieces, PieceStore
from phasegrad.runs.reading import number_or_none
from phasegrad.runs.replacing import LEG, STATE, TENSORS, appearing, current, is_save_place, replacing, staged
from phasegrad.runs.spaces import space_from_json, space_to_json
from phasegrad.runs.state import EvaluationRecord
from phasegrad.schedules import Schedule
from phasegrad.tree import named_leaves
from phasegrad.versions import __version__, versions

FORMAT = 2
MOST = 1 << 53  # of anything that is counted: all up to it are numbers of every program that reads the files
FORMATS_READ = (1, 2)
ROOM_FOR_HEADER = 1 << 20
Header = Mapping[str, tuple[str, tuple[int, ...]]]
ENVIRONMENT = "environment."  # of the state of environments that can be saved, among the tensors of legs
MOST_ENVIRONMENT_BYTES = 1 << 30  # that such a state is believed to have
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def write_checkpoint(
    path: Path,
    trainer: Trainer,
    legs: Mapping[str, Any] | None,
    extra: Mapping[str, Any] | None = None,
    pieces: Pieces | None = None,
    card: Card | None = None,
) -> None:
    """The agent's whole state as the folder `path`: under a temporary name first, synced, then renamed.

    In a folder that exists it takes the place of the save there, in one step; other files in it are left alone.
    `legs` is what brings fresh environments to where the agent's are, as `saved_legs` gives it; without it the agent alone
    is written, to be used and not trained on exactly. `pieces` are carried data that the folder itself is to hold.
    """
    files = {TENSORS: as_bytes(trainer.tensors() if legs is not None else without_optimizers(trainer))}
    state = {**state_of(trainer), "extra": dict(extra or {})}
    if legs is not None:
        files[LEG] = as_bytes(legs["tensors"])
        state["leg"] = {**legs["state"], "sha256": hashlib.sha256(files[LEG]).hexdigest()}
    else:
        state["agent_only"] = True
    state["sha256"] = hashlib.sha256(files[TENSORS]).hexdigest()
    if card is not None:
        files |= card.files
        sums = {name: hashlib.sha256(payload).hexdigest() for name, payload in card.files.items()}
        state["card"] = {**card.record, "files": sums}
    with writing(path):
        inside = is_save_place(path)
    with writing(path), replacing(path) if inside else appearing(path) as folder:
        if pieces and trainer.carries is not None:
            carried = {"files": PieceStore(folder, stage=inside).write(pieces), "state": trainer.carries.state()}
            state["extra"] = {**state["extra"], "carried": carried}
        for name, payload in files.items():
            if inside:
                replace_synced(staged(folder / name, hashlib.sha256(payload).hexdigest()), payload)
            else:
                write_synced(folder / name, payload)
        (replace_synced if inside else write_synced)(folder / STATE, json.dumps(state).encode())


def without_optimizers(trainer: Trainer) -> dict[str, Tensor]:
    """The tensors of an agent that is saved to be used, and not to be trained on exactly."""
    return {name: tensor for name, tensor in trainer.tensors().items() if not name.startswith("optimizer.")}


def as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a safetensors file has them."""
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All of a run that is no tensor, as JSON."""
    progress, agent = trainer.run.progress, trainer.agent
    return {
        "format": FORMAT,
        "algorithm": trainer.name,
        "config": trainer.config.to_json(),
        "progress": {
            "step": progress.step,
            "iteration": progress.iteration,
            "episodes": progress.episodes,
            "longest_episode": progress.longest_episode,
            "recent_returns": list(progress.recent_returns),
            "recent_lengths": list(progress.recent_lengths),
            "recent_successes": list(progress.recent_successes),
        },
        "scalars": trainer.scalars,
        "schedules": saved_points(trainer.config),
        "changes": [change.to_json() for change in trainer.run.changes],
        "evaluations": asdict(trainer.run.evaluations),
        **({} if trainer.run.cloned is None else {"cloned": trainer.run.cloned}),
        "observation_space": space_to_json(agent.observation_space),
        "original_observation_space": space_to_json(agent.spaces.observation),
        "action_space": space_to_json(agent.action_space),
        "original_action_space": space_to_json(agent.spaces.original_action),
        "has_action_mask": agent.spaces.has_mask,
        "versions": versions(),
        **({"computed": trainer.run.computed} if trainer.run.computed else {}),
    }


def saved_points(config: Config) -> dict[str, list[float]]:
    """Of each function that a setting follows the values at a few places, by which it is known again."""
    found = {name: value.schedule for name, value in config.schedules().items()}
    return {name: schedule.points() for name, schedule in found.items() if not isinstance(schedule, Schedule)}


def saved_legs(trainer: Trainer) -> dict[str, Any]:
    """What brings fresh environments to where the agent's are now.

    Of several processes the first gets what belongs to all environments, and the others must call this too.
    """
    ranks, legs, agent = trainer.ranks, trainer.run.legs, trainer.agent
    now = trainer.run.progress.step // trainer.config.num_envs
    oldest = -ranks.most(-int(legs.starts.min()))[0]
    dtype = stored_dtype(agent.action_space, agent.distribution.action_dtype)
    actions = torch.zeros(now - oldest, len(legs.starts), *agent.distribution.action_shape, dtype=dtype)
    legs.copy_last(actions)
    tensors = {"actions": ranks.whole(actions, 1)}
    for name in ("numbers", "targets", "starts"):
        tensors[name] = ranks.whole(torch.from_numpy(getattr(legs, name)), 0)
    if trainer.agent.reward_normalizer.running_return is not None:
        tensors["running_return"] = ranks.whole(trainer.agent.reward_normalizer.running_return, 0)
    if trainer.run.remembered is not None:
        tensors["remembered"] = ranks.whole(trainer.run.remembered, 0)
    if trainer.run.stack is not None:
        for name, leaf in named_leaves(trainer.run.stack):
            tensors[_stack_name(name)] = ranks.whole(leaf, 0)
    held = trainer.run.environment or {}
    tensors |= {f"{ENVIRONMENT}{name}": ranks.whole(tensor, 0) for name, tensor in sorted(held.items())}
    end = trainer.observations_digest() or trainer.run.played_to  # of a loaded run that has not gone on
    state: dict[str, Any] = {"end": end, "due": trainer.run.checkpoint_due}
    if held:
        state["environment_bytes"] = sum(tensors[f"{ENVIRONMENT}{name}"].nbytes for name in held)
    return {"tensors": tensors, "state": state}


def read_state(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint, of this library's format."""
    try:
        state = read_json(path / STATE)
    except FileNotFoundError:
        if os.path.lexists(path / TENSORS):
            raise DamagedError(f"{path} is damaged: it has no {STATE}.") from None
        raise RunError(f"{path} is not a checkpoint or saved agent: it has no {STATE}.") from None
    if not isinstance(state, dict) or state.get("format") not in FORMATS_READ:
        found = state.get("format") if isinstance(state, dict) else state
        newer = newer_than_this(state) if isinstance(state, dict) else ""
        way_out = f" It is of {newer}: update phasegrad to load it." if newer else ""
        raise RunError(
            f"{path} was written by another version of phasegrad (format {str(found)[:20]}): this one reads formats {' and '.join(map(str, FORMATS_READ))}.{way_out}"
        )
    return state


def newer_than_this(state: Mapping[str, Any]) -> str:
    """'phasegrad 9.1' where a save was written by a later version than this one, '' otherwise."""
    saved = state.get("versions")
    version = str(saved.get("phasegrad")) if isinstance(saved, dict) else ""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"[0-9]{1,9}", text)[:3]]

    return f"phasegrad {version[:20]}, and this is {__version__}" if numbers(version) > numbers(__version__) else ""


def require_fit(file: Path, found: Header, wanted: Mapping[str, Tensor], prefix: str = "") -> None:
    """Refuse a checkpoint whose tensors, by what its file's header was `found` to say, are not `wanted` in name, shape and type."""
    path = file.parent
    header = {name: entry for name, entry in found.items() if name.startswith(prefix)}
    if set(wanted) != set(header):
        odd = sorted(set(wanted) ^ set(header))[0]
        raise RunError(f"{path} does not fit this agent: tensor {odd[:80]!r} is in only one of them.")
    for name, tensor in wanted.items():
        dtype, shape = header[name]
        if tuple(tensor.shape) != shape or DTYPES[dtype] != tensor.dtype:
            raise RunError(f"{path} does not fit this agent: {name} is {dtype} {shape}, not {tuple(tensor.shape)}.")


def restore(trainer: Trainer, path: Path, state: Mapping[str, Any]) -> None:
    """Fill `trainer` with a checkpoint's tensors and counters; refuses what does not fit it, before anything is changed."""
    mine = without_optimizers(trainer) if state.get("agent_only") is True else trainer.tensors()
    most = sum(tensor.numel() * tensor.element_size() for tensor in mine.values()) + ROOM_FOR_HEADER
    file = current(path / TENSORS, state.get("sha256"))
    payload = read_limited(file, most)
    if hashlib.sha256(payload).hexdigest() != state.get("sha256"):
        raise DamagedError(f"{file} is damaged: its checksum does not match.")
    require_fit(file, checked_header(file, payload), mine)
    fill(trainer, _tensors(file, payload), state, path / STATE)
    trainer.run.card = card_record(state.get("card"))
    leg = state.get("leg")
    if leg is not None:
        file = current(path / LEG, leg.get("sha256"))
        number = whole(state["progress"], "leg", path / STATE, 0)
        fill_legs(trainer, _leg_tensors(trainer, file, leg), leg, number, file)


def whole(saved: Mapping[str, Any], name: str, file: Path, otherwise: int | None = None) -> int:
    """A count of a file that anyone may have written."""
    value = saved.get(name, otherwise)
    if type(value) is not int or not 0 <= value <= MOST:
        raise DamagedError(f"{file} is damaged: its {name} is {str(value)[:40]}, not a whole number from 0 to 2**53.")
    return value


def measured(saved: Mapping[str, Any], name: str, file: Path) -> float:
    """A length of time, or another number that is not below 0; 0 where an older file has none."""
    value = number_or_none(saved.get(name, 0.0))
    if value is None or not 0 <= value <= MOST:
        raise DamagedError(f"{file} is damaged: its {name} is {str(saved[name])[:40]}, not a number from 0 to 2**53.")
    return value


def fill(trainer: Trainer, tensors: Mapping[str, Tensor], state: Mapping[str, Any], file: Path) -> None:
    """Put back the `tensors` and what `state_of` gave, which `file` held; all environments are at the start of a leg."""
    progress, saved = trainer.run.progress, state["progress"]
    counts = {name: whole(saved, name, file) for name in ("step", "iteration", "episodes")}
    if counts["iteration"] > counts["step"]:
        raise DamagedError(f"{file} is damaged: it counts {counts['iteration']} iterations of {counts['step']} steps.")
    longest_known, number = whole(saved, "longest_episode", file, 0), whole(saved, "leg", file, 0)
    recent = {
        name: deque((float(value) for value in saved.get(name, ())), maxlen=getattr(progress, name).maxlen)
        for name in ("recent_returns", "recent_lengths", "recent_successes")
    }
    scalars = {str(name): float(value) for name, value in state["scalars"].items()}
    changes = [change_from_json(each) for each in state.get("changes", [])]
    evaluations = record_from_json(state.get("evaluations", {}), file)
    cloned = state.get("cloned")
    if cloned is not None and not isinstance(cloned, dict):
        raise DamagedError(f"{file} is damaged: what it says of a cloned policy is no JSON object.")
    if scalars.keys() != trainer.scalars.keys():
        raise DamagedError(f"{file} is damaged: its scalars are not those of {trainer.name}.")
    for name, tensor in trainer.tensors().items():
        if name in tensors:  # of an agent saved to be used alone the optimisers are not
            tensor.copy_(tensors[name])
    for name, value in (counts | recent).items():
        setattr(progress, name, value)
    longest = max([0, *(int(length) for length in recent["recent_lengths"])])  # all that format 1 knows
    progress.longest_episode = max(longest, longest_known)
    trainer.scalars.update(scalars)
    trainer.run.changes, trainer.run.evaluations, trainer.run.cloned = changes, evaluations, cloned
    legs, now = trainer.run.legs, progress.step // trainer.config.num_envs
    legs.numbers[:], legs.targets[:], legs.starts[:], legs.first = number, number, now, now


def _leg_tensors(trainer: Trainer, file: Path, leg: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the file of legs holds, of no more bytes than legs can need."""
    config, agent, distribution = trainer.config, trainer.agent, trainer.agent.distribution
    now = trainer.run.progress.step // config.num_envs
    row = (
        config.num_envs
        * max(1, int(torch.Size(distribution.action_shape).numel()))
        * distribution.action_dtype.itemsize
    )
    carried_bytes = 4 * config.num_envs * agent.model.state_size + sum(
        each.nbytes for each in _stacks(trainer).values()
    )
    claimed = leg.get("environment_bytes", 0)
    carried_bytes += min(claimed, MOST_ENVIRONMENT_BYTES) if isinstance(claimed, int) and claimed > 0 else 0
    payload = read_limited(file, now * row + 32 * config.num_envs + carried_bytes + ROOM_FOR_HEADER)
    if hashlib.sha256(payload).hexdigest() != leg.get("sha256"):
        raise DamagedError(f"{file} is damaged: its checksum does not match.")
    checked_header(file, payload)
    return _tensors(file, payload)


def fill_legs(trainer: Trainer, tensors: Mapping[str, Tensor], leg: Mapping[str, Any], number: int, file: Path) -> None:
    """Put back what `saved_legs` gave, which `file` held. In format 1 all environments are in the leg `number`."""
    config, agent, legs, ranks = trainer.config, trainer.agent, trainer.run.legs, trainer.ranks
    distribution = agent.distribution
    now = trainer.run.progress.step // config.num_envs
    damaged = DamagedError(f"{file} is damaged: it does not hold the legs of {config.num_envs} environments.")
    stacks = _stacks(trainer)
    actions, running, remembered = (tensors.get(name) for name in ("actions", "running_return", "remembered"))
    if (
        actions is None
        or tuple(actions.shape[1:]) != (config.num_envs, *distribution.action_shape)
        or len(actions) > now
    ):
        raise damaged
    kinds = {distribution.action_dtype, stored_dtype(agent.action_space, distribution.action_dtype)}
    if actions.dtype not in kinds or not can_be_taken(actions, agent.action_space):  # C++ trusts what it is given
        raise DamagedError(f"{file} is damaged: it holds actions that {agent.action_space} does not have.")
    if running is not None and (running.shape != (config.num_envs,) or running.dtype != torch.float64):
        raise damaged
    begun = len(actions) > 0  # where every leg is at its start, nothing is seen or remembered of its episodes
    needs_memory = begun and agent.model.state_size > 0
    if (remembered is None and needs_memory) or (
        remembered is not None
        and (remembered.shape != (config.num_envs, agent.model.state_size) or remembered.dtype != torch.float32)
    ):
        raise damaged
    held = {name: tensors.get(_stack_name(name)) for name in stacks}
    for name, wanted in stacks.items():
        found_stack = held[name]
        if found_stack is None and not begun:
            continue
        if found_stack is None or found_stack.shape != wanted.shape or found_stack.dtype != wanted.dtype:
            raise damaged
    first = now - len(actions)
    every = torch.full((config.num_envs,), number)
    found = {"numbers": every, "targets": every, "starts": torch.full_like(every, first)}  # of format 1
    for name, default in found.items():
        values = tensors.get(name, default)
        if values.shape != default.shape or values.dtype != torch.int64 or values.min() < 0 or values.max() > 1 << 40:
            raise damaged
        found[name] = values
    if (found["numbers"] > found["targets"]).any() or found["starts"].min() < first or found["starts"].max() > now:
        raise damaged
    for name, values in found.items():
        setattr(legs, name, ranks.own(values, 0).clone().numpy())
    own = ranks.own(actions, 1).clone()
    legs.actions, legs.first = [own] if len(own) else [], first
    legs.forget()
    trainer.run.played_to, trainer.run.checkpoint_due = str(leg["end"]), bool(leg["due"])
    trainer.agent.reward_normalizer.running_return = None if running is None else ranks.own(running, 0).clone()
    trainer.run.remembered = None if remembered is None else ranks.own(remembered, 0).clone()
    own_stacks = {name: ranks.own(stack, 0).clone() for name, stack in held.items() if stack is not None}
    if len(own_stacks) < len(stacks):
        own_stacks = {}
    states = {
        n.removeprefix(ENVIRONMENT): ranks.own(t, 0).clone() for n, t in tensors.items() if n.startswith(ENVIRONMENT)
    }
    trainer.run.environment = states or None
    trainer.run.stack = (own_stacks.get("") if "" in stacks else own_stacks) if own_stacks else None


def _stack_name(entry: str) -> str:
    """Of an observation's entry in the file; a plain observation has the empty name."""
    return f"stack.{entry}" if entry else "stack"


def _stacks(trainer: Trainer) -> dict[str, Tensor]:
    """Stacks of observations as they are saved, without memory: their shapes and types; none where none are stacked."""
    stacking, size = trainer.agent.model.stacking, trainer.config.num_envs
    if stacking is None:
        return {}
    space = stacking.space
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}
    return {
        name: torch.empty((size, *(part.shape or ())), dtype=observation_dtype(part), device="meta")
        for name, part in parts.items()
    }


def _tensors(path: Path, payload: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(payload)
    except safetensors.SafetensorError as error:
        raise DamagedError(f"{path} is damaged: {error}.") from None


def saved_spaces(state: Mapping[str, Any]) -> Spaces:
    """The spaces that the agent was made for."""
    observation, action, own_action = (
        space_from_json(state[name]) for name in ("observation_space", "action_space", "original_action_space")
    )
    if "original_observation_space" in state:
        own = space_from_json(state["original_observation_space"])
        if not same_form(flatten(own), observation):
            raise DamagedError("The saved observation space is damaged: its flat form is that of another space.")
        observation = own
    return Spaces(observation, action, own_action, bool(state["has_action_mask"]))


def record_from_json(data: Mapping[str, Any], file: Path) -> EvaluationRecord:
    """What a run had found out about itself; nothing in files older than that."""
    record = EvaluationRecord(measured(data, "spent", file), measured(data, "longest", file))
    for name in ("last", "last_test", "best"):
        summary = data.get(name)
        if summary is not None:
            numbers = {str(key): value for key, value in summary.items() if type(value) in (int, float)}
            if not {"step", "return_mean", "episodes"} <= numbers.keys():
                raise DamagedError(f"{file} is damaged: its record of evaluations has no numbers.")
            for count in ("step", "episodes"):
                whole(numbers, count, file)
            if any(isinstance(value, int) and abs(value) > MOST for value in numbers.values()):
                raise DamagedError(f"{file} is damaged: a number of its evaluations is beyond 2**53.")
            setattr(record, name, numbers)
    return record
