"""The policy and value networks: what is shared between them is the architecture, and what a loss may reach.

    dual     disjoint policy and value networks; the policy network may carry an auxiliary value head (PPG)
    shared   one trunk, trained by both losses (PPO)
    detach   one trunk; the value head sees it detached in the policy phase (single-network PPG)

Nothing here knows about losses, optimisers or rollouts.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from phasegrad.config import Config
from phasegrad.distributions import Distribution, distribution_for
from phasegrad.errors import ConfigError
from phasegrad.models.encoders import build_encoder
from phasegrad.models.initialisation import fixed_norm_, orthogonal_
from phasegrad.models.scaling import ObservationNormalizer


def head(encoder: Any, outputs: int, gain: float) -> nn.Linear:
    """A linear output layer, initialised in the way that belongs to its encoder."""
    layer = nn.Linear(encoder.features, outputs)
    if getattr(encoder, "head_initialisation", "orthogonal") == "fixed_norm":
        return fixed_norm_(layer, 0.1)
    return orthogonal_(layer, gain)


class PolicyHead(nn.Module):
    """From features to the parameters of the action distribution [B, P]."""

    def __init__(self, encoder: Any, distribution: Distribution, action_space: gym.Space, config: Config) -> None:
        super().__init__()
        self.distribution = distribution
        self.std = config.std if distribution.has_std else None
        self.mean_tanh = config.mean_tanh and self.std is not None
        self.std_scale, self.std_floor = config.initial_std / math.log(2), config.std_floor
        self.fixed_log_std: Tensor
        outputs = distribution.noise_size if self.std in ("state_independent", "fixed") else distribution.parameter_size
        self.linear = head(encoder, outputs, config.policy_gain)
        if self.std == "state_independent":
            self.log_std = nn.Parameter(torch.full((distribution.noise_size,), math.log(config.initial_std)))
        elif self.std == "fixed":
            self.register_buffer("fixed_log_std", fixed_std(action_space, config).log(), persistent=False)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        outputs: Tensor = self.linear(features)
        if self.std is None:
            return self.distribution.masked(outputs, mask)
        if self.std == "state_dependent":
            mean, raw = outputs.chunk(2, -1)
            log_std = torch.log(self.std_scale * nn.functional.softplus(raw) + self.std_floor)
        else:
            mean = outputs
            log_std = (self.log_std if self.std == "state_independent" else self.fixed_log_std).expand_as(mean)
        if self.mean_tanh:
            mean = mean.tanh()
        return self.distribution.masked(torch.cat([mean, log_std], -1), mask)


def fixed_std(space: gym.Space, config: Config) -> Tensor:
    """`fixed_std_fraction` of the range of each action, in the units the policy acts in."""
    assert isinstance(space, gym.spaces.Box)
    width = torch.as_tensor(space.high - space.low, dtype=torch.get_default_dtype()).flatten()
    if config.action_bounds == "rescale":
        width = torch.where(width.isfinite(), 2.0, width)  # the policy acts in [-1, 1]
    if not width.isfinite().all():
        raise ConfigError("std fixed needs an action space with finite bounds; use --std state_independent.")
    return config.fixed_std_fraction * width


class ActorCritic(nn.Module):
    """pi_theta(.|s), V(s) and, where asked for, the auxiliary value V_theta_pi(s)."""

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, config: Config, auxiliary: bool = False
    ) -> None:
        super().__init__()
        self.arch = config.arch
        self.distribution = distribution_for(action_space, config.action_distribution)
        self.normalizer = ObservationNormalizer(
            observation_space, config.normalize_observation, config.clip_observation
        )

        def encoder() -> Any:
            return build_encoder(
                observation_space,
                config.encoder,
                hidden_sizes=config.hidden_sizes,
                activation=config.activation,
                impala_channels=config.impala_channels,
                impala_pooling=config.impala_pooling,
                impala_stem=(config.impala_stem, config.impala_stem_stride),
            )

        self.policy_encoder = encoder()
        self.policy_head = PolicyHead(self.policy_encoder, self.distribution, action_space, config)
        self.value_encoder = encoder() if self.arch == "dual" else None
        self.value_head = head(self.value_encoder or self.policy_encoder, self.value_outputs(), 1.0)
        apart = self.arch == "dual" or getattr(config, "aux_head", False)
        self.auxiliary_head = head(self.policy_encoder, 1, 1.0) if auxiliary and apart else None

    def value_outputs(self) -> int:
        """Numbers that the value head puts out: V(s) alone."""
        return 1

    def policy(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Distribution parameters [B, P]."""
        return self.policy_head(self.policy_encoder(self.normalizer(observation)), mask)

    def value(self, observation: Any) -> Tensor:
        """V(s), [B]."""
        observation = self.normalizer(observation)
        if self.value_encoder is not None:
            return self.value_head(self.value_encoder(observation)).squeeze(-1)
        return self.value_head(self._seen_by_value(self.policy_encoder(observation))).squeeze(-1)

    def policy_and_value(self, observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both, with one pass through a trunk they share."""
        observation = self.normalizer(observation)
        features = self.policy_encoder(observation)
        if self.value_encoder is not None:
            value = self.value_head(self.value_encoder(observation))
        else:
            value = self.value_head(self._seen_by_value(features))
        return self.policy_head(features, mask), value.squeeze(-1)

    def policy_and_auxiliary_value(self, observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """pi and V_theta_pi of the auxiliary phase: its value error reaches the trunk.

        One network has one value head, unless it was given an auxiliary one beside it.
        """
        features = self.policy_encoder(self.normalizer(observation))
        auxiliary = self.auxiliary_head if self.auxiliary_head is not None else self.value_head
        return self.policy_head(features, mask), auxiliary(features).squeeze(-1)

    def policy_and_both_values(self, observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """pi, V_theta_pi and V of a model with an auxiliary head, with one pass through a trunk they share."""
        assert self.auxiliary_head is not None
        observation = self.normalizer(observation)
        features = self.policy_encoder(observation)
        seen = self._seen_by_value(features) if self.value_encoder is None else self.value_encoder(observation)
        auxiliary, value = self.auxiliary_head(features).squeeze(-1), self.value_head(seen).squeeze(-1)
        return self.policy_head(features, mask), auxiliary, value

    def _seen_by_value(self, features: Tensor) -> Tensor:
        return features.detach() if self.arch == "detach" else features

    @property
    def value_is_separate(self) -> bool:
        """Whether V has a network of its own, so that acting need not compute it."""
        return self.value_encoder is not None

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """theta_pi and theta_V. With a shared trunk there is only one group; with a detached one V has just its head."""
        value: list[nn.Module] = [self.value_head]
        if self.value_encoder is not None:
            value.insert(0, self.value_encoder)
        value_parameters = [p for module in value for p in module.parameters()]
        theirs = {id(p) for p in value_parameters}
        policy_parameters = [p for p in self.parameters() if id(p) not in theirs]
        if self.arch == "shared":
            return {"policy": policy_parameters + value_parameters}
        return {"policy": policy_parameters, "value": value_parameters}


def build_model(
    observation_space: gym.Space,
    action_space: gym.Space,
    config: Config,
    auxiliary: bool = False,
    model_class: type[ActorCritic] = ActorCritic,
) -> ActorCritic:
    """A freshly initialised actor-critic; the weights are a function of `config.seed` alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # an orthogonal matrix comes out with other last bits on another number of threads
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return model_class(observation_space, action_space, config, auxiliary)
    finally:
        torch.set_num_threads(threads)
