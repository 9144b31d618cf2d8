"""Starts the processes of several learners, on this machine, on a cluster or under torchrun."""
