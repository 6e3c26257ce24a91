"""What a web page needs to run a policy: its ONNX file, what its inputs and outputs mean, and observations to check it on.

Knows nothing of pages: the report has one that shows it.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from phasegrad import envs
from phasegrad.distributions import Bernoulli, Categorical, MultiCategorical, Product
from phasegrad.envs.spaces import Leaf
from phasegrad.errors import RunError
from phasegrad.export.onnx import ACTION, MASK, OBSERVATION, export_onnx
from phasegrad.export.parity import Samples, by_part, random_samples, real_env
from phasegrad.models.encoders import ImageEncoder
from phasegrad.runs.evaluation import release
from phasegrad.tree import tree_map

if TYPE_CHECKING:
    from phasegrad.agent import Agent
    from phasegrad.distributions import Distribution
    from phasegrad.envs.actions import ActionPart
    from phasegrad.runs.contract import Trainer

MOST_BYTES = 300_000  # of the ONNX file
MOST_NUMBERS = 64  # of an observation: each is a slider
EXAMPLES, APART = 8, 6  # observations of an episode to check the page on, and steps between them
FARTHEST = 1e4  # of a bound that a slider has


def playable(trainer: Trainer) -> dict[str, Any]:
    """The policy as data for a page. Refuses what is too large for one, in a sentence."""
    agent = trainer.agent
    leaves = sorted(agent.observing.without(agent.model.critic_only).leaves, key=lambda leaf: leaf.name)
    if any(isinstance(module, ImageEncoder) for module in agent.model.policy_encoder.modules()):
        raise RunError("A policy that sees images cannot be tried in the report: leave --try out.")
    count = sum(int(np.prod(leaf.shape)) for leaf in leaves)
    if count > MOST_NUMBERS:
        raise RunError(
            f"An observation of {count} numbers is too large to be tried in the report ({MOST_NUMBERS} at most): leave --try out."
        )
    with tempfile.TemporaryDirectory(prefix="phasegrad-export-") as folder:
        file = Path(folder) / "policy.onnx"
        whole = not agent.model.critic_only
        export_onnx(trainer, file, with_value=whole, with_params=True)
        payload = file.read_bytes()
    if len(payload) > MOST_BYTES:
        raise RunError(
            f"The policy has {len(payload):,} bytes, too many to be tried in the report ({MOST_BYTES:,} at most): leave --try out."
        )
    examples = _examples(agent, whole)
    state = agent.model.state_size if whole else agent.model.policy_state_size
    return {
        "onnx": base64.b64encode(payload).decode(),
        "step": trainer.run.progress.step,
        "entries": [_entry(agent, leaf, examples) for leaf in leaves],
        "mask": _mask(agent) if agent.spaces.has_mask else [],
        "state": state,
        "value": whole,
        "parts": _parts(agent),
        "examples": examples,
    }


def _entry(agent: Agent, leaf: Leaf, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """An input: its name, type and shape, and of each number the least and the largest that a slider offers."""
    name, count = leaf.name or OBSERVATION, int(np.prod(leaf.shape))
    seen = np.array([np.ravel(example["inputs"][name]) for example in examples], np.float64)
    low, high = _bounds(leaf, count)
    centre, reach = seen.mean(0), np.maximum(1.0, 3 * np.abs(seen - seen.mean(0)).max(0))
    if leaf.name in agent.model.normalizer.names or (not leaf.name and agent.model.normalizer.names):
        index = agent.model.normalizer.names.index(leaf.name) if leaf.name in agent.model.normalizer.names else 0
        centre = getattr(agent.model.normalizer, f"mean_{index}").double().cpu().numpy().reshape(-1)
        reach = 4 / getattr(agent.model.normalizer, f"scale_{index}").double().cpu().numpy().reshape(-1)
    unknown = (np.abs(low) > FARTHEST) | (np.abs(high) > FARTHEST)
    low = np.where(unknown, np.minimum(centre - reach, seen.min(0)), low)
    high = np.where(unknown, np.maximum(centre + reach, seen.max(0)), high)
    whole = np.dtype(leaf.space.dtype).kind in "iub"
    return {
        "name": name, "type": np.dtype(leaf.space.dtype).name, "shape": list(leaf.shape), "whole": whole,
        "low": [float(f"{number:.6g}") for number in np.floor(low) if whole] or [float(f"{n:.6g}") for n in low],
        "high": [float(f"{number:.6g}") for number in np.ceil(high) if whole] or [float(f"{n:.6g}") for n in high],
    }  # fmt: skip


def _bounds(leaf: Leaf, count: int) -> tuple[np.ndarray, np.ndarray]:
    space = leaf.original
    start = np.broadcast_to(np.ravel(np.asarray(0 if leaf.start is None else leaf.start, np.float64)), count)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return start, start + np.ravel(space.nvec) - 1
    if isinstance(space, gym.spaces.Box):
        return np.ravel(space.low).astype(np.float64), np.ravel(space.high).astype(np.float64)
    choices = space.n if isinstance(space, gym.spaces.Discrete) else 2
    return start, start + float(choices) - 1  # one choice, or bits


def _mask(agent: Agent) -> list[str]:
    """What each entry of the mask allows."""
    return [
        f"{part['name'] + ' ' if part['name'] else ''}{_label(part, place, choice)}"
        for part in _parts(agent)
        for place, size in enumerate(part["sizes"] or [1] * part["bits"])
        for choice in range(size)
    ]


def _label(part: dict[str, Any], place: int, choice: int) -> str:
    if part["bits"]:
        return f"bit {place}"
    several = f"{place}: " if len(part["sizes"]) > 1 else ""
    return f"{several}{part['firsts'][place] + choice}"


def _parts(agent: Agent) -> list[dict[str, Any]]:
    """What comes out: by part its name, and how its numbers are shown."""
    distribution = agent.distribution
    kinds = list(distribution.parts.values()) if isinstance(distribution, Product) else [distribution]
    found, start = [], 0
    for part, kind in zip(envs.ActionAdapter(agent.spaces.original_action).parts, kinds, strict=True):
        found.append(_part(part, kind, start))
        start += kind.parameter_size
    return found


def _part(part: ActionPart, kind: Distribution, start: int) -> dict[str, Any]:
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    if isinstance(part.original, gym.spaces.Box) and not part.sizes:
        low, high = _finite(part.original.low), _finite(part.original.high)
    firsts = np.broadcast_to(np.ravel(part.offset), len(part.sizes)).tolist() if part.sizes else []
    return {
        "name": part.name, "output": f"{ACTION}.{part.name}" if part.name else ACTION, "sizes": list(part.sizes),
        "firsts": [int(first) for first in firsts], "bits": part.bits, "low": low, "high": high, "params": start,
        "likely": type(kind) in (Categorical, MultiCategorical, Bernoulli),
    }  # fmt: skip


def _finite(bound: np.ndarray) -> list[float | None]:
    return [number if np.isfinite(number) else None for number in np.ravel(bound).astype(np.float64).tolist()]


def _examples(agent: Agent, whole: bool) -> list[dict[str, Any]]:
    """Observations of one episode with what `predict` does; in a row where it remembers, else some steps apart."""
    found: list[dict[str, Any]] = []
    remembers = agent.model.state_size > 0
    state: Any = None
    for step, (observation, mask) in enumerate(_steps(agent, 1 if remembers else APART)):
        given = agent.observing.restore(observation)
        action, after = agent.predict(given, state, None, mask)
        if remembers or step % APART == 0 or len(found) == 0:
            shown = observation if whole else agent.model.for_policy(observation)
            found.append(_example(agent, shown, mask, by_part(agent, action)))
        state = after
        if len(found) == EXAMPLES:
            break
    return found


def _example(agent: Agent, observation: Any, mask: np.ndarray | None, action: dict[str, np.ndarray]) -> dict[str, Any]:
    samples = Samples(observation, mask, np.zeros((1, 0), np.float32))
    names = sorted(leaf.name for leaf in agent.observing.leaves if not isinstance(observation, dict) or leaf.name in observation)  # fmt: skip
    arrays = samples.arrays(agent, False)
    inputs = {name or OBSERVATION: array[0].tolist() for name, array in zip(names, arrays, strict=False)}
    return {
        "inputs": inputs | ({} if mask is None else {MASK: mask[0].astype(int).tolist()}),
        "action": {name: np.ravel(array[0]).tolist() for name, array in action.items()},
    }


def _steps(agent: Agent, apart: int) -> Any:
    """Flat observations [1, ...] and masks of an environment's first steps, or random ones where it cannot be made."""
    env = real_env(agent)
    if env is None:
        random = random_samples(agent)
        for index in range(EXAMPLES * apart):
            row = slice(index, index + 1)
            yield (
                tree_map(lambda leaf, row=row: leaf[row], random.observation),
                None if random.masks is None else random.masks[row],
            )
        return
    try:
        observation, mask = env.reset()
        states = agent.fresh_states(env.num_envs)
        for _ in range(EXAMPLES * apart):
            yield tree_map(lambda leaf: leaf[:1].copy(), observation), None if mask is None else mask[:1].copy()
            actions, states = agent.act(observation, mask, None, states)
            step = env.step(actions)
            if (step.terminated | step.truncated)[0] and states is not None:
                return
            observation, mask = step.observation, step.action_mask
    finally:
        release(agent, env)
