"""Spaces of Gymnasium as trees of tensors, as action distributions see them, and as JSON."""
