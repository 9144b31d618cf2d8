"""Training loop of one learner: collects batches, updates, evaluates and saves checkpoints."""
