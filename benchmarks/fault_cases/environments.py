"""Environments that misbehave, in this process and in workers: named in a sentence, what was good is saved, none stays."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from fault_cases.case import Case, Outcome, require, require_sound, strictly_increasing
from fault_cases.scene import MOST_MB, Scene

AREA = "environments"
ACTS = (
    "raise", "shout", "interrupt", "leave", "nameless", "hang", "die", "crash", "fork", "child", "move", "mute", "thread",
    "recurse",
)  # fmt: skip
PLACES = ("constructor", "worker", "reset", "step", "close")
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
                # Nothing watches over the constructor of the first one, which is made to be looked at
                if (place == "worker" and way == "sync") or (act == "hang" and place in ("constructor", "worker")):
                    continue
                name = f"{act} in {place}, {way}"
                found.append(Case(AREA, name, partial(one, act=act, place=place, way=way)))
    found += [Case(AREA, f"{act} in step, evaluate", partial(played, act=act)) for act in ("raise", "recurse")]
    return found


def train(act: str, place: str, way: str) -> list[str]:
    return f"train ppo --env naughty:{act}-{place}-v0 --vectorization {way} --run-dir run {SETTINGS} --quiet".split()


def one(scene: Scene, act: str, place: str, way: str) -> None:
    # An environment that ends the process of the run ends the run: nobody is left to say anything
    ends_all = act in ("die", "crash") and (way == "sync" or place == "constructor")
    codes = (7, -11, -6) if ends_all else (0, 1, 2)
    environment = scene.environment(NAUGHTY_PLACE=str(scene.outside / "folder"))
    outcome = scene.start(*train(act, place, way), environment=environment).wait(SECONDS)
    if act in ("fork", "child"):
        outcome.orphans = ()  # what an environment starts is its own; it must not write, below
    if act == "fork" and way == "async":
        outcome.err = outcome.err.replace("Traceback", "")  # of the worker's double, which nobody listens to
    scene.require_outside_untouched()
    require_sound(outcome, codes, MOST_MB)
    require_true_to(scene, outcome, act, place, ends_all)


def require_true_to(scene: Scene, outcome: Outcome, act: str, place: str, ends_all: bool) -> None:
    run = scene.work / "run"
    ends_well = act in HARMLESS and act != "fork"  # two processes that both think they are the run: one may give way
    if ends_well:
        require(outcome.code == 0, f"exit code {outcome.code} for what does no harm: {outcome.said[-150:]}")
        require((run / "result.json").is_file(), "the run is not where it was asked for")
    elif not ends_all and place != "close" and act != "fork":
        require(outcome.code in (1, 2), f"exit code {outcome.code}")
        named = NAMED.search(outcome.said) or (place in ("constructor", "worker") and f"{act}-{place}" in outcome.said)
        require(named, f"the environment is not named: {outcome.said[-150:]}")
    if place in ("reset", "step", "close"):
        require((run / "metrics.jsonl").is_file(), "no metrics were written")
        strictly_increasing(run / "metrics.jsonl")
        require_saved(run, 256 if place == "close" or ends_well else 32)


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
        f"    agent.evaluate(episodes=4, env='naughty:{act}-step-v0')\n"
        "except PhasegradError as error:\n    print(f'phasegrad: {error}', file=sys.stderr)\n    sys.exit(2)\n"
    )
    environment = scene.environment(NAUGHTY_AT="5")
    outcome = scene.run(program=program, seconds=SECONDS, environment=environment)
    require(outcome.code == 2, "nothing was raised")
