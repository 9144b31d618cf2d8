"""Networks: the actor-critic policy and its torsos."""

from headrace.nn.policy import Policy
from headrace.nn.torsos import Network

__all__ = ["Network", "Policy"]
