"""Environments whose actions have unlike parts: one that pays for echoing all of them, and a parameterised task."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

EPISODE = 20  # steps; also the best return of an echo, since a perfect one pays 1


def mixed_space(start: int = 2) -> spaces.Dict:
    """One of every kind, nested, in an order that is not the alphabet's."""
    return spaces.Dict(
        OrderedDict(
            move=spaces.Discrete(3, start=start),
            aim=spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32)),
            more=spaces.Tuple(
                (spaces.MultiDiscrete([2, 3]), spaces.Dict({"flags": spaces.MultiBinary(2)}), integers())
            ),
        )
    )


def choices_space() -> spaces.Tuple:
    return spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))


def integers() -> spaces.Box:
    return spaces.Box(np.array([[-1, 5]], np.int16), np.array([[1, 6]], np.int16), dtype=np.int16)


def leaves(space: gym.Space, value: Any) -> list[tuple[gym.Space, Any]]:
    """The plain spaces within one and what a value has there."""
    if isinstance(space, spaces.Dict):
        return [pair for key, part in space.spaces.items() for pair in leaves(part, value[key])]
    if isinstance(space, spaces.Tuple):
        return [pair for part, entry in zip(space.spaces, value, strict=True) for pair in leaves(part, entry)]
    return [(space, value)]


class HybridIdentityEnv(gym.Env):
    """Observes a random action and pays for taking it: the mean over its parts. Refuses what is no action of its space."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, space: gym.Space | None = None, render_mode: str | None = None) -> None:
        self.action_space = mixed_space() if space is None else space
        self.render_mode = render_mode
        observed = [part for part, _ in leaves(self.action_space, self.action_space.sample())]
        self.observation_space: gym.Space = spaces.Dict(
            {f"part{i}": _observed(part) for i, part in enumerate(observed)}
        )
        self.steps = 0

    def draw(self) -> dict[str, Any]:
        self.wanted = self.action_space.sample()
        values = [np.asarray(value) for _, value in leaves(self.action_space, self.wanted)]
        return {
            name: value.astype(part.dtype).reshape(part.shape)
            for (name, part), value in zip(self.observation_space.items(), values, strict=True)  # type: ignore[attr-defined]
        }

    def info(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.steps = 0
        return self.draw(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is no action")
        pairs = zip(leaves(self.action_space, action), leaves(self.action_space, self.wanted), strict=True)
        pays = [_pay(space, np.asarray(taken), np.asarray(wanted)) for (space, taken), (_, wanted) in pairs]
        self.steps += 1
        return self.draw(), float(np.mean(pays)), False, self.steps >= EPISODE, self.info()

    def render(self) -> np.ndarray:
        return np.full((48, 64, 3), 8 * self.steps % 256, np.uint8)


def _observed(part: gym.Space) -> spaces.Box:
    shape = part.shape or (1,)
    return spaces.Box(-10.0, 10.0, shape, np.float32)


def _pay(space: gym.Space, taken: np.ndarray, wanted: np.ndarray) -> float:
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return float(1.0 - (np.abs(taken - wanted) / (space.high - space.low)).mean())
    return float((taken == wanted).mean())


class MaskedHybridEnv(HybridIdentityEnv):
    """Masks all its choices, the wanted ones always allowed, in one of three forms; crashes on what it forbids."""

    def __init__(self, form: str = "flat") -> None:
        super().__init__(
            spaces.Dict(
                OrderedDict(
                    move=spaces.Discrete(4, start=1),
                    aim=spaces.Box(-1.0, 1.0, (1,)),
                    keys=spaces.MultiDiscrete([2, 3]),
                    level=spaces.Box(3, 5, (), np.int8),
                )
            )
        )
        self.form = form
        if form == "observed":
            inner = OrderedDict(move=spaces.MultiBinary(4), keys=spaces.MultiBinary(5), level=spaces.MultiBinary(3))
            parts = dict(self.observation_space.items())  # type: ignore[attr-defined]
            self.observation_space = spaces.Dict({**parts, "action_mask": spaces.Dict(inner)})

    def draw(self) -> dict[str, Any]:
        self.wanted = self.action_space.sample()
        self.masks: dict[str, Any] = {}
        offsets = {"move": 1, "keys": 0, "level": 3}
        for name, sizes in {"move": [4], "keys": [2, 3], "level": [3]}.items():
            choices = np.ravel(self.wanted[name]) - offsets[name]
            groups = []
            for size, choice in zip(sizes, choices, strict=True):
                allowed = self.np_random.random(size) < 0.3
                allowed[int(choice)] = True
                groups.append(allowed.astype(np.int8))
            self.masks[name] = groups
        values = [np.asarray(value) for _, value in leaves(self.action_space, self.wanted)]
        parts = {k: v for k, v in self.observation_space.items() if k != "action_mask"}  # type: ignore[attr-defined]
        observation: dict[str, Any] = {
            name: value.astype(part.dtype).reshape(part.shape)
            for (name, part), value in zip(parts.items(), values, strict=True)
        }
        if self.form == "observed":
            observation["action_mask"] = {name: np.concatenate(groups) for name, groups in self.masks.items()}
        return observation

    def info(self) -> dict[str, Any]:
        if self.form == "flat":
            return {"action_mask": np.concatenate([g for groups in self.masks.values() for g in groups])}
        if self.form == "nested":  # as space.sample(mask=...) takes it
            return {
                "action_mask": {
                    "move": self.masks["move"][0],
                    "aim": None,
                    "keys": tuple(self.masks["keys"]),
                    "level": self.masks["level"][0],
                }
            }
        return {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = {"move": [action["move"] - 1], "keys": action["keys"], "level": [int(action["level"]) - 3]}
        for name, choices in taken.items():
            for group, choice in zip(self.masks[name], choices, strict=True):
                if not group[int(choice)]:
                    raise ValueError(f"{name} {choice} is forbidden")
        return super().step(action)


class Rover(gym.Env):
    """Drive to the goal and stop there: turn by an angle, move by a strength, or stop, which ends the episode.

    Pays 1 for stopping at the goal, -0.5 for stopping elsewhere, -0.02 a step, and what a step brings it nearer.
    """

    MOVE, TURN, STOP = range(3)
    observation_space = spaces.Box(-3.0, 3.0, (4,), np.float32)

    def __init__(self) -> None:
        self.action_space = spaces.Dict(
            {
                "what": spaces.Discrete(3),
                "how": spaces.Dict({"angle": spaces.Box(-np.pi, np.pi, (1,)), "strength": spaces.Box(0.0, 1.0, (1,))}),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.heading, self.steps = np.zeros(2), self.np_random.uniform(-np.pi, np.pi), 0
        angle = self.np_random.uniform(-np.pi, np.pi)
        self.goal = self.np_random.uniform(0.5, 1.0) * np.array([np.cos(angle), np.sin(angle)])
        return self._observation(), {}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, what = self._distance(), int(action["what"])
        if what == self.STOP:
            return self._observation(), 1.0 if before < 0.2 else -0.5, True, False, {}
        if what == self.TURN:
            self.heading += float(action["how"]["angle"][0])
        else:
            ahead = np.array([np.cos(self.heading), np.sin(self.heading)])
            self.place = self.place + 0.5 * float(action["how"]["strength"][0]) * ahead
        self.steps += 1
        return self._observation(), before - self._distance() - 0.02, False, self.steps >= EPISODE, {}

    def _distance(self) -> float:
        return float(np.linalg.norm(self.goal - self.place))

    def _observation(self) -> np.ndarray:
        way = self.goal - self.place
        bearing = np.arctan2(way[1], way[0]) - self.heading
        distance = self._distance()
        seen = [distance, np.cos(bearing), np.sin(bearing), float(distance < 0.2)]
        return np.clip(np.array(seen, np.float32), -3.0, 3.0)


class OwnVectorEnv(SyncVectorEnv):
    """A vector environment of somebody's own: not taken apart, so its batched actions and gathered infos are used."""


def nested_masks() -> gym.Env:
    return MaskedHybridEnv("nested")


def observed_masks() -> gym.Env:
    return MaskedHybridEnv("observed")


def choices() -> gym.Env:
    return HybridIdentityEnv(choices_space())


def integer_box() -> gym.Env:
    return HybridIdentityEnv(spaces.Tuple((integers(),)))


def own_vector(make: Any, count: int) -> OwnVectorEnv:
    return OwnVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
