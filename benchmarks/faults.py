"""Throws hundreds of faults at phasegrad from outside and says which held: links, devices, damage, signals, full disks, strangers.

    python benchmarks/faults.py --jobs 2 --out results/faults.json

Each case runs in a folder of its own with a home of its own; looked at are the exit code, the sentence, tracebacks, control
characters, time, memory, processes left behind, files outside the folder that must stay as they are, and what is particular
to the case (the bits of the run, the steps of its metrics). The verdicts are noted in a journal as they come: the same command
with `--journal FILE` goes on where it was. Beside --out, the table is written as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # a process that forks has one thread; before anything that reads it is imported
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from fault_cases import areas, campaign, templates  # noqa: E402


def table(entries: list[dict[str, Any]]) -> list[str]:
    """Area x (tried, held, broke), as Markdown; what could not be set up here is not counted as tried."""
    lines = ["| area | tried | held | broke | not possible here |", "|---|---|---|---|---|"]
    rows = [(area, [entry for entry in entries if entry["area"] == area]) for area in areas.AREAS]
    for area, mine in [*rows, ("all", entries)]:
        if mine:
            counts = Counter(entry["verdict"] for entry in mine)
            tried = counts["held"] + counts["broke"]
            lines.append(f"| {area} | {tried} | {counts['held']} | {counts['broke']} | {counts['skipped']} |")
    return lines


def summary(entries: list[dict[str, Any]], command: str, seed: int) -> dict[str, Any]:
    from phasegrad.versions import __version__

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    counts = Counter(entry["verdict"] for entry in entries)
    return {
        "version": __version__, "commit": commit, "command": command, "seed": seed, "tried": counts["held"] + counts["broke"],
        "held": counts["held"], "broke": counts["broke"], "skipped": counts["skipped"], "cases": entries,
    }  # fmt: skip


def page(found: dict[str, Any]) -> str:
    lines = [
        "# Faults", "",
        f"`{found['command']}`, phasegrad {found['version']}, commit {found['commit'][:10]}, seed {found['seed']}.", "",
        *table(found["cases"]), "",
    ]  # fmt: skip
    for verdict, title in (("broke", "What broke"), ("skipped", "What could not be tried on this machine")):
        entries = [entry for entry in found["cases"] if entry["verdict"] == verdict]
        if entries:
            lines += [f"## {title}", ""]
            lines += [f"* {entry['area']}: {entry['name']}: {_plain(entry['reason'])}" for entry in entries]
            lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    return "".join(f"\\{character}" if character in "<>*_`|[]$\\" else character for character in text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--area", nargs="+", choices=list(areas.AREAS), help="only these")
    parser.add_argument("--match", help="only cases whose title has this text")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument(
        "--sample", type=int, help="only so many, drawn by the seed, of the cases that start no process anew"
    )
    parser.add_argument("--list", action="store_true", help="print the titles and end")
    parser.add_argument("--journal", type=Path, help="where verdicts are noted as they come, to go on from")
    parser.add_argument("--out", type=Path, help="JSON file for the result; the table goes beside it as .md")
    options = parser.parse_args()
    cases = areas.collect(options.seed, options.area, options.match, options.sample)
    if options.list:
        print(*(case.title for case in cases), sep="\n")
        return 0
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    campaign.import_everything()
    memory = Path("/dev/shm")  # where a disk is shared, waiting for it takes longer than most cases
    place = memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2e9 else None
    # Not TemporaryDirectory: each forked child would remove it at its end. Compiled code may not be run from memory
    folder, cache = (Path(tempfile.mkdtemp(prefix="faults-", dir=where)) for where in (place, None))
    try:
        folder.chmod(0o755)
        made = templates.build(folder / "templates", cache, {case.area for case in cases})
        print(f"{len(cases)} cases; everything is set after {time.monotonic() - begun:.0f} s", flush=True)
        journal = options.journal or folder / "journal.jsonl"
        entries = campaign.run_cases(cases, folder, made, options.seed, options.jobs, journal)
    finally:
        campaign.remove(folder)
        campaign.remove(cache)
    order = {(case.area, case.name): number for number, case in enumerate(cases)}
    entries.sort(key=lambda entry: order[entry["area"], entry["name"]])
    print(*table(entries), f"{time.monotonic() - begun:.0f} s", sep="\n")
    if len(entries) < len(cases):
        print(f"{len(cases) - len(entries)} cases have no verdict: a worker failed.", file=sys.stderr)
    if options.out:
        only = ["--area", *options.area] if options.area else []
        asked = shlex.join(["python", "benchmarks/faults.py", *only, "--jobs", str(options.jobs)])
        found = summary(entries, asked, options.seed)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(found))
    return 1 if len(entries) < len(cases) or any(entry["verdict"] == "broke" for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
