"""The settings that `phasegrad tune` tries: for each algorithm the names and ranges. Data only, which help reads too.

`SPACES` is open: an algorithm of your own can have an entry. Without one it is searched over the common settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from phasegrad.algorithms.base import Algorithm


class Range(NamedTuple):
    """What a setting may be: numbers from `low` to `high`, evenly or by their logarithm, or one of `choices`."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: Any, name: str) -> Any:
        if self.choices:
            return trial.suggest_categorical(name, self.choices)
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high


COMMON = {
    "learning_rate": Range(1e-4, 5e-3, log=True),
    "discount_left": Range(1e-3, 0.1, log=True),  # 1 - gamma, so that .99 and .999 are as far apart as .9 and .99
    "gae_lambda": Range(0.8, 0.99),
    "entropy_coef": Range(choices=(0.0, 1e-4, 1e-3, 1e-2, 3e-2)),
    "clip_range": Range(choices=(0.1, 0.2, 0.3)),
    "num_envs": Range(choices=(4, 8, 16, 32)),
    "num_steps": Range(choices=(32, 64, 128, 256, 512)),
    "num_minibatches": Range(choices=(1, 2, 4, 8, 16)),
    "max_grad_norm": Range(choices=(0.5, 1.0, 5.0)),
    "normalize_reward": Range(choices=(False, True)),
    "anneal_learning_rate": Range(choices=(False, True)),
}
VECTORS = {
    "normalize_observation": Range(choices=(False, True)),
    "hidden_sizes": Range(choices=("64,64", "128,128", "256,256")),
    "activation": Range(choices=("tanh", "relu")),
}
SPACES: dict[str, dict[str, Range]] = {
    "ppo": {**COMMON, "epochs": Range(2, 15, log=True, whole=True)},
    "ppg": {
        **COMMON,
        "n_pi": Range(choices=(2, 4, 8, 16, 32)),
        "e_pi": Range(1, 10, log=True, whole=True),
        "e_v": Range(1, 10, log=True, whole=True),
        "e_aux": Range(1, 9, log=True, whole=True),
        "beta_clone": Range(0.1, 10.0, log=True),
        "aux_learning_rate": Range(1e-4, 3e-3, log=True),
    },
}


def search_space(name: str, algorithm: type[Algorithm]) -> dict[str, Range]:
    """The algorithm's own space, or what it has of the common settings."""
    if name in SPACES:
        return SPACES[name]
    fields = {*algorithm.config_class.__dataclass_fields__, "discount_left"}
    return {setting: values for setting, values in COMMON.items() if setting in fields}
