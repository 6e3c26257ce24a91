"""A demonstrator's steps: read from arrays, an .npz or a Minari data set, checked, in the form that an agent learns from.

Files are data and nothing else: no pickle is read. Nothing here knows what is learned from them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from phasegrad.data.action_bounds import ActionBounds, stored_actions
from phasegrad.data.storage import stored_dtype
from phasegrad.distributions import Bernoulli
from phasegrad.envs.actions import ActionAdapter
from phasegrad.envs.spaces import ACTION_MASK, CHOICES, Leaf, ObservationAdapter, fits_dtype, follow, outside_choices
from phasegrad.errors import ConfigError, EnvError, nearest
from phasegrad.machine.memory import available_bytes, gigabytes
from phasegrad.machine.paths import as_path
from phasegrad.machine.regular_files import NotRegularError, open_regular
from phasegrad.tree import tree_map

MINARI = "minari:"  # before the id or the path of a data set
STEPS_FILE = ".npz"
KEYS = ("observations", "actions", "rewards", "terminated", "truncated", "masks")
UNREAD = ("returns",)  # of a file that an evaluation wrote, for people


@dataclass
class Steps:
    """What a demonstrator saw and did, one step after another [B, ...], in the environment's own numbers."""

    observations: Any  # an array, nested dicts or tuples of them, or a dict by dotted name
    actions: Any
    rewards: Any = None
    terminated: Any = None
    truncated: Any = None
    masks: Any = None
    source: str = "arrays"  # for people

    def __post_init__(self) -> None:
        for name in KEYS[1:]:
            value = getattr(self, name)
            setattr(self, name, None if value is None else as_array(name, value))


@dataclass
class Demonstrations:
    """Such steps as an agent stores its own."""

    observations: Any  # [B, ...], flat
    actions: Tensor  # [B, *action_shape], as a policy would have sampled them
    ends: Tensor | None  # [B] bool: the last steps of episodes; None where nothing is known of them
    terminated: Tensor | None  # [B] bool
    rewards: Tensor | None  # [B] float64
    masks: Tensor | None  # [B, M] bool
    source: str = field(default="arrays")

    def __len__(self) -> int:
        return len(self.actions)

    def at(self, rows: Tensor) -> Demonstrations:
        """Some of the steps; where they are whole episodes, in their order, those are what they were."""
        picked: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("actions", "ends", "terminated", "rewards", "masks")
        }
        return Demonstrations(tree_map(lambda leaf: leaf[rows], self.observations), **picked, source=self.source)


def as_array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.array(None)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"{name} is not an array of numbers: give one with an entry a step.")
    return array


# Where steps come from


def read_steps(source: Any) -> Steps:
    """The steps of an .npz, of a Minari data set by `minari:` and its id or path, or of one that is loaded."""
    if hasattr(source, "iterate_episodes"):
        return steps_of_minari(source)
    if isinstance(source, str) and source.startswith(MINARI):
        return steps_of_minari(open_minari(source.removeprefix(MINARI)))
    if not isinstance(source, (str, Path)):
        raise ConfigError("actions is missing: give observations and actions, the path of an .npz, or minari:ID.")
    return steps_of_npz(as_path(source))


def steps_of_npz(path: Path) -> Steps:
    """The arrays `observations` (or observations.KEY of a Dict), `actions`, and what else there is of `KEYS`."""
    try:
        opened = open(open_regular(path), "rb")  # noqa: SIM115 - closed below
    except NotRegularError as error:
        raise ConfigError(
            f"{path} {str(error.strerror).removeprefix('it ')}: give an .npz of a demonstrator's steps."
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} does not exist: give an .npz of a demonstrator's steps, or minari:ID.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from None
    with opened:
        return _steps_in(opened, path)


def _steps_in(opened: BinaryIO, path: Path) -> Steps:
    try:
        _require_memory(opened)
        file = np.load(opened, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ConfigError(f"{path} is not an .npz: write one with np.savez(path, observations=..., actions=...).")
        with file:
            arrays = {name: file[name] for name in file.files}
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, NotImplementedError) as error:
        pickled = "allow_pickle" in str(error) or "pickle" in str(error).lower()
        why = "it holds Python objects, which are not read" if pickled else str(error)[:100] or type(error).__name__
        raise ConfigError(f"{path} cannot be read as an .npz of arrays of numbers: {why}.") from None
    observations: Any = {
        name.removeprefix("observations."): as_array(name, array)
        for name, array in arrays.items()
        if name.startswith("observations.")
    }
    for name in arrays:
        if name not in (*KEYS, *UNREAD) and not name.startswith("observations."):
            listed = ", ".join(KEYS)
            raise ConfigError(f"{path} has the unknown entry {name!r}: there are {listed}.{nearest(name, KEYS)}")
    if "observations" in arrays:
        if observations:
            raise ConfigError(f"{path} has both observations and observations.KEY: leave one of them out.")
        observations = arrays["observations"]
    for name, found in (("observations", len(observations)), ("actions", "actions" in arrays)):
        if not found and name not in arrays:
            raise ConfigError(f"{path} has no entry {name!r}: it needs observations and actions, with a row a step.")
    return Steps(observations, **{name: arrays[name] for name in KEYS[1:] if name in arrays}, source=str(path))


def _require_memory(opened: BinaryIO) -> None:
    """Refuse arrays that are larger than the memory which is free: a small file can unpack to any size."""
    free = available_bytes()
    if free is not None and zipfile.is_zipfile(opened):
        opened.seek(0)
        with zipfile.ZipFile(opened) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > free:
            raise ValueError(f"it unpacks to {gigabytes(size)}, and only {gigabytes(free)} of memory are free")
    opened.seek(0)


def open_minari(name: str) -> Any:
    """A local Minari data set by its id, or by the path of its folder; nothing is downloaded."""
    try:
        import minari
    except ImportError:
        raise ConfigError(
            "Minari data sets need the package minari: install it with pip install 'phasegrad[minari]'."
        ) from None
    path = as_path(name)
    try:
        if path.is_dir():
            return minari.MinariDataset(path / "data" if (path / "data").is_dir() else path)
        return minari.load_dataset(name)
    except FileNotFoundError:
        raise ConfigError(
            f"There is no Minari data set {name} here: `minari download {name}` fetches it, `minari list local` lists "
            "those that are here."
        ) from None
    except Exception as error:  # of a package that says little of what it raises
        raise ConfigError(f"The Minari data set {name} cannot be read: {str(error)[:200]}.") from None


def steps_of_minari(data: Any) -> Steps:
    """All steps of a Minari data set, an episode at a time; the observation that ends an episode is no step."""
    parts: dict[str, list[Any]] = {"actions": [], "rewards": [], "terminated": [], "truncated": []}
    observations: list[Any] = []
    for episode in data.iterate_episodes():
        length = len(episode.rewards)
        if not length:
            continue
        observations.append(_nested(episode.observations, lambda leaf, length=length: np.asarray(leaf)[:length]))
        truncated = np.array(episode.truncations, bool)
        truncated[-1] |= not episode.terminations[-1]  # one that the collecting has cut
        found = (episode.actions, episode.rewards, np.asarray(episode.terminations, bool), truncated)
        for name, array in zip(parts, found, strict=True):
            parts[name].append(array)
    named = getattr(getattr(data, "spec", None), "dataset_id", "")
    if not observations:
        raise ConfigError(f"The Minari data set {named} has no steps.")
    if isinstance(parts["actions"][0], (dict, tuple)):
        raise ConfigError(f"The actions of the Minari data set {named} are nested, which cannot be cloned.")
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return Steps(_joined(observations), **joined, source=f"{MINARI}{named}")


def _nested(tree: Any, function: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _nested(entry, function) for key, entry in tree.items()}
    return tuple(_nested(entry, function) for entry in tree) if isinstance(tree, tuple) else function(tree)


def _joined(trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {key: _joined([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined([tree[index] for tree in trees]) for index in range(len(first)))
    return np.concatenate(trees)


# What is made of them


def checked(
    steps: Steps, observing: ObservationAdapter, original_action: gym_spaces.Space, bounds: ActionBounds, has_mask: bool
) -> Demonstrations:
    """The steps in the form that an agent of these spaces stores; refuses what does not fit them."""
    count = len(steps.actions) if steps.actions.ndim else 0
    if not count:
        raise ConfigError("actions is empty: give at least one step.")
    given: dict[str, Tensor] = {}
    allowed: list[np.ndarray] = []  # an action mask inside the observations
    for leaf, array in _leaves(steps.observations, observing):
        if leaf.path[:1] == (ACTION_MASK,):
            allowed.append(array)
        else:
            given[leaf.name] = _observation(leaf, array, count)
    for name in ("rewards", "terminated", "truncated"):
        _require_column(name, getattr(steps, name), count)
    terminated, truncated = (_flags(name, getattr(steps, name)) for name in ("terminated", "truncated"))
    ends = None
    if terminated is not None or truncated is not None:
        terminated = torch.zeros(count, dtype=torch.bool) if terminated is None else terminated
        ends = terminated if truncated is None else terminated | truncated
        ends = ends.clone()
        ends[-1] = True
    actions = stored_actions(steps.actions, original_action, bounds)
    inside = observing.mask_of(allowed) if len(allowed) == len(observing.mask_leaves) else None
    masks = _masks(inside if steps.masks is None else steps.masks, original_action, count, has_mask)
    if masks is not None and not torch.equal(bounds.distribution.mode(_as_logits(actions, masks, bounds)), actions):
        raise ConfigError("masks forbids an action that was taken: give the masks of the steps' own observations.")
    rewards = None if steps.rewards is None else torch.from_numpy(steps.rewards.astype(np.float64))
    return Demonstrations(
        given if observing.nested else given[observing.leaves[0].name],
        actions, ends, terminated, rewards, masks, steps.source,
    )  # fmt: skip


def _leaves(observations: Any, observing: ObservationAdapter) -> Iterator[tuple[Leaf, np.ndarray]]:
    """Each array of the observations, nested as the environment has them or by dotted name."""
    if not observing.nested:
        if isinstance(observations, (Mapping, tuple)):
            raise ConfigError(f"observations has entries, but {observing.original} needs one array.")
        yield observing.leaves[0], as_array("observations", observations)
        return
    if not isinstance(observations, (Mapping, tuple)):
        raise ConfigError(f"observations is one array, but {observing.original} needs an entry for each of its own.")
    for leaf in observing.all_leaves:
        try:
            by_name = observations if isinstance(observations, Mapping) else {}
            array = by_name[leaf.name] if leaf.name in by_name else follow(observations, leaf.path)
        except (KeyError, IndexError, TypeError):
            if leaf.path[:1] == (ACTION_MASK,):
                continue  # it may come as `masks`
            raise ConfigError(f"observations has no entry {leaf.name!r}, which {observing.original} needs.") from None
        yield leaf, as_array(f"observations.{leaf.name}", array)


def _observation(leaf: Leaf, array: np.ndarray, count: int) -> Tensor:
    named = f"observations.{leaf.name}" if leaf.name else "observations"
    if array.shape != (count, *leaf.shape):
        raise ConfigError(
            f"{named} has shape {array.shape}, but {count} steps of {leaf.original} need {(count, *leaf.shape)}."
        )
    if not fits_dtype(array, leaf):
        raise ConfigError(f"{named} has type {array.dtype}, which does not fit {leaf.original}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{named} has NaN or infinite entries: leave those steps out.")
    flat = leaf.convert(array)
    if isinstance(leaf.space, CHOICES) and outside_choices(flat, leaf.space).any():
        raise ConfigError(f"{named} has entries that are not in {leaf.original}.")
    return torch.from_numpy(np.require(flat, requirements=["C", "W"])).to(stored_dtype(leaf.space))


def _require_column(name: str, array: np.ndarray | None, count: int) -> None:
    if array is None:
        return
    if array.shape != (count,):
        raise ConfigError(f"{name} has shape {array.shape}, but {count} steps need {(count,)}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{name} has NaN or infinite entries: leave those steps out.")


def _flags(name: str, array: np.ndarray | None) -> Tensor | None:
    if array is None:
        return None
    if not np.isin(array, (0, 1)).all():
        raise ConfigError(f"{name} must be true or false at each step.")
    return torch.from_numpy(array.astype(bool))


def _masks(masks: Any, original_action: gym_spaces.Space, count: int, has_mask: bool) -> Tensor | None:
    if masks is None:
        if has_mask:
            raise ConfigError("The environment has action masks: give masks, what was allowed at each step.")
        return None
    if not has_mask:
        raise ConfigError("masks was given, but the environment has no action masks: leave masks out.")
    try:
        return torch.from_numpy(ActionAdapter(original_action).masks.batch(masks, count, "step"))
    except EnvError as error:
        raise ConfigError(f"masks does not fit: {error}") from None


def _as_logits(actions: Tensor, masks: Tensor, bounds: ActionBounds) -> Tensor:
    """Logits whose mode is the action, unless a mask forbids it."""
    if isinstance(bounds.distribution, Bernoulli):
        return bounds.distribution.masked(2.0 * actions - 1.0, masks)
    sizes = bounds.distribution.mask_sizes
    choices = actions.reshape(len(actions), len(sizes)).split(1, 1)
    ones = [torch.nn.functional.one_hot(choice[:, 0], size) for choice, size in zip(choices, sizes, strict=True)]
    return bounds.distribution.masked(torch.cat(ones, 1).float(), masks)
