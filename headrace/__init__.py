"""headrace: high-throughput distributed reinforcement learning on one machine and many.

The public names are loaded on first use, so that importing the package costs nothing and the
command line can start its helper processes before torch is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.algos import A2C, A3C, APPO, IMPACT, IMPALA, PPO
    from headrace.api import load, resume, train
    from headrace.cluster import ClusterEnv, LocalConfig, RayConfig
    from headrace.config import Config
    from headrace.envs import make_vec
    from headrace.evaluation import evaluate
    from headrace.launch.local import LearnerGroup
    from headrace.nn import Network, Policy
    from headrace.records.result import Result
    from headrace.training.trainer import Trainer

__version__ = "0.1.0"

_HOME = {
    "A2C": "headrace.algos",
    "A3C": "headrace.algos",
    "APPO": "headrace.algos",
    "ClusterEnv": "headrace.cluster",
    "Config": "headrace.config",
    "IMPACT": "headrace.algos",
    "IMPALA": "headrace.algos",
    "LearnerGroup": "headrace.launch.local",
    "LocalConfig": "headrace.cluster",
    "Network": "headrace.nn",
    "PPO": "headrace.algos",
    "Policy": "headrace.nn",
    "RayConfig": "headrace.cluster",
    "Result": "headrace.records.result",
    "Trainer": "headrace.training.trainer",
    "evaluate": "headrace.evaluation",
    "load": "headrace.api",
    "make_vec": "headrace.envs",
    "resume": "headrace.api",
    "train": "headrace.api",
}

__all__ = [
    "A2C",
    "A3C",
    "APPO",
    "IMPACT",
    "IMPALA",
    "PPO",
    "ClusterEnv",
    "Config",
    "LearnerGroup",
    "LocalConfig",
    "Network",
    "Policy",
    "RayConfig",
    "Result",
    "Trainer",
    "evaluate",
    "load",
    "make_vec",
    "resume",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
