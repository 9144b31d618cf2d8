"""ClusterEnv: environments in other processes and on other machines, for custom training loops.

    head (your training loop)                     worker 0 … n-1
      step(actions) ───── request ──────────────►  environments, and with step(agent) or collect
      ◄────────────────── rows ─────────────────   a copy of the agent, which acts here
      measures drift ──── one number ───────────►  requests weights above a threshold

After the DETACH pattern and AAPS of ClusterEnv (Lafuente-Mercado 2025).
"""

from headrace.cluster_env.backends.local import LocalConfig
from headrace.cluster_env.env import ClusterEnv

__all__ = ["ClusterEnv", "LocalConfig"]
