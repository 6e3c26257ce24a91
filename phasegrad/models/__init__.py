"""Networks: encoders, heads, the actor-critic that joins them, and their flat parameter vector."""

from phasegrad.models.actor_critic import ActorCritic, build_model
from phasegrad.models.encoders import Encoder
from phasegrad.models.flat import FlatParameters

__all__ = ["ActorCritic", "Encoder", "FlatParameters", "build_model"]
