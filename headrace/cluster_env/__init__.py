"""Environments on other processes and machines, for a training loop of one's own (ClusterEnv).

    head (your training loop)                     worker 0 … n-1
      step(actions) ───── request ──────────────►  environments, and with step(agent) or collect
      ◄────────────────── rows ─────────────────   a copy of the agent, which acts here
      measures drift ──── one number ───────────►  asks for weights once it is too far away

After the DETACH pattern and AAPS of ClusterEnv (Lafuente-Mercado 2025).
"""

from headrace.cluster_env.backends.kubernetes import KubernetesConfig
from headrace.cluster_env.backends.local import LocalConfig
from headrace.cluster_env.backends.ray import RayConfig
from headrace.cluster_env.backends.slurm import SlurmConfig
from headrace.cluster_env.env import ClusterEnv

__all__ = ["ClusterEnv", "KubernetesConfig", "LocalConfig", "RayConfig", "SlurmConfig"]
