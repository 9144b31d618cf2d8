"""Runs commands on the nodes of SLURM and Kubernetes jobs, which form a Ray cluster.

    headrace launch slurm -- train …        job (first node)                 every node
      renders a batch script ─ sbatch ────►  slurm/head.py ─── srun ───────►  slurm/node.py
      shows queue and output ◄── log ──────  runs the command                 ray start
      scancel at Ctrl-C                      requeues the job                 ends with its stdin

Ray places work and connects nodes; SLURM or Kubernetes queue, stop and restart jobs.
"""
