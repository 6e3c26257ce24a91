"""What an agent's README.md says: front matter for the Hugging Face Hub, then the card for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from phasegrad.config import MACHINE_FIELDS, Config, documented_fields
from phasegrad.errors import PhasegradError
from phasegrad.presets import PRESETS, resolve_config
from phasegrad.runs.contract import Trainer
from phasegrad.runs.formats import printable, score
from phasegrad.versions import versions

CUSTOM = "custom:"
NOT_SETTINGS = {"env", "env_options", "seed", "total_steps", "preset", "track", "run_dir", *MACHINE_FIELDS}
MOST_CHARACTERS = 200  # of a value on the card


def readme(trainer: Trainer, scored: Mapping[str, Any] | None, curve: str, what: str) -> str:
    """The whole file."""
    config, progress = trainer.config, trainer.run.progress
    name = f"{trainer.name.upper()} on {plain(config.env.removeprefix(CUSTOM))}"
    given = given_settings(trainer)
    parts = [
        front_matter(trainer, scored),
        f"# {name}",
        f"An agent for `{plain(config.env.removeprefix(CUSTOM))}`, trained by {trainer.name.upper()} for {progress.step:,} steps with "
        "phasegrad.",
        "## Score",
        score_text(trainer, scored),
        *([f"![Learning curve: {what}]({curve})"] if curve else []),
        "## Use",
        use_text(config),
        "## Task and settings",
        table(("", ""), facts(trainer)),
        settings_text(trainer),
        *again_text(trainer, given),
        "## Versions",
        ", ".join(f"{package} {version}" for package, version in versions().items()) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(trainer: Trainer, scored: Mapping[str, Any] | None) -> str:
    """YAML; a string of JSON is one of YAML too."""
    env, algorithm = plain(trainer.config.env.removeprefix(CUSTOM)), trainer.name
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "phasegrad", algorithm, env]
    lines = ["library_name: phasegrad", "pipeline_tag: reinforcement-learning", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags)]
    if scored is not None:
        value = f"{scored['return_mean']:.2f} +/- {scored.get('return_std') or 0.0:.2f}"
        lines += [
            "model-index:",
            f"- name: {json.dumps(algorithm.upper())}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {json.dumps(env)}",
            f"      type: {json.dumps(env)}",
            "    metrics:",
            "    - type: mean_reward",
            "      name: mean_reward",
            f"      value: {json.dumps(value)}",
            "      verified: false",
        ]
    return "\n".join(["---", *lines, "---"])


def score_text(trainer: Trainer, scored: Mapping[str, Any] | None) -> str:
    """The score and how it was found."""
    recent = trainer.run.progress.recent_returns
    if scored is None:
        if not recent:
            return "Not evaluated."
        mean = sum(recent) / len(recent)
        return f"Not evaluated. The last {len(recent)} training episodes, with sampled actions, returned {score(mean)} on average."
    spread = scored.get("return_std")
    spread_text = "" if spread is None else f" ± {score(spread)}"
    kind = "greedy" if scored.get("deterministic", True) else "sampled"
    said = f"**{score(scored['return_mean'])}{spread_text}**: mean and standard deviation of the return"
    if spread is None:
        said = f"**{score(scored['return_mean'])}**: mean return"
    seed = scored.get("seed")
    seeded = "" if seed is None else f", evaluation seed {seed}"
    said += (
        f" of {scored['episodes']:.0f} whole episodes with {kind} actions in environments apart from training{seeded}"
    )
    low, high = scored.get("return_min"), scored.get("return_max")
    said += "" if low is None or high is None else f"; lowest {score(low)}, highest {score(high)}"
    if scored.get("success_rate") is not None:
        said += f"; {scored['success_rate']:.0%} of them successes"
    if scored.get("step") != trainer.run.progress.step:
        said += f". This was at {scored['step']:,.0f} steps; the agent saved here has {trainer.run.progress.step:,}"
    return f"{said}."


def use_text(config: Config) -> str:
    """How to load it."""
    custom = config.env.startswith(CUSTOM)
    needs = ", env=make_env" if custom else ""
    needs += ", encoder=Encoder" if not isinstance(config.encoder, str) or config.encoder.startswith(CUSTOM) else ""
    lines = [
        "```python",
        "import phasegrad as pg",
        "",
        f'agent = pg.load("PATH"{needs})  # this folder, the .zip, or "hf://USER/NAME"',
        "action, state = agent.predict(observation)",
        "```",
    ]
    if custom:
        lines += [
            "",
            f"The environment, `{plain(config.env.removeprefix(CUSTOM))}`, was given in Python and is not part of this agent: `make_env` is a function "
            "that makes it.",
        ]
    else:
        lines += ["", "```bash", "phasegrad play PATH", "phasegrad eval PATH --episodes 20 --deterministic", "```"]
    return "\n".join(lines)


def facts(trainer: Trainer) -> list[tuple[str, str]]:
    config, agent = trainer.config, trainer.agent
    options = ", ".join(f"{name} = {plain(value)}" for name, value in config.env_options.items())
    rows = [
        ("environment", code(config.env.removeprefix(CUSTOM)) + (" (given in Python)" if config.env.startswith(CUSTOM) else "")),
        *([("its options", code(options))] if options else []),
        ("observations", code(agent.spaces.observation)),
        ("actions", code(agent.spaces.original_action) + (", with a mask" if agent.spaces.has_mask else "")),
        ("algorithm", trainer.name.upper()),
        ("environment steps", f"{trainer.run.progress.step:,}"),
        ("episodes", f"{trainer.run.progress.episodes:,}"),
        ("seed", str(config.seed)),
        ("parameters", f"{sum(parameter.numel() for parameter in agent.model.parameters()):,}"),
    ]  # fmt: skip
    if trainer.run.cloned is not None:
        rows.append(("began with", "a policy cloned from demonstrations"))
    return rows


def settings_text(trainer: Trainer) -> str:
    """The settings that are not the algorithm's plain defaults, and whether the preset or the user set them."""
    config = trainer.config
    plain_defaults = {name: field.default for name, field in documented_fields(type(config)).items()}
    values, given = config.to_json(), given_settings(trainer)
    rows = [
        (f"`{name}`", code(value), code(plain_defaults.get(name)), "given" if given is None or name in given else "preset")
        for name, value in values.items()
        if (name not in NOT_SETTINGS
        and _as_json(plain_defaults.get(name)) not in (value, "auto"))
        or (name in (given or {}) and name not in NOT_SETTINGS)
    ]  # fmt: skip
    preset = f"Preset `{plain(PurePath(config.preset).name)}`. " if config.preset != "none" else "No preset. "
    if not rows:
        return f"{preset}All settings are the algorithm's defaults."
    shown = f"{preset}Settings that differ from the algorithm's defaults:"
    return f"{shown}\n\n{table(('setting', 'value', 'default', 'set by'), rows)}"


def given_settings(trainer: Trainer) -> dict[str, Any] | None:
    """The settings that a command would have to give beside its environment; None where that cannot be told."""
    config = trainer.config
    if config.preset not in (*PRESETS, "none"):
        return None  # a file, which may have changed
    try:
        usual = resolve_config(
            type(config), {"env": config.env, "preset": config.preset, "total_steps": config.total_steps}
        ).to_json()
    except PhasegradError:
        return None
    mine = trainer.run.as_begun(config.to_json())
    decided = {name for name, value in usual.items() if value == "auto"}  # when the run began
    return {
        name: value for name, value in mine.items() if name not in NOT_SETTINGS | decided and usual.get(name) != value
    }


def again_text(trainer: Trainer, given: Mapping[str, Any] | None) -> list[str]:
    """The command that makes such an agent again, where one does."""
    config, run = trainer.config, trainer.run
    python_only = config.env.startswith(CUSTOM) or any(
        str(value).startswith(CUSTOM) for value in (given or {}).values()
    )
    unfinished = run.progress.step < config.total_steps
    if given is None or python_only or unfinished or run.changes or run.cloned is not None:
        return []
    words = ["phasegrad", "train", trainer.name, "--env", config.env, "--total-steps", str(config.total_steps)]
    words += ["--seed", str(config.seed)]
    words += [] if auto_preset(config) == config.preset else ["--preset", str(config.preset)]
    for name, value in given.items():
        words += option(name, value)
    for name, value in config.env_options.items():
        if auto_options(config).get(name) != value:
            words += [f"--env.{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value)]
    if any(not word.isprintable() for word in words):
        return []
    return [f"The command that trains it again:\n\n```bash\n{shlex.join(words)}\n```"]


def option(name: str, value: Any) -> list[str]:
    """A setting as a command writes it."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if isinstance(value, list | tuple):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value)]


def auto_preset(config: Config) -> str:
    """The preset that a run of this environment takes by itself."""
    try:
        return str(resolve_config(type(config), {"env": config.env, "env_options": config.env_options}).preset)
    except PhasegradError:
        return ""


def auto_options(config: Config) -> Mapping[str, Any]:
    try:
        found = resolve_config(type(config), {"env": config.env, "preset": config.preset})
    except PhasegradError:
        return {}
    return dict(found.env_options)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def plain(value: Any) -> str:
    """Text from a run, which may be a stranger's, without what Markdown or HTML would take for markup."""
    text = printable(value, MOST_CHARACTERS)
    return "".join(character for character in text if character not in "`|<>[]*\\")


def code(value: Any) -> str:
    """A value in the type of code; brackets are safe there."""
    text = printable(value, MOST_CHARACTERS)
    return f"`{''.join(character for character in text if character not in '`|')}`" if text else ""


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
