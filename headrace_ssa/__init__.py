"""Gymnasium environments for space situational awareness: sensor tasking and collision avoidance.

Importing this package registers ``headrace/SimpleSatellite-v0`` and ``headrace/SSAConjunction-v0``.
Gymnasium imports it for ids such as ``"headrace_ssa:headrace/SSAConjunction-v0"``.
``gymnasium.make`` creates one environment, ``gymnasium.make_vec`` many that are stepped together in
NumPy. ``headrace/OrbitalDominance-v0`` is a two-player game. ``gymnasium.make_vec`` creates it with
two columns per game, ``headrace_ssa.dominance.parallel_env`` as a PettingZoo environment, and
``gymnasium.make`` with one player against a scripted one.
"""

from gymnasium.envs.registration import register

from headrace_ssa.conjunction import SSAConjunctionEnv, SSAConjunctionVectorEnv
from headrace_ssa.dominance import OrbitalDominanceEnv, OrbitalDominanceVectorEnv
from headrace_ssa.simple import SimpleSatelliteEnv, SimpleSatelliteVectorEnv

__all__ = [
    "OrbitalDominanceEnv",
    "OrbitalDominanceVectorEnv",
    "SSAConjunctionEnv",
    "SSAConjunctionVectorEnv",
    "SimpleSatelliteEnv",
    "SimpleSatelliteVectorEnv",
]

for _name in ("SimpleSatellite", "SSAConjunction", "OrbitalDominance"):
    register(
        f"headrace/{_name}-v0",
        entry_point=f"headrace_ssa:{_name}Env",
        vector_entry_point=f"headrace_ssa:{_name}VectorEnv",
    )
