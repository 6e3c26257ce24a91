"""A distribution of your own: what a policy puts out for an action space. Registered once, every algorithm takes it."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import phasegrad as pg


class Logistic(pg.Distribution):
    """Independent logistic distributions: heavier tails than a normal one. The parameters are means, then log scales."""

    action_dtype = torch.float32

    def __init__(self, space: gym.Space) -> None:
        if not isinstance(space, gym.spaces.Box):
            raise pg.ConfigError(f"action_distribution logistic needs a Box action space, not {space}.")
        size = int(np.prod(space.shape))
        self.parameter_size, self.noise_size, self.action_shape = 2 * size, size, (size,)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, log_scale = params.chunk(2, -1)
        uniform = noise.clamp(1e-6, 1 - 1e-6)
        return mean + log_scale.exp() * (uniform.log() - (1 - uniform).log())

    def mode(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[0]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_scale = params.chunk(2, -1)
        z = (actions - mean) / log_scale.exp()
        return (-z - log_scale - 2 * torch.nn.functional.softplus(-z)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (params.chunk(2, -1)[1] + 2).sum(-1)

    def kl(self, params: Tensor, other: Tensor) -> Tensor:
        """By a fixed grid of quantiles, since there is no closed form: exact to some 1e-3."""
        mean, log_scale = params.chunk(2, -1)
        levels = (torch.arange(64, dtype=params.dtype, device=params.device) + 0.5) / 64
        quantiles = (levels.log() - (1 - levels).log()).view(-1, *[1] * params.dim())
        points = mean + log_scale.exp() * quantiles  # [64, ..., n]

        def density(which: Tensor) -> Tensor:
            centre, log_width = which.chunk(2, -1)
            z = (points - centre) / log_width.exp()
            return -z - log_width - 2 * torch.nn.functional.softplus(-z)

        return (density(params) - density(other)).mean(0).sum(-1)


pg.register_distribution("logistic", Logistic)

if __name__ == "__main__":
    agent = pg.PPO("Pendulum-v1", action_distribution="logistic", seed=1)
    agent.learn(100_000, progress=True)
    print(agent.evaluate(20).summary())
