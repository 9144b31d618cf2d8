"""Starts the nodes of a Ray cluster on machines of a scheduler.

    headrace launch slurm -- train …        job (first node)                 every node
      writes a batch script ── sbatch ────►  slurm/head.py ─── srun ───────►  slurm/node.py
      shows queue and output ◄── log ──────  runs the command                 ray start
      scancel at Ctrl-C                      requeues the job                 ends with its stdin

Ray places work and connects nodes; SLURM or Kubernetes queue, stop and restart jobs.
"""
