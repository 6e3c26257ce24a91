"""The options of the `study` verb. Imports nothing heavy: the command line reads them for every command."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a built-in study or a TOML file; without one, the list of studies"
    )
    parser.add_argument("--dir", metavar="DIR", help="the study's folder (default studies/NAME)")
    parser.add_argument(
        "--record",
        metavar="DIR",
        help="keep scores, curves and settings of finished runs there too; runs whose scores it has count as done",
    )
    parser.add_argument(
        "--total-steps",
        dest="steps",
        metavar="N",
        help="environment steps of every run, rounded up to whole steps of its environments",
    )
    parser.add_argument("--steps", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # its name before
    parser.add_argument("--seeds", metavar="LIST", help="a count (5), a list (1,2,7), a range (4-6), or one alone (7,)")
    parser.add_argument(
        "--envs", metavar="LIST", help="only these environments, such as A,B; others that exist may be named too"
    )
    parser.add_argument("--variants", metavar="LIST", help="only these variants, such as a,b")
    parser.add_argument("--eval-episodes", metavar="N", help="episodes of the evaluation that scores a run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting for all runs; also env.NAME=VALUE"
    )
    parser.add_argument(
        "--jobs", metavar="N", help="runs at a time, a thread each (default: the processors this process may use)"
    )
    add_cluster_options(parser)
    parser.add_argument(
        "--allow-import",
        action="store_true",
        help="let a file name module:Id-v0 environments, options that may be paths, presets elsewhere, trackers",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs, how many are done, and the hours left; run nothing"
    )
    parser.add_argument("--table-only", action="store_true", help="print the table of the finished runs; run nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """What `study` and `tune` have in common."""
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="run on Ray: ray (this machine), ray://HOST:10001 or ray:HOST:PORT"
    )
    parser.add_argument("--cpus-per-run", metavar="N", help="with --cluster: processors of a run (default 1)")
    parser.add_argument("--gpus-per-run", metavar="N", help="with --cluster: GPUs of a run, or a share (default 0)")
