"""Phasic Policy Gradient (Cobbe et al. 2020), every variant the paper studies.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phasegrad.algorithms.base import Algorithm
from phasegrad.algorithms.interference import interference
from phasegrad.algorithms.surrogate import (
    SurrogateConfig,
    current_scalars,
    epoch_of_minibatches,
    learning_rates,
    logged_rates,
    surrogate_loss,
)
from phasegrad.compute.optimizers import Adam
from phasegrad.compute.stepping import Loss
from phasegrad.config import require_minibatches, setting
from phasegrad.data.minibatches import Batch, Minibatch, Minibatches, gather
from phasegrad.data.phase_buffer import PhaseBuffer, buffered_tensors
from phasegrad.errors import ConfigError
from phasegrad.losses import adapted_kl_beta, auxiliary_loss, value_loss
from phasegrad.runs.pieces import fill


@dataclass(kw_only=True)
class PPGConfig(SurrogateConfig):
    """Settings of PPG; the paper's symbols stand in brackets."""

    arch: str = setting(
        "dual",
        "dual: separate policy and value networks; detach: one network whose value head trains the trunk only in the "
        "auxiliary phase; shared: one network, as in PPO",
        choices=("dual", "detach", "shared"),
    )
    normalize_reward: bool = setting(
        True, "divide rewards by the running deviation of the discounted return, so that beta_clone keeps its meaning"
    )
    n_pi: int = setting(32, "policy iterations before each auxiliary phase [N_pi]", low=1, high=1 << 20)
    e_pi: int = setting(1, "epochs of the policy loss on each rollout [E_pi]", low=0)
    e_v: int = setting(1, "epochs of the value loss on each rollout [E_V]", low=0)
    e_aux: int = setting(6, "epochs of the auxiliary phase over the buffer [E_aux]; 0 leaves the phase out", low=0)
    beta_clone: float = setting(
        1.0, "weight of the KL that keeps the policy in the auxiliary phase [beta_clone]", low=0
    )
    aux_learning_rate: float = setting(5e-4, "step size of the auxiliary phase's own Adam", low=0)
    aux_minibatches: int = setting(0, "minibatches of an auxiliary epoch; 0 for 16 x n_pi", low=0)
    aux_target: str = setting(
        "returns",
        "what the auxiliary value head learns: the rollouts' value targets, or the value network's output",
        choices=("returns", "value_network"),
    )
    aux_value_loss: bool = setting(True, "train the value network in the auxiliary phase too (dual, or aux_head)")
    aux_head: bool = setting(
        False,
        "one network (detach, shared) with an auxiliary value head beside its value head, as the published code has it; "
        "dual always has one",
    )
    aux_interval: int = setting(
        0,
        "iterations between auxiliary phases where it differs from n_pi [T_freq of PPG Reloaded]; 0 for n_pi",
        low=0,
        high=1 << 20,
    )
    aux_buffer: int = setting(
        0,
        "latest iterations that an auxiliary phase trains on [T_off of PPG Reloaded]; 0 for n_pi",
        low=0,
        high=1 << 20,
    )
    aux_steps: int = setting(
        0, "gradient steps of an auxiliary phase on random minibatches, in place of e_aux epochs; 0 for epochs", low=0
    )
    aux_minibatch_size: int = setting(
        0, "samples of an auxiliary minibatch, in place of aux_minibatches; 0 to divide the buffer", low=0
    )
    hold_value: bool = setting(
        False, "policy phase only holds V where it was, 1/2 (V - V_old)^2; the auxiliary phase alone fits it (DCPG)"
    )

    def validate(self) -> None:
        super().validate()
        one_head, why = self.arch != "dual" and not self.aux_head, f"with arch {self.arch} both heads are one"
        if one_head and not self.aux_value_loss:
            raise ConfigError(f"aux_value_loss off needs arch dual, or aux_head: {why}.")
        if one_head and self.aux_target == "value_network":
            raise ConfigError(f"aux_target value_network needs arch dual, or aux_head: {why}.")
        if self.aux_buffer and self.aux_buffer < self.interval:
            raise ConfigError(
                f"aux_buffer {self.aux_buffer} is shorter than the {self.interval} iterations between phases."
            )
        if self.aux_minibatches and self.aux_minibatch_size:
            raise ConfigError("aux_minibatches and aux_minibatch_size exclude each other: set one of them.")

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        if self.has_auxiliary_phase and not self.aux_minibatch_size:
            units = self.kept * (self.num_envs if self.whole_segments else self.batch_size) // processes
            count, whole = self.aux_minibatches or 16 * self.n_pi, self.whole_segments
            require_minibatches("aux_minibatches", count, units, processes, whole, "the auxiliary phase's buffer")

    @property
    def interval(self) -> int:
        """Policy iterations between auxiliary phases."""
        return (self.aux_interval or self.n_pi) if self.has_auxiliary_phase else 1

    @property
    def kept(self) -> int:
        """Iterations in the buffer."""
        return (self.aux_buffer or self.interval) if self.has_auxiliary_phase else 1

    @property
    def checkpoints_within_phases(self) -> bool:
        """Whether `checkpoint_every` asks for checkpoints more often than phases end."""
        return 0 < self.checkpoint_every < self.interval * self.batch_size

    @property
    def has_auxiliary_phase(self) -> bool:
        return self.e_aux > 0 or self.aux_steps > 0


class PPG(Algorithm):
    """Phasic Policy Gradient."""

    name = "ppg"
    config_class = PPGConfig
    auxiliary_head = True
    smaller_storage = "lower n_pi, num_envs or num_steps, or set aux_buffer and aux_interval to fewer iterations"
    config: PPGConfig

    def build_optimizers(self) -> dict[str, Adam]:
        config = self.config
        groups = self.flat.slices
        optimizers = {group: Adam(self.flat, where, config.adam_eps) for group, where in groups.items()}
        auxiliary = {group: Adam(self.flat, where, config.adam_eps) for group, where in groups.items()}
        self.stepper = self.stepper_for(optimizers, config.max_grad_norm)
        self.auxiliary_stepper = self.stepper_for(auxiliary, config.max_grad_norm)
        self.scalars["kl_beta"] = config.kl_beta
        self.buffer = PhaseBuffer(config.kept, config.interval, config.num_steps, self.own_envs)
        return optimizers | {f"auxiliary_{group}": adam for group, adam in auxiliary.items()}

    def rollouts_kept(self) -> int:
        return self.config.kept

    def at_boundary(self) -> bool:
        """Within a phase a checkpoint holds the buffer, so unless asked to it waits for the end."""
        return self.config.checkpoints_within_phases or self.buffer.phase_is_over()

    def end_run(self) -> None:
        """Phases that overlap leave a buffer behind, which may be large."""
        self.buffer.clear()

    def carried(self) -> dict[int, dict[str, Tensor]]:
        """The rollouts in the buffer, as the auxiliary phase needs them."""
        segments = self.storage().rollouts if any(self.buffer.filled) else []
        return {
            number: buffered_tensors(segment.first(steps))
            for segment, number, steps in zip(segments, self.buffer.numbers, self.buffer.filled, strict=False)
            if steps
        }

    def carried_state(self) -> dict[str, Any]:
        return self.buffer.state()

    def restore_carried(self, state: Mapping[str, Any], pieces: Mapping[int, Mapping[str, Tensor]]) -> None:
        self.buffer.restore(state, pieces.keys())
        for slot, steps in enumerate(self.buffer.filled):
            if steps:
                piece = pieces[self.buffer.numbers[slot]]
                for name, room in buffered_tensors(self.storage().rollouts[slot].first(steps)).items():
                    fill(room, piece.get(name), name)

    def iterate(self, num_steps: int) -> dict[str, Any]:
        metrics = self.policy_iteration(num_steps)
        run_is_over = self.progress.step >= self.config.total_steps
        if self.config.has_auxiliary_phase and (self.buffer.phase_is_over() or run_is_over):
            metrics |= self.auxiliary_phase()
        return metrics

    def policy_iteration(self, num_steps: int) -> dict[str, Any]:
        config, left = self.config, self.remaining_fraction()
        rates = self.rates(learning_rates(config, left))
        scalars = current_scalars(config, self.scalars, left)
        shuffle = self.generator("minibatches")

        self.buffer.free_next_slot()
        rollout = self.collect(num_steps, self.buffer.next_slot)
        self.estimate_advantages(rollout)
        metrics: dict[str, Any] = self.rollout_metrics(rollout)
        with self.clock.section("update"):
            if config.normalize_advantage == "batch":
                rollout.advantages.copy_(self.normalized(rollout.advantages))
            for epoch in range(max(config.e_pi, config.e_v)):  # where both are due, they share a pass over the data
                kind, loss, groups = self.policy_phase_loss(epoch < config.e_pi, epoch < config.e_v)
                minibatches = epoch_of_minibatches(rollout, config, shuffle, self.device, self.ranks)
                if epoch == 0 and config.measure_interference:
                    metrics |= interference(self.model, next(iter(minibatches)), config, scalars, self.ranks)
                self.stepper.epoch(kind, loss, minibatches, scalars, {group: rates[group] for group in groups})
            if config.kl_target:
                self.scalars["kl_beta"] = adapted_kl_beta(scalars["kl_beta"], self.mean_kl(rollout), config.kl_target)
            metrics |= self.stepper.take_epoch_means()
            metrics |= self.stepper.take_metrics()
            self.model.normalizer.update(rollout.observations)
        self.buffer.add(num_steps, self.progress.iteration)
        return metrics | scalars | logged_rates(rates)

    def policy_phase_loss(self, policy: bool, value: bool) -> tuple[str, Loss, list[str]]:
        """The losses due in an epoch: their name, as one function, and the parameter groups they train."""
        config, model = self.config, self.model

        def loss(batch: Batch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
            if not policy:
                errors = self.value_errors(model.value(batch.observations), batch)
                return config.weight("value_coef", scalars) * errors, {"value_loss": errors}
            if not value:
                params = model.policy(batch.observations, batch.masks)
                return surrogate_loss(self.distribution, params, batch, config, scalars)
            params, values = model.policy_and_value(batch.observations, batch.masks)
            policy_loss, metrics = surrogate_loss(self.distribution, params, batch, config, scalars)
            errors = self.value_errors(values, batch)
            return policy_loss + config.weight("value_coef", scalars) * errors, metrics | {"value_loss": errors}

        due = {"policy": policy, "value": value}
        kind = "+".join(name for name in due if due[name])
        return kind, loss, [group for group in self.flat.slices if config.arch == "shared" or due[group]]

    def value_errors(self, values: Tensor, batch: Batch) -> Tensor:
        """L_value of the policy phase."""
        targets = batch.old_values if self.config.hold_value else batch.value_targets
        return value_loss(values, targets, batch.old_values, self.config.value_clip or None)

    def auxiliary_phase(self) -> dict[str, Any]:
        config, buffer, whole = self.config, self.buffer, self.storage().whole
        rates = dict.fromkeys(self.flat.slices, config.aux_learning_rate)
        if not config.aux_value_loss and config.arch != "shared":  # whose one group has the value head in it
            del rates["value"]
        with self.clock.section("auxiliary"):
            epochs = buffer.epochs(
                config.e_aux,
                config.aux_minibatches or 16 * config.n_pi,
                self.ranks.share(config.aux_minibatch_size),
                config.aux_steps,
                config.whole_segments,
                self.generator("auxiliary"),
            )
            trained = torch.cat([index for epoch in epochs for index in epoch])
            probe = buffer.probe(len(trained))
            before = self.explained_variances(probe)
            self.store_policy(trained.unique())  # pi_old, once
            by_epoch: dict[str, list[float]] = {}
            for epoch in epochs:
                minibatches = Minibatches(whole, epoch, self.device, Minibatch, usual=buffer.is_full())
                self.auxiliary_stepper.epoch("auxiliary", self.auxiliary_phase_loss, minibatches, {}, rates)
                for name, mean in self.auxiliary_stepper.take_metrics().items():
                    by_epoch.setdefault(f"aux_{name}", []).append(mean)
            after = self.explained_variances(probe)
            buffer.end_phase()
        metrics: dict[str, Any] = {name: means[-1] for name, means in by_epoch.items()}
        metrics |= {f"{name}_by_epoch": means for name, means in by_epoch.items()}
        metrics |= {f"{name}_before_aux": value for name, value in before.items()}
        return metrics | {f"{name}_after_aux": value for name, value in after.items()}

    def auxiliary_phase_loss(self, batch: Minibatch, scalars: Mapping[str, float]) -> tuple[Tensor, dict[str, Tensor]]:
        """L_joint, and L_value of a value head apart. With arch dual or detach their parameters are disjoint, so one
        backward serves both.
        """
        config, model = self.config, self.model
        targets, value_weight = batch.value_targets, 0.5
        separate: dict[str, Tensor] = {}
        if model.auxiliary_head is None or not (config.aux_value_loss or config.aux_target == "value_network"):
            params, auxiliary_values = model.policy_and_auxiliary_value(batch.observations, batch.masks)
        else:
            params, auxiliary_values, values = model.policy_and_both_values(batch.observations, batch.masks)
            if config.aux_target == "value_network":  # distillation: E[(V_thetaV - V_thetapi)^2], V_thetaV held
                targets, value_weight = values.detach(), 1.0
            if config.aux_value_loss:
                separate["value_loss"] = value_loss(values, batch.value_targets)
        clone_kl = self.distribution.kl(batch.old_params, params)
        beta_clone = config.weight("beta_clone", scalars)
        joint = auxiliary_loss(auxiliary_values, targets, clone_kl, beta_clone, value_weight=value_weight)
        metrics = {"clone_kl": clone_kl.mean(), "joint_loss": joint, **separate}
        return sum(separate.values(), joint), metrics

    @torch.no_grad()
    def store_policy(self, positions: Tensor) -> None:
        """Put the policy as it now is, pi_old of the auxiliary phase, in place of the rollouts' own."""
        whole = self.storage().whole
        stored = whole.policy_params.view(-1, self.distribution.parameter_size)
        for part in positions.split(self.chunk):
            batch = gather(whole, part, self.device, Minibatch)
            stored[part] = self.model.policy(batch.observations, batch.masks).cpu()

    @torch.no_grad()
    def explained_variances(self, positions: Tensor) -> dict[str, float]:
        """How well each value head explains the targets of some of the buffer's states."""
        whole = self.storage().whole
        heads: dict[str, list[Tensor]] = {"explained_variance": []}
        if self.model.auxiliary_head is not None:
            heads["aux_head_explained_variance"] = []
        targets = []
        for part in positions.split(self.chunk):
            batch = gather(whole, part, self.device, Minibatch)
            targets.append(batch.value_targets)
            heads["explained_variance"].append(self.model.value(batch.observations))
            if self.model.auxiliary_head is not None:
                auxiliary = self.model.policy_and_auxiliary_value(batch.observations)[1]
                heads["aux_head_explained_variance"].append(auxiliary)
        return {name: self.explained_variance(torch.cat(parts), torch.cat(targets)) for name, parts in heads.items()}
