"""Names of the entries of a nested observation: their keys with dots between, unique whatever the keys are.

Files, ONNX inputs and metrics call an entry by its name; where it lies is its path. Knows keys only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from phasegrad.errors import EnvError

Path = tuple[str | int, ...]
_EMPTY = '""'  # how an empty key is written: a plain observation is the one without a name


def unique_names(paths: Iterable[Path]) -> list[str]:
    """A name for each path, `camera.left` of ("camera", "left").

    Where a key has a dot of its own, and so would be called as another entry is, its dots get a backslash.
    """
    paths = list(paths)
    names = [_plain(path) for path in paths]
    taken = Counter(names)
    if len(taken) == len(names):
        return names
    names = [name if taken[name] == 1 else _escaped(path) for name, path in zip(names, paths, strict=True)]
    if len(set(names)) < len(names):
        names = [_escaped(path) for path in paths]
    if len(set(names)) < len(names):  # 1 and "1" in one Dict
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise EnvError(
            f"The observation space has two entries that are called {twice[0]!r}: give them keys that differ as text."
        )
    return names


def _plain(path: Sequence[str | int]) -> str:
    return ".".join(str(key) or _EMPTY for key in path)


def _escaped(path: Sequence[str | int]) -> str:
    keys = (str(key).replace("\\", "\\\\").replace(".", "\\.").replace('"', '\\"') for key in path)
    return ".".join(key or _EMPTY for key in keys)
