"""Processes of several learners: on this machine, or under torchrun."""
