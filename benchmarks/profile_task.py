"""Where the time of a task of `phasegrad bench` goes: torch.profiler's table, with compiled calls and environments named.

python benchmarks/profile_task.py halfcheetah-8 --iterations 5 --out results/profile-halfcheetah-8.txt
"""

import argparse
import functools
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from phasegrad.algorithms import ALGORITHMS
from phasegrad.bench import TASKS
from phasegrad.compute.native.convolutions import CompiledConvolutions
from phasegrad.compute.native.program import EpochProgram, Program
from phasegrad.config import parse_settings
from phasegrad.data.collecting import Collector


def named(owner: Any, method: str, name: str) -> None:
    """Have every call of a method appear in the table."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        with record_function(name):
            return original(*arguments, **keywords)

    setattr(owner, method, wrapper)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--rows", type=int, default=14)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    task = TASKS[options.task]
    for owner, method, name in (
        (EpochProgram, "run", "compiled: an epoch of minibatches"),
        (Program, "run", "compiled: an acting step"),
        (CompiledConvolutions, "run_forward", "compiled: convolutions forward"),
        (CompiledConvolutions, "run_backward", "compiled: convolutions backward"),
        (Collector, "collect", "collecting (Python)"),
    ):
        named(owner, method, name)
    fields = {**task.fields, **parse_settings(options.set)}
    fields |= {"seed": 1, "total_steps": 10**9, "eval_episodes": 0}
    agent: Any = ALGORITHMS[task.algorithm](task.env, env_options=task.env_options, **fields)
    named(type(agent.experience.env), "step", "environments")
    steps = agent.config.num_steps * getattr(agent.config, "updates_per_iteration", 1) * agent.config.num_envs
    seen = 0

    def stop_after(count: int) -> Any:
        def watch(_: Any) -> bool:
            nonlocal seen
            seen += 1
            return seen < count

        return watch

    agent.learn(callback=stop_after(2))  # compiles and allocates
    seen = 0
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        agent.learn(callback=stop_after(options.iterations))
    table = profiler.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=options.rows, max_name_column_width=48
    )
    kept = ("Name", "Self CPU %", "Self CPU", "CPU total", "# of Calls")
    header = f"{options.task}: {options.iterations} iterations of {steps:,} steps, after two to warm up\n"
    Path(options.out).write_text(header + narrow(table, kept) + "\n")
    print(header + narrow(table, kept))


def narrow(table: str, kept: tuple[str, ...]) -> str:
    """The table with some of its columns: they are as wide as the rules above and below their titles."""
    lines = table.splitlines()
    edges, start = [], 0
    for width in (len(rule) for rule in lines[0].split()):
        edges.append((start, start + width))
        start += width + 2
    chosen = [edge for edge in edges if lines[1][edge[0] : edge[1]].strip() in kept]
    return "\n".join("  ".join(line[a:b] for a, b in chosen) if len(line) > 60 else line for line in lines)


if __name__ == "__main__":
    main()
