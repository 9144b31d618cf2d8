"""Backends that run ClusterEnv's workers: one file per scheduler."""
