"""Runs cases side by side: a process imports everything once, each worker is forked from it, each command from a worker."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_cases import processes
from fault_cases.case import Broke, Case, Skipped
from fault_cases.scene import Scene, Templates

# What the verbs import when they are first used, which takes longer than most cases
HEAVY = (
    "torch", "gymnasium", "envpool", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "onnx", "PIL.Image", "imageio_ffmpeg", "safetensors.torch", "pygame",
    "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer", "torch.onnx",
    "torch.fx.experimental.proxy_tensor", "phasegrad.cli.main", "phasegrad.algorithms.loading", "phasegrad.runs.session",
    "phasegrad.report.page", "phasegrad.report.plot", "phasegrad.report.collect", "phasegrad.video.film",
    "phasegrad.export.onnx", "phasegrad.studies.command", "phasegrad.studies.table", "phasegrad.studies.watching",
    "phasegrad.cli.watch", "phasegrad.tune.tuning",
)  # fmt: skip


def import_everything() -> None:
    """So that a forked command begins at once; no thread may have been started by it."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):  # what is missing is missing for the command too
            importlib.import_module(name)
    import torch

    from phasegrad import envs

    torch.set_num_threads(1)
    envs.resolve("CartPole-v1")
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit(f"{threads} threads run where one must: set OMP_NUM_THREADS=1.")


def run_case(case: Case, folder: Path, templates: Templates, seed: int) -> dict[str, Any]:
    """The verdict on one case; its folder is removed."""
    begun, verdict, reason = time.monotonic(), "held", ""
    place = folder / "case"
    scene = Scene(place, templates, f"{case.title} {seed}")
    try:
        case.act(scene)
    except Broke as error:
        verdict, reason = "broke", " ".join(str(error).split())
    except Skipped as error:
        verdict, reason = "skipped", str(error)
    except Exception as error:  # a case that is wrong in itself
        verdict, reason = "broke", f"the case itself failed: {type(error).__name__}: {error}"
    finally:
        for helper in list(processes.helpers):
            with contextlib.suppress(OSError):
                os.kill(helper, 9)
                os.waitpid(helper, 0)
            processes.helpers.discard(helper)
        processes.end_session(os.getpid())
        processes.reap()
        remove(place)
    reason = "".join(c if c.isprintable() else "?" for c in reason.replace(str(place), "CASE"))
    seconds = round(time.monotonic() - begun, 2)
    return {"area": case.area, "name": case.name, "verdict": verdict, "reason": reason[:300], "seconds": seconds}


def remove(place: Path) -> None:
    """A folder with whatever is in it, closed folders too."""
    for inner, folders, _ in os.walk(place):
        for folder in folders:
            if not os.path.islink(os.path.join(inner, folder)):
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(inner, folder), 0o755)
    shutil.rmtree(place, ignore_errors=True)


def run_cases(
    cases: Sequence[Case], folder: Path, templates: Templates, seed: int, jobs: int, journal: Path
) -> list[dict[str, Any]]:
    """All verdicts; a line of the journal each as it comes, and those that are there already are not asked for again."""
    known = {(entry["area"], entry["name"]) for entry in read_journal(journal)}
    waiting = [number for number, case in enumerate(cases) if (case.area, case.name) not in known]
    reading, writing = os.pipe()
    workers = []
    for index in range(min(jobs, max(len(waiting), 1))):
        sys.stdout.flush()
        worker = os.fork()
        if worker == 0:
            os.close(writing)
            _work(cases, folder / f"worker-{index}", templates, seed, reading, journal)
        workers.append(worker)
    os.close(reading)
    try:
        for number in waiting:
            os.write(writing, number.to_bytes(4, "little"))
        os.close(writing)
        for worker in workers:
            os.waitpid(worker, 0)
    except BaseException:  # stopped: each worker ends its case and what that has started
        for worker in workers:
            with contextlib.suppress(OSError):
                os.kill(worker, signal.SIGTERM)
                os.waitpid(worker, 0)
        raise
    wanted = {(case.area, case.name) for case in cases}
    return [entry for entry in read_journal(journal) if (entry["area"], entry["name"]) in wanted]


def _work(cases: Sequence[Case], folder: Path, templates: Templates, seed: int, reading: int, journal: Path) -> None:
    code = 1
    try:
        folder.mkdir(parents=True)
        processes.adopt_orphans()
        while number := os.read(reading, 4):
            entry = run_case(cases[int.from_bytes(number, "little")], folder, templates, seed)
            with journal.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            if entry["verdict"] != "held":
                print(f"{entry['verdict']}: {entry['area']}: {entry['name']}: {entry['reason']}", flush=True)
        code = 0
    except (SystemExit, KeyboardInterrupt):
        pass
    except BaseException as error:
        print(f"a worker failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def read_journal(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
