"""CartPole and Pendulum as tensors: gymnasium's physics for thousands of environments at once, on any device.

Where an episode starts is a function of its environment's seed and its number, computed on the device: no generator has
to be saved, and a GPU starts them as a CPU does. An example of the contract, and what it is tested with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from phasegrad.envs.tensor_contract import FINAL, TensorVectorEnv, seed_list


class TensorTask(TensorVectorEnv):
    """What both share: states [N, S] in float64, time limits, starts."""

    state_size: int
    time_limit: int

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
        self.physics = torch.zeros(num_envs, self.state_size, dtype=torch.float64, device=self.device)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.episode = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.seeds = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        self.seeds.copy_(torch.tensor(seed_list(seed, self.num_envs), dtype=torch.int64))
        self.elapsed.zero_()
        self.episode.zero_()
        self.physics.copy_(self._start())
        return self._observe(self.physics), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        after, reward, terminated = self._advance(self.physics, actions)
        self.elapsed += 1
        truncated = self.elapsed >= self.time_limit
        done = terminated | truncated
        final = self._observe(after)
        self.episode += done
        self.elapsed.masked_fill_(done, 0)
        self.physics.copy_(torch.where(done[:, None], self._start(), after))
        return self._observe(self.physics), reward, terminated, truncated, {FINAL: final}

    def state(self) -> dict[str, Tensor]:
        named = {"physics": self.physics, "elapsed": self.elapsed, "episode": self.episode, "seeds": self.seeds}
        return {name: tensor.clone() for name, tensor in named.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        for name in ("physics", "elapsed", "episode", "seeds"):
            getattr(self, name).copy_(state[name])
        return self._observe(self.physics)

    def _start(self) -> Tensor:
        """Where the present episodes begin [N, S]: numbers in [-1, 1) by seed and episode, scaled."""
        numbers = torch.arange(self.state_size, device=self.device)
        mixed = mixed_bits(mixed_bits(mixed_bits(self.seeds)[:, None] + self.episode[:, None]) + numbers)
        uniform = _shifted(mixed, 11).double() * 2.0**-53
        return torch.stack([(2 * uniform[:, i] - 1) * far for i, far in enumerate(self._reach())], 1)

    def _reach(self) -> Sequence[float]:
        """How far from 0 each number of a state may begin."""
        raise NotImplementedError

    def _advance(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next states [N, S], rewards [N], and which have terminated [N]."""
        raise NotImplementedError

    def _observe(self, state: Tensor) -> Tensor:
        raise NotImplementedError


class TensorCartPole(TensorTask):
    """gymnasium's CartPole-v1."""

    state_size, time_limit = 4, 500
    gravity, pole_mass, total_mass, half_length, force, seconds = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    furthest, steepest = 2.4, 12 * 2 * math.pi / 360

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        super().__init__(num_envs, device)
        high = np.array([2 * self.furthest, np.inf, 2 * self.steepest, np.inf], np.float32)
        self.single_observation_space = gym.spaces.Box(-high, high)
        self.single_action_space = gym.spaces.Discrete(2)

    def _reach(self) -> Sequence[float]:
        return [0.05] * 4

    def _advance(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed, angle, turning = state.unbind(1)
        force = torch.where(actions == 1, self.force, -self.force)
        cosine, sine, moment = angle.cos(), angle.sin(), self.pole_mass * self.half_length
        pushed = (force + moment * turning.square() * sine) / self.total_mass
        inertia = self.half_length * (4.0 / 3.0 - self.pole_mass * cosine.square() / self.total_mass)
        turned = (self.gravity * sine - cosine * pushed) / inertia
        moved = pushed - moment * turned * cosine / self.total_mass
        place, speed = place + self.seconds * speed, speed + self.seconds * moved
        angle, turning = angle + self.seconds * turning, turning + self.seconds * turned
        fallen = (place.abs() > self.furthest) | (angle.abs() > self.steepest)
        return torch.stack([place, speed, angle, turning], 1), torch.ones_like(place), fallen

    def _observe(self, state: Tensor) -> Tensor:
        return state.float()


class TensorPendulum(TensorTask):
    """gymnasium's Pendulum-v1."""

    state_size, time_limit = 2, 200
    gravity, mass, length, seconds, fastest, strongest = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        super().__init__(num_envs, device)
        high = np.array([1.0, 1.0, self.fastest], np.float32)
        self.single_observation_space = gym.spaces.Box(-high, high)
        self.single_action_space = gym.spaces.Box(-self.strongest, self.strongest, (1,))

    def _reach(self) -> Sequence[float]:
        return [math.pi, 1.0]

    def _advance(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, turning = state.unbind(1)
        torque = actions.reshape(-1).clamp(-self.strongest, self.strongest).double()
        away = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = away.square() + 0.1 * turning.square() + 0.001 * torque.square()
        pull = 3 * self.gravity / (2 * self.length) * angle.sin() + 3.0 / (self.mass * self.length**2) * torque
        turning = (turning + pull * self.seconds).clamp(-self.fastest, self.fastest)
        after = torch.stack([angle + turning * self.seconds, turning], 1)
        return after, -cost, torch.zeros(len(angle), dtype=torch.bool, device=angle.device)

    def _observe(self, state: Tensor) -> Tensor:
        angle, turning = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), turning], 1).float()


def mixed_bits(numbers: Tensor) -> Tensor:
    """SplitMix64's function of whole numbers (Steele et al. 2014), which leaves no trace of an order among them."""
    mixed = numbers + _signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, places: int) -> Tensor:
    """Bits shifted to the right, with zeros from the left, of int64 that stand for unsigned numbers."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
