"""Vector environments: adapters for any Gymnasium environment, and small test environments."""

from headrace.envs.make import make_vec

__all__ = ["make_vec"]
