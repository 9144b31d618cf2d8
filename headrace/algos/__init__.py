"""Algorithms: frozen dataclasses of hyperparameters with ``batches()`` and ``loss()``."""

from headrace.algos.a2c import A2C
from headrace.algos.appo import APPO
from headrace.algos.impala import IMPALA
from headrace.algos.ppo import PPO

ALGORITHMS: dict[str, type[A2C] | type[PPO] | type[IMPALA] | type[APPO]] = {
    "a2c": A2C,
    "ppo": PPO,
    "impala": IMPALA,
    "appo": APPO,
}

__all__ = ["A2C", "ALGORITHMS", "APPO", "IMPALA", "PPO"]
