"""A policy network that follows another one slowly: ACER's average policy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from phasegrad.models.actor_critic import ActorCritic
from phasegrad.models.flat import FlatParameters


class AveragePolicy:
    """theta_a, a running mean of the policy network's parameters theta; it starts equal to them."""

    def __init__(self, model: ActorCritic, flat: FlatParameters) -> None:
        self.encoder, self.head = deepcopy(model.policy_encoder).eval(), deepcopy(model.policy_head).eval()
        for mine, theirs in ((self.encoder, model.policy_encoder), (self.head, model.policy_head)):
            for own, followed in zip(mine.modules(), theirs.modules(), strict=True):
                own._buffers.update(followed._buffers)  # a batch norm's statistics are those of both networks
        self.normalizer = model.normalizer  # one scaling of observations for both networks
        own = FlatParameters({"policy": [*self.encoder.parameters(), *self.head.parameters()]})
        self.parameters = own.data
        self.followed = flat.data[: len(own.data)]  # a model lays its policy network first
        assert torch.equal(self.parameters, self.followed)

    @torch.no_grad()
    def policy(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Distribution parameters [B, P]."""
        return self.head(self.encoder(self.normalizer(observation)), mask)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """theta_a <- decay theta_a + (1 - decay) theta."""
        self.parameters.mul_(decay).add_(self.followed, alpha=1 - decay)
