"""The verbs that pass an agent on and look at one: save, push and play. Heavy imports happen inside them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phasegrad.cli.formatting import Parser
from phasegrad.cli.messages import say
from phasegrad.cli.values import chosen_checkpoint, whole_or_none
from phasegrad.errors import ConfigError, visible
from phasegrad.machine.paths import as_path, folder_name

AGENT = "run directory, saved agent (folder or .zip), or hf://USER/NAME"
TRAINING = "with all that continuing the training needs (optimisers, buffers): much larger"
EPISODES = "play so many greedy episodes first, for the score on the card (default: what the run has found)"
TRUST = "let the agent's environment id import a module (module:Id-v0) and its options name files: if you trust them"
STEP = "the checkpoint of a step, or best by evaluation (default: the latest)"
EXAMPLES = {
    "play": ("phasegrad play agents/lunarlander", "phasegrad play runs/lander --episodes 3 --seed 7 --out lander.mp4"),
    "save": ("phasegrad save runs/lander --out lander.zip", "phasegrad save runs/lander --out agents/lander --episodes 20"),
    "push": ("phasegrad push runs/lander ada/ppg-lunarlander", "phasegrad push lander.zip ada/ppg-lunarlander --public"),
}  # fmt: skip


def add_sharing(verb: Callable[[str, str], Parser]) -> None:
    play = verb("play", "show the agent in a window, or film it where there is no display")
    play.add_argument("dir", metavar="AGENT", help=AGENT)
    play.add_argument("--episodes", metavar="N", help="how many (default 1)")
    play.add_argument("--seed", metavar="N", help="seed of the environments (default: the run's)")
    play.add_argument("--out", metavar="FILE", help="film to this file, .mp4, .gif or .webp, and open no window")
    play.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely one")
    play.add_argument("--checkpoint", metavar="STEP", help=STEP)
    play.add_argument("--allow-import", action="store_true", help=TRUST)
    save = verb("save", "write the agent of a run as one folder or .zip to pass on, with a card")
    save.add_argument("dir", metavar="DIR", help=AGENT)
    save.add_argument("--out", metavar="PATH", required=True, help="the folder, or where it ends with .zip the file")
    save.add_argument("--episodes", metavar="N", help=EPISODES)
    save.add_argument("--with-training", action="store_true", help=TRAINING)
    save.add_argument("--checkpoint", metavar="STEP", help=STEP)
    save.add_argument("--allow-import", action="store_true", help=TRUST)
    push = verb("push", "upload an agent to the Hugging Face Hub")
    push.add_argument("dir", metavar="AGENT", help="run directory or saved agent (folder or .zip)")
    push.add_argument("repository", metavar="USER/NAME", help="where to; it is made where there is none")
    push.add_argument("--public", action="store_true", help="a new repository is for everyone (default: private)")
    push.add_argument("--dry-run", action="store_true", help="show what would be uploaded, and end")
    push.add_argument("--message", metavar="TEXT", help="of the commit (default: what the agent is)")
    push.add_argument("--checkpoint", metavar="STEP", help=STEP)


def loaded(options: argparse.Namespace, **how: Any) -> Any:
    from phasegrad.algorithms.loading import load

    return load(
        options.dir,
        checkpoint=chosen_checkpoint(options.checkpoint),
        allow_import=getattr(options, "allow_import", False),
        **how,
    )


def run_save(options: argparse.Namespace) -> int:
    episodes = whole_or_none("episodes", options.episodes, 1)
    agent = loaded(options, device="cpu")
    out = as_path(options.out)
    agent.save(out, training=options.with_training, episodes=episodes)
    what = (
        "with its training state" if options.with_training else "to be used; --with-training keeps what training needs"
    )
    print(f"wrote {visible(str(out))}: {size_text(size_of(out))}, {name_of(agent)}, {what}")
    return 0


def run_push(options: argparse.Namespace) -> int:
    from phasegrad.runs.archive import files_of, unpack
    from phasegrad.runs.hub import UnreachableError, is_address, parse_repository, push, require_hub
    from phasegrad.runs.replacing import STATE

    repository = parse_repository(options.repository)
    if is_address(options.dir):
        raise ConfigError("push takes a run directory or a saved agent of this machine, not an address on the Hub.")
    if not options.dry_run:
        require_hub("phasegrad push")
    agent, place = loaded(options, device="cpu"), as_path(options.dir)
    with tempfile.TemporaryDirectory(prefix="phasegrad-") as made:
        folder = Path(made) / "agent"
        if place.is_file():
            folder.mkdir()
            unpack(place, folder, card=True)
        elif (place / STATE).is_file():
            folder = place
        else:
            agent.save(folder, training=False)
        files = files_of(folder)
        state = "private unless --public is given, if it is new" if not options.public else "public, if it is new"
        print(f"{name_of(agent)} for {repository} ({state}):")
        for name, path in files.items():
            print(f"  {name}: {size_text(path.stat().st_size)}")
        if options.dry_run:
            print("nothing was uploaded (--dry-run)")
            return 0
        try:
            done = push(files, repository, public=options.public, message=options.message or name_of(agent))
        except UnreachableError as error:
            raise ConfigError(str(error)) from None
    kind = f"{'a new' if done.created else 'the existing'} {'private' if done.private else 'public'} repository"
    print(f"uploaded to {done.url}, {kind}")
    if not done.created and options.public and done.private:
        say("the repository was there already and stays private: make it public in its settings.")
    print(f'pg.load("hf://{repository}") loads it')
    return 0


def run_play(options: argparse.Namespace) -> int:
    from phasegrad.video.recording import record_video
    from phasegrad.video.window import NoWindowError, has_display, show

    episodes = whole_or_none("episodes", options.episodes, 1) or 1
    seed = whole_or_none("seed", options.seed, 0)
    agent = loaded(options)
    if options.out is None:
        try:
            if has_display():
                print(f"{name_of(agent)}: in a window; Ctrl-C ends it", flush=True)
            result = show(agent.agent, episodes=episodes, seed=seed, deterministic=not options.stochastic)
            print(f"return {', '.join(f'{value:,.2f}' for value in result.returns)}")
            return 0
        except NoWindowError as reason:
            print(f"{reason}: filming it instead", flush=True)
    out = options.out or default_film(options.dir)
    video = record_video(agent, out, episodes=episodes, seed=seed, deterministic=not options.stochastic)
    print(f"wrote {video.describe()}")
    return 0


def default_film(address: str) -> Path | None:
    """Where a film goes that nobody has named: to the run it is of; of a saved agent, which may be anywhere, to here."""
    from phasegrad.runs.reading import CONFIG
    from phasegrad.runs.replacing import STATE

    place = as_path(address)
    if place.is_dir() and (place / CONFIG).is_file() and not (place / STATE).is_file():
        return None
    name = place.stem if place.is_file() else place.absolute().name
    return Path(f"{folder_name(name.partition('@')[0]) or 'agent'}.mp4")


def name_of(agent: Any) -> str:
    """PPO on CartPole-v1, 100,000 steps."""
    env = visible(agent.config.env.removeprefix("custom:"))[:80]
    return f"{agent.name.upper()} on {env}, {agent.progress.step:,} steps"


def size_of(path: Path) -> int:
    from phasegrad.runs.archive import files_of

    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in files_of(path).values())


def size_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
