"""Gradients: a batch's loss, the flat optimiser, and A3C's learners in the actors."""
