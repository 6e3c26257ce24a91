"""Environments that misbehave, in this process and in workers: named in a sentence, what was good is saved, none stays."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from fault_cases.case import Case, Outcome, require, require_sound, strictly_increasing
from fault_cases.scene import Scene

AREA = "environments"
ACTS = (
    "raise", "shout", "interrupt", "leave", "nameless", "hang", "die", "crash", "fork", "child", "move", "mute", "thread",
    "recurse",
)  # fmt: skip
PLACES = ("constructor", "reset", "step", "close")
WAYS = ("sync", "async")
HARMLESS = ("child", "move", "mute", "thread", "fork")  # such a run goes on to its end
SETTINGS = (
    "--total-steps 256 --preset none --num-envs 2 --num-steps 16 --hidden-sizes 8 --seed 3 --torch-threads 1 --epochs 1 "
    "--num-minibatches 2 --checkpoint-every 32 --env-timeout 1.5 --backend gymnasium --eval-episodes 0"
)
NAMED = re.compile(r"[Ee]nvironments? \d")
SECONDS = 40


def cases(seed: int) -> list[Case]:
    found = []
    for act in ACTS:
        for place in PLACES:
            for way in WAYS:
                name = f"{act} in {place}, {way}"
                found.append(Case(AREA, name, partial(one, act=act, place=place, way=way)))
    found += [Case(AREA, f"{act} in step, evaluate", partial(played, act=act)) for act in ("raise", "shout", "recurse")]
    return found


def train(act: str, place: str, way: str) -> list[str]:
    return f"train ppo --env naughty:{act}-{place}-v0 --vectorization {way} --run-dir run {SETTINGS} --quiet".split()


def one(scene: Scene, act: str, place: str, way: str) -> None:
    # In this process an environment that ends the process ends the run: nobody is left to say anything
    ends_all = act in ("die", "crash") and way == "sync"
    codes = (7, -11) if ends_all else (0, 1, 2)
    running = scene.start(*train(act, place, way))
    outcome = running.wait(SECONDS)
    if act in ("fork", "child"):
        outcome.orphans = ()  # what an environment starts is its own; it must not write, below
    scene.require_outside_untouched()
    require_sound(outcome, codes, 1500)
    require_true_to(scene, outcome, act, place, way, ends_all)


def require_true_to(scene: Scene, outcome: Outcome, act: str, place: str, way: str, ends_all: bool) -> None:
    run = scene.work / "run"
    begun = place in ("reset", "step", "close")
    if act in HARMLESS:
        require(outcome.code == 0, f"exit code {outcome.code} for what does no harm: {outcome.said[-150:]}")
        require((run / "result.json").is_file(), "the run is not where it was asked for")
    elif not ends_all:
        if place != "close":
            require(outcome.code in (1, 2), f"exit code {outcome.code}")
        require(outcome.told, "nothing was said")
        named = NAMED.search(outcome.said) or (place == "constructor" and f"{act}-{place}" in outcome.said)
        require(place == "close" or named, f"the environment is not named: {outcome.said[-150:]}")
    if begun:
        require((run / "metrics.jsonl").is_file(), "no metrics were written")
        strictly_increasing(run / "metrics.jsonl")
        require_saved(run, 256 if place == "close" or act in HARMLESS else 32)


def require_saved(run: Path, at_least: int) -> None:
    steps = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*") if (path / "state.json").is_file()]
    require(steps and max(steps) >= at_least, f"what was good is lost: the checkpoints are of steps {sorted(steps)}")


def played(scene: Scene, act: str) -> None:
    """Misbehaviour while an agent is evaluated; training went well."""
    words = train("nothing", "step", "sync")
    require(scene.run(*words).code == 0, "the run itself failed")
    program = (
        "import phasegrad as pg, sys\nfrom phasegrad.errors import PhasegradError\n"
        "agent = pg.load('run', env='naughty:nothing-step-v0')\n"
        "try:\n"
        f"    agent.evaluate(episodes=30, env='naughty:{act}-step-v0')\n"
        "except PhasegradError as error:\n    print(f'phasegrad: {error}', file=sys.stderr)\n    sys.exit(2)\n"
    )
    require(scene.run(program=program, seconds=SECONDS).code == 2, "nothing was raised")
