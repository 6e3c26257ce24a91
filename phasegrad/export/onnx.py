"""The policy as an ONNX file: observations in, actions as the environment takes them out, normalisers inside.

What a policy with a memory remembers is one more input and output, which the caller hands from step to step.
The file is checked against `predict` in onnxruntime before it gets its name, and says where it came from.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from phasegrad import envs
from phasegrad.distributions import Distribution, Product
from phasegrad.errors import RunError, visible
from phasegrad.export.parity import (
    TOLERANCE,
    Samples,
    Sequel,
    batches,
    largest_difference,
    play_episodes,
    random_samples,
    real_samples,
)
from phasegrad.machine.paths import as_path
from phasegrad.runs.below import named_output
from phasegrad.runs.files import replacing_file
from phasegrad.versions import versions

if TYPE_CHECKING:
    from phasegrad.agent import Agent
    from phasegrad.data.action_bounds import ActionBounds
    from phasegrad.envs.actions import ActionPart
    from phasegrad.runs.contract import Trainer

OPSET = 18
OBSERVATION, MASK, STATE, NOISE, ACTION = "observation", "action_mask", "state", "noise", "action"


@dataclass(frozen=True)
class Export:
    """A written file: its inputs and outputs as (name, type, shape), and how it was checked."""

    path: Path
    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str, str]]
    random_observations: int
    real_observations: int
    largest_difference: float
    sequel: Sequel | None = None  # how an agent with a memory was checked on its real observations

    def describe(self) -> str:
        """One sentence for the console."""

        def listed(entries: list[tuple[str, str, str]]) -> str:
            return ", ".join(f"{name} {kind} {shape}" for name, kind, shape in entries)

        real = f" and {self.real_observations} real" if self.real_observations else ""
        return (
            f"{listed(self.inputs)} -> {listed(self.outputs)}; agrees with predict on {self.random_observations} "
            f"random{real} observations, largest difference {self.largest_difference:.1e}{self._carried()}"
        )

    def _carried(self) -> str:
        if self.sequel is None or not self.sequel.observations:
            return ""
        magnified = ", as this memory magnifies rounding errors" if self.sequel.drift > TOLERANCE else ""
        return (
            f"; carried through the real ones, {self.sequel.episodes} whole episodes, its state and that of predict drift "
            f"apart by {self.sequel.drift:.1e}{magnified}"
        )


class ExportedPolicy(nn.Module):
    """What goes into the file.

    Inputs: the observation's entries by name, the action mask, what is remembered, the noise, as far as needed.
    """

    def __init__(
        self, agent: Agent, with_value: bool, with_log_prob: bool, deterministic: bool, with_params: bool = False
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(agent.model).cpu().eval()  # a copy: its parameters are tensors of their own
        self.distribution = agent.distribution
        self.with_value, self.with_log_prob, self.deterministic = with_value, with_log_prob, deterministic
        self.with_params = with_params
        self.whole = with_value or not agent.model.critic_only  # whether it is shown what only the value network sees
        hidden = () if self.whole else agent.model.critic_only
        self.leaves = sorted(agent.observing.without(hidden).leaves, key=lambda leaf: leaf.name)
        self.nested = agent.observing.nested
        for index, leaf in enumerate(self.leaves):
            self.register_buffer(f"start_{index}", torch.as_tensor(np.asarray(0 if leaf.start is None else leaf.start)))
        self.has_mask, self.has_memory = agent.spaces.has_mask, agent.model.state_size > 0
        self.value_scale = float(agent.reward_normalizer.std)
        own = envs.ActionAdapter(agent.spaces.original_action)
        self.names = [f"{ACTION}.{part.name}" if part.name else ACTION for part in own.parts]
        kinds = self.distribution.parts.values() if isinstance(self.distribution, Product) else [self.distribution]
        pieces = zip(own.parts, kinds, agent.bounds.parts or [agent.bounds], strict=True)
        self.actions = nn.ModuleList([OwnAction(*piece) for piece in pieces])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        entries = {leaf.name: self.flat(index, inputs[index]) for index, leaf in enumerate(self.leaves)}
        observation = entries if self.nested else entries[""]
        mask = inputs[len(self.leaves)] if self.has_mask else None
        if self.has_memory and not self.whole:
            params, states = self.model.policy_step(observation, mask, inputs[len(self.leaves) + self.has_mask])
        elif self.has_memory:
            params, values, states = self.model.step(observation, mask, inputs[len(self.leaves) + self.has_mask])
        elif self.with_value:
            params, values = self.model.policy_and_value(observation, mask)
        else:
            params = self.model.policy(observation, mask)
        actions = self.distribution.mode(params) if self.deterministic else self.distribution.sample(params, inputs[-1])
        outputs = self.for_environment(actions)
        if self.with_log_prob:
            outputs.append(self.distribution.log_prob(params, actions))
        if self.with_value:
            outputs.append(values * self.value_scale)
        if self.with_params:
            outputs.append(params)
        if self.has_memory:
            outputs.append(states)
        return tuple(outputs)

    def flat(self, index: int, entry: Tensor) -> Tensor:
        """An entry as the environment gives it, counted from 0 and in the shape that the network takes."""
        leaf = self.leaves[index]
        if leaf.start is not None and np.any(leaf.start):
            entry = entry - getattr(self, f"start_{index}")
        wanted = tuple(leaf.space.shape or ())
        return entry if wanted == leaf.shape else entry.reshape(-1, *wanted)

    def for_environment(self, actions: Tensor) -> list[Tensor]:
        """What `predict` returns, by part."""
        if not isinstance(self.distribution, Product):
            return [self.actions[0](actions)]
        taken = self.distribution.divided(actions).values()
        return [own(piece) for own, piece in zip(self.actions, taken, strict=True)]

    def input_names(self) -> list[str]:
        names = [leaf.name or OBSERVATION for leaf in self.leaves]
        return names + [MASK] * self.has_mask + [STATE] * self.has_memory + [NOISE] * (not self.deterministic)

    def output_names(self) -> list[str]:
        names = self.names + ["log_prob"] * self.with_log_prob + ["value"] * self.with_value
        names += ["params"] * self.with_params
        return names + ["next_state"] * self.has_memory

    def require_names(self) -> None:
        """Refuse an entry of the observation that is named as something else in the file is."""
        names = self.input_names()
        others = [*names[len(self.leaves) :], *self.output_names()]
        for name in names[: len(self.leaves)]:
            if name in others:
                kind = "input" if name in names[len(self.leaves) :] else "output"
                raise RunError(
                    f"The observation has an entry {name!r}, which is the name of another {kind} of the file: rename the entry."
                )


class OwnAction(nn.Module):
    """From a sampled action, or a part of one, to the environment's own: clipped or rescaled, numbered, shaped and typed."""

    def __init__(self, part: ActionPart, distribution: Distribution, bounds: ActionBounds) -> None:
        super().__init__()
        self.distribution, self.bounds = distribution, bounds
        self.shape = tuple(part.original.shape or ())
        self.action_type = torch.from_numpy(np.empty(0, part.dtype)).dtype
        self.shifted = bool(np.any(part.offset))
        self.offset: Tensor
        self.action_low: Tensor
        self.action_high: Tensor
        self.action_half: Tensor
        self.action_centre: Tensor
        self.register_buffer("offset", torch.as_tensor(np.asarray(part.offset)))
        for name in ("low", "high", "half", "centre"):
            if hasattr(bounds, name):
                self.register_buffer(f"action_{name}", torch.as_tensor(getattr(bounds, name)).flatten())

    def forward(self, actions: Tensor) -> Tensor:
        return self.numbered(actions).to(self.action_type)

    def numbered(self, actions: Tensor) -> Tensor:
        """All but the type."""
        if self.distribution.bounded:
            actions = self.distribution.within(actions)
        if self.bounds.continuous:
            if self.bounds.rescale:
                actions = actions.clamp(-1.0, 1.0) * self.action_half + self.action_centre
            else:
                actions = actions.clamp(self.action_low, self.action_high)
        actions = actions.reshape(-1, *self.shape)
        if self.shifted:
            actions = actions + self.offset
        return actions


def export_onnx(
    agent: Trainer,
    path: str | Path,
    *,
    with_value: bool = False,
    with_log_prob: bool = False,
    deterministic: bool = True,
    with_params: bool = False,
) -> Export:
    """Write the agent's policy to `path` and check it against `predict` in onnxruntime.

    Outputs: `action` [batch, ...], or where actions are a Dict or Tuple one for each part, such as `action.move`; with `with_log_prob` `log_prob` [batch] of the action before clipping or rescaling;
    with `with_value` `value` [batch] in units of the unnormalised reward. With `deterministic=False` the action is
    sampled from an input `noise` [batch, K]: standard normal for a gaussian and a tanh, uniform in [0, 1) for the rest;
    that of parts is side by side, as an `action_mask` is, in the order of the action space.
    With `with_params` the parameters of the distribution come out too, `params` [batch, P]: logits, means and log deviations.
    What is `critic_only` is an input `with_value` alone, and so is the value network's part of what is remembered.
    An agent with a memory takes an input `state` [batch, M], zeros where an episode starts, and puts out `next_state`.
    """
    path = as_path(path)
    if path.is_dir():
        raise RunError(f"{path} is a directory: name a file, such as {path / 'policy.onnx'}.")
    path = named_output(path)
    if path.exists() and path.suffix != ".onnx":
        raise RunError(f"{path} exists and is no .onnx file: name another file, or move it away.")
    if agent.agent.model.stacking is not None:
        raise RunError(
            "An agent with a frame_stack cannot be exported to ONNX yet: export it with --c, or train with memory in its place."
        )
    _require_temporary_folder()
    onnx, onnxruntime = require("onnx"), require("onnxruntime")
    require("onnxscript")
    player = agent.agent
    policy = ExportedPolicy(player, with_value, with_log_prob, deterministic, with_params)
    policy.require_names()
    random = random_samples(player, policy.whole)
    real = None if policy.has_memory else real_samples(player, policy.whole)
    model = _traced(player, policy, random)
    for key, value in provenance(agent).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, visible(value)
    with replacing_file(path) as unchecked:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(model, str(unchecked))
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}.") from None
        session = onnxruntime.InferenceSession(str(unchecked), providers=["CPUExecutionProvider"])

        def run(batch: Samples) -> dict[str, np.ndarray]:
            feed = dict(zip(policy.input_names(), batch.arrays(player, not deterministic), strict=True))
            return dict(zip(policy.output_names(), session.run(None, feed), strict=True))

        difference = max(
            largest_difference(player, run(batch), batch, deterministic) for batch in batches(random, real)
        )
        sequel = play_episodes(player, run, deterministic, policy.whole) if policy.has_memory else None

    def described(entries: Any) -> list[tuple[str, str, str]]:
        return [
            (entry.name, entry.type.removeprefix("tensor(").rstrip(")"), f"[{', '.join(map(str, entry.shape))}]")
            for entry in entries
        ]

    inputs, outputs = described(session.get_inputs()), described(session.get_outputs())
    if sequel is not None:
        return Export(
            path, inputs, outputs, len(random), sequel.observations, max(difference, sequel.difference), sequel
        )
    return Export(path, inputs, outputs, len(random), 0 if real is None else len(real), difference)


def provenance(trainer: Trainer) -> dict[str, str]:
    """Where a file came from: versions, run, and the checksum that the checkpoint of this very agent carries."""
    import safetensors.torch

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in trainer.tensors().items()}
    return {
        "phasegrad.version": versions()["phasegrad"],
        "phasegrad.algorithm": trainer.name,
        "phasegrad.env": trainer.config.env,
        "phasegrad.step": str(trainer.run.progress.step),
        "phasegrad.config": json.dumps(trainer.config.to_json()),
        "phasegrad.checkpoint_sha256": hashlib.sha256(safetensors.torch.save(tensors)).hexdigest(),
    }


def require(name: str) -> Any:
    """A package of the onnx extra."""
    os.environ.setdefault(
        "ORT_DISABLE_TELEMETRY", "1"
    )  # onnxruntime would keep a number for this machine, and print where it cannot
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RunError(f'Exporting needs {name} ({error}): pip install "phasegrad[onnx]".') from None


def _require_temporary_folder() -> None:
    """torch's exporter takes one for granted, and stumbles over something else where there is none."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise RunError(
            f"Exporting needs a temporary folder, and none can be written ({error.strerror}): make room, or set TMPDIR to "
            "another."
        ) from None


def _traced(agent: Agent, policy: ExportedPolicy, samples: Samples) -> Any:
    """The policy as an ONNX model whose batch size is free."""
    arguments = tuple(torch.from_numpy(array[:3]) for array in samples.arrays(agent, not policy.deterministic))
    batch = torch.export.Dim("batch")
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                policy,
                arguments,
                input_names=policy.input_names(),
                output_names=policy.output_names(),
                dynamic_shapes=(tuple({0: batch} for _ in arguments),),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # a user's own encoder may do what cannot be traced
        cause = error.__cause__ or error  # the exporter wraps it in advice for its own developers
        reason = str(cause).strip().splitlines()
        raise RunError(f"The network cannot be exported: {reason[0] if reason else type(cause).__name__}") from error
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's progress, warnings and logs off the console."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        heap = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(heap), contextlib.redirect_stderr(heap):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
