"""Accesses a run's logged metrics and settings for the rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from headrace.schedules import share_done
from headrace.spaces import walk

Array = np.ndarray
RETURN = "charts/episodic_return"
_LASTING = 5  # consecutive results


class History:
    """Columns over the lines of ``metrics.jsonl``, and the settings of their run.

    Args:
        rows: lines, oldest first; missing values are NaN in their column.
        settings: settings by name, including those of algorithm and network.
        action_space: action space of the environment; None if unknown.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], action_space: Any
    ) -> None:
        self._rows, self._settings = rows, settings
        self._columns: dict[str, Array] = {}
        self.max_entropy = _max_entropy(action_space)
        self.num_continuous = _num_continuous(action_space)
        self.steps = self.all("env_steps")
        last = self.steps[-1] if len(self.steps) else 0.0
        self._late = self.steps > 0.5 * last  # [N] bool: the run's second half so far

    def __len__(self) -> int:
        return len(self._rows)

    def all(self, name: str) -> Array:
        """Return a column ``[N]`` float64, NaN where a line lacks it."""
        if name not in self._columns:
            values = [row.get(name) for row in self._rows]
            self._columns[name] = np.array([math.nan if v is None else v for v in values], float)
        return self._columns[name]

    def known(self, name: str, late: bool = False) -> Array:
        """Return the finite values of a column; late: of the second half of the steps."""
        column = self.all(name)
        return column[np.isfinite(column) & (self._late if late else True)]

    def median(self, name: str) -> float:
        """Return the median over the second half of the steps so far; NaN without values."""
        return _median(self.known(name, late=True))

    def lively(self, name: str) -> float:
        """Return the median of later results with at least 0.3 of the initial learning rate."""
        rate = self.all("charts/learning_rate") > 0.3 * self.setting("learning_rate", 0.0)
        values = self.all(name)[rate] if rate.any() else self.all(name)
        values = values[np.isfinite(values)]
        return _median(values[len(values) // 2 :])

    def first(self, name: str) -> float:
        """Return the first finite value, or NaN."""
        values = self.known(name)
        return float(values[0]) if len(values) else math.nan

    def last(self, name: str) -> float:
        """Return the latest finite value, or NaN."""
        values = self.known(name)
        return float(values[-1]) if len(values) else math.nan

    def start(self, name: str) -> float:
        """Return the median of the first three finite values, or NaN."""
        return _median(self.known(name)[:3])

    def best(self, name: str) -> float:
        """Return the greatest median of five consecutive values, or the median of fewer."""
        values = self.known(name)
        if len(values) <= _LASTING:
            return _median(values)
        rows = np.lib.stride_tricks.sliding_window_view(values, _LASTING)
        return float(np.median(rows, axis=1).max())

    def setting(self, name: str, default: float | str = math.nan) -> Any:
        """Return a setting's value; ``default`` if it is missing or not a number."""
        value = self._settings.get(name)
        other = isinstance(value, str | dict) and not isinstance(default, str)  # schedules
        unknown = value is None or other
        return default if unknown else value

    @property
    def is_crowded(self) -> bool:
        """True if other programs used over a quarter of the cores, and hardly any core was idle."""
        return self.no_core_is_idle and self.median("cores/other") > 0.25 * self._cores

    @property
    def no_core_is_idle(self) -> bool:
        """True if the run and other programs used over nine tenths of the cores."""
        return self.median("cores/idle") < 0.1 * self._cores

    @property
    def _cores(self) -> float:
        return sum(self.median(f"cores/{name}") for name in ("own", "other", "idle"))

    @property
    def actor_cores(self) -> float:
        """Mean number of cores in use by actor processes; NaN if unknown or if there are none."""
        serial = self.setting("transport", "shm") == "serial"
        return math.nan if serial else self.median("cores/own") - self.median("cores/learner")

    @property
    def learner_load(self) -> float:
        """Busy share of the learner; on a crowded machine, at most the estimate for free cores.

        The estimate assumes that on free cores, only processor time limits the actors' speed.
        """
        load = self.median("utilisation/learner")
        if self.is_crowded and self.actor_cores > 0:
            busy = min(self.setting("num_actors", 1), self._cores)
            load = min(load, self.median("cores/learner") * busy / self.actor_cores)
        return load

    def step_seconds(self, share: float) -> float:
        """Return the seconds per environment step that are spent in one activity.

        On a crowded machine, wall-clock time includes waiting for a core. The result is then at
        most the processor time of the whole run.

        Args:
            share: part of the time that is spent in the activity.
        """
        speed = self.median("charts/SPS")
        if not speed > 0:
            return 0.0
        return (min(share, self.median("cores/own")) if self.is_crowded else share) / speed

    @property
    def small_images(self) -> list[list[int]]:
        """Height and width of each image that is too small for its deep network."""
        return self._settings.get("images") or []

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """Final evaluation, as in ``summary.json``; empty without one."""
        return self._settings.get("evaluation") or {}

    @property
    def goes_on(self) -> bool:
        """True if the run started from a trained policy."""
        return self.setting("resume", False) is True or bool(self.setting("init_from", ""))

    @property
    def agents(self) -> list[str]:
        """Columns of the returns of a game's agents."""
        last = self._rows[-1] if self._rows else {}
        return [n for n in last if n.startswith("agents/") and n.endswith("/episodic_return")]

    @property
    def is_game(self) -> bool:
        """True if opponents train as well, so that returns don't measure progress."""
        return bool(self.agents) or bool(self.setting("opponents", ""))

    @property
    def progress(self) -> float:
        """Completed share of the run, by its steps or its time."""
        total, seconds = self.setting("total_steps"), self.last("seconds")
        if not (len(self.steps) and total):
            return 0.0
        limit = None if math.isnan(seconds) else self.setting("stop_time_s", 0.0)
        limit = limit if isinstance(limit, int | float) else None
        return share_done(float(self.steps[-1]), total, seconds, limit)

    @property
    def optimiser_steps(self) -> float:
        """Number of optimiser steps so far; NaN if updates weren't logged."""
        each = self.setting("epochs", 1) * self.setting("minibatches", 1)
        return self.last("charts/updates") * each

    @property
    def steps_without_end(self) -> float:
        """Steps since the latest result in which an episode ended."""
        counts = self.all("charts/episodes")
        if not len(counts) or math.isnan(counts[-1]):
            return 0.0 if len(self.known(RETURN)) else float(self.steps[-1])
        steps, counts = self.steps[np.isfinite(counts)], counts[np.isfinite(counts)]
        ends = np.flatnonzero(np.diff(counts, prepend=0.0) > 0)
        return float(steps[-1] - (steps[ends[-1]] if len(ends) else 0))

    @property
    def episodes(self) -> float:
        """Number of completed episodes; NaN if unknown."""
        return self.last("charts/episodes")


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _num_continuous(space: Any) -> float:
    """Count the numbers in the continuous parts of an action; NaN if the space is unknown."""
    if space is None:
        return math.nan
    boxes = [leaf for _, leaf in walk.leaves(space) if isinstance(leaf, Box)]
    return float(sum(np.prod(box.shape) for box in boxes))


def _max_entropy(space: Any) -> float | None:
    """Return the entropy of the uniform policy in nats; None with continuous actions."""
    if space is None:
        return None
    total = 0.0
    for _, leaf in walk.leaves(space):
        if isinstance(leaf, Discrete):
            total += math.log(int(leaf.n))
        elif isinstance(leaf, MultiDiscrete):
            total += float(np.log(leaf.nvec).sum())
        elif isinstance(leaf, MultiBinary):
            total += math.log(2) * int(np.prod(leaf.shape))
        else:
            return None
    return total
