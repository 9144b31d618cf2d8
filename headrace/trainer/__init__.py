"""A run: rollouts in, updates, what learners agree on, checkpoints."""
