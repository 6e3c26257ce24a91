"""Settings of PPG: every variant its paper studies, and those of its successors."""

from __future__ import annotations

from dataclasses import dataclass

from phasegrad.algorithms.settings import SurrogateConfig
from phasegrad.config import require_minibatches, setting
from phasegrad.errors import ConfigError
from phasegrad.phases import phase_schedule


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
        1.0,
        "weight of the KL that holds the policy in place in the auxiliary phase, or its schedule [beta_clone]",
        low=0,
        live=True,
        scheduled=True,
    )
    aux_learning_rate: float = setting(
        5e-4, "step size of the auxiliary phase's own Adam, or its schedule", low=0, live=True, scheduled=True
    )
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
    aux_precision: str = setting(
        "float32",
        "numbers in which networks without a memory compute in the auxiliary phase: bfloat16, by plain kernels, takes half the "
        "memory and, on GPUs made for it, less time",
        choices=("float32", "bfloat16"),
    )
    hold_value: bool = setting(
        False, "the policy phase only holds V in place, 1/2 (V - V_old)^2; the auxiliary phase alone fits it (DCPG)"
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
        if self.aux_precision != "float32" and self.memory != "none":
            raise ConfigError("aux_precision bfloat16 is for networks without a memory: set memory none, or float32.")
        if self.kl_learning_rate and not self.e_pi:
            raise ConfigError("kl_learning_rate needs an update of the policy to measure: set e_pi 1 or more.")
        if self.aux_minibatches and self.aux_minibatch_size:
            raise ConfigError("aux_minibatches and aux_minibatch_size exclude each other: set one of them.")

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        if self.has_auxiliary_phase and not self.aux_minibatch_size:
            units, count = self.kept * self.units_a_rollout, self.aux_minibatches or 16 * self.n_pi
            require_minibatches(self, "aux_minibatches", count, units, processes, "the auxiliary phase's buffer")

    @property
    def interval(self) -> int:
        """Policy iterations between auxiliary phases."""
        schedule = phase_schedule(vars(self))
        return schedule.interval if schedule else 1

    @property
    def kept(self) -> int:
        """Iterations in the buffer."""
        schedule = phase_schedule(vars(self))
        return schedule.kept if schedule else 1

    @property
    def checkpoints_within_phases(self) -> bool:
        """Whether `checkpoint_every` asks for checkpoints more often than phases end."""
        return 0 < self.checkpoint_every < self.interval * self.batch_size

    @property
    def has_auxiliary_phase(self) -> bool:
        return phase_schedule(vars(self)) is not None
