"""An environment whose constructor hangs: env_timeout gives it up, and without one a sentence says what the run waits for."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import phasegrad as pg
from phasegrad.envs import make, making
from phasegrad.errors import EnvError, PhasegradWarning


class Slow:
    """Makes CartPole, the one with the number `last` (and what is made after it) only after `seconds`."""

    def __init__(self, folder: Path, last: int, seconds: float) -> None:
        self.folder, self.last, self.seconds = folder, last, seconds

    def __call__(self) -> gym.Env:
        number = len(list(self.folder.iterdir()))
        (self.folder / f"{number} {multiprocessing.current_process().name}").touch()
        if number >= self.last:
            time.sleep(self.seconds)
        return gym.make("CartPole-v1")


# Where the processes are started one environment is made for its spaces, and by gymnasium another: only then the workers.
@pytest.mark.parametrize(("vectorization", "last"), [("sync", 1), ("async", 0), ("async", 1), ("async", 2)])
def test_a_constructor_that_hangs_is_given_up(vectorization: str, last: int, tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())  # of other tests, until somebody collects what they dropped
    began = time.monotonic()
    with pytest.raises(
        EnvError, match=r"Environment \d \(seed \d+\) took longer than the 3 s of env_timeout on being made\."
    ):
        make(Slow(tmp_path, last, 600), num_envs=2, seeds=[3, 4], vectorization=vectorization, timeout=3.0)
    assert time.monotonic() - began < 120
    assert not [child for child in set(multiprocessing.active_children()) - before if "Worker" in child.name]


def test_the_setting_of_a_run_counts_there(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="the 2 s of env_timeout on being made"):
        pg.PPO(Slow(tmp_path, 0, 600), num_envs=1, env_timeout=2.0, compile="off").learn(64)


@pytest.mark.parametrize(("vectorization", "last"), [("sync", 0), ("async", 2)])
def test_without_a_limit_a_sentence_says_what_is_waited_for(
    vectorization: str, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "SECONDS_UNTIL_TOLD", 0.5)
    told = r"Environment \d \(seed \d+\) is still being made after 0.5 s, and the run waits for it: Ctrl-C stops"
    with pytest.warns(PhasegradWarning, match=told):
        env = make(Slow(tmp_path, last, 2.0), num_envs=2, seeds=[3, 4], vectorization=vectorization)
    env.reset()
    env.close()


def test_one_that_is_made_in_time_is_not_told_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    before = threading.active_count()
    for vectorization in ("sync", "async"):
        make(lambda: gym.make("CartPole-v1"), num_envs=3, seeds=[3, 4, 5], vectorization=vectorization).close()
    assert not [warning for warning in recwarn if issubclass(warning.category, PhasegradWarning)]
    assert threading.active_count() == before


def test_the_limit_is_between_two_answers() -> None:
    """Many workers on few processors take their time one after another."""
    context: Any = multiprocessing
    pairs = [context.Pipe() for _ in range(4)]

    def answer() -> None:
        for _, worker in pairs:
            time.sleep(0.4)
            worker.send(making.MADE)

    thread = threading.Thread(target=answer)
    thread.start()
    making.first_words([parent for parent, _ in pairs], [(index, 7) for index in range(4)], 1.2)
    thread.join()
    with pytest.raises(EnvError, match=r"Environment 5 \(seed 9\)"):
        making.first_words([pairs[0][0]], [(5, 9)], 0.1)
