"""The charts of a report: which metrics belong together, under which title, and what a healthy curve looks like.

A metric that no chart names is shown by itself under "More metrics", so a new algorithm needs no change here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

AXES = ("step", "iteration", "seconds")  # not curves of their own
NOT_DRAWN = (
    "return_mean",
    "eval_episodes",
    "eval_test_episodes",
)  # drawn under "Learning", or of no interest as a curve


@dataclass(frozen=True)
class Healthy:
    """A range of rules of thumb: within it green, beyond `red_below` or `red_above` red, amber between; what to do then."""

    low: float
    high: float
    red_below: float = -math.inf
    red_above: float = math.inf
    too_low: str = ""
    too_high: str = ""

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def state(self, value: float) -> str:
        if self.low <= value <= self.high:
            return "green"
        return "red" if value < self.red_below or value > self.red_above else "amber"


# The ranges that the charts shade, their notes name and the verdict judges by.
HEALTHY = {
    "kl": Healthy(
        0.0005,
        0.05,
        red_above=0.1,
        too_low="the policy hardly moves: raise learning_rate if the score is flat",
        too_high="updates go too far: lower learning_rate or epochs, or set kl_stop",
    ),
    "clip_fraction": Healthy(
        0.02,
        0.3,
        red_above=0.4,
        too_low="the clip hardly matters: there is room for more epochs or a higher learning_rate",
        too_high="too many samples leave the clip range: lower learning_rate or epochs",
    ),
    "entropy": Healthy(  # of the first entropy, the share left after a tenth of the run
        0.3,
        math.inf,
        red_below=0.1,
        too_low="exploration ended early: raise entropy_coef or lower learning_rate",
    ),
    "explained_variance": Healthy(
        0.5,
        1.0,
        red_below=0.0,
        too_low="the value function explains little: normalise rewards, or raise critic_learning_rate or the value epochs",
    ),
    "policy_grad_norm": Healthy(  # its 95th over its 5th percentile
        1.0,
        10.0,
        red_above=100.0,
        too_high="it jumps between updates: lower learning_rate, or normalise rewards",
    ),
    "step_accepted": Healthy(0.9, 1.0),
    "line_search_steps": Healthy(1, 3),
    "importance_weight": Healthy(0.5, 2.0),
    "trust_region_fraction": Healthy(0.0, 0.5),
    "interference_cosine": Healthy(-0.2, 1.0),
    "interference_norm_ratio": Healthy(0.1, 10.0),
}
NOT_SHADED = ("entropy", "policy_grad_norm")  # judged by what they do over the run, not by their values


@dataclass(frozen=True)
class Chart:
    """One chart: `metrics` share it, the first as a solid line and the others dashed, each with its legend's word."""

    title: str
    metrics: tuple[tuple[str, str], ...]
    note: str

    @property
    def healthy(self) -> tuple[float, float] | None:
        """The range to shade."""
        name = self.metrics[0][0]
        found = HEALTHY.get(name) if name not in NOT_SHADED else None
        return None if found is None else (found.low, found.high)


def chart(title: str, note: str, **metrics: str) -> Chart:
    return Chart(title, tuple(metrics.items()), note)


SECTIONS: dict[str, tuple[Chart, ...]] = {
    "Evaluation": (
        chart(
            "Return in evaluation",
            "Greedy actions, in separate environments. Healthy: the lowest rises with the mean; a low one beside a good mean is a rare failure.",
            eval_return_mean="mean",
            eval_return_min="lowest",
            eval_return_max="highest",
        ),
        chart(
            "Return on test levels",
            "Episodes on levels that were not trained on. Healthy: close to the training levels; the gap is what was memorised.",
            eval_test_return_mean="mean",
            eval_test_return_min="lowest",
            eval_test_return_max="highest",
        ),
        chart(
            "Spread of the evaluation",
            "Standard deviation over its episodes.",
            eval_return_std="deviation",
            eval_test_return_std="test levels",
        ),
        chart(
            "Success rate",
            "Share of episodes that the environment calls a success. Healthy: evaluation at or above training, whose last 100 "
            "episodes have sampled actions.",
            eval_success_rate="evaluation",
            eval_test_success_rate="test levels",
            success_rate="training",
        ),
        chart("Episode length in evaluation", "", eval_length_mean="steps", eval_test_length_mean="test levels"),
        chart(
            "Episodes cut in evaluation",
            "Cut at the step limit. Healthy: 0. More: the greedy policy may be going in circles.",
            eval_episodes_cut="episodes",
            eval_test_episodes_cut="test levels",
        ),
    ),
    "Policy update": (
        chart(
            "KL divergence",
            f"How far an update moves the policy. Healthy: {HEALTHY['kl']}, steady or falling. Higher: lower the learning rate or the epochs.",
            kl="KL(old, new)",
        ),
        chart(
            "Clip fraction",
            f"Samples whose ratio left the clip range. Healthy: {HEALTHY['clip_fraction']}. Near 0 the update could go further; "
            f"above {HEALTHY['clip_fraction'].red_above:g} it goes too far.",
            clip_fraction="fraction",
        ),
        chart(
            "Entropy",
            f"Randomness of the policy. Healthy: a slow fall. Less than {HEALTHY['entropy'].low:.0%} of it left after a tenth of the run: exploration "
            "ended early, raise entropy_coef.",
            entropy="entropy",
        ),
        chart(
            "Policy loss",
            "The surrogate with its sign flipped. Its size says little; a spike marks an update worth a look.",
            policy_loss="loss",
        ),
        chart(
            "Policy gradient norm",
            f"Before clipping. Healthy: within a factor of {HEALTHY['policy_grad_norm'].high:g} throughout; spikes far above max_grad_norm are cut to it.",
            policy_grad_norm="norm",
        ),
        chart(
            "Step accepted",
            f"TRPO: 1 where the line search found a step inside the trust region. Healthy: {HEALTHY['step_accepted']} on average.",
            step_accepted="accepted",
        ),
        chart(
            "Surrogate improvement",
            "TRPO: what the accepted step gained. Healthy: above 0, falling towards the end.",
            surrogate_improvement="gain",
        ),
        chart(
            "Line search steps",
            f"TRPO: step sizes tried. Healthy: {HEALTHY['line_search_steps']}. More: max_kl is too large, or cg_damping too small.",
            line_search_steps="tried",
        ),
        chart(
            "Conjugate gradient residual",
            "TRPO: the residual of the solver. Healthy: small beside the policy gradient norm; if not, raise cg_iterations.",
            cg_residual="residual",
        ),
        chart(
            "Importance weight",
            f"ACER: mean ratio of the policy to the one that acted. Healthy: near 1 ({HEALTHY['importance_weight']}).",
            importance_weight="weight",
        ),
        chart(
            "Trust region at work",
            f"ACER: share of samples whose gradient was held back. Healthy: {HEALTHY['trust_region_fraction']}.",
            trust_region_fraction="share",
        ),
        chart("Epochs done", "Below the configured number where kl_stop ended the update early.", epochs="epochs"),
    ),
    "Value function": (
        chart(
            "Explained variance",
            f"How much of the value targets' variance V explains. Healthy: rises to {HEALTHY['explained_variance']}. At 0 or below V is no better "
            "than a constant.",
            explained_variance="of the rollout",
        ),
        chart(
            "Value loss",
            "Squared error of V, in units of the (normalised) reward. It may rise while returns grow; a lasting rise with falling explained variance is trouble.",
            value_loss="loss",
        ),
        chart(
            "Values and their targets",
            "Healthy: the two stay close. A lasting gap is bias of the value function.",
            value_mean="V",
            value_target_mean="target",
        ),
        chart("Value gradient norm", "Before clipping. Spikes follow rewards of unusual size.", value_grad_norm="norm"),
    ),
    "Auxiliary phase": (
        chart(
            "Clone KL",
            "How far the auxiliary phase moved the policy it should keep. Healthy: well below the policy phase's KL. Higher: raise beta_clone.",
            aux_clone_kl="last epoch",
            aux_clone_kl_first_epoch="first epoch",
        ),
        chart(
            "Value loss in the auxiliary phase",
            "Healthy: the last epoch lies below the first. If it does not, more epochs (e_aux) do not pay.",
            aux_value_loss="last epoch",
            aux_value_loss_first_epoch="first epoch",
        ),
        chart(
            "Joint loss",
            "Auxiliary value loss plus beta_clone times the clone KL. Healthy: the last epoch lies below the first.",
            aux_joint_loss="last epoch",
            aux_joint_loss_first_epoch="first epoch",
        ),
        chart(
            "Value network before and after",
            "Explained variance on the phase's data. Healthy: after lies above before.",
            explained_variance_after_aux="after",
            explained_variance_before_aux="before",
        ),
        chart(
            "Auxiliary head before and after",
            "Explained variance of the policy network's own value head. Healthy: after lies above before; that is what the trunk has learnt.",
            aux_head_explained_variance_after_aux="after",
            aux_head_explained_variance_before_aux="before",
        ),
        chart(
            "Gradient norms of the auxiliary phase",
            "Before clipping, last epoch.",
            aux_policy_grad_norm="policy network",
            aux_value_grad_norm="value network",
        ),
    ),
    "Interference": (
        chart(
            "Cosine of policy and value gradient",
            f"On the trunk they share. Healthy: {HEALTHY['interference_cosine']}. Below that the value loss undoes what the policy loss does; around 0 "
            "they do not interact.",
            interference_cosine="cosine",
        ),
        chart(
            "Length of value over policy gradient",
            f"Healthy: {HEALTHY['interference_norm_ratio']}. Above, the value loss steers the shared trunk: lower value_coef, or separate the networks (arch dual).",
            interference_norm_ratio="ratio",
        ),
    ),
    "Episodes and speed": (
        chart("Episode length", "Mean of the last 100 episodes.", length_mean="steps"),
        chart("Episodes finished", "Since the start of the run.", episodes="episodes"),
        chart(
            "Speed",
            "Environment steps per second; dashed: without the auxiliary phase. Drops mark auxiliary phases, checkpoints or a busy machine.",
            sps="steps/s",
            sps_policy_phase="policy phase",
        ),
    ),
    "Updates and replay": (
        chart("Gradient steps", "Per iteration; dashed: those from replay.", updates="all", replay_updates="replayed"),
        chart("Steps in the replay memory", "It grows until it is full.", replay_steps="steps"),
    ),
    "Schedules": (
        chart(
            "Learning rate",
            "As configured, scheduled or adapted to the KL.",
            learning_rate="learning rate",
            critic_learning_rate="critic learning rate",
            aux_learning_rate="auxiliary learning rate",
        ),
        chart("Clip range", "As configured or scheduled.", clip_range="clip range"),
        chart("Entropy coefficient", "Where it has a schedule.", entropy_coef="entropy coefficient"),
        chart("Value coefficient", "Where it has a schedule.", value_coef="value", q_coef="Q"),
        chart("Clone coefficient", "Where it has a schedule.", beta_clone="beta clone"),
        chart("Trust region", "Where max_kl has a schedule.", max_kl="max_kl"),
        chart("KL penalty", "The weight of objective kl; it moves where kl_target is set.", kl_beta="beta"),
    ),
}


def charts_of(names: Iterable[str]) -> dict[str, list[Chart]]:
    """The sections whose metrics occur among `names`, and the rest under "More metrics"."""
    present = {name for name in names if name not in (*AXES, *NOT_DRAWN)}
    present = {name for name in present if not name.startswith("time_")}
    found: dict[str, list[Chart]] = {}
    for section, charts in SECTIONS.items():
        for entry in charts:
            metrics = tuple(pair for pair in entry.metrics if pair[0] in present)
            if metrics and any(not name.endswith("_first_epoch") for name, _ in metrics):
                found.setdefault(section, []).append(Chart(entry.title, metrics, entry.note))
    named = {name for charts in SECTIONS.values() for entry in charts for name, _ in entry.metrics}
    more = [name for name in sorted(present - named) if not name.endswith("_first_epoch")]
    if more:
        found["More metrics"] = [Chart(name, ((name, name),), "") for name in more]
    return found
