"""The last words of a run: its score, and what one does next, as commands or in Python."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from phasegrad.runs.formats import number, score
from phasegrad.runs.view import TRAINING_RETURN

_in_commands: ContextVar[bool] = ContextVar("in_commands", default=False)


@contextlib.contextmanager
def told_in_commands() -> Iterator[None]:
    """What comes next is told as commands: the run was started by one."""
    before = _in_commands.set(True)
    try:
        yield
    finally:
        _in_commands.reset(before)


def summary_line(result: Mapping[str, Any], run_dir: str = "") -> str:
    """The score first, then how the run ended and where it is."""
    how = str(result["status"])
    if result.get("reached") is not None:
        how += f" with the {score(result['reached'])} that was asked for,"
    line = f"{score_sentence(result)}; {how} at {result['step']:,} steps in {int(result['seconds']):,} s"
    line += f" ({number(float(round(result['sps'])))} steps/s)"
    return line + (f"; the run is in {run_dir}" if run_dir else "")


def score_sentence(result: Mapping[str, Any]) -> str:
    """The score: the mean return of the last evaluation. Training returns only where there was none, and named so."""
    last, test, best = (result.get(name) for name in ("eval", "eval_test", "best_eval"))
    if not last:
        return f"{TRAINING_RETURN}: {score(result.get('return_mean'))}"
    sentence = f"score {score(last.get('return_mean'))}"
    if test:
        sentence += f", on levels not trained on {score(test.get('return_mean'))}"
    sentence += f" ({last.get('episodes', '?')} greedy episodes"
    rate = last.get("success_rate")
    sentence += ")" if not isinstance(rate, (int, float)) else f", {rate:.0%} of them successes)"
    if best and best.get("step") != result["step"] and (best.get("return_mean") or 0) > (last.get("return_mean") or 0):
        sentence += f", best {score(best['return_mean'])} at step {best['step']:,}"
    return sentence


def next_lines(result: Mapping[str, Any], run_dir: str, total: int, columns: int = 120) -> list[str]:
    """What one does with a run that has ended; one that was stopped short of its total goes on first.

    Where the lines would not fit, they are the commands alone.
    """
    short = result["step"] < total
    steps = commands(run_dir, short, total) if run_dir and _in_commands.get() else calls(run_dir, short, total)
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}  # {what}" for command, what in steps]
    fit = max(map(len, lines)) <= columns
    return ["next:", *(lines if fit else [f"  {command}" for command, _ in steps])]


def commands(run_dir: str, short: bool, total: int) -> list[tuple[str, str]]:
    place = shlex.quote(run_dir)
    onward = (f"phasegrad resume {place}", f"go on to its {total:,} steps") if short else (f"phasegrad resume {place} --total-steps {2 * total}", "train as long again")  # fmt: skip
    looks = [
        (f"phasegrad eval {place} --episodes 100 --deterministic", "its return over 100 episodes"),
        (f"phasegrad video {place}", "see it play"),
        (f"phasegrad report {place}", "curves, time and settings on one page"),
    ]
    return [onward, *looks] if short else [*looks, onward]


def calls(run_dir: str, short: bool, total: int) -> list[tuple[str, str]]:
    onward = (f"agent.learn({total:_})", f"go on to {total:,} steps") if short else (f"agent.learn({2 * total:_})", "train as long again")  # fmt: skip
    looks = [
        ("agent.evaluate(episodes=100)", "its return over 100 episodes"),
        ('agent.record("agent.mp4")', "see it play"),
    ]
    if run_dir:
        page = f'phasegrad.report.write_report([{run_dir!r}], "report.html")'
        looks += [(page, "curves, time and settings on one page")]
    else:
        looks += [('agent.save("agent")', "keep it")]
    return [onward, *looks] if short else [*looks, onward]
