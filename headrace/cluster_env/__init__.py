"""Environments on other processes and machines, for a training loop of one's own (ClusterEnv).

    head (your training loop)                     worker 0 … n-1
      step(actions) ───── request ──────────────►  environments, and with step(agent) or collect
      ◄────────────────── rows ─────────────────   a copy of the agent, which acts here
      measures drift ──── one number ───────────►  asks for weights once it is too far away

After the DETACH pattern and AAPS of ClusterEnv (Lafuente-Mercado 2025).
"""

from headrace.cluster.env import ClusterEnv
from headrace.cluster.places.kubernetes import KubernetesConfig
from headrace.cluster.places.local import LocalConfig
from headrace.cluster.places.ray import RayConfig
from headrace.cluster.places.slurm import SlurmConfig

__all__ = ["ClusterEnv", "KubernetesConfig", "LocalConfig", "RayConfig", "SlurmConfig"]
