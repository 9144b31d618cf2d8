"""Validation of settings: numeric ranges, and checks of fields by their annotations."""
