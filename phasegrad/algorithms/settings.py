"""Settings that several algorithms share: of any policy gradient, of RMSProp, of a surrogate objective.

Settings are read without torch, so that the command line's help and its errors come at once; what needs it is imported
where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from phasegrad.config import Config, require_minibatches, setting
from phasegrad.errors import ConfigError
from phasegrad.schedules import LEAST_RATE, MOST_RATE, as_given, is_scheduled

if TYPE_CHECKING:
    from phasegrad.compute.optimizers import Adam, Optimizer
    from phasegrad.models import FlatParameters

SCHEDULES = "a number, or over the run linear:START:END, cosine:START:END, constant:NUMBER, warmup:FRACTION:SCHEDULE"
OBJECTIVES = ("pg", "cpi", "clip", "kl")  # as phasegrad.losses has them


@dataclass(kw_only=True)
class PolicyGradientConfig(Config):
    """Settings of any gradient step on policy and value; the papers' symbols stand in brackets."""

    learning_rate: float = setting(3e-4, f"Adam's step size; {SCHEDULES}", low=0, live=True, scheduled=True)
    critic_learning_rate: float | None = setting(
        None,
        "step size of the value network (not with arch shared), or its schedule; none for learning_rate",
        low=0,
        live=True,
        scheduled=True,
    )
    anneal_learning_rate: bool = setting(
        False, "learning rates fall linearly to 0 over the run, as with the schedule linear", live=True
    )
    adam_eps: float = setting(1e-5, "Adam's epsilon", low=0)
    entropy_coef: float = setting(
        0.0, "weight of the entropy bonus, or its schedule [c_2, beta_S]", low=0, live=True, scheduled=True
    )
    max_grad_norm: float = setting(0.5, "maximum gradient norm, for each network separately; 0 for no clipping", low=0)

    def validate(self) -> None:
        super().validate()
        if self.critic_learning_rate is not None and self.arch == "shared":
            raise ConfigError(
                "critic_learning_rate needs a value network of its own: set arch dual or leave critic_learning_rate out."
            )
        if self.anneal_learning_rate:
            require_one_schedule(self, "anneal_learning_rate", "learning_rate", "critic_learning_rate")


@dataclass(kw_only=True)
class AdaptiveConfig(PolicyGradientConfig):
    """Settings of the algorithms whose learning rate can follow the KL of their updates."""

    kl_learning_rate: float = setting(
        0.0,
        "target KL of an update for an adaptive learning rate: divided by 1.5 above twice the target, multiplied by 1.5 "
        "below half of it, from 1e-6 to 1e-2; 0 for a rate that does not adapt",
        low=0,
    )

    def validate(self) -> None:
        super().validate()
        if not self.kl_learning_rate:
            return
        if self.anneal_learning_rate or is_scheduled(self.learning_rate):
            other = (
                "anneal_learning_rate" if self.anneal_learning_rate else f"learning_rate {as_given(self.learning_rate)}"
            )
            raise ConfigError(f"kl_learning_rate and {other} both decide the learning rate: set one of them.")
        if not LEAST_RATE <= self.learning_rate <= MOST_RATE:
            raise ConfigError(
                f"learning_rate must be from {LEAST_RATE:g} to {MOST_RATE:g} to begin with where kl_learning_rate adapts it, "
                f"not {self.learning_rate:g}."
            )


@dataclass(kw_only=True)
class RMSPropConfig(PolicyGradientConfig):
    """Settings of the algorithms whose papers step by RMSProp."""

    optimizer: str = setting("rmsprop", "the optimiser to use", choices=("rmsprop", "adam"))
    learning_rate: float = setting(7e-4, f"the optimiser's step size; {SCHEDULES}", low=0, live=True, scheduled=True)
    rmsprop_alpha: float = setting(0.99, "decay of RMSProp's mean square [alpha]", low=0, high=1)
    rmsprop_eps: float = setting(1e-5, "RMSProp's epsilon", low=0)
    rmsprop_inside_root: bool = setting(
        False, "epsilon under the root and a mean square that starts at 1, as the original code has it"
    )

    def optimizers(self, flat: FlatParameters) -> dict[str, Optimizer]:
        """The chosen optimiser for each parameter group."""
        from phasegrad.compute.optimizers import RMSProp

        if self.optimizer == "adam":
            return dict(adams(flat, self.adam_eps))
        settings = (self.rmsprop_eps, self.rmsprop_alpha, self.rmsprop_inside_root)
        return {group: RMSProp(flat, where, *settings) for group, where in flat.slices.items()}


@dataclass(kw_only=True)
class SurrogateConfig(AdaptiveConfig):
    """Settings of a policy update by a surrogate objective; the papers' symbols stand in brackets."""

    objective: str = setting(
        "clip", "surrogate: pg, cpi (no clipping), clip, kl (fixed, or adaptive with kl_target)", choices=OBJECTIVES
    )
    clip_range: float = setting(
        0.2,
        "how far the probability ratio may be from 1 before it is clipped, or its schedule [epsilon]",
        low=0,
        live=True,
        scheduled=True,
    )
    anneal_clip_range: bool = setting(
        False, "clip range falls linearly to 0 over the run, as with the schedule linear", live=True
    )
    kl_beta: float = setting(
        1.0, "weight of the KL penalty of objective kl; the initial one if it adapts [beta, beta_pi]", low=0, live=True
    )
    kl_target: float = setting(
        0.0, "KL that an adaptive penalty aims at; 0 keeps kl_beta fixed [d_targ]", low=0, live=True
    )
    num_minibatches: int = setting(32, "gradient steps per epoch", low=1)
    whole_segments: bool = setting(False, "minibatches of whole environment segments in place of random steps")
    value_coef: float = setting(
        0.5, "weight of the value loss 1/2 (V - V_targ)^2, or its schedule [c_1]", low=0, live=True, scheduled=True
    )
    value_clip: float = setting(
        0.0, "keep V within this range of its old value in the value loss; 0 for no clipping", low=0, live=True
    )
    normalize_advantage: str = setting(
        "minibatch",
        "standardise advantages over each minibatch, the whole batch, or none",
        choices=("minibatch", "batch", "none"),
    )
    leash: float | None = setting(
        None,
        "initial weight of KL[pi_clone, pi] in the loss of an agent that was cloned from demonstrations; it falls linearly "
        "to 0; auto is 1 if a policy without a memory was cloned; 0 for none",
        low=0,
        live=True,
        auto=True,
    )
    leash_steps: int | None = setting(
        None, "environment steps over which the leash falls to 0; auto is half of the run", low=1, auto=True
    )
    critic_warmup: int = setting(
        0, "how many first iterations train only the value network (not with arch shared)", low=0
    )
    measure_interference: bool = setting(
        False, "each iteration, compare the policy's and the value's gradient on a trunk they share"
    )

    def validate(self) -> None:
        super().validate()
        if self.num_minibatches > self.units_a_rollout:
            raise ConfigError(
                f"num_minibatches {self.num_minibatches} is more than the {self.units_a_rollout} {self.unit} of a "
                "rollout: lower it."
            )
        if self.anneal_clip_range:
            require_one_schedule(self, "anneal_clip_range", "clip_range")
        if self.kl_target and self.objective != "kl":
            raise ConfigError(f"kl_target belongs to objective kl, not {self.objective}: set objective kl too.")
        if self.leash and self.memory != "none":
            raise ConfigError("leash holds policies without a memory only: leave leash out, or set memory none.")
        if self.critic_warmup and self.arch == "shared":
            raise ConfigError(
                "critic_warmup needs a value network of its own: set arch dual or leave critic_warmup out."
            )
        if self.measure_interference and self.arch == "dual":
            raise ConfigError("measure_interference needs a trunk that policy and value share: set arch shared.")

    def require_share(self, processes: int) -> None:
        super().require_share(processes)
        require_minibatches(self, "num_minibatches", self.num_minibatches, self.units_a_rollout, processes)


def require_one_schedule(config: Config, annealing: str, *names: str) -> None:
    """Refuse a schedule of a setting that is annealed too."""
    for name in names:
        value = getattr(config, name)
        if is_scheduled(value):
            raise ConfigError(
                f"{name} {as_given(value)} and {annealing} are two schedules of one setting: turn {annealing} off, or make "
                f"{name} a number."
            )


def adams(flat: FlatParameters, eps: float) -> dict[str, Adam]:
    """An Adam for each parameter group."""
    from phasegrad.compute.optimizers import Adam

    return {group: Adam(flat, where, eps) for group, where in flat.slices.items()}
