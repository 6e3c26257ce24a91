"""`phasegrad bench`: how fast this machine trains, as shares of what it could do at most, measured in the same run.

For small networks the limit is the environments alone, stepped with random actions; for convolutions it is a large
matrix product in single precision. Each task runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from phasegrad.config import parse_settings
from phasegrad.errors import ConfigError, DamagedError, PhasegradError, RunError, unknown
from phasegrad.machine.paths import as_path
from phasegrad.machine.processors import let_waiting_threads_sleep, usable_processors
from phasegrad.phases import phase_schedule
from phasegrad.runs.files import read_json

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm

UNBOUNDED = 10**9  # steps: the clock ends a measurement
WARM_UP = 2  # iterations: the first runs plain kernels, the second compiles
PRODUCT = 2048
Report = Callable[[str, int, float | None], object]  # task, repeat from 0 on, steps a second once they are measured


@dataclass
class Task:
    """What is trained, and whether its network is convolutional."""

    algorithm: str
    env: str
    fields: dict[str, Any]
    convolutional: bool = False
    env_options: dict[str, Any] = field(default_factory=dict)


PPO_64 = {"preset": "none", "arch": "dual", "hidden_sizes": (64, 64), "activation": "tanh"}
IN_TURN = {"backend": "gymnasium"}  # for a few environments: handing them to envpool's threads takes longer than a step
IMPALA = {"preset": "procgen", "arch": "shared", "num_envs": 64, "num_steps": 256}
PHASE = {**IMPALA, "num_steps": 32, "n_pi": 1}  # the work a step is that of longer phases
EASY = {"distribution": "easy"}
TASKS = {
    "halfcheetah-8": Task("ppo", "HalfCheetah-v5", {**PPO_64, "num_envs": 8, "num_steps": 256, "epochs": 10, "num_minibatches": 32}),
    "halfcheetah-1": Task("ppo", "HalfCheetah-v5", {**PPO_64, **IN_TURN, "num_envs": 1, "num_steps": 2048, "epochs": 10, "num_minibatches": 32}),
    "cartpole-4": Task("ppo", "CartPole-v1", {**PPO_64, **IN_TURN, "num_envs": 4, "num_steps": 128, "epochs": 4, "num_minibatches": 4}),
    "cartpole-8": Task("ppo", "CartPole-v1", {**PPO_64, "num_envs": 8, "num_steps": 256, "epochs": 10, "num_minibatches": 32}),
    "pendulum-4": Task("ppo", "Pendulum-v1", {**PPO_64, "num_envs": 4, "num_steps": 1024, "epochs": 2, "num_minibatches": 16, "gamma": 0.9}),
    "cartpole-lstm": Task("ppo", "CartPole-v1", {**PPO_64, "num_envs": 8, "num_steps": 128, "epochs": 10, "num_minibatches": 8, "memory": "lstm"}),
    "breakout": Task(
        "ppo", "Breakout-v5",
        {"preset": "atari", "num_envs": 8, "num_steps": 128, "epochs": 4, "num_minibatches": 4}, convolutional=True,
    ),
    "starpilot-ppo": Task("ppo", "procgen/starpilot", IMPALA, convolutional=True, env_options=EASY),
    "starpilot-ppg-single": Task("ppg", "procgen/starpilot", {**PHASE, "arch": "detach"}, True, EASY),
    "starpilot-ppg-dual": Task("ppg", "procgen/starpilot", {**PHASE, "arch": "dual"}, True, EASY),
    "starpilot-fast": Task("ppg", "procgen/starpilot", {"preset": "procgen-fast"}, convolutional=True),
}  # fmt: skip


def bench(
    names: Sequence[str],
    seconds: float,
    repeats: int,
    settings: Sequence[str] = (),
    report: Report | None = None,
) -> dict[str, Any]:
    """Measure tasks in turn, each `repeats` times; medians, and every single figure beside them.

    `settings`: FIELD=VALUE for all of them. `report` is called before and after each measurement.
    """
    parse_settings(settings)
    require_tasks(names)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names:
            if report is not None:
                report(name, repeat, None)
            runs[name].append(_in_a_process(name, seconds, settings))
            if report is not None:
                report(name, repeat, runs[name][-1]["sps"])
    return {name: _median(found) for name, found in runs.items()}


def require_tasks(names: Sequence[str]) -> None:
    for name in names:
        if name not in TASKS:
            raise ConfigError(unknown("task", name, TASKS, f"there are {', '.join(TASKS)}"))


def read_recorded(option: str, path: str) -> dict[str, Any]:
    """What an earlier `--out` wrote."""
    try:
        found = read_json(as_path(path), links=True)
    except FileNotFoundError:
        raise ConfigError(
            f"{option} {path}: there is no such file; `phasegrad bench --out {path}` writes one."
        ) from None
    except DamagedError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(row, dict) and "ratio_to_limit" in row for row in found.values()
    ):
        raise ConfigError(f"{option} {path}: the file is not one that `phasegrad bench --out` wrote.")
    return found


def fallen_behind(results: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Sentences on tasks whose share of the machine's limit is below half of what was recorded: a wide margin."""
    return [
        f"{name} reaches {results[name]['ratio_to_limit']:.0%} of this machine's limit, below half of the recorded "
        f"{recorded[name]['ratio_to_limit']:.0%}."
        for name in results
        if name in recorded and results[name]["ratio_to_limit"] < recorded[name]["ratio_to_limit"] / 2
    ]


def _in_a_process(name: str, seconds: float, settings: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "phasegrad.bench", name, str(seconds), *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RunError(f"The benchmark {name} failed: {reason[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    result = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return result | {"sps_each": [run["sps"] for run in runs]}


def measure(task: Task, seconds: float, settings: Sequence[str] = ()) -> dict[str, float]:
    """One task in this process: throughput once everything is compiled and allocated, and its limit."""
    from phasegrad.algorithms import ALGORITHMS
    from phasegrad.machine.memory import peak_bytes

    given = {**task.fields, **parse_settings(settings)}
    agent = ALGORITHMS[task.algorithm](
        given.pop("env", task.env),
        env_options=task.env_options,
        total_steps=UNBOUNDED,
        seed=1,
        checkpoint_every=UNBOUNDED,
        eval_episodes=0,
        **given,
    )
    schedule = phase_schedule(vars(agent.config))
    phase = schedule.interval if schedule else 1  # PPG: whole phases only, so that auxiliary work counts in full
    begun = time.perf_counter()
    marks: list[tuple[float, int]] = []
    shares: dict[str, float] = {}

    def watch(row: dict[str, Any]) -> bool:
        now = time.perf_counter()
        if marks:
            for name, share in row.items():
                if name.startswith("time_"):
                    key = f"share_{name.removeprefix('time_')}"
                    shares[key] = shares.get(key, 0.0) + share / row["sps"]
            shares["total"] = shares.get("total", 0.0) + 1 / row["sps"]
        if row["iteration"] >= WARM_UP and row["iteration"] % phase == 0:
            marks.append((now, row["step"]))
        return len(marks) < 2 or now - marks[0][0] < seconds

    total = UNBOUNDED - UNBOUNDED % agent.config.num_envs
    agent.learn(total, callback=watch)
    agent.close()
    (first, steps_before), (last, steps_after) = marks[0], marks[-1]
    sps = (steps_after - steps_before) / (last - first)
    result = {
        "sps": sps,
        "seconds_to_steady_state": marks[0][0] - begun,
        "peak_rss_mb": peak_bytes() / (1 << 20),
        "bytes_a_step": agent.storage_bytes()
        / (agent.rollouts_kept() * agent.config.num_steps * agent.config.num_envs),
    }
    whole = shares.pop("total")
    result |= {key: value / whole for key, value in sorted(shares.items())}
    if task.convolutional:
        peak = product_gflops(min(seconds, 3.0))
        result |= {"limit_gflops": peak, "gflops": sps * flops_a_step(agent) / 1e9}
        return result | {"ratio_to_limit": result["gflops"] / peak}
    alone = environments_alone(agent, min(seconds, 5.0))
    return result | {"limit_sps": alone, "ratio_to_limit": sps / alone}


def environments_alone(agent: Algorithm, seconds: float) -> float:
    """Steps a second of the same environments with random actions and no agent."""
    env = agent.experience.make()
    try:
        env.action_space.seed(1)
        actions = [_batch(env) for _ in range(16)]
        env.reset()
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            for batch in actions:
                env.step(batch)
            count += len(actions) * env.num_envs
        return count / (time.perf_counter() - begun)
    finally:
        env.close()


def _batch(env: Any) -> Any:
    import numpy as np

    from phasegrad import envs

    rows = [env.action_space.sample() for _ in range(env.num_envs)]
    if isinstance(rows[0], dict):
        return envs.flat_actions(env.action_space, {name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return np.stack([np.asarray(row) for row in rows])


def product_gflops(seconds: float, wanted: int = 0) -> float:
    """The best rate of a large product in single precision, on `wanted` threads or all processors."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(wanted or usable_processors())
    try:
        a, b = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
        best, begun = float("inf"), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            start = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - start)
        return 2 * PRODUCT**3 / best / 1e9
    finally:
        torch.set_num_threads(threads)


def flops_a_step(agent: Algorithm) -> float:
    """Floating-point operations of the networks for one environment step: acting and every pass of the updates."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from phasegrad.models.memory import Sequences

    model, config = agent.model, cast(Any, agent.config)
    space = model.seen_space
    batch = torch.zeros((8, *space.shape), dtype=torch.uint8)
    sequences = Sequences(batch, torch.zeros(8, model.state_size), torch.zeros(8, dtype=torch.bool))
    seen = sequences if model.state_size else batch

    def recurrent(inputs: Any, states: Any, keep: Any, weights: Any, *_: Any, **__: Any) -> int:
        """Of the products of states and weights inside the operations of models/memory.py, from their shapes."""
        return 2 * int(inputs[0]) * int(weights[0]) * int(weights[1])

    own = {getattr(torch.ops.phasegrad, name): recurrent for name in ("lstm", "lstm_backward", "gru", "gru_backward")}

    def cost(function: Any, learn: bool) -> float:
        with FlopCounterMode(display=False, custom_mapping=own) as counter, torch.set_grad_enabled(learn):
            outputs = function(seen)
            if learn:
                sum(output.sum() for output in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
        model.zero_grad(set_to_none=False)
        return counter.get_total_flops() / len(batch)

    acting = cost(model.policy, False) + (cost(model.value, False) if model.value_is_separate else 0.0)
    learning = cost(model.policy_and_value, True)
    settings: dict[str, Any] = vars(config)
    # PPG counts its passes over a rollout apart for policy and value, an algorithm that says nothing of them makes one.
    passes = settings.get("epochs", max(settings.get("e_pi", 1), settings.get("e_v", 1)))
    schedule = phase_schedule(settings)
    if schedule is None:
        return acting + passes * learning
    joint = cost(model.policy_and_auxiliary_value, True) + (cost(model.value, True) if model.value_is_separate else 0.0)
    kept, phase_steps = (count * config.batch_size for count in (schedule.kept, schedule.interval))
    drawn = settings["aux_steps"] * settings["aux_minibatch_size"]
    seen = drawn if settings["aux_steps"] else settings["e_aux"] * kept
    stored = min(seen, kept) * cost(model.policy, False)
    return acting + passes * learning + (seen * joint + stored) / phase_steps


def table(results: dict[str, Any]) -> str:
    """The measurements as a Markdown table."""
    lines = [
        "| task | steps/s | limit of this machine | share of it | environment / inference / update | peak memory | a stored step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        limit = f"{row['limit_gflops']:,.0f} GFLOPS" if "limit_gflops" in row else f"{row['limit_sps']:,.0f} steps/s"
        update = row.get("share_update", 0.0) + row.get("share_auxiliary", 0.0)
        shares = f"{row['share_environment']:.0%} / {row['share_inference']:.0%} / {update:.0%}"
        lines.append(
            f"| {name} | {row['sps']:,.0f} | {limit} | {row['ratio_to_limit']:.0%} | {shares} "
            f"| {row['peak_rss_mb']:,.0f} MB | {row['bytes_a_step']:,.0f} B |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    let_waiting_threads_sleep()
    try:
        sys.stdout.write(json.dumps(measure(TASKS[sys.argv[1]], float(sys.argv[2]), sys.argv[3:])) + "\n")
    except PhasegradError as error:
        sys.exit(str(error))
