"""How long a step of a run takes on this machine, by training for a second: `python -m phasegrad.studies.calibration`.

A process of its own, so that several can measure side by side as the study's runs will. It reads a JSON list of
[key, algorithm, settings] and prints a line when it is ready and one for each. It writes no file of a run.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

from phasegrad.errors import PhasegradError
from phasegrad.machine.orphans import die_with_parent
from phasegrad.outside import register_told

SECONDS = 1.0  # of each measurement, after its warm-up
WARM_UP = 2  # iterations: the first runs plain kernels, the second compiles
MOST_STEPS = 2048  # of an iteration, with what is done after it
MOST_IMAGE_STEPS = 128  # convolutions take milliseconds a step
LEAST_ROLLOUT = 4  # steps of each environment: with fewer, some environments are left out
IMAGE_VALUES = 1000  # of an observation: more is an image


def main() -> int:
    die_with_parent()
    warnings.simplefilter("ignore")
    from phasegrad.algorithms import ALGORITHMS  # what a run takes to start is for the most part this

    register_told()
    _tell({"ready": True})
    for key, algorithm, settings in json.load(sys.stdin):
        try:
            seconds, setup = seconds_a_step(ALGORITHMS[algorithm], settings)
            found: dict[str, Any] = {"seconds": seconds, "setup": setup}
        except PhasegradError as error:
            found = {"error": str(error)}
        except Exception as error:  # an environment may raise anything
            found = {"error": f"{type(error).__name__}: {error}"}
        _tell({"key": key, **found})
    return 0


def seconds_a_step(algorithm_class: Any, settings: Mapping[str, Any], seconds: float = SECONDS) -> tuple[float, float]:
    """Of training with the settings, in shorter iterations where theirs are long, after the warm-up; and what that takes.

    The warm-up, in which environments are made and kernels compiled, is a cost that a run has once.
    """
    agent = algorithm_class(**{**settings, "eval_episodes": 0})
    values = sum(math.prod(space.shape or (1,)) for space in _spaces(agent.agent.observation_space))
    most = MOST_IMAGE_STEPS if values > IMAGE_VALUES else MOST_STEPS
    agent.close()
    begun = time.perf_counter()
    agent = algorithm_class(**{**settings, "eval_episodes": 0, **shortened(agent.config.to_json(), most)})
    marks: list[tuple[float, int]] = []

    def watch(row: dict[str, Any]) -> bool:
        now = time.perf_counter()
        if row["iteration"] >= WARM_UP:
            marks.append((now, row["step"]))
        return len(marks) < 2 or now - marks[0][0] < seconds

    try:
        agent.learn(agent.config.total_steps, callback=watch)
    finally:
        agent.close()
    if len(marks) < 2:  # the whole run is as short as this
        return (time.perf_counter() - begun) / int(agent.config.total_steps), 0.0
    (first, before), (last, after) = marks[0], marks[-1]
    found = (last - first) / (after - before)
    return found, max(0.0, first - begun - found * before)


def shortened(settings: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Settings with which an iteration takes about `most` steps and as much work a step: minibatches keep their size.

    {} where the iterations are no longer than that. PPG's auxiliary phase comes after each of them, with its share.
    """
    from phasegrad.phases import phase_schedule

    all_envs, num_steps = int(settings["num_envs"]), int(settings["num_steps"])
    num_envs = largest_divisor(all_envs, max(1, most // LEAST_ROLLOUT))
    schedule = phase_schedule(settings)
    interval = schedule.interval if schedule else 1
    if all_envs * num_steps * interval <= most and "replay_start" not in settings:
        return {}
    steps = max(1, min(num_steps, most // num_envs))
    share = steps * num_envs / (num_steps * all_envs)
    changed: dict[str, Any] = {"num_envs": num_envs, "num_steps": steps}

    def fewer(name: str, count: float) -> None:
        if settings.get(name):
            changed[name] = max(1, round(count))

    fewer("num_minibatches", settings.get("num_minibatches", 0) * share)
    fewer("fisher_samples", settings.get("fisher_samples", 0) * share)
    if "replay_start" in settings:  # ACER: what replay takes is to be measured too
        changed["replay_start"] = min(int(settings["replay_start"]), num_envs * steps)
    if schedule:
        changed |= {"n_pi": 1, **_shorter_phase(settings, share / interval)}
        for name in ("aux_interval", "aux_buffer"):
            fewer(name, 1)
    return changed


def _shorter_phase(settings: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Settings of an auxiliary phase with that share of the work: fewer minibatches, and a smaller one where one is too much."""
    steps, size = settings.get("aux_steps", 0) * share, settings.get("aux_minibatch_size", 0)
    changed = {"aux_steps": max(1, round(steps))} if steps else {}
    if not size:
        minibatches = settings.get("aux_minibatches") or 16 * settings["n_pi"]
        return {**changed, "aux_minibatches": max(1, round(minibatches * share))}
    return {**changed, "aux_minibatch_size": max(1, round(size * min(1.0, steps)))} if steps else changed


def largest_divisor(number: int, most: int) -> int:
    """Of a number, at most so large: a run's length is a multiple of it too."""
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)


def _spaces(space: Any) -> list[Any]:
    inner = getattr(space, "spaces", [space])
    return list(inner.values() if isinstance(inner, Mapping) else inner)


def _tell(data: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
