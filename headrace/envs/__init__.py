"""Environments: any Gymnasium environment, vectorised; and small ones with a known structure."""

from headrace.envs.joined import Joined
from headrace.envs.make import make_vec

__all__ = ["Joined", "make_vec"]
