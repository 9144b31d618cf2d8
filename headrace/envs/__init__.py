"""Environments: any Gymnasium environment, vectorised; and small ones with a known structure."""

from headrace.envs.make import make_vec

__all__ = ["make_vec"]
