"""Actors: collect rollouts, manage actor processes and synchronize weights."""
