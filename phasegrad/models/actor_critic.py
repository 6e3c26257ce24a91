"""The policy and value networks: what is shared between them is the architecture, and what a loss may reach.

    dual     disjoint policy and value networks; the policy network may carry an auxiliary value head (PPG)
    shared   one trunk, trained by both losses (PPO)
    detach   one trunk; the value head sees it detached in the policy phase (single-network PPG)

With `frame_stack` it is shown stacks of that many observations (models/stacking.py), which `stacking` describes.
With `critic_only` the policy network is shown less than the value network (models/privileged.py).
With `memory` each network has a recurrent layer after its encoder, and what is seen is `Sequences` of observations.

Nothing here knows about losses, optimisers or rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from phasegrad.config import Config
from phasegrad.distributions import Distribution, Product, distribution_for
from phasegrad.distributions.choosing import parts_of
from phasegrad.errors import ConfigError
from phasegrad.models.encoders import build_encoder
from phasegrad.models.images import with_images
from phasegrad.models.initialisation import fixed_norm_, orthogonal_
from phasegrad.models.memory import MEMORIES, Memory, Sequences
from phasegrad.models.privileged import critic_only_names, space_without, without
from phasegrad.models.scaling import ObservationNormalizer
from phasegrad.models.stacking import Stacking


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
            self.register_buffer(
                "fixed_log_std", fixed_std(action_space, config, distribution.bounded).log(), persistent=False
            )

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


class ProductHead(nn.Module):
    """The same where actions have several parts: a head for each, in their order."""

    def __init__(self, encoder: Any, distribution: Product, action_space: gym.Space, config: Config) -> None:
        super().__init__()
        self.distribution = distribution
        pairs = zip(distribution.parts.values(), parts_of(action_space).values(), strict=True)
        self.parts = nn.ModuleList([policy_head(encoder, part, space, config) for part, space in pairs])

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        masks = self.distribution.divided_mask(mask)
        return torch.cat([part(features, allowed) for part, allowed in zip(self.parts, masks, strict=True)], -1)


def policy_head(encoder: Any, distribution: Distribution, action_space: gym.Space, config: Config) -> nn.Module:
    """The head that an action distribution needs."""
    kind: Any = ProductHead if isinstance(distribution, Product) else PolicyHead
    return kind(encoder, distribution, action_space, config)


def fixed_std(space: gym.Space, config: Config, bounded: bool = False) -> Tensor:
    """`fixed_std_fraction` of the range of each action, in the units the policy acts in; one that is `bounded` by itself
    acts in [-1, 1].
    """
    assert isinstance(space, gym.spaces.Box)
    width = torch.as_tensor(space.high - space.low, dtype=torch.get_default_dtype()).flatten()
    if config.action_bounds == "rescale" or bounded:
        width = torch.where(width.isfinite(), 2.0, width)  # the policy acts in [-1, 1]
    if not width.isfinite().all():
        raise ConfigError("std fixed needs an action space with finite bounds; use --std state_independent.")
    return config.fixed_std_fraction * width


class ActorCritic(nn.Module):
    """pi_theta(.|s), V(s) and, where asked for, the auxiliary value V_theta_pi(s)."""

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, config: Config, auxiliary: bool = False
    ) -> None:
        """`observation_space` is that of a single observation."""
        super().__init__()
        self.arch = config.arch
        observation_space = with_images(observation_space, config.encoder, config.images)
        self.stacking = Stacking(observation_space, config.frame_stack) if config.frame_stack > 1 else None
        self.seen_space = observation_space if self.stacking is None else self.stacking.space
        self.critic_only = critic_only_names(observation_space, config.critic_only)  # what the policy is not shown
        self.distribution = distribution_for(action_space, config.action_distribution)
        self.normalizer = ObservationNormalizer(
            observation_space, config.normalize_observation, config.clip_observation, self.stacking
        )

        def encoder(space: gym.Space, hidden_sizes: Sequence[int]) -> Any:
            return build_encoder(
                space,
                config.encoder,
                hidden_sizes=hidden_sizes,
                activation=config.activation,
                layer_norm=config.layer_norm,
                images=config.images,
                impala_channels=config.impala_channels,
                impala_pooling=config.impala_pooling,
                impala_stem=(config.impala_stem, config.impala_stem_stride),
            )

        def memory(encoder: Any) -> Memory | None:
            if config.memory == "none":
                return None
            start = getattr(encoder, "head_initialisation", "orthogonal")
            return MEMORIES[config.memory](encoder.features, config.memory_size, start)

        self.policy_encoder = encoder(space_without(self.seen_space, self.critic_only), config.hidden_sizes)
        self.policy_memory = memory(self.policy_encoder)
        policy_trunk = self.policy_memory or self.policy_encoder
        self.policy_head = policy_head(policy_trunk, self.distribution, action_space, config)
        value_sizes = config.hidden_sizes if config.value_hidden_sizes is None else config.value_hidden_sizes
        self.value_encoder = encoder(self.seen_space, value_sizes) if self.arch == "dual" else None
        self.value_memory = None if self.value_encoder is None else memory(self.value_encoder)
        value_trunk = self.value_memory or self.value_encoder or policy_trunk
        self.value_head = head(value_trunk, self.value_outputs(), 1.0)
        apart = self.arch == "dual" or getattr(config, "aux_head", False)
        self.auxiliary_head = head(policy_trunk, 1, 1.0) if auxiliary and apart else None

    def value_outputs(self) -> int:
        """Numbers that the value head puts out: V(s) alone."""
        return 1

    # What it makes of a batch of observations [B, ...], or of `Sequences` of them where it has a memory

    def policy(self, seen: Any, mask: Tensor | None = None) -> Tensor:
        """Distribution parameters [B, P]."""
        return self.policy_head(self._policy_features(self._scaled(seen, policy_only=True)), mask)

    def value(self, seen: Any) -> Tensor:
        """V(s), [B]."""
        seen = self._scaled(seen)
        if self.value_encoder is not None:
            return self.value_head(self._value_features(seen)).squeeze(-1)
        return self.value_head(self._seen_by_value(self._policy_features(seen))).squeeze(-1)

    def policy_and_value(self, seen: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both, with one pass through a trunk they share."""
        seen = self._scaled(seen)
        features = self._policy_features(seen)
        if self.value_encoder is not None:
            value = self.value_head(self._value_features(seen))
        else:
            value = self.value_head(self._seen_by_value(features))
        return self.policy_head(features, mask), value.squeeze(-1)

    def policy_and_auxiliary_value(self, seen: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """pi and V_theta_pi of the auxiliary phase: its value error reaches the trunk.

        One network has one value head, unless it was given an auxiliary one beside it.
        """
        features = self._policy_features(self._scaled(seen, policy_only=True))
        auxiliary = self.auxiliary_head if self.auxiliary_head is not None else self.value_head
        return self.policy_head(features, mask), auxiliary(features).squeeze(-1)

    def policy_and_both_values(self, seen: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """pi, V_theta_pi and V of a model with an auxiliary head, with one pass through a trunk they share."""
        assert self.auxiliary_head is not None
        seen = self._scaled(seen)
        features = self._policy_features(seen)
        apart = self._seen_by_value(features) if self.value_encoder is None else self._value_features(seen)
        auxiliary, value = self.auxiliary_head(features).squeeze(-1), self.value_head(apart).squeeze(-1)
        return self.policy_head(features, mask), auxiliary, value

    def step(self, observation: Any, mask: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """pi, V and the next states [B, K] of one step of B episodes, by a model with a memory."""
        assert self.policy_memory is not None
        observation = self.normalizer(observation)
        own = self.policy_memory.state_size
        features, after = self.policy_memory.step(self.policy_encoder(self.for_policy(observation)), states[:, :own])
        value_features = features
        if self.value_encoder is not None and self.value_memory is not None:
            value_features, others = self.value_memory.step(self.value_encoder(observation), states[:, own:])
            after = torch.cat([after, others], 1)
        return self.policy_head(features, mask), self.value_head(value_features).squeeze(-1), after

    def policy_step(self, observation: Any, mask: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
        """pi and the policy's own next states [B, M] of one step, from those before it; for who needs no value."""
        assert self.policy_memory is not None
        encoded = self.policy_encoder(self.normalizer(self.for_policy(observation)))
        features, after = self.policy_memory.step(encoded, states)
        return self.policy_head(features, mask), after

    def policy_and_states(self, seen: Sequences, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """pi at every step of sequences, and the states [S, K] after the last."""
        assert self.policy_memory is not None
        observation = self.normalizer(seen.observations)
        own = self.policy_memory.state_size
        encoded = self.policy_encoder(self.for_policy(observation))
        features, after = self.policy_memory.unroll(encoded, seen.states[:, :own], seen.starts)
        if self.value_encoder is not None and self.value_memory is not None:
            encoded = self.value_encoder(observation)
            after = torch.cat([after, self.value_memory.unroll(encoded, seen.states[:, own:], seen.starts)[1]], 1)
        return self.policy_head(features, mask), after

    @property
    def state_size(self) -> int:
        """K: numbers that it remembers of an episode, the policy's before the value network's; 0 without a memory."""
        return sum(memory.state_size for memory in (self.policy_memory, self.value_memory) if memory is not None)

    @property
    def policy_state_size(self) -> int:
        """M: how many of these are the policy's."""
        return 0 if self.policy_memory is None else self.policy_memory.state_size

    def for_policy(self, observation: Any) -> Any:
        """What the policy is shown of an observation: all but what is for the value network alone."""
        return without(observation, self.critic_only)

    def _scaled(self, seen: Any, policy_only: bool = False) -> Any:
        """What is seen, or what the policy is shown of it, with observations normalised; a memory needs sequences."""
        if self.policy_memory is None:
            return self.normalizer(self.for_policy(seen) if policy_only else seen)
        if not isinstance(seen, Sequences):
            raise TypeError("A model with a memory needs sequences: give it `batch.seen`, not `batch.observations`.")
        shown = self.for_policy(seen.observations) if policy_only else seen.observations
        return replace(seen, observations=self.normalizer(shown))

    def _policy_features(self, seen: Any) -> Tensor:
        if self.policy_memory is None:
            return self.policy_encoder(self.for_policy(seen))
        own = seen.states[:, : self.policy_memory.state_size]
        return self.policy_memory(self.policy_encoder(self.for_policy(seen.observations)), own, seen.starts)

    def _value_features(self, seen: Any) -> Tensor:
        """Of a value network apart."""
        assert self.value_encoder is not None
        if self.policy_memory is None or self.value_memory is None:
            return self.value_encoder(seen)
        own = seen.states[:, self.policy_memory.state_size :]
        return self.value_memory(self.value_encoder(seen.observations), own, seen.starts)

    def _seen_by_value(self, features: Tensor) -> Tensor:
        return features.detach() if self.arch == "detach" else features

    @property
    def value_is_separate(self) -> bool:
        """Whether V has a network of its own, so that acting need not compute it."""
        return self.value_encoder is not None

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """theta_pi and theta_V. With a shared trunk there is only one group; with a detached one V has just its head."""
        value: list[nn.Module] = [self.value_head]
        value = [part for part in (self.value_encoder, self.value_memory) if part is not None] + value
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
