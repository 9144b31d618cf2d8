"""SLURM jobs: resources, batch script, queue, and processes on their nodes."""
