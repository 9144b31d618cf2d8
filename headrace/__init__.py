"""headrace: high-throughput distributed reinforcement learning on one machine and many.

The public names are loaded on first use, so that importing the package costs nothing and the
command line can start its helper processes before torch is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.algos import NAMES

if TYPE_CHECKING:  # for type checkers and editors; the alias marks a name as public
    from headrace.algos import A2C as A2C
    from headrace.algos import A3C as A3C
    from headrace.algos import APPO as APPO
    from headrace.algos import IMPACT as IMPACT
    from headrace.algos import IMPALA as IMPALA
    from headrace.algos import PPO as PPO
    from headrace.algos.common import Hyperparameters as Hyperparameters
    from headrace.api import load as load
    from headrace.api import resume as resume
    from headrace.api import train as train
    from headrace.cluster_env import ClusterEnv as ClusterEnv
    from headrace.cluster_env import LocalConfig as LocalConfig
    from headrace.config import Config as Config
    from headrace.envs import make_vec as make_vec
    from headrace.envs.context import EnvContext as EnvContext
    from headrace.envs.context import env_context as env_context
    from headrace.errors import ConfigError as ConfigError
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.evaluation import Evaluation as Evaluation
    from headrace.evaluation import evaluate as evaluate
    from headrace.jobs.kubernetes.cluster_env import KubernetesConfig as KubernetesConfig
    from headrace.jobs.slurm.cluster_env import SlurmConfig as SlurmConfig
    from headrace.launch.group import LearnerGroup as LearnerGroup
    from headrace.nn import Network as Network
    from headrace.nn import Policy as Policy
    from headrace.ray.cluster_env import RayConfig as RayConfig
    from headrace.recipes import recipe as recipe
    from headrace.rundir.result import Result as Result
    from headrace.studies.api import plot as plot
    from headrace.studies.api import report as report
    from headrace.studies.api import sweep as sweep
    from headrace.trainer.trainer import Trainer as Trainer

__version__ = "0.1.0"

_NAMES = {
    "algos": [name.upper() for name in NAMES],
    "algos.common": ["Hyperparameters"],
    "api": ["load", "resume", "train"],
    "cluster_env": ["ClusterEnv", "LocalConfig"],
    "config": ["Config"],
    "envs": ["make_vec"],
    "errors": ["ConfigError", "HeadraceError"],
    "envs.context": ["EnvContext", "env_context"],
    "evaluation": ["Evaluation", "evaluate"],
    "jobs.kubernetes.cluster_env": ["KubernetesConfig"],
    "jobs.slurm.cluster_env": ["SlurmConfig"],
    "launch.group": ["LearnerGroup"],
    "nn": ["Network", "Policy"],
    "ray.cluster_env": ["RayConfig"],
    "recipes": ["recipe"],
    "rundir.result": ["Result"],
    "studies.api": ["plot", "report", "sweep"],
    "trainer.trainer": ["Trainer"],
}
_HOME = {name: f"headrace.{module}" for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(_unknown(name))
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def _unknown(name: str) -> str:
    """Return the error message for a name that isn't public."""
    from headrace.errors import nearest
    from headrace.validation import aliases

    algorithms = _NAMES["algos"]
    if aliases.is_other_algorithm(name):
        return (
            f"headrace has no algorithm {name}; it has {', '.join(algorithms)} and custom ones "
            "(subclasses of hr.Hyperparameters)"
        )
    hint = aliases.hint(name) or (nearest(name, __all__) if not name.startswith("_") else "")
    return f"module 'headrace' has no attribute {name!r}.{hint}".rstrip(".")


def __dir__() -> list[str]:
    return sorted(__all__)
