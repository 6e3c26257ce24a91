"""Actor-Critic with Experience Replay (Wang et al. 2017), for discrete actions; its settings are in acer_settings.py.

repeat
    run pi in N environments for k timesteps; learn from these trajectories, with mu = pi
    n <- Poisson(r)
    for i = 1, ..., n do: learn from trajectories out of the replay memory, with mu as it was stored

to learn from trajectories x_0, a_0, r_0, mu(.|x_0), ..., x_k:
    rho_i(a) = pi(a|x_i) / mu(a|x_i),   V_i = sum_a pi(a|x_i) Q(x_i, a)
    Qret <- 0 where x_k is terminal, V_k otherwise
    for i = k - 1, ..., 0 do
        Qret <- r_i + gamma Qret
        g <- min(c, rho_i(a_i)) grad log pi(a_i|x_i) (Qret - V_i)                gradients wrt the statistics phi, here pi(.|x_i)
             + sum_a [1 - c / rho_i(a)]_+ pi(a|x_i) grad log pi(a|x_i) (Q(x_i, a) - V_i)
        k <- grad KL[pi_a(.|x_i), pi(.|x_i)]
        go up (d phi / d theta) (g - max(0, (k.g - delta) / |k|^2) k), and down grad (Qret - Q(x_i, a_i))^2
        Qret <- min(1, rho_i(a_i)) (Qret - Q(x_i, a_i)) + V_i
    theta_a <- alpha theta_a + (1 - alpha) theta                                 the average policy's network
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from phasegrad.advantages import retrace
from phasegrad.agent import Spaces
from phasegrad.algorithms.acer_settings import ACERConfig
from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import value_metrics
from phasegrad.algorithms.surrogate import learning_rates
from phasegrad.compute.optimizers import Optimizer
from phasegrad.data.minibatches import in_chunks
from phasegrad.data.replay_memory import ReplayBatch, ReplayMemory, Trajectories, replay_batch, trajectories_of
from phasegrad.errors import EnvError
from phasegrad.losses import corrected_policy_gradient, kl_gradient, projected, value_loss
from phasegrad.models import ActorQCritic, AveragePolicy
from phasegrad.models.q_critic import expected_value


class ACER(Algorithm):
    """Actor-Critic with Experience Replay."""

    name = "acer"
    config_class = ACERConfig
    model_class = ActorQCritic
    smaller_storage = "lower replay_capacity, num_envs or num_steps"
    divides = False  # its replay memory belongs to one process
    config: ACERConfig

    def iterations(self) -> Iterator[dict[str, Any]]:
        config, memory = self.config, self.memory
        while self.steps_left():
            rates = learning_rates(config, self.remaining_fraction(), self.flat.slices)
            chance = self.generator("replay")
            values, targets, replayed = [], [], 0
            for rollout in self.rollouts(config.updates_per_iteration):
                assert self.experience.collector is not None
                trajectories = trajectories_of(rollout, self.experience.collector)
                values.append(rollout.values.flatten().clone())  # the next rollout takes their place
                targets.append(self.learn_from(trajectories, rates, on_policy=True))
                if config.replay_ratio and rollout.num_steps == config.num_steps:  # a shorter last one is not kept
                    memory.add(trajectories)
                if memory.steps and memory.steps >= min(config.replay_start, memory.slots * config.batch_size):
                    for _ in range(int(torch.poisson(torch.tensor(config.replay_ratio), generator=chance))):
                        self.learn_from(memory.sample(config.num_envs, chance), rates, on_policy=False)
                        replayed += 1
            found = torch.cat(targets).to(values[0].device)
            metrics = self.stepper.take_all(value_metrics(torch.cat(values), found, self.ranks))
            metrics |= {"updates": len(values) + replayed, "replay_updates": replayed, "replay_steps": memory.steps}
            yield metrics | {"learning_rate": rates["policy"]}

    def learn_from(self, trajectories: Trajectories, rates: Mapping[str, float], on_policy: bool) -> Tensor:
        """One gradient step on trajectories of the current policy, or of those that filled the memory; the targets."""
        batch = self.batch_of(trajectories, on_policy)
        name, loss = ("on_policy", self.on_policy_loss) if on_policy else ("off_policy", self.off_policy_loss)
        usual = len(trajectories.actions) == self.config.num_steps
        self.stepper.step(name, loss, batch, self.config.weights(), rates, usual)
        self.average.follow(self.config.average_decay)
        return batch.value_targets

    @torch.no_grad()
    def batch_of(self, trajectories: Trajectories, on_policy: bool) -> ReplayBatch:
        """All steps of trajectories [T, N] as a batch [T * N], with Retrace targets and the average policy."""
        config, trajectories = self.config, trajectories.on(self.device)
        seen = (trajectories.observations, trajectories.masks)
        params, q_values = self.policy_and_q(*seen, leading=2)  # [T, N, A]
        terminated, truncated = trajectories.terminated, trajectories.truncated
        taken = trajectories.actions.unsqueeze(-1)
        ratios = torch.ones_like(q_values[..., 0])  # mu = pi
        if not on_policy:
            log_prob = self.distribution.log_prob
            ratios = log_prob(params, trajectories.actions) - log_prob(
                trajectories.behaviour_params, trajectories.actions
            )
            ratios = ratios.exp()
        targets = retrace(
            self.agent.reward_normalizer.scaled(trajectories.raw_rewards),
            q_values.gather(-1, taken).squeeze(-1),
            self.next_values(trajectories, expected_value(params, q_values)),
            ratios,
            terminated if config.bootstrap_truncated else terminated | truncated,
            truncated,
            config.gamma,
            config.gae_lambda,
        )
        average_params = in_chunks(self.average.policy, seen, 2, self.device)
        return replay_batch(trajectories, targets, average_params, self.device)

    def next_values(self, trajectories: Trajectories, values: Tensor) -> Tensor:
        """V [T, N] of what really followed each step, from V of the steps themselves."""
        after = self.policy_and_q(trajectories.next_observations, trajectories.next_masks, leading=1)
        next_values = torch.cat([values[1:], expected_value(*after)[None]])
        if len(trajectories.final_positions):  # the mask of a final observation is not known: there all actions count
            final = expected_value(*self.policy_and_q(trajectories.final_observations, None, leading=1))
            next_values.view(-1)[trajectories.final_positions] = final
        return next_values

    def policy_and_q(self, observations: Any, masks: Tensor | None, leading: int) -> tuple[Tensor, Tensor]:
        """Logits and action values [..., A] of observations with `leading` batch dimensions, where they are."""

        def both(observation: Any, mask: Tensor | None) -> Tensor:
            return torch.cat(self.model.policy_and_q(observation, mask), -1)

        params, q_values = in_chunks(both, (observations, masks), leading, self.device).chunk(2, -1)
        return params, q_values

    def on_policy_loss(self, batch: ReplayBatch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss where mu is pi itself, so that every importance weight is exactly 1."""
        return self.loss(batch, None, coefficients)

    def off_policy_loss(
        self, batch: ReplayBatch, coefficients: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = self.loss(batch, batch.behaviour_params, coefficients)
        return loss, {f"replay_{name}": metric for name, metric in metrics.items()}

    def loss(
        self, batch: ReplayBatch, behaviour_params: Tensor | None, coefficients: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """-z.pi + c_q 1/2 (Qret - Q(x, a))^2 over a batch, where z is g within the trust region and held fixed."""
        config, distribution = self.config, self.distribution
        params, q_values = self.model.policy_and_q(batch.observations, batch.masks)
        q_taken = q_values.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
        q_loss = value_loss(q_taken, batch.value_targets)
        probabilities = params.log_softmax(-1).exp()
        with torch.no_grad():
            pi, average = probabilities.detach(), batch.average_params.softmax(-1)
            mu = pi if behaviour_params is None else behaviour_params.softmax(-1)
            gradient = corrected_policy_gradient(
                pi,
                mu,
                batch.actions,
                q_values.detach(),
                batch.value_targets,
                config.importance_clip,
                coefficients["entropy_coef"],
            )
            direction = kl_gradient(pi, average)
            beyond = (direction * gradient).sum(-1) > config.trust_region_delta
            allowed = projected(gradient, direction, config.trust_region_delta) if config.trust_region else gradient
            taken = batch.actions.unsqueeze(-1)
            ratios = pi.gather(-1, taken) / mu.gather(-1, taken)
            metrics = {
                "entropy": distribution.entropy(params).mean(),
                "kl": distribution.kl(batch.average_params, params).mean(),
                "importance_weight": ratios.mean(),
                "clip_fraction": (ratios > config.importance_clip).to(pi.dtype).mean(),
                "trust_region_fraction": beyond.to(pi.dtype).mean(),
            }
        policy_loss = -(allowed * probabilities).sum(-1).mean()
        loss = policy_loss + coefficients["q_coef"] * q_loss
        return loss, metrics | {"policy_loss": policy_loss, "value_loss": q_loss}

    # What stands behind the loop

    def require_spaces(self, spaces: Spaces) -> None:
        if not isinstance(spaces.action, gym.spaces.Discrete):
            raise EnvError(f"acer needs a Discrete action space, not {spaces.action}: use ppo, ppg, a2c or trpo.")

    def build_optimizers(self) -> dict[str, Optimizer]:
        config, agent = self.config, self.agent
        optimizers = config.optimizers(self.flat)
        self.stepper = self.computation.stepper(optimizers, config.max_grad_norm)
        self.average = AveragePolicy(self.model, self.flat)
        slots = config.replay_capacity // config.batch_size if config.replay_ratio else 0
        kinds = (agent.observation_space, self.distribution, agent.spaces.has_mask, self.model.stacking)
        self.carries = self.memory = ReplayMemory(slots, config.num_steps, config.num_envs, *kinds)
        return optimizers

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"average.policy": self.average.parameters}

    def storage_bytes(self) -> int:
        return super().storage_bytes() + self.memory.storage_bytes()
