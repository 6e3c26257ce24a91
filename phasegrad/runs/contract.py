"""What a run needs to know of that which trains: anything with these attributes can be checkpointed, resumed, shown.

The algorithms have them. Nothing in this package imports an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

from torch import Tensor

from phasegrad.agent import Agent
from phasegrad.compute.choosing import Computation
from phasegrad.config import Config
from phasegrad.data.storage import Rollout
from phasegrad.distributed.ranks import Ranks
from phasegrad.machine.clock import Clock
from phasegrad.runs.evaluation import Evaluation
from phasegrad.runs.state import RunState


class Carried(Protocol):
    """Data beyond tensors that outlives an iteration, in numbered pieces that never change; each is written once."""

    @property
    def most_bytes(self) -> int:
        """The most that the pieces of one process can take on disk."""

    def pieces(self) -> dict[int, dict[str, Tensor]]:
        """The pieces held, by number."""

    def state(self) -> dict[str, Any]:
        """How they lie, as plain JSON."""

    def restore(self, state: Mapping[str, Any], pieces: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Put back what `state` and `pieces` gave; refuses what does not fit."""


class Trainer(Protocol):
    """An agent in training."""

    name: ClassVar[str]
    smaller_storage: ClassVar[str]  # what to do where the rollouts do not fit
    config: Config
    agent: Agent
    run: RunState
    ranks: Ranks
    clock: Clock
    computation: Computation
    scalars: dict[str, float]  # what the algorithm carries from one iteration to the next
    carries: Carried | None

    @property
    def rollout(self) -> Rollout | None:
        """The latest, also while it is being filled."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the agent and of its optimisers, by name, without copying."""

    def storage_bytes(self) -> int:
        """What the stored rollouts of this process take in memory."""

    def host_bytes(self) -> int:
        """What they, and what it will allocate beside them, take of this machine's memory and not of a GPU's."""

    def iterations(self) -> Iterator[dict[str, Any]]:
        """The loop: each step of it is an iteration, and gives its metrics."""

    def begin_iteration(self, tell: Callable[[int, int], None]) -> None:
        """Have the environments ready; `tell` hears how many of how many steps have been played back."""

    def end_iteration(self) -> None:
        """Count what the iteration has brought."""

    def at_boundary(self) -> bool:
        """Whether a checkpoint is cheap here."""

    def end_run(self) -> None:
        """The run has reached its total; what only more of it would need may go."""

    def observations_digest(self) -> str:
        """A checksum of the observations that all environments are at; empty where they have not been started."""

    def drop_environments(self) -> None:
        """The environments are in the middle of a rollout: the next iteration brings them back to where they were."""

    def apply(self, settings: Mapping[str, Any]) -> None:
        """Change settings now, between two iterations."""

    def move_back(self, settings: Mapping[str, Any]) -> None:
        """Go on in the environment that these settings, `env` and `env_options`, name: the run had moved there before."""

    def evaluate(self, episodes: int = 20) -> Evaluation:
        """Raw returns of whole episodes in fresh environments."""

    def close(self) -> None:
        """Free the environments."""
