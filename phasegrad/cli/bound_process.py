"""The command line in a process that never outlives the one that started it: `python -m phasegrad.cli.bound_process PID ...`.

A cluster's task starts its run this way. When the task's worker is killed, the task is tried again elsewhere within a
second, and a run that trained on unnoticed would hold the run's lock and be trained twice.
"""

from __future__ import annotations

import signal
import sys

from phasegrad.cli.main import main as run
from phasegrad.machine.orphans import die_with


def main() -> int:
    parent, *arguments = sys.argv[1:]
    die_with(int(parent))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGINT}
        )  # the cluster's workers block it, and we inherit that
    return run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
