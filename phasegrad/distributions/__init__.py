"""Action distributions: pure functions of their parameters, and which of them an action space gets."""

from phasegrad.distributions.base import Distribution
from phasegrad.distributions.bounded import Beta, SquashedGaussian
from phasegrad.distributions.choosing import DISTRIBUTIONS, box_distribution, distribution_for, register_distribution
from phasegrad.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from phasegrad.distributions.gaussian import DiagonalGaussian
from phasegrad.distributions.product import Product

__all__ = [
    "DISTRIBUTIONS",
    "Bernoulli",
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "MultiCategorical",
    "Product",
    "SquashedGaussian",
    "box_distribution",
    "distribution_for",
    "register_distribution",
]
