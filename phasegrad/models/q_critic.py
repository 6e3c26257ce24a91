"""A policy beside Q(s, a) for every discrete action; V(s) is the mean of Q under the policy.

Nothing here knows about losses, optimisers or rollouts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phasegrad.models.actor_critic import ActorCritic


def expected_value(params: Tensor, q_values: Tensor) -> Tensor:
    """V = sum_a pi(a|s) Q(s, a), [...], from logits and action values [..., A]."""
    return (params.softmax(-1) * q_values).sum(-1)


class ActorQCritic(ActorCritic):
    """pi_theta(.|s) and Q(s, .), on one trunk or two."""

    def value_outputs(self) -> int:
        return self.distribution.parameter_size

    def policy_and_q(self, observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits and action values, both [B, A]."""
        observation = self.normalizer(observation)
        features = self.policy_encoder(observation)
        seen = features if self.value_encoder is None else self.value_encoder(observation)
        return self.policy_head(features, mask), self.value_head(seen)

    def policy_and_value(self, observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        params, q_values = self.policy_and_q(observation, mask)
        return params, expected_value(params, q_values)

    def value(self, observation: Any) -> Tensor:
        """V(s), [B], of the policy without a mask."""
        return self.policy_and_value(observation)[1]
