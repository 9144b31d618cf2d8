"""Algorithms: frozen dataclasses of hyperparameters with ``batches()`` and ``loss()``."""

from headrace.algos.a2c import A2C
from headrace.algos.a3c import A3C
from headrace.algos.appo import APPO
from headrace.algos.impact import IMPACT
from headrace.algos.impala import IMPALA
from headrace.algos.ppo import PPO

ALGORITHMS: dict[
    str, type[A2C] | type[A3C] | type[PPO] | type[IMPALA] | type[APPO] | type[IMPACT]
] = {
    "a2c": A2C,
    "a3c": A3C,
    "ppo": PPO,
    "impala": IMPALA,
    "appo": APPO,
    "impact": IMPACT,
}

__all__ = ["A2C", "A3C", "ALGORITHMS", "APPO", "IMPACT", "IMPALA", "PPO"]
