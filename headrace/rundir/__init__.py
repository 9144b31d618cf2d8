"""Files of a run directory, terminal output, plots, videos and checkpoints."""
