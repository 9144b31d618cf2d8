"""Jobs of SLURM: what they ask for, the script, the queue, and what runs on their nodes."""
