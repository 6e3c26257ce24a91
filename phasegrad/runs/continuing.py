"""What may change when a run is taken up again, and why the rest may not. Knows settings only, and needs no torch.

Settings that are `live` change as they do while a run trains: recorded with their iteration, so that a later resume
makes the same change at the same place. Others concern the machine, the files or what is measured, and leave no trace in
what is learnt: config.json has them as they are now. All else is what the run is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phasegrad.config import FIXED_FIELDS, MACHINE_FIELDS, Config, algorithm_name, coerce_fields, live_fields, short
from phasegrad.errors import ConfigError

# What can be given anew whenever a run goes on: nothing that is learnt depends on it.
FREE_FIELDS = (
    *MACHINE_FIELDS, "vectorization", "env_timeout", "checkpoint_every", "eval_checkpoints", "eval_every",
    "eval_episodes", "log_steps", "track",
)  # fmt: skip
SIZES = {
    "num_envs", "num_steps", "sequence_length", "num_minibatches", "whole_segments", "n_pi", "aux_interval", "aux_buffer",
    "replay_capacity", "updates_per_iteration",
}  # fmt: skip
ENVIRONMENT = ("env", "env_options")
WITH_ITS_WEIGHTS = "new.load_parameters(agent.parameters()) gives its weights to a new one"


def changeable_fields(config_class: type[Config]) -> list[str]:
    """The settings that may be given anew when a run goes on."""
    return ["total_steps", *FREE_FIELDS, *live_fields(config_class)]


def changed_settings(
    config_class: type[Config], settings: Mapping[str, Any], present: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of `settings` the live ones, and others that may change too; refuses one that differs from what is `present`."""
    live, free = {}, {}
    for name, value in coerce_fields(config_class, settings).items():
        if name in live_fields(config_class):
            live[name] = value
        elif name in ("total_steps", *FREE_FIELDS):
            free[name] = value
        elif name not in present or _plain(value) != _plain(present[name]):
            raise refusal(config_class, name, present.get(name), value)
    return live, free


def refusal(config_class: type[Config], name: str, before: Any, value: Any) -> ConfigError:
    """The sentence for a setting that a run cannot go on with."""
    start = f"{name} is {short(before)} and cannot become {short(value)} when a run goes on, since"
    if name in ENVIRONMENT:
        return ConfigError(f"{start} its episodes are under way there: agent.set_env(env) moves an agent in Python.")
    if name in SIZES:
        return ConfigError(f"{start} its rollouts have that form: {WITH_ITS_WEIGHTS} with that {name}.")
    if name in FIXED_FIELDS:
        return ConfigError(
            f"{start} its networks and what trains them were made for it: make a new agent with that {name}."
        )
    allowed = ", ".join(sorted(changeable_fields(config_class)))
    return ConfigError(
        f"{start} it is part of what a run of {algorithm_name(config_class)} is: {WITH_ITS_WEIGHTS} with that {name}. What "
        f"may change is {allowed}."
    )


def _plain(value: Any) -> Any:
    """As JSON has it: a tuple of a config is a list in its file."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return value
