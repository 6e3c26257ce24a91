"""Phasic Policy Gradient (Cobbe et al. 2020), every variant the paper studies; its settings are in ppg_settings.py.

for phase = 1, 2, ... do
    initialise empty buffer B
    for iteration = 1, ..., N_pi do                                        policy phase
        perform rollouts under the current policy pi
        compute the value target V_targ of each state
        for epoch = 1, ..., E_pi do: optimise L_clip + beta_S S[pi] wrt theta_pi
        for epoch = 1, ..., E_V do:  optimise L_value wrt theta_V
        add all (s, V_targ) to B
    compute and store the current policy pi_old(.|s) for all states in B
    for epoch = 1, ..., E_aux do                                           auxiliary phase
        optimise L_joint wrt theta_pi, on all data in B
        optimise L_value wrt theta_V, on all data in B
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.estimates import estimate_advantages, explained_variance, normalized
from phasegrad.algorithms.interference import interference
from phasegrad.algorithms.ppg_settings import PPGConfig
from phasegrad.algorithms.settings import adams
from phasegrad.algorithms.surrogate import (
    adapt_learning_rate,
    epoch_of_minibatches,
    first_scalars,
    logged_rates,
    scheduled_weights,
    surrogate_loss,
    warmed_up_rates,
)
from phasegrad.compute.optimizers import Adam
from phasegrad.compute.stepping import require_finite
from phasegrad.data.minibatches import Batch, Minibatches
from phasegrad.data.phase_buffer import AuxiliaryBatch, BufferedStates, PhaseBuffer
from phasegrad.data.transfers import fetched
from phasegrad.losses import adapted_kl_beta, auxiliary_loss, value_loss


class PPG(Algorithm):
    """Phasic Policy Gradient."""

    name = "ppg"
    config_class = PPGConfig
    auxiliary_head = True
    smaller_storage = "lower n_pi, num_envs or num_steps, or set aux_buffer and aux_interval to fewer iterations"
    config: PPGConfig

    def iterations(self) -> Iterator[dict[str, Any]]:
        config, buffer = self.config, self.buffer
        while self.steps_left():
            # The policy phase; a resumed one goes on where its buffer ends
            for _ in range(buffer.since_phase, buffer.interval):
                left, shuffle = self.remaining_fraction(), self.generator("minibatches")
                rates = warmed_up_rates(config, left, self.flat.slices, self.scalars, self.progress.iteration)
                scheduled = scheduled_weights(config, self.scalars, left)
                with self.collected(buffer.free_next_slot()) as rollout:
                    scheduled |= self.leash.hold(rollout)
                    coefficients = config.weights() | scheduled
                    estimate_advantages(rollout, config)
                    metrics = self.rollout_metrics(rollout)
                    if config.normalize_advantage == "batch":
                        rollout.advantages.copy_(normalized(rollout.advantages, self.ranks))
                    for epoch in range(max(config.e_pi, config.e_v)):
                        if epoch < min(config.e_pi, config.e_v):  # where both are due, they share a pass
                            loss, groups = self.policy_and_value_loss, ["policy", "value"]
                        elif epoch < config.e_pi:
                            loss, groups = self.policy_loss, ["policy"]
                        else:
                            loss, groups = self.value_loss, ["value"]
                        minibatches = epoch_of_minibatches(rollout, config, shuffle, self.device, self.ranks)
                        if epoch == 0 and config.measure_interference:
                            first = next(iter(minibatches))
                            metrics |= interference(self.model, first, config, coefficients, self.ranks)
                        trained = rates if config.arch == "shared" else {group: rates[group] for group in groups}
                        self.stepper.epoch(loss.__name__, loss, minibatches, coefficients, trained)
                    moved = self.mean_kl(rollout) if config.kl_target and rates["policy"] else None
                buffer.add(rollout.num_steps, self.progress.iteration)
                metrics = self.stepper.take_all(metrics | {"moved": moved})
                if (moved := metrics.pop("moved")) is not None:
                    self.scalars["kl_beta"] = adapted_kl_beta(scheduled["kl_beta"], moved, config.kl_target)
                metrics |= scheduled | logged_rates(rates)
                adapt_learning_rate(config, self.scalars, metrics.get("kl_by_epoch", [0.0])[-1], rates)
                if buffer.phase_is_over() or not self.steps_left():
                    break
                yield metrics
            # The auxiliary phase
            if config.has_auxiliary_phase:
                with self.clock.section("auxiliary"):
                    metrics |= self.auxiliary_phase()
            buffer.end_phase()
            yield metrics

    def auxiliary_phase(self) -> dict[str, Any]:
        config, buffer, stepper = self.config, self.buffer, self.auxiliary_stepper
        rates = dict.fromkeys(self.flat.slices, float(config.aux_learning_rate))
        if not config.aux_value_loss and config.arch != "shared":  # whose one group has the value head in it
            del rates["value"]
        size, shuffle = self.ranks.share(config.aux_minibatch_size), self.generator("auxiliary")
        count = config.aux_minibatches or 16 * config.n_pi
        epochs = buffer.epochs(config.e_aux, count, size, config.aux_steps, config.whole_segments, shuffle)
        trained = torch.cat([index.flatten() for epoch in epochs for index in epoch])
        probe = buffer.probe(len(trained))
        # pi_old at all states; with a memory also what it remembers before each sequence, by the networks as they are now
        states = buffer.store_policy(self.model, trained.unique(), self.computation.chunk, self.device)
        found = self.explained_variances(states, probe, "before_aux")
        by_epoch: dict[str, list[Tensor]] = {}
        for epoch in epochs:
            minibatches = Minibatches(states, epoch, self.device, AuxiliaryBatch, usual=buffer.is_full())
            stepper.epoch("auxiliary", self.auxiliary_loss, minibatches, config.weights(), rates)
            for name, mean in stepper.take_tensors().items():
                by_epoch.setdefault(f"aux_{name}_by_epoch", []).append(mean)
        found |= self.explained_variances(states, probe, "after_aux")
        metrics = require_finite(fetched({**by_epoch, **found}), by_epoch)  # one transfer for all of the phase
        return {name.removesuffix("_by_epoch"): metrics[name][-1] for name in by_epoch} | metrics

    # The losses of a minibatch

    def policy_loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """-(L_policy + beta_S S[pi])."""
        params = self.model.policy(batch.seen, batch.masks)
        return surrogate_loss(self.distribution, params, batch, self.config, coefficients)

    def value_loss(self, batch: Batch, coefficients: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """c_v L_value."""
        errors = self.value_errors(self.model.value(batch.seen), batch)
        return coefficients["value_coef"] * errors, {"value_loss": errors}

    def policy_and_value_loss(
        self, batch: Batch, coefficients: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """-(L_policy + beta_S S[pi]) + c_v L_value, whose parameters are disjoint unless the networks share some."""
        params, values = self.model.policy_and_value(batch.seen, batch.masks)
        policy_loss, metrics = surrogate_loss(self.distribution, params, batch, self.config, coefficients)
        errors = self.value_errors(values, batch)
        return policy_loss + coefficients["value_coef"] * errors, metrics | {"value_loss": errors}

    def value_errors(self, values: Tensor, batch: Batch) -> Tensor:
        """L_value of the policy phase."""
        targets = batch.old_values if self.config.hold_value else batch.value_targets
        return value_loss(values, targets, batch.old_values, self.config.value_clip or None)

    def auxiliary_loss(
        self, batch: AuxiliaryBatch, coefficients: Mapping[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L_joint, and L_value of a value head apart, whose parameters are disjoint: one backward serves both."""
        config, model = self.config, self.model
        targets, value_weight = batch.value_targets, 0.5
        separate: dict[str, Tensor] = {}
        if model.auxiliary_head is None or not (config.aux_value_loss or config.aux_target == "value_network"):
            params, auxiliary_values = model.policy_and_auxiliary_value(batch.seen, batch.masks)
        else:
            params, auxiliary_values, values = model.policy_and_both_values(batch.seen, batch.masks)
            if config.aux_target == "value_network":  # distillation: E[(V_thetaV - V_thetapi)^2], V_thetaV held
                targets, value_weight = values.detach(), 1.0
            if config.aux_value_loss:
                separate["value_loss"] = value_loss(values, batch.value_targets)
        clone_kl = self.distribution.kl(batch.old_params, params)
        joint = auxiliary_loss(
            auxiliary_values, targets, clone_kl, coefficients["beta_clone"], value_weight=value_weight
        )
        return sum(separate.values(), joint), {"clone_kl": clone_kl.mean(), "joint_loss": joint, **separate}

    # What stands behind the loop

    def build_optimizers(self) -> dict[str, Adam]:
        config, experience = self.config, self.experience
        optimizers, auxiliary = adams(self.flat, config.adam_eps), adams(self.flat, config.adam_eps)
        self.stepper = self.computation.stepper(optimizers, config.max_grad_norm)
        self.auxiliary_stepper = self.computation.stepper(auxiliary, config.max_grad_norm, config.aux_precision)
        self.scalars |= {"kl_beta": config.kl_beta} | first_scalars(config)
        sizes = (config.kept, config.interval, config.num_steps, experience.num_envs)
        self.carries = self.buffer = PhaseBuffer(*sizes, experience.storage, experience.storage_bytes())
        return optimizers | {f"auxiliary_{group}": adam for group, adam in auxiliary.items()}

    def rollouts_kept(self) -> int:
        return self.config.kept

    def at_boundary(self) -> bool:
        """Within a phase a checkpoint holds the buffer, so unless asked to it waits for the end."""
        return self.config.checkpoints_within_phases or self.buffer.phase_is_over()

    def end_run(self) -> None:
        """Phases that overlap leave a buffer behind, which may be large."""
        self.buffer.clear()

    def explained_variances(self, states: BufferedStates, positions: Tensor, when: str) -> dict[str, Tensor]:
        """How well each value head explains the targets of some of the buffer's states."""
        heads = {"explained_variance": self.model.value}
        if self.model.auxiliary_head is not None:
            heads["aux_head_explained_variance"] = lambda seen: self.model.policy_and_auxiliary_value(seen)[1]
        found, targets = self.buffer.evaluated(heads, states, positions, self.computation.chunk, self.device)
        return {f"{name}_{when}": explained_variance(values, targets, self.ranks) for name, values in found.items()}
