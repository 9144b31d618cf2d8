"""Collects metrics with custom names: numbers in infos, and values that callbacks log."""

from __future__ import annotations

import math
import numbers
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headrace.envs.info_metrics import (
    LOGGED,
    LOGGED_NOT_FINITE,
    PREFIX,
    SEEN,
    Sums,
    add_sums,
    chosen_in,
    means_of,
)
from headrace.errors import ConfigError, nearest, shown
from headrace.types import Group

_EPISODES = 100  # completed episodes before a chosen name is reported as missing
_MOST_NAMES = 20  # in a message
_NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}")


class CustomMetrics:
    """Custom metrics of one learner since the latest result, by their names in files.

    Args:
        chosen: the setting ``info_metrics``; None: limit the number of names from infos.
        notify: called with a line of text about values that are missing or not finite, once each.
    """

    def __init__(
        self, chosen: str | None = None, notify: Callable[[str], object] = lambda text: None
    ) -> None:
        self._sums, self._bounded = Sums(), chosen is None
        self._logged: deque[tuple[str, float]] = deque()  # another thread may append to it
        self.latest: dict[str, float] = {}  # latest value of each name, on rank 0
        self._missing = set(chosen_in(chosen) or ())
        self._seen: set[str] = set()  # names of numbers in infos, once a chosen one is missing
        self._notify, self._reported_not_finite = notify, False

    def add(self, sums: Mapping[str, Sequence[float]], task: str | None = None) -> None:
        """Add an actor's sums over the episodes that ended in a rollout.

        Args:
            sums: by name, see :class:`~headrace.envs.info_metrics.InfoMetrics`.
            task: name of the task, if there are several. The sums are also added under
                ``tasks/NAME/``.
        """
        add_sums(self._sums, sums, self._bounded)
        if task is not None:
            of_task = {f"tasks/{task}/{n}": x for n, x in sums.items() if not n.startswith(SEEN)}
            add_sums(self._sums, of_task, self._bounded)

    def log(self, name: str, value: Any) -> None:
        """Add a value from a callback; several values before a result are averaged.

        NaN and infinity are left out and counted in ``custom/not_finite``.

        Raises:
            ConfigError: the name is invalid, or the value isn't one number.
        """
        value = checked_value(name, value)
        self._logged.append((LOGGED + name.removeprefix(LOGGED), value))

    def gather(self, group: Group) -> dict[str, float]:
        """Return the means over all learners since the last call, on rank 0; all must call it."""
        own, self._sums = self._sums, {}
        while self._logged:
            name, value = self._logged.popleft()
            if not math.isfinite(value):
                self._report_not_finite(name, value)
                name, value = LOGGED_NOT_FINITE, 1.0
            add_sums(own, {name: [value, 1.0]})
        everyone = [own]
        if group.size > 1:
            some = group.gather(torch.tensor([float(bool(own))])).any()
            everyone = group.gather_objects(own) if some else []
        total = Sums()
        for sums in everyone:
            add_sums(total, sums)
        self._seen |= {name for name in total if name.startswith(SEEN)}
        means = means_of(total)
        self.latest |= means
        return means

    def report_missing(self, episodes: int = _EPISODES) -> None:
        """Report chosen names that no environment has reported, once enough ``episodes`` ended."""
        if not self._missing or not self._seen or episodes < _EPISODES:
            return
        names_in_infos = sorted(name.removeprefix(SEEN) for name in self._seen)
        reported = {name.removeprefix(PREFIX) for name in self.latest} | set(names_in_infos)
        missing, self._missing = sorted(self._missing - reported), set()
        if missing:
            more = ", …" if names_in_infos[_MOST_NAMES:] else ""
            names = ", ".join(map(repr, filter(None, names_in_infos[:_MOST_NAMES]))) or "none"
            self._notify(
                f"info_metrics: no environment has reported {', '.join(map(repr, missing))}; "
                f"numbers in infos are {names}{more}.{nearest(missing[0], names_in_infos)}"
            )

    def _report_not_finite(self, name: str, value: float) -> None:
        if not self._reported_not_finite:
            self._notify(
                f"{name}={value} is not finite: such values are left out and counted in "
                f"{LOGGED_NOT_FINITE}"
            )
        self._reported_not_finite = True


def checked_value(name: str, value: Any) -> float:
    """Convert a value that a callback logs to a float, which may not be finite.

    Raises:
        ConfigError: see :meth:`CustomMetrics.log`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.strip("/") != name:
        raise ConfigError(
            f"log(name={shown(name)}) needs a name of letters, digits, '_', '-', '.' and '/', as "
            "in log('curriculum/level', 3)"
        )
    if getattr(value, "shape", None) in ((), (1,)):  # an array or a tensor of one number
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise ConfigError(f"log({name!r}, {shown(value)}) needs one number as its value")
    try:
        return float(value)
    except OverflowError:
        return math.inf
