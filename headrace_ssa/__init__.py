"""Environments of space situational awareness: which satellite to look at, and when to act.

``headrace/SimpleSatellite-v0`` and ``headrace/SSAConjunction-v0``: ``gymnasium.make`` makes one,
``gymnasium.make_vec`` many that are stepped together, in NumPy.
"""

from headrace.envs.ssa.conjunction import SSAConjunctionVectorEnv
from headrace.envs.ssa.simple import SimpleSatelliteEnv, SimpleSatelliteVectorEnv
from headrace.envs.ssa.single import SSAConjunctionEnv

__all__ = [
    "SSAConjunctionEnv",
    "SSAConjunctionVectorEnv",
    "SimpleSatelliteEnv",
    "SimpleSatelliteVectorEnv",
]
