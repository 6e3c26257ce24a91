"""How an agent presents itself in Python: in a line, as a card in a notebook, and by the names that are for its users.

The parts that a loop is made of stay reachable for who writes an algorithm; `dir(agent)` does not list them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from phasegrad.errors import RunError
from phasegrad.runs.curves import lines_of_run
from phasegrad.runs.formats import score
from phasegrad.runs.history import history_of
from phasegrad.runs.notebook_card import card, plain
from phasegrad.runs.reading import number_or_none

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phasegrad.algorithms.base import Algorithm

# What the pages describe. Of an algorithm from outside, its own names are public too.
PUBLIC = {
    "agent", "change", "clone", "close", "config", "device", "distribution", "evaluate", "history", "learn",
    "load_parameters", "model", "name", "parameters", "plot", "predict", "progress", "record", "run", "save", "set_env",
    "value", "video",
}  # fmt: skip
# What a loop is made of, of the attributes that an agent has of its own.
PARTS = {
    "auxiliary_stepper", "average", "buffer", "carries", "clock", "computation", "experience", "flat", "leash", "memory",
    "optimizers", "ranks", "scalars", "stepper",
}  # fmt: skip


def public_names(algorithm: Algorithm, everything: Iterable[str]) -> list[str]:
    """What `dir(agent)` lists: the public names, those of a class from outside, and what Python and users have put there."""
    outside = [kind for kind in type(algorithm).__mro__ if not kind.__module__.startswith("phasegrad.")]
    own = {name for kind in outside for name in vars(kind)} | (vars(algorithm).keys() - PARTS)
    return sorted(name for name in everything if name.startswith("_") or name in PUBLIC or name in own)


def facts(algorithm: Algorithm) -> list[tuple[str, Any]]:
    """What there is to know of an agent at a glance."""
    agent, run = algorithm.agent, algorithm.run
    rows: list[tuple[str, Any]] = [
        ("observations", described(agent.spaces.observation)),
        ("actions", described(agent.spaces.original_action) + (", masked" if agent.spaces.has_mask else "")),
        ("parameters", f"{sum(each.numel() for each in agent.model.parameters()):,} on {agent.device}"),
        ("steps trained", f"{run.progress.step:,}"),
    ]
    last = run.evaluations.last or {}
    mean, at = (
        number_or_none(last.get("return_mean")),
        number_or_none(last.get("step")),
    )  # a checkpoint is data from anyone
    if mean is not None:
        rows.append(("score", score(mean) if at is None else f"{score(mean)} at step {at:,.0f}"))
    if run.progress.recent_returns:
        recent = run.progress.recent_returns
        rows.append(("training return", f"{score(sum(recent) / len(recent))}, last {len(recent)} episodes"))
    return [*rows, *([("run directory", run.run_dir)] if run.run_dir is not None else [])]


def as_text(algorithm: Algorithm) -> str:
    """One line."""
    known = dict(facts(algorithm))
    parts = [
        plain(algorithm.config.env, 80),
        f"seed {algorithm.config.seed}",
        f"{known['steps trained']} steps trained",
    ]
    parts += [f"{name} {known[name]}" for name in ("score", "training return") if name in known][:1]
    parts.append(f"{known['parameters'].split()[0]} parameters")
    return f"{type(algorithm).__name__}({', '.join(parts)})"


def as_html(algorithm: Algorithm) -> str:
    """A card for a notebook."""
    title = f"{type(algorithm).__name__} on {algorithm.config.env}, seed {algorithm.config.seed}"
    return card(title, facts(algorithm))


def described(space: gym.Space) -> str:
    """A space in a few words."""
    if isinstance(space, gym.spaces.Dict):
        return "Dict of " + ", ".join(f"{name}: {described(part)}" for name, part in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return "Tuple of " + ", ".join(map(described, space.spaces))
    if isinstance(space, gym.spaces.Box):
        return f"Box {' x '.join(map(str, space.shape)) or '1'}, {space.dtype}"
    return plain(space, 120)


def figure_of(algorithm: Algorithm, title: str | None, smooth: float) -> Figure:
    """Return against steps of an agent's training."""
    history, name = history_of(algorithm), f"{algorithm.name.upper()} on {plain(algorithm.config.env)}"
    last = algorithm.run.evaluations.last
    lines = lines_of_run(history, {} if last is None else {"eval": last}, name, smooth)
    if not lines:
        raise RunError("The agent has no evaluation and no finished episode to draw yet: let it learn first.")
    from phasegrad.runs.drawing import drawn

    return drawn(lines, title, smooth)
