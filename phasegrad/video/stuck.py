"""When an episode goes on but nothing happens: the same state, or the same short cycle of states, again and again."""

from __future__ import annotations

import numpy as np

SECONDS = 10.0  # of film in which nothing new is seen
FEWEST_STEPS = 40  # however slow the film


def steps_without_change(frames_per_second: float) -> int:
    """After how many steps without anything new an episode counts as stuck."""
    return max(FEWEST_STEPS, round(SECONDS * frames_per_second))


class Repetition:
    """Follows one sequence of things, given as hashes: has it been a cycle of at most a quarter of `window` for so long?"""

    def __init__(self, window: int) -> None:
        self.window = window
        self.recent = np.zeros(max(1, window // 4), np.int64)  # the newest first
        self.same = np.zeros(len(self.recent), np.int64)  # how often in a row it was the one so many steps before
        self.known = 0

    def add(self, key: int) -> None:
        cycles = (self.recent == key) & (np.arange(len(self.recent)) < self.known)
        self.same = np.where(cycles, self.same + 1, 0)
        self.recent = np.roll(self.recent, 1)
        self.recent[0] = key
        self.known += 1

    def clear(self) -> None:
        self.same[:], self.known = 0, 0

    @property
    def is_stuck(self) -> bool:
        return bool(self.same.max() >= self.window)


class Watch:
    """Looks at N environments: stuck is one whose observations or pictures repeat while it earns nothing."""

    def __init__(self, num_envs: int, window: int) -> None:
        self.window = window
        self._of = [(Repetition(window), Repetition(window)) for _ in range(num_envs)]

    def see(self, index: int, observation: list[np.ndarray], picture: np.ndarray) -> None:
        """What environment `index` is at now."""
        observed, drawn = self._of[index]
        observed.add(hash(tuple(part.tobytes() for part in observation)))
        drawn.add(hash(picture.tobytes()))

    def is_stuck(self, index: int) -> bool:
        return any(repetition.is_stuck for repetition in self._of[index])

    def clear(self, index: int) -> None:
        """It has earned something, or begun anew."""
        for repetition in self._of[index]:
            repetition.clear()
