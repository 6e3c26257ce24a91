"""Trains on every environment that phasegrad knows, each in a process of its own, and keeps what came of it.

    python tools/try_environments.py [--out results/environments.json] [--family NAME ...] [--again] [ID ...]

For each id: a few steps of PPO (256) with a small network, then one evaluation episode of at most 50 steps. A process that dies takes
its id with it and nothing else, and one that takes too long is ended. What is in the file already is not tried again, unless
it is named, or `--again` asks for all that did not train. Ends with 1 where an id that `phasegrad envs` lists without a mark
did not train, or one with a mark was not refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "environments.json"
SMALL = {
    "preset": "none", "num_envs": 2, "num_steps": 64, "num_minibatches": 2, "epochs": 1, "hidden_sizes": (16,), "seed": 1,
    "compile": "off", "torch_threads": 1, "env_threads": 1, "eval_episodes": 0,
}  # fmt: skip
STEPS = 256
EVALUATED = 50
# Imported once, before the processes fork: half of the processor time of a short try went into them.
LOADED_ONCE = (
    "torch", "phasegrad.algorithms.ppo", "phasegrad.algorithms.loading", "phasegrad.runs.session", "phasegrad.runs.evaluation",
    "phasegrad.envs.envpool_backend", "phasegrad.envs.gymnasium_backend", "envpool.entry", "minigrid",
)  # fmt: skip
# Words of an outcome: how a try of an environment can end.
TRAINED, REFUSED, TRACEBACK, DIED, HUNG = "trained", "refused", "traceback", "died", "hung"


def attempt(env_id: str, steps: int, told: Any) -> None:
    """Train and evaluate a little, in this process; what came of it goes through the pipe `told`."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what native code has to say
    os.dup2(null, 2)
    import phasegrad as pg

    found: dict[str, Any] = {}
    try:
        agent = pg.PPO(env_id, **SMALL | {"num_steps": min(64, max(4, steps // 4))})
        agent.learn(steps)
        agent.evaluate(1, max_steps=min(EVALUATED, steps))
        agent.close()
        found["outcome"] = TRAINED
    except pg.PhasegradError as error:
        found |= {"outcome": REFUSED, "sentence": str(error)}
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        found |= {"outcome": TRACEBACK, "sentence": f"{type(error).__name__}: {error} ({place})"[:300]}
    told.send(found)
    told.close()
    os._exit(0)  # some native code dies when it is taken down, after all was well


def try_one(env_id: str, steps: int, seconds: float) -> dict[str, Any]:
    """What came of `env_id`, tried in a process that may die or hang."""
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=attempt, args=(env_id, steps, sending), daemon=True)
    began = time.monotonic()
    process.start()
    sending.close()
    found: dict[str, Any]
    try:
        found = receiving.recv() if receiving.poll(seconds) else {"outcome": HUNG, "sentence": f"after {seconds:g} s"}
    except EOFError:
        process.join()
        found = {"outcome": DIED, "sentence": how_it_died(process.exitcode)}
    if process.is_alive():
        process.kill()
        process.join()
    return {"id": env_id, **found, "steps": steps, "seconds": round(time.monotonic() - began, 2)}


def how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by the signal {signal.Signals(-code).name}"
    return f"with the exit code {code}"


def every_id() -> dict[str, dict[str, Any]]:
    """What is known of every id that is registered: its family, its backend, the mark it has in the list."""
    from phasegrad.envs import all_envs

    return {entry.id: {"family": entry.family, "backend": entry.backend, "mark": entry.reason} for entry in all_envs()}


def read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {row["id"]: row for row in json.loads(path.read_text())["environments"]}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Whole or not at all: a run of hours is ended and taken up again."""
    ordered = sorted(rows, key=lambda row: (row["family"], row["id"]))
    lines = ",\n".join("  " + json.dumps(row) for row in ordered)
    summary = json.dumps(summarised(ordered))
    part = path.with_suffix(".part")
    part.write_text(f'{{"counts": {summary},\n "environments": [\n{lines}\n]}}\n')
    os.replace(part, path)


def summarised(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How many ended how, in all and by family."""
    counts: dict[str, Counter[str]] = {"all": Counter()}
    for row in rows:
        counts["all"][row["outcome"]] += 1
        counts.setdefault(row["family"], Counter())[row["outcome"]] += 1
    return {family: dict(count) for family, count in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="only these")
    parser.add_argument("--family", action="append", default=[], help="only those of this family")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"to train each (default {STEPS})")
    parser.add_argument("--seconds", type=float, default=120.0, help="that an id may take")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="try anew what did not train")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.set_forkserver_preload(list(LOADED_ONCE))
    rows = read(options.out)
    known = every_id()
    rows = {env_id: row for env_id, row in rows.items() if env_id in known}
    wanted = [
        env_id for env_id in options.ids or known if not options.family or known[env_id]["family"] in options.family
    ]
    done = {env_id for env_id, row in rows.items() if not options.again or row["outcome"] == TRAINED}
    wanted = [env_id for env_id in wanted if options.ids or env_id not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, row in enumerate(
            pool.map(lambda env_id: try_one(env_id, options.steps, options.seconds), wanted), 1
        ):
            rows[row["id"]] = {"id": row["id"], **known.get(row["id"], {"family": "unknown", "mark": ""}), **row}
            print(f"{number}/{len(wanted)} {row['id']}: {row['outcome']} {row.get('sentence', '')}", flush=True)
            if number % 5 == 0 or number == len(wanted):
                write(options.out, rows.values())
    if not wanted:
        write(options.out, rows.values())
    print(json.dumps(summarised(list(rows.values()))["all"]))
    unmended = [row["id"] for row in rows.values() if row["outcome"] != (REFUSED if row["mark"] else TRAINED)]
    if unmended:
        print(f"not as listed: {', '.join(unmended)}")
    return 1 if unmended else 0


if __name__ == "__main__":
    sys.exit(main())
