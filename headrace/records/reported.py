"""Collects metrics with custom names: numbers in infos, and values that callbacks log."""

from __future__ import annotations

import math
import numbers
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headrace.envs.info_metrics import Sums, add_sums, means_of
from headrace.errors import ConfigError, shown
from headrace.types import Group

LOGGED = "custom/"  # prefix of the names that callbacks log
_NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}")


class Reported:
    """Custom metrics of one learner since the latest result, by their names in files.

    Args:
        bounded: limit the number of names from infos, because the user didn't choose them.
    """

    def __init__(self, bounded: bool = True) -> None:
        self._sums, self._bounded = Sums(), bounded
        self._logged: deque[tuple[str, float]] = deque()  # another thread may add to it
        self.latest: dict[str, float] = {}  # latest value of each name, on rank 0

    def add(self, sums: Mapping[str, Sequence[float]], task: str | None = None) -> None:
        """Add an actor's sums over the episodes that ended in a rollout.

        Args:
            sums: by name, see :class:`~headrace.envs.info_metrics.InfoMetrics`.
            task: name of the task, if there are several. The sums are also added under
                ``tasks/NAME/``.
        """
        add_sums(self._sums, sums, self._bounded)
        if task is not None:
            of_task = {f"tasks/{task}/{name}": x for name, x in sums.items()}
            add_sums(self._sums, of_task, self._bounded)

    def log(self, name: str, value: Any) -> None:
        """Add a value from a callback; several values before a result are averaged.

        Raises:
            ConfigError: the name is invalid, or the value isn't one finite number.
        """
        value = checked_value(name, value)
        self._logged.append((LOGGED + name.removeprefix(LOGGED), value))

    def gather(self, group: Group) -> dict[str, float]:
        """Return the means over all learners since the last call, on rank 0; all must call it."""
        own, self._sums = self._sums, {}
        while self._logged:
            name, value = self._logged.popleft()
            add_sums(own, {name: [value, 1.0]})
        everyone = [own]
        if group.size > 1:
            some = group.gather(torch.tensor([float(bool(own))])).any()
            everyone = group.gather_objects(own) if some else []
        total = Sums()
        for sums in everyone:
            add_sums(total, sums)
        means = means_of(total)
        self.latest |= means
        return means


def checked_value(name: str, value: Any) -> float:
    """Convert a value that a callback logs to a float.

    Raises:
        ConfigError: see :meth:`Reported.log`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.strip("/") != name:
        raise ConfigError(
            f"log(name={shown(name)}) needs a name of letters, digits, '_', '-', '.' and '/', as "
            "in log('curriculum/level', 3)"
        )
    if getattr(value, "shape", None) in ((), (1,)):  # an array or a tensor of one number
        value = value.item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ConfigError(f"log({name!r}, {shown(value)}) needs one finite number as its value")
    return float(value)
