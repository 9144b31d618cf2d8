"""Sweeps: samples settings, trains with them, and ranks the trials."""
