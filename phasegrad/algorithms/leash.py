"""The leash of a warm start: the policy as it was cloned, frozen, and how strongly training is held to it.

The loss has a term  weight KL[pi_clone, pi]  whose weight falls linearly to 0; from then on pi_clone is not computed any
more. Nothing here knows how a policy is cloned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phasegrad.agent import Agent
from phasegrad.algorithms.settings import SurrogateConfig
from phasegrad.data.minibatches import over_rollout
from phasegrad.data.storage import Rollout
from phasegrad.errors import ConfigError
from phasegrad.models import ActorCritic, build_model
from phasegrad.runs.state import Progress

PREFIX = "leash."  # of its tensors in a checkpoint
PARTS = ("normalizer.", "policy_encoder.", "policy_head.")  # of a model, that make up its policy
USUAL_WEIGHT, USUAL_SHARE = 1.0, 0.5  # of a cloned agent's run, unless asked otherwise


class Leash:
    """What holds the policy of an agent in training to the one it was cloned from, once there is one to hold to."""

    def __init__(self, agent: Agent, progress: Progress) -> None:
        self.agent, self.progress = agent, progress
        self.cloned: ActorCritic | None = None  # of which only the policy counts

    def take(self) -> None:
        """Freeze a copy of the policy as it is now, with its scaling of observations."""
        agent, config = self.agent, self.agent.config
        if not isinstance(config, SurrogateConfig) or config.memory != "none":
            return  # nothing that would be held
        model = build_model(agent.observation_space, agent.action_space, config, model_class=type(agent.model))
        self.cloned = model.to(agent.device).eval().requires_grad_(False)
        for name, tensor in policy_tensors(model).items():
            tensor.copy_(agent.model.state_dict()[name])

    def tensors(self) -> dict[str, Tensor]:
        """Those of the frozen policy by name, without copying; none where there is none."""
        named = {} if self.cloned is None else policy_tensors(self.cloned)
        return {f"{PREFIX}{name}": tensor for name, tensor in named.items()}

    def require_policy(self) -> None:
        """Refuse a leash that nothing would be held by."""
        if self.cloned is None and getattr(self.agent.config, "leash", None):
            raise ConfigError(
                "leash holds training to a policy that was cloned, and this agent was not: call agent.clone(...) first "
                "(`phasegrad clone` on the command line), or leave leash out."
            )

    def weight(self, step: int) -> float:
        """The weight of the term at a step of the run; 0 where there is none."""
        config = self.agent.config
        if self.cloned is None or not isinstance(config, SurrogateConfig):
            return 0.0
        whole = USUAL_WEIGHT if config.leash is None else config.leash
        length = USUAL_SHARE * config.total_steps if config.leash_steps is None else config.leash_steps
        return whole * max(0.0, 1.0 - step / length)

    @torch.no_grad()
    def hold(self, rollout: Rollout) -> dict[str, float]:
        """Put pi_clone's parameters at the states of the rollout just collected beside them; the term's weight by name.

        Where the leash is off or has run out there is nothing of either.
        """
        weight = self.weight(self.progress.step - rollout.num_steps * self.agent.config.num_envs)
        if not weight or self.cloned is None:
            return {}
        rollout.leash_params = over_rollout(self.cloned.policy, rollout, self.agent.device)
        return {"leash": weight}


def policy_tensors(model: ActorCritic) -> dict[str, Tensor]:
    """The tensors of a model's policy by name, without copying."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith(PARTS)}
