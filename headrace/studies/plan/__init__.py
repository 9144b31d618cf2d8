"""Predicts a run's speed before it starts: arithmetic, measured costs and simulation."""
