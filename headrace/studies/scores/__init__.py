"""Normalised scores for comparing tasks: reference scores, and scores of runs."""
