"""Networks: the actor-critic policy, its inputs, torsos and recurrent core."""

from headrace.nn.network import Network
from headrace.nn.policy import Policy

__all__ = ["Network", "Policy"]
