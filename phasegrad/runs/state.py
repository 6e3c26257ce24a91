"""Where a run stands: how far it is, what of it is on disk, and what a resumed one has still to take up.

One object of a run, owned and written by this package; an algorithm only hands it on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from phasegrad.data.legs import Legs
from phasegrad.runs.history import KEPT, History

RECENT_EPISODES = 100


@dataclass
class Progress:
    """How far a run is; all of it goes into a checkpoint."""

    step: int = 0  # environment steps over all environments
    iteration: int = 0
    episodes: int = 0
    longest_episode: int = 0  # in steps, of all that have ended
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    recent_lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    recent_successes: deque[float] = field(
        default_factory=lambda: deque(maxlen=RECENT_EPISODES)
    )  # see `note_successes`

    def note_successes(self, reported: Sequence[float | None]) -> None:
        """Of the episodes just counted, whether each was a success, as far as its environment said so.

        Nothing is noted before one has. From then on one that says nothing was none: some speak of successes only.
        """
        if not self.recent_successes and all(each is None for each in reported):
            return
        if not self.recent_successes:  # those before it said nothing
            self.recent_successes.extend([0.0] * max(0, len(self.recent_returns) - len(reported)))
        self.recent_successes.extend(0.0 if each is None else float(each) for each in reported)

    @property
    def success_rate(self) -> float | None:
        """The share of successes among the recent episodes; None where no environment has ever spoken of one."""
        recent = self.recent_successes
        return sum(recent) / len(recent) if recent else None


@dataclass
class EvaluationRecord:
    """What a run knows of its own evaluations; it goes into a checkpoint, so that a resumed run makes the same ones."""

    spent: float = 0.0  # what they have cost, in environment steps of training
    longest: float = 0.0  # episode of the last one, in steps
    last: dict[str, Any] | None = None  # its summary with its step; on training levels, where levels are limited
    last_test: dict[str, Any] | None = None  # and on others
    best: dict[str, Any] | None = None  # step, return_mean and episodes of the best one


@dataclass(frozen=True)
class Change:
    """Settings that were changed once so many iterations were done, with the values they had and got."""

    iteration: int
    step: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "step": self.step, "before": dict(self.before), "after": dict(self.after)}


@dataclass
class RunState:
    """Where one run stands, beside its agent's and its optimisers' tensors."""

    legs: Legs  # of the training environments
    progress: Progress = field(default_factory=Progress)
    evaluations: EvaluationRecord = field(default_factory=EvaluationRecord)
    remembered: Tensor | None = None  # by a policy with a memory, of each environment's running episode [N, K]
    environment: dict[str, Tensor] | None = None  # the state of environments that can be saved
    stack: Any = None  # what a policy that sees several observations at once sees of it [N, ...]
    history: list[dict[str, Any]] = field(
        default_factory=list
    )  # evaluations so far that its metrics tell of, oldest first
    metrics: History = field(default_factory=lambda: History(KEPT), repr=False)  # so far, without a run directory
    run_dir: Path | None = None  # as it was given
    place: Path | None = field(default=None, init=False)  # the same, wherever an environment changes directory to
    overwrite: bool = False  # whether a run there, or what it holds beyond this one's step, may be replaced
    may_send: bool = True  # to the trackers that its settings name; a run from a file asks first
    takes_over: bool = False  # whether the run in the run directory is this one, to go on with
    stands_on: tuple[int, str | None] | None = None  # step and checksum of the checkpoint it comes from
    passed_over: list[str] = field(default_factory=list)  # checkpoints that were found damaged when it was loaded
    checkpoint_due: bool = False  # at the next boundary
    metrics_bytes: int = 0  # that metrics.jsonl held at the last checkpoint
    seconds_before: float = 0.0  # of training, in earlier sessions
    seconds_evaluating: float = 0.0  # of the run so far
    played_to: str = ""  # digest of the observations that a checkpoint's actions led to
    carried_from: dict[str, Any] | None = None  # what a checkpoint lists of rollouts to be read when training goes on
    computed: dict[str, str | int] = field(default_factory=dict)  # threads, processor, ... of its latest session
    card: dict[str, Any] = field(default_factory=dict)  # of a loaded save: what its card was made from
    cloned: dict[str, Any] | None = None  # what is known of the demonstrations that it began with, where it did
    changes: list[Change] = field(default_factory=list)  # of settings so far
    planned: list[Change] = field(default_factory=list)  # changes that the run had made after the step it goes on from
    asked: set[str] = field(default_factory=set)  # settings that were given since it was loaded or its last session
    unsaved: bool = False  # whether it was given what only a checkpoint can keep: weights, another environment
    on_change: Callable[[Change], None] | None = None  # of the session that is under way

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "run_dir":
            self.place = None if value is None else Path(value).absolute()

    def begin_elsewhere(self) -> None:
        """Forget what was scored in another environment; how far the run is stays."""
        progress = self.progress
        progress.longest_episode = 0
        for recent in (progress.recent_returns, progress.recent_lengths, progress.recent_successes):
            recent.clear()
        spent, record = self.evaluations.spent, EvaluationRecord()
        vars(self.evaluations).update({**vars(record), "spent": spent})

    def as_begun(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as they were before any was changed."""
        begun = dict(settings)
        for change in reversed(self.changes):
            begun |= change.before
        return begun
