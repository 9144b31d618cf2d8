"""Computes gradients of batches and applies them: learner, optimiser, and A3C's shared weights."""
