"""Collectives of several learners, and preemption of stragglers."""
