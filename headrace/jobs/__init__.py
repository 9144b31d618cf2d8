"""Bringing the nodes of a Ray cluster up where a scheduler has machines, and nothing else.

    headrace launch slurm -- train …        job (first node)                 every node
      writes a batch script ── sbatch ────►  slurm/head.py ─── srun ───────►  slurm/node.py
      shows queue and output ◄── log ──────  runs the command                 ray start
      scancel at Ctrl-C                      requeues the job                 ends with its stdin

Ray places work and connects; SLURM or Kubernetes queue jobs, end them and start them again.
"""
