"""Earlier import path of the automatic sizes in :mod:`headrace.trainer.auto_sizes`."""

from headrace.trainer import auto_sizes as sizes

__all__ = ["sizes"]
