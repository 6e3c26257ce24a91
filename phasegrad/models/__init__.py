"""Networks: encoders, heads, the actor-critic that joins them, and their flat parameter vector."""

from phasegrad.models.actor_critic import ActorCritic, build_model
from phasegrad.models.average import AveragePolicy
from phasegrad.models.encoders import Encoder, register_encoder
from phasegrad.models.flat import FlatParameters
from phasegrad.models.q_critic import ActorQCritic

__all__ = [
    "ActorCritic",
    "ActorQCritic",
    "AveragePolicy",
    "Encoder",
    "FlatParameters",
    "build_model",
    "register_encoder",
]
