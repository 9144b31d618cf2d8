"""Statistics of few runs (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice").

Scores are arrays ``[runs, tasks, …]`` by name of the algorithm. Intervals are 95% bootstrap
intervals, stratified by task, from rliable.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.extras import needs

REPEATS = 2000

Array = np.ndarray


@dataclass(frozen=True)
class Estimate:
    """Estimate with its interval, or arrays of them."""

    value: Array
    low: Array
    high: Array

    def text(self, at: int = 0, interval: bool = True) -> str:
        """Format as ``0.91 (0.88–0.93)``, or without the interval."""
        value, low, high = (float(np.ravel(x)[at]) for x in (self.value, self.low, self.high))
        return f"{value:.2f}" + (f" ({low:.2f}–{high:.2f})" if interval else "")


def interquartile(scores: Mapping[str, Array]) -> dict[str, Estimate]:
    """Return means of the middle half of all runs and tasks, by name."""
    return _bootstrapped(dict(scores), middle)


def middle(values: Array) -> Array:
    """Return the mean of the middle half of ``[runs, tasks, …]``: ``[…]``, or ``[1]``."""
    flat = np.sort(values.reshape(-1, *values.shape[2:]), axis=0)
    cut = len(flat) // 4
    return np.atleast_1d(flat[cut : len(flat) - cut].mean(0))


def over_runs(values: Array) -> tuple[Array, Array, Array]:
    """Return the interquartile mean over ``[runs, points]``, and the ends of its interval."""
    estimate = interquartile({"": values[:, None, :]})[""]
    return estimate.value, estimate.low, estimate.high


def are_there() -> bool:
    """Return whether rliable is installed."""
    return importlib.util.find_spec("rliable") is not None


def improvement(
    scores: Mapping[str, Array], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Estimate]:
    """Return the probability that a run of the first beats one of the second on the same task.

    Scores are ``[runs, tasks]``; a tie counts as half. It is rliable's probability_of_improvement,
    a hundred times faster.
    """

    def better(x: Array, y: Array) -> Array:
        return np.atleast_1d(((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean())

    named = {f"{a},{b}": (scores[a], scores[b]) for a, b in pairs}
    estimates = _bootstrapped(named, better)
    return {pair: estimates[",".join(pair)] for pair in pairs}


def profiles(scores: Mapping[str, Array], at: Sequence[float] | Array) -> dict[str, Estimate]:
    """Return performance profiles: the share of runs ``[runs, tasks]`` above each value."""
    thresholds = np.asarray(at, dtype=float)

    def above(values: Array) -> Array:
        return np.asarray((values[..., None] > thresholds).mean((0, 1)))

    return _bootstrapped(dict(scores), above)


def _bootstrapped(scores: dict[str, Any], statistic: Callable[..., Array]) -> dict[str, Estimate]:
    """Return the values of a statistic with their bootstrap intervals, by name."""
    with needs("an interval over several seeds", "bench"):
        from rliable.library import get_interval_estimates

    if not scores:
        return {}
    with _seeded():
        points, intervals = get_interval_estimates(scores, statistic, reps=REPEATS)
    return {name: Estimate(points[name], *intervals[name]) for name in scores}


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed NumPy's global generator, which rliable uses, inside the block."""
    before = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)
