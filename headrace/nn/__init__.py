"""Networks: the actor-critic policy and its torsos."""

from headrace.nn.network import Network
from headrace.nn.policy import Policy

__all__ = ["Network", "Policy"]
