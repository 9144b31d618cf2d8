"""Environments of space situational awareness: which satellite to look at, and when to act.

``headrace/SimpleSatellite-v0`` and ``headrace/SSAConjunction-v0`` are registered when this package
is imported, which Gymnasium does for ``"headrace_ssa:headrace/SSAConjunction-v0"``:
``gymnasium.make`` makes one, ``gymnasium.make_vec`` many that are stepped together, in NumPy.
``headrace/OrbitalDominance-v0`` is a game of two, made by ``gymnasium.make_vec``, two columns each;
``headrace_ssa.dominance.parallel_env`` makes one of it for PettingZoo.
"""

from gymnasium.envs.registration import register

from headrace_ssa.conjunction import SSAConjunctionEnv, SSAConjunctionVectorEnv
from headrace_ssa.dominance import OrbitalDominanceVectorEnv
from headrace_ssa.simple import SimpleSatelliteEnv, SimpleSatelliteVectorEnv

__all__ = [
    "OrbitalDominanceVectorEnv",
    "SSAConjunctionEnv",
    "SSAConjunctionVectorEnv",
    "SimpleSatelliteEnv",
    "SimpleSatelliteVectorEnv",
]

for _name in ("SimpleSatellite", "SSAConjunction"):
    register(
        f"headrace/{_name}-v0",
        entry_point=f"headrace_ssa:{_name}Env",
        vector_entry_point=f"headrace_ssa:{_name}VectorEnv",
    )
register(
    "headrace/OrbitalDominance-v0",
    vector_entry_point="headrace_ssa:OrbitalDominanceVectorEnv",
)
