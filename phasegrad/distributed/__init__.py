"""Several processes as one run: how they join, agree on numbers and share memory."""

from phasegrad.distributed.joining import current, join, joined, leave
from phasegrad.distributed.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks", "current", "join", "joined", "leave"]
