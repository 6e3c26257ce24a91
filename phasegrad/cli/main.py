"""The command line: verbs over the same config fields as Python, errors of one sentence, exit code 2 for bad input.

parsing.py knows the options; training.py, playing.py and looking.py do what is asked for.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from phasegrad.cli import cloning, looking, playing, training
from phasegrad.cli.early import find_mistakes
from phasegrad.cli.messages import fresh_line, say
from phasegrad.cli.parsing import parse
from phasegrad.cli.starting import announce
from phasegrad.errors import PhasegradError, PhasegradWarning
from phasegrad.machine.memory import is_lack_of_memory
from phasegrad.machine.processors import let_waiting_threads_sleep
from phasegrad.outside import register_told

VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": training.run_train,
    "resume": training.run_resume,
    "clone": cloning.run_clone,
    "eval": playing.run_eval,
    "plot": looking.run_plot,
    "video": playing.run_video,
    "export": playing.run_export,
    "tune": training.run_tune,
    "study": training.run_study,
    "report": looking.run_report,
    "watch": looking.run_watch,
    "envs": looking.run_envs,
    "presets": looking.run_presets,
    "bench": looking.run_bench,
    "doctor": looking.run_doctor,
    "completion": looking.run_completion,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    let_waiting_threads_sleep()
    with warnings.catch_warnings():
        plainly = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, PhasegradWarning):
                say(str(message))
            else:
                plainly(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("phasegrad").setLevel(logging.DEBUG)
    try:
        announce(arguments)
        register_told()
        options = parse(arguments)
        if options.version:
            from phasegrad.versions import __version__

            print(f"phasegrad {__version__}")
            return 0
        if options.verb is None:
            from phasegrad.cli.guide import guide

            print(guide())
            return 0
        find_mistakes(options)
        return VERBS[options.verb](options)
    except PhasegradError as error:
        if debug:
            raise
        say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, SystemExit) as error:
        sentence = getattr(error, "sentence", "")
        if isinstance(error, SystemExit) and not sentence:
            raise
        fresh_line()
        say(sentence or "stopped before there was anything to save.")
        return int(getattr(error, "exit_code", 130))
    except BrokenPipeError:
        return 141
    except Exception as error:
        if not debug and is_lack_of_memory(error):
            say("there was not enough memory: give smaller sizes (networks, num_envs, num_steps, fewer runs at once).")
            return PhasegradError.exit_code
        if debug or not is_interrupt(error):
            raise
        fresh_line()
        say("stopped before there was anything to save.")
        return 130


def is_interrupt(error: BaseException) -> bool:
    """Whether a Ctrl-C is behind this: a package that is being imported may turn one into an error of its own."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
