"""The runs that cases take copies of: finished, killed in the middle, of ACER, a study's, and a saved agent. Made once."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from fault_cases.case import require
from fault_cases.scene import Scene, Templates

TOTAL = 1280
KILLED_AT = 704
SMALL = "--preset none --num-envs 4 --num-steps 16 --hidden-sizes 16 --seed 3 --torch-threads 1 --keep-checkpoints 3 --quiet"
PPG = f"{SMALL} --n-pi 4 --num-minibatches 2 --e-aux 1 --aux-minibatches 4 --checkpoint-every 192 --log-steps"
PPO = f"{SMALL} --epochs 2 --num-minibatches 4 --checkpoint-every 192"
ACER = f"{SMALL} --replay-capacity 1024 --replay-start 128 --checkpoint-every 192"
STUDY = """
title = "Two learning rates"
algorithm = "ppo"
steps = 256
seeds = [1]
score = "eval"
eval_episodes = 2
environments = ["CartPole-v1"]
[fields]
preset = "none"
num_envs = 4
num_steps = 16
hidden_sizes = [8]
[variants.slow]
learning_rate = 1e-4
[variants.fast]
learning_rate = 1e-3
"""


def train(algorithm: str, run: str, settings: str, total: int = TOTAL, env: str = "CartPole-v1") -> list[str]:
    return f"train {algorithm} --env {env} --total-steps {total} --run-dir {run} {settings}".split()


def killed_program(algorithm: str, run: str, **fields: object) -> str:
    """A Python program that trains and is gone after the iteration that reaches KILLED_AT."""
    return (
        "import os, signal\nimport phasegrad as pg\n"
        f"agent = pg.{algorithm.upper()}('CartPole-v1', run_dir={run!r}, preset='none', num_envs=4, num_steps=16, hidden_sizes=(16,),\n"
        f"    seed=3, torch_threads=1, keep_checkpoints=3, checkpoint_every=192, **{fields!r})\n"
        "def look(row):\n"
        f"    if row['step'] >= {KILLED_AT}:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"agent.learn({TOTAL}, callback=look)\n"
    )


def build(folder: Path, cache: Path, areas: Collection[str]) -> Templates:
    """What cases of these areas need, in a folder."""
    templates = Templates(folder, cache)
    scene = Scene(folder / "making", templates, "templates")

    def done(*words: str, **how: object) -> None:
        outcome = scene.run(*words, seconds=300, **how)
        require(outcome.code == 0, f"{' '.join(words)}: {outcome.said}")

    done(*train("ppg", "finished", PPG))
    done("eval", "finished", "--episodes", "2")
    phases = {"n_pi": 4, "num_minibatches": 2, "e_aux": 1, "aux_minibatches": 4, "log_steps": True}
    scene.run(program=killed_program("ppg", "killed", **phases), codes=(-9,), seconds=120)
    scene.run(program=killed_program("acer", "acer", replay_capacity=1024, replay_start=128), codes=(-9,), seconds=120)
    for run in ("killed", "acer"):
        require((scene.work / run / "segments").is_dir(), f"the killed run {run} has no segments")
    done(program="import phasegrad as pg; pg.load('finished').save('agent')")
    (scene.work / "study.toml").write_text(STUDY)
    if "kills" in areas:
        done(*train("acer", "acer-whole", ACER))
    if not {"links", "special files"}.isdisjoint(areas):
        done("report", "finished")
        done("video", "finished", "--max-steps", "20", "--size", "64")
    if not {"links", "special files", "disks", "text"}.isdisjoint(areas):
        done("study", "study.toml", "--dir", "study", "--jobs", "2", "--quiet")
    if "compiled code" in areas and (shutil.which("cc") or shutil.which("gcc")):
        scene.cache = folder / "compiled"
        done(*train("ppo", "fast", f"{SMALL} --epochs 1 --num-minibatches 2 --compile on --checkpoint-every 128", 128))
    for made in scene.work.iterdir():
        shutil.move(made, folder / made.name)
    return templates
