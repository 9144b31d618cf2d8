"""OrbitalDominance: a two-player zero-sum game of mutual surveillance on orbit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.extras import needs
from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv
from headrace_ssa.dominance.single import OrbitalDominanceEnv

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

__all__ = ["OrbitalDominanceEnv", "OrbitalDominanceVectorEnv", "parallel_env"]


def parallel_env(**settings: Any) -> ParallelEnv:
    """Return one game as a PettingZoo ``ParallelEnv``.

    Args:
        settings: ``n``, ``horizon``, ``seed``, ``render_mode`` and ``inclination`` of the vector
            environment.

    Raises:
        ConfigError: PettingZoo isn't installed, or a setting is invalid.
    """
    with needs("parallel_env()", "games"):
        from headrace_ssa.dominance.parallel import OrbitalDominanceParallelEnv

    return OrbitalDominanceParallelEnv(**settings)
