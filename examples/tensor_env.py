"""An environment that is tensors: a reacher whose thousands of copies live on one device, trained without leaving it.

The contract is gymnasium's VectorEnv with torch tensors. On a GPU nothing of a step crosses to the host; on a CPU the same
code runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

import phasegrad as pg
from phasegrad.envs import TensorVectorEnv


class Reach(TensorVectorEnv):
    """Move a point on a line to a goal within 20 steps; the reward is minus the distance."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = gym.spaces.Box(-10.0, 10.0, (2,))
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.point, self.goal = torch.zeros(2, num_envs, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        self.goal.copy_(torch.tensor([number % 1000 for number in seed]) / 500 - 1)
        self.point.zero_()
        self.steps.zero_()
        return self.observe(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.point += 0.2 * actions[:, 0]
        self.steps += 1
        distance = (self.point - self.goal).abs()
        truncated = self.steps >= 20
        info = {"final_obs": self.observe()}  # what was seen last, before episodes that end begin anew
        self.goal.copy_(torch.where(truncated, torch.sin(37 * self.goal + 1), self.goal))  # where the next goal is
        self.point.masked_fill_(truncated, 0.0)
        self.steps.masked_fill_(truncated, 0)
        return self.observe(), -distance, torch.zeros_like(truncated), truncated, info

    def observe(self) -> Tensor:
        return torch.stack([self.point, self.goal], 1)

    def state(self) -> dict[str, Tensor]:
        return {"point": self.point.clone(), "goal": self.goal.clone(), "steps": self.steps.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        for name, tensor in state.items():
            getattr(self, name).copy_(tensor)
        return self.observe()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    agent = pg.PPO(Reach(64, device), preset="none", num_steps=20, num_minibatches=4, total_steps=64 * 20 * 20, seed=1)
    agent.learn()
    print(agent.evaluate(20).summary())
