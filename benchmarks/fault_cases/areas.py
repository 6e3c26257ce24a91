"""All cases, by area."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fault_cases import (
    cache,
    contents,
    disks,
    environments,
    kills,
    links,
    memory,
    signals,
    special,
    strangers,
    text,
)  # fmt: skip
from fault_cases.case import Case

AREAS: dict[str, Callable[[int], list[Case]]] = {
    module.AREA: module.cases
    for module in (links, special, contents, cache, signals, environments, kills, disks, strangers, text, memory)
}


def collect(seed: int, only: Sequence[str] | None, match: str | None, sample: int | None) -> list[Case]:
    """The cases asked for; titles are unique, since a journal knows cases by them."""
    found = [case for area, make in AREAS.items() if only is None or area in only for case in make(seed)]
    titles = [case.title for case in found]
    assert len(set(titles)) == len(titles), sorted({title for title in titles if titles.count(title) > 1})
    found = [case for case in found if match is None or match in case.title]
    if sample is not None:
        found = random.Random(seed).sample([case for case in found if case.quick], sample)
    return found
