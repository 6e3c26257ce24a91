"""Charts over the epochs of an update or of an auxiliary phase: under which heading each stands, and what its axis counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochChart:
    """A chart over the epochs of an update or of an auxiliary phase: where it stands and what its axis counts."""

    metric: str
    section: str
    title: str
    axis: str
    note: str


UPDATE, PHASE = "epoch of the policy and value update", "epoch of the auxiliary phase"
EPOCHS = {
    "kl_by_epoch": ("Policy update", "KL by epoch of the update"),
    "policy_loss_by_epoch": ("Policy update", "Policy loss by epoch of the update"),
    "value_loss_by_epoch": ("Value function", "Value loss by epoch of the update"),
    "aux_clone_kl_by_epoch": ("Auxiliary phase", "Clone KL by epoch of the phase"),
    "aux_value_loss_by_epoch": ("Auxiliary phase", "Value loss by epoch of the phase"),
    "aux_joint_loss_by_epoch": ("Auxiliary phase", "Joint loss by epoch of the phase"),
}


def epoch_charts(names: Iterable[str]) -> list[EpochChart]:
    """A chart for each list by epoch, those of the auxiliary phase under it and those of the policy phase under the update."""
    found = []
    for name in sorted(names):
        auxiliary = name.startswith("aux_")
        if "grad_norm" in name or not name.endswith("_by_epoch"):
            continue
        section, title = EPOCHS.get(name, ("Auxiliary phase" if auxiliary else "More metrics", name))
        whole = "phases" if auxiliary else "updates"
        note = f"Mean over the {whole} in the last and the first third of the run: what each further epoch brings."
        found.append(EpochChart(name, section, title, PHASE if auxiliary else UPDATE, note))
    return found
