"""Settings: keyword-only dataclasses whose every field carries its documentation, range and choices.

The same names serve Python, JSON and (with dashes) the command line; unknown names are refused with the nearest one.
"""

from phasegrad.config.coercing import (
    MACHINE_FIELDS,
    algorithm_name,
    coerce,
    coerce_fields,
    documented_fields,
    first_difference,
    live_fields,
    make_config,
    option_value,
    parse_settings,
    setting,
    short,
    started,
)
from phasegrad.config.shared import (
    ACTIVATIONS,
    ENCODERS,
    FIXED_FIELDS,
    WEIGHTS,
    Config,
    require_dual,
    require_minibatches,
)

__all__ = [
    "ACTIVATIONS",
    "ENCODERS",
    "FIXED_FIELDS",
    "MACHINE_FIELDS",
    "WEIGHTS",
    "Config",
    "algorithm_name",
    "coerce",
    "coerce_fields",
    "documented_fields",
    "first_difference",
    "live_fields",
    "make_config",
    "option_value",
    "parse_settings",
    "require_dual",
    "require_minibatches",
    "setting",
    "short",
    "started",
]
