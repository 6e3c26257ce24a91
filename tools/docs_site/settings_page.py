"""The page of every setting, made from the config classes and presets: type, default, range, symbol, presets.

Descriptions are those of `phasegrad train --help-all`. Only the papers' symbols are written down here.
"""

from __future__ import annotations

import re
import types
import typing
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from phasegrad.algorithms import ALGORITHMS
from phasegrad.cli.groups import GROUPED, GROUPS
from phasegrad.config import Config, documented_fields
from phasegrad.presets import PRESETS

BUILT_IN = ("ppo", "ppg", "a2c", "vpg", "trpo", "acer")
TITLES = {
    "run": "Run", "environment": "Environment", "rollout": "Rollout", "network": "Network", "optimiser": "Optimiser",
    "objective": "Objective", "phases": "Phases of PPG", "logging": "Evaluation and logging", "other": "Other",
}  # fmt: skip
SYMBOLS = {
    "num_envs": "N", "num_steps": "T", "gamma": r"\gamma", "gae_lambda": r"\lambda", "policy_gae_lambda": r"\lambda_\pi",
    "clip_range": r"\epsilon", "kl_beta": r"\beta", "kl_target": r"d_\mathrm{targ}", "entropy_coef": r"c_2, \beta_S",
    "value_coef": "c_1", "epochs": "K", "n_pi": r"N_\pi", "e_pi": r"E_\pi", "e_v": "E_V", "e_aux": r"E_\mathrm{aux}",
    "beta_clone": r"\beta_\mathrm{clone}", "aux_interval": r"T_\mathrm{freq}", "aux_buffer": r"T_\mathrm{off}",
    "max_kl": r"\delta", "importance_clip": "c", "trust_region_delta": r"\delta", "average_decay": r"\alpha",
    "replay_ratio": "r", "learning_rate": r"\alpha", "rmsprop_alpha": r"\alpha", "num_minibatches": r"NT/M",
}  # fmt: skip
INTRODUCTION = """# Every setting

This page is generated from the code. A setting has the same name in Python (`clip_range=0.1`), in JSON files
(`"clip_range": 0.1`) and, with dashes, on the command line (`--clip-range 0.1`). `phasegrad train ALGORITHM --help-all`
prints the same list in the terminal, with the defaults that a given `--env` gets.

A value comes from the first of these that has one: what you set, the [preset](#presets), the default below.
**Live** settings can be changed while an agent trains, with `agent.change(...)`. **Scheduled** settings also take a
[schedule](schedules.md) such as `linear:3e-4:0`. Symbols are those of the papers: [PPO](ppo.md), [PPG](ppg.md),
[A2C, VPG and TRPO](baselines.md), [ACER](acer.md).
"""


def settings_page() -> str:
    """The page as Markdown."""
    classes = {name: ALGORITHMS[name].config_class for name in BUILT_IN}
    groups: dict[str, list[str]] = {group: [] for group in (*GROUPS, "other")}
    for config_class in classes.values():
        for name in documented_fields(config_class):
            known = groups[GROUPED.get(name, "other")]
            if name not in known:
                known.append(name)
    order = {name: place for place, name in enumerate(GROUPED)}
    parts = [INTRODUCTION]
    for group, names in groups.items():
        if names:
            parts.append(f"## {TITLES.get(group, group.capitalize())}\n")
            parts += [entry(name, classes) for name in sorted(names, key=lambda name: order.get(name, len(order)))]
    return "\n".join([*parts, presets_section()])


def entry(name: str, classes: Mapping[str, type[Config]]) -> str:
    """One setting: what it does, then its facts."""
    having = {algorithm: kind for algorithm, kind in classes.items() if name in documented_fields(kind)}
    fields = {algorithm: documented_fields(kind)[name] for algorithm, kind in having.items()}
    first = next(iter(fields.values()))
    hint = typing.get_type_hints(next(iter(having.values())))[name]
    help_text = re.sub(r"\s*\[[^]]*\]", "", first.metadata["help"])
    by_text: dict[str, list[str]] = defaultdict(list)
    for algorithm, field in fields.items():
        by_text[re.sub(r"\s*\[[^]]*\]", "", field.metadata["help"])].append(algorithm)
    lines = [f"### `{name}` {{ #{name} }}\n"]
    if len(by_text) == 1:
        lines.append(f"{sentence(help_text)}\n")
    else:
        lines += [f"{', '.join(names).upper()}: {sentence(text)}\n" for text, names in by_text.items()]
    facts = [("Type", type_name(hint)), ("Default", default_of(fields)), ("Range", range_of(first.metadata))]
    facts.append(("Symbol", f"$`{SYMBOLS[name]}`$" if name in SYMBOLS else ""))
    facts.append(("Algorithms", "all" if len(having) == len(classes) else ", ".join(having).upper()))
    flags = [word for word in ("live", "scheduled") if first.metadata.get(word)]
    facts.append(("While training", ", ".join(flags)))
    facts.append(("Presets", by_preset(name, having)))
    lines += [f"- **{label}**: {value}" for label, value in facts if value]
    return "\n".join(lines) + "\n"


def sentence(text: str) -> str:
    """A help text as a sentence; angle brackets and asterisks would be markup."""
    text = text.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def type_name(hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [type_name(part) for part in typing.get_args(hint)]
        return " or ".join(kinds)
    if typing.get_origin(hint) is tuple:
        return f"{type_name(typing.get_args(hint)[0])}, one or several with commas"
    if typing.get_origin(hint) is dict:
        return "names and values"
    names = {int: "whole number", float: "number", bool: "on or off", str: "text", type(None): "none"}
    return names.get(hint, "text, or in Python an object")


def shown(value: Any) -> str:
    """A value as one writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`" if value else "none"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, int):
        return f"`{value:_}`"
    if isinstance(value, dict):
        return ", ".join(f"`{key}={item}`" for key, item in value.items()) or "none"
    return "none" if value in (None, "") else f"`{value}`"


def default_of(fields: Mapping[str, Any]) -> str:
    """The plain default, or those that algorithms differ in."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for algorithm, field in fields.items():
        plain = "`auto`" if field.metadata.get("auto") and field.default is None else shown(field.default)
        by_value["none" if "MISSING" in plain else plain].append(algorithm)
    if len(by_value) == 1:
        return next(iter(by_value))
    return "; ".join(f"{value} ({', '.join(names).upper()})" for value, names in by_value.items())


def range_of(metadata: Mapping[str, Any]) -> str:
    low, high, choices = metadata.get("low"), metadata.get("high"), metadata.get("choices")
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least `{low:g}`"
    return f"at most `{high:_}`" if low is None else f"from `{low:g}` to {shown(high)}"


def by_preset(name: str, having: Mapping[str, Any]) -> str:
    """What presets set it to, in the order of `phasegrad presets`."""
    found = []
    for preset, settings in PRESETS.items():
        by_value: dict[str, list[str]] = defaultdict(list)
        for algorithm in having:
            fields = settings.fields(algorithm)
            if name in fields:
                by_value[shown(fields[name])].append(algorithm)
        for value, algorithms in by_value.items():
            whose = "" if len(algorithms) == len(having) else f" ({', '.join(algorithms).upper()})"
            found.append(f"{preset} {value}{whose}")
    return "; ".join(found)


def presets_section() -> str:
    rows = [f"| `{name}` | {preset.about} |" for name, preset in PRESETS.items()]
    start = "`auto` picks the preset that fits the environment; `phasegrad presets` lists them with their settings."
    return "\n".join(["## Presets\n", start, "", "| preset | for |", "|---|---|", *rows]) + "\n"
