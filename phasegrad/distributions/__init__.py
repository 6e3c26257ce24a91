"""Action distributions: pure functions of their parameters, and which of them an action space gets."""

from phasegrad.distributions.base import Distribution
from phasegrad.distributions.choosing import DISTRIBUTIONS, distribution_for, register_distribution
from phasegrad.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from phasegrad.distributions.gaussian import DiagonalGaussian
from phasegrad.distributions.product import Product

__all__ = [
    "DISTRIBUTIONS",
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "MultiCategorical",
    "Product",
    "distribution_for",
    "register_distribution",
]
