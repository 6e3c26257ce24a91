"""The verbs that use a trained agent: eval, video and export. Heavy imports happen inside them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from phasegrad.cli.sharing import default_film
from phasegrad.cli.values import chosen_checkpoint, coerced, whole_or_none
from phasegrad.errors import ConfigError, visible
from phasegrad.machine.paths import as_path


def run_eval(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load
    from phasegrad.runs.noting import note_evaluation

    episodes = whole_or_none("episodes", options.episodes, 1) or 20
    if options.record is not None and options.save_steps is not None:
        raise ConfigError("--save-steps and --record are two evaluations: leave one out.")
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
    how = {
        "deterministic": options.deterministic,
        "seed": whole_or_none("seed", options.seed, 0),
        "levels": options.levels,
        "max_steps": whole_or_none("max_steps", options.max_steps, 1),
    }
    videos: dict[str, Any] = {}
    if options.record is None:
        result = agent.evaluate(episodes, **how, save_steps=options.save_steps)
    else:
        from phasegrad.video.recording import evaluate_and_record

        picks = [pick.strip() for pick in options.record.split(",") if pick.strip()]
        place = as_path(options.dir) if as_path(options.dir).is_dir() else Path()  # of a .zip: here
        result, videos = evaluate_and_record(agent, episodes, picks, place / "videos", **how)
    note_evaluation(options.dir, {"step": agent.progress.step, **how, **result.summary()})
    if options.json:
        shown = {pick: {"path": str(video.path), "return": video.returns[0]} for pick, video in videos.items()}
        print(json.dumps(result.summary() | ({"videos": shown} if shown else {})))
        return 0
    from rich.markup import escape
    from rich.table import Table

    from phasegrad.runs.consoles import PlainConsole

    table = Table(
        title=f"{escape(visible(agent.config.env))}, {agent.progress.step:,} steps, {'deterministic' if options.deterministic else 'sampled'} actions"
    )
    for name in result.summary():
        table.add_column(name.replace("_", " "), justify="right")
    table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in result.summary().values()))
    PlainConsole().print(table)
    for pick, video in videos.items():
        print(f"{pick}: return {video.returns[0]:,.2f}, {video.path}")
    if options.save_steps is not None:
        print(f"wrote {options.save_steps}: {sum(result.lengths):,} steps of {len(result.lengths)} episodes")
    return 0


def run_video(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load
    from phasegrad.video.beside import chosen_steps, record_checkpoints
    from phasegrad.video.recording import record_video

    how: dict[str, Any] = {
        "episodes": whole_or_none("episodes", options.episodes, 1),
        "seed": whole_or_none("seed", options.seed, 0),
        "fps": None if options.fps is None else coerced("fps", options.fps, float, 0),
        "max_steps": whole_or_none("max_steps", options.max_steps, 1),
        "size": whole_or_none("size", options.size, 1),
        "deterministic": not options.stochastic,
        "levels": options.levels,
        "full": options.full,
    }
    folder = as_path(options.dir)
    if options.checkpoints is None:
        agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), allow_import=options.allow_import)
        agent.run.run_dir = folder
        out = options.out or (None if folder.is_dir() else default_film(options.dir))
        video = record_video(agent, out, grid=options.grid, **how)
    else:
        if not folder.is_dir():
            raise ConfigError("--checkpoints shows several of a run directory, and a saved agent is one: leave it out.")
        for name in ("grid", "checkpoint"):
            if getattr(options, name):
                raise ConfigError(f"--checkpoints shows several side by side: leave out --{name}.")
        steps, said = chosen_steps(folder, options.checkpoints)
        agents = [load(folder, checkpoint=step, allow_import=options.allow_import) for step in steps]
        video = record_checkpoints(agents, options.out, **how)
        if said:
            print(said)
    print(f"wrote {video.describe()}")
    return 0


def run_export(options: argparse.Namespace) -> int:
    from phasegrad.algorithms.loading import load

    if options.onnx is None and options.c is None:
        raise ConfigError("Name a file to write: --onnx FILE, --c FILE or both.")
    if (
        options.onnx is not None
        and options.c is not None
        and Path(options.onnx).absolute() == Path(options.c).absolute()
    ):
        raise ConfigError(f"--onnx and --c both name {options.c}: give each a file of its own.")
    for name in ("with_value", "with_log_prob", "stochastic"):
        if options.onnx is None and getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')} is for ONNX files: add --onnx FILE, or leave it out.")
    agent = load(options.dir, checkpoint=chosen_checkpoint(options.checkpoint), device="cpu")
    if options.onnx is not None:
        from phasegrad.export.onnx import export_onnx

        report = export_onnx(
            agent,
            options.onnx,
            with_value=options.with_value,
            with_log_prob=options.with_log_prob,
            deterministic=not options.stochastic,
        )
        print(f"wrote {report.path}: {report.describe()}")
    if options.c is not None:
        from phasegrad.export.c import export_c

        written = export_c(agent, options.c)
        print(f"wrote {written.path}: {written.describe()}")
    return 0
