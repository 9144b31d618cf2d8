"""Applies hyperparameter changes that callbacks request, in the same update on all learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from headrace.trainer.hyperparameters import CurrentHyperparameters
from headrace.types import Group


class HyperparameterChanges:
    """Applies changes of hyperparameters, in the order in which rank 0 requested them.

    Args:
        current: this learner's hyperparameters.
        group: group of the run's learners.
        made: called after each change with the name and the previous value.
    """

    def __init__(
        self, current: CurrentHyperparameters, group: Group, made: Callable[[str, Any], None]
    ) -> None:
        self._current, self._group, self._made = current, group, made
        self._requested: list[tuple[str, Any]] = []  # for all learners

    def request(self, name: str, value: Any) -> None:
        """Change a hyperparameter from the next update on.

        With several learners, the change is made after a result.

        Raises:
            ConfigError: ``name`` isn't a float hyperparameter, or ``value`` is out of range.
        """
        self._current.changed(name, value)
        if self._group.size > 1:
            self._requested.append((name, value))
        else:
            self._set(name, value)

    def agree(self, stopped: bool) -> bool:
        """Apply rank 0's changes on all learners, and agree whether to stop.

        Args:
            stopped: this learner must stop.

        Returns:
            whether any learner must stop.
        """
        pending = [float(stopped), float(len(self._requested))]
        flags = self._group.gather(torch.tensor(pending))
        if self._group.size > 1 and flags[0, 1]:
            count = int(flags[0, 1])  # another thread may add to them
            leads = self._group.rank == 0
            changes = cloudpickle.dumps(self._requested[:count]) if leads else b""
            del self._requested[:count]
            for name, value in cloudpickle.loads(self._group.broadcast(changes)):
                self._set(name, value)
        return bool(flags[:, 0].any())

    def _set(self, name: str, value: Any) -> None:
        before = self._current.algo
        self._current.set(name, value)
        if self._current.algo != before:
            self._made(name, getattr(before, name))
