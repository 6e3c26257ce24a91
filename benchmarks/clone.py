"""Warm starts on LunarLander-v3: PPO cloned from a trained agent's greedy episodes, then trained on with and without the
leash, against PPO from scratch.

    python benchmarks/clone.py --demo demo.npz --out results/clone.json

Without --demo the demonstrator is trained first: PPG for 400,000 steps on seed 1, of which 20 greedy episodes are taken. Every
score is the mean return of 20 greedy episodes, on the same seeds at each point. The page beside the JSON has its ending .md.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import phasegrad as pg

ENV, TOTAL = "LunarLander-v3", 300_000
POINTS = (25_000, 50_000, 100_000, 200_000, 300_000)
SEEDS = (1, 2, 3)
VARIANTS: dict[str, tuple[bool, bool, dict[str, Any]]] = {  # whether cloned, with rewards, settings
    "cloned, leash": (True, True, {}),
    "cloned, no leash": (True, True, {"leash": 0.0}),
    "cloned without rewards, leash": (True, False, {}),
    "cloned without rewards, no leash": (True, False, {"leash": 0.0}),
    "from scratch": (False, False, {}),
}


def demonstrate(path: Path) -> None:
    teacher = pg.PPG(ENV, seed=1, total_steps=400_000)
    teacher.learn()
    teacher.evaluate(20, save_steps=path)


def measure(variant: str, seed: int, demo: Path) -> dict[str, Any]:
    cloned, with_rewards, fields = VARIANTS[variant]
    agent = pg.PPO(ENV, seed=seed, total_steps=TOTAL, eval_episodes=0, **fields)
    begun, told = time.perf_counter(), None
    if cloned:
        arrays = np.load(demo, allow_pickle=False)
        names = ("rewards", "terminated", "truncated") if with_rewards else ("terminated", "truncated")
        others = {name: arrays[name] for name in names}
        told = agent.clone(arrays["observations"], arrays["actions"], **others)
    cloning = time.perf_counter() - begun
    scores = {0: agent.evaluate(20, seed=1000 + seed).return_mean}
    left = list(POINTS)

    def score(row: dict[str, Any]) -> None:
        if left and row["step"] >= left[0]:
            scores[left.pop(0)] = agent.evaluate(20, seed=1000 + seed).return_mean

    agent.learn(callback=score)
    agent.close()
    found = {} if told is None else {"agreement": told.agreement, "value_explained": told.value_explained}
    return {"variant": variant, "seed": seed, "scores": scores, "seconds_cloning": cloning if cloned else None, **found}


def page(rows: list[dict[str, Any]], demonstrator: float) -> str:
    """The scores as a table, and how far each variant fell below the policy it was cloned to."""
    lines = [
        "# Warm starts on LunarLander-v3",
        "",
        f"PPO, {TOTAL:,} steps, mean return of 20 greedy episodes. The demonstrator's 20 episodes: {demonstrator:.0f}. "
        "Written by `python benchmarks/clone.py`.",
        "",
        "| | seed | " + " | ".join(f"{point:,}" for point in (0, *POINTS)) + " | lowest, of the clone's |",
        "|---|---|" + "---|" * (len(POINTS) + 2),
    ]
    for row in sorted(rows, key=lambda row: (list(VARIANTS).index(row["variant"]), row["seed"])):
        scores = [float(score) for score in row["scores"].values()]
        share = f"{min(scores) / scores[0]:.0%}" if row["seconds_cloning"] else ""
        lines.append(
            f"| {row['variant']} | {row['seed']} | {' | '.join(f'{score:.0f}' for score in scores)} | {share} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="the demonstrator's steps, written if the file is not there")
    parser.add_argument("--out", type=Path, default=Path("results/clone.json"))
    options = parser.parse_args()
    demo = options.demo or options.out.with_suffix(".npz")
    if not demo.exists():
        demonstrate(demo)
    demonstrator = float(np.load(demo, allow_pickle=False)["returns"].mean())
    rows = []
    for seed in SEEDS:
        for variant in VARIANTS:
            rows.append(measure(variant, seed, demo))
            options.out.write_text(json.dumps({"demonstrator": demonstrator, "runs": rows}, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(page(rows, demonstrator))


if __name__ == "__main__":
    main()
