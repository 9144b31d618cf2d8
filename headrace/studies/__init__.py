"""Studies of training: planning, sweeps, populations, scaling and scores. Nothing imports them."""
