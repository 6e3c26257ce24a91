"""A network of your own: one argument, built from the observation space, with the width of its output as `features`."""

import gymnasium as gym
import torch
from torch import nn

import phasegrad as pg


class TwoStream(nn.Module):
    """Positions and velocities through layers of their own, joined at the end."""

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        half = space.shape[0] // 2
        self.positions = nn.Sequential(nn.Linear(half, 32), nn.ReLU())
        self.velocities = nn.Sequential(nn.Linear(space.shape[0] - half, 32), nn.ReLU())
        self.half = half
        self.features = 64

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        first, second = observation[:, : self.half], observation[:, self.half :]
        return torch.cat([self.positions(first), self.velocities(second)], -1)


pg.register_encoder(
    "two_stream", TwoStream
)  # under a name it is known to files: an agent is loaded without being given it

if __name__ == "__main__":
    agent = pg.PPO("CartPole-v1", encoder="two_stream", seed=1)  # or the class itself: encoder=TwoStream
    agent.learn(50_000, progress=True)
    print(agent.evaluate(20).summary())
