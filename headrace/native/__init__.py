"""Compiled functions for small dense networks."""
