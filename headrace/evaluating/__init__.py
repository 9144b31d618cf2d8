"""Evaluations of a run, during training and at its end."""
