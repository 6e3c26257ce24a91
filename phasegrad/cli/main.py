"""The command line: verbs over the same config fields as Python, errors of one sentence, exit code 2 for bad input.

parsing.py knows the options; training.py, playing.py and looking.py do what is asked for.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from phasegrad.cli import cloning, looking, playing, sharing, training
from phasegrad.cli.early import find_mistakes
from phasegrad.cli.leaving import leave_without
from phasegrad.cli.messages import fresh_line, say
from phasegrad.cli.parsing import parse
from phasegrad.cli.starting import announce
from phasegrad.cli.streams import is_output_lost, lost_output, open_missing_streams, settled
from phasegrad.errors import PhasegradError, PhasegradWarning
from phasegrad.machine.failures import sentence as sentence_of
from phasegrad.machine.memory import is_lack_of_memory
from phasegrad.machine.processors import let_waiting_threads_sleep
from phasegrad.machine.stops import NOTHING_TO_SAVE, Stopped, stop_behind, stops_raise
from phasegrad.machine.terminals import plain_streams, without_colours
from phasegrad.outside import register_told

VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": training.run_train,
    "resume": training.run_resume,
    "clone": cloning.run_clone,
    "eval": playing.run_eval,
    "plot": looking.run_plot,
    "video": playing.run_video,
    "play": sharing.run_play,
    "export": playing.run_export,
    "save": sharing.run_save,
    "push": sharing.run_push,
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
    open_missing_streams()
    with plain_streams(), warnings.catch_warnings():
        plainly = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, PhasegradWarning):
                say(str(message))
            else:
                coloured = "\x1b" in str(message)  # as gymnasium's are
                plainly(without_colours(str(message)) if coloured else message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        threads = set(threading.enumerate())
        alone = arguments is None  # a process of its own
        with stops_raise(for_good=alone):
            try:
                code = settled(_run(arguments))
            except (KeyboardInterrupt, SystemExit) as error:
                if not isinstance(error, Stopped):
                    asked = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 0
                    if (found := settled(asked)) != asked:  # of --help
                        return found
                    raise
                code = error.exit_code  # of one more signal while the first was being told
        if alone:
            leave_without(threads, code)
        return code


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
        if isinstance(error, SystemExit) and not isinstance(error, Stopped):
            if isinstance(error.__context__, BrokenPipeError):  # rich leaves so
                return lost_output(error.__context__)
            raise
        return _stopped(error)
    except BrokenPipeError as error:
        if kept := getattr(error, "__notes__", []):
            say(f"stopped, because nothing reads its output any more. {' '.join(kept)}")
        return lost_output(error)
    except Exception as error:
        if debug:
            raise
        if is_interrupt(error):
            return _stopped(error)
        if is_lack_of_memory(error):
            say("there was not enough memory: use smaller sizes (networks, num_envs, num_steps, fewer runs at once).")
            return PhasegradError.exit_code
        refused = refusal_behind(error)
        if refused is None:
            raise
        if (lost := is_output_lost()) is not None:
            return lost_output(lost)
        say(sentence_of(refused))
        return PhasegradError.exit_code


def _stopped(error: BaseException) -> int:
    """Say how a signal has ended the command, and give the exit code that names it."""
    stop = stop_behind(error) or error
    fresh_line()
    say(getattr(stop, "sentence", "") or NOTHING_TO_SAVE)
    return int(getattr(stop, "exit_code", 130))


def refusal_behind(error: BaseException) -> OSError | None:
    """What the system refused, where that is the cause: a library may make an error of its own of it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__
    return seen


def is_interrupt(error: BaseException) -> bool:
    """Whether a Ctrl-C is behind this: a package that is being imported may turn one into an error of its own."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt | Stopped):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
