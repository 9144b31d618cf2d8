"""The figures of learning.py: interquartile means with intervals, probabilities of improvement.

Scores are returns on a scale from 0, random actions, to 1, the reference of learning_tasks.py.
Aggregates are over the tasks that have every seed of every program. After so many seconds a run
stands where its last point before that is, at 0 before its first, and after its end at its last;
after so many steps it stands on the line between two points, the first of which is 0 at 0: points
come by the clock, so a fast program has few of them. Equal seconds go to each task's budget, equal
steps to what every run of the task has taken. Intervals are stratified bootstraps, 95% (Agarwal et
al., 2021), by rliable.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from learning_tasks import TASKS

REPEATS = 2000
PEERS = {"sb3": "Stable-Baselines3 PPO", "cleanrl": "CleanRL-style PPO"}

Run = Mapping[str, Any]  # a file of learning.py


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval, or a row of them."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def text(self, at: int = 0) -> str:
        """``0.91 (0.88–0.93)``."""
        value, low, high = (float(np.ravel(x)[at]) for x in (self.value, self.low, self.high))
        return f"{value:.2f} ({low:.2f}–{high:.2f})"


def value_at(run: Run, axis: int, x: float, before: float) -> float:
    """The return after ``x`` seconds (axis 0) or steps (1); see the module."""
    at, values = ([point[i] for point in run["curve"]] for i in (axis, 2))
    if axis == 1:
        return float(np.interp(x, [0, *at], [before, *values]))
    known = bisect.bisect_right(at, x)
    return values[known - 1] if known else before


def seconds_to(run: Run, threshold: float) -> float:
    """Until the training return has reached it within the budget; infinite if it hasn't."""
    reached = [s for s, _, value in run["curve"] if value >= threshold]
    return reached[0] if reached and reached[0] <= run["budget"]["seconds"] else math.inf


class Suite:
    """Runs by task and program.

    Args:
        expected: (task, program, seed) of the runs that the grid has.
    """

    def __init__(self, runs: Sequence[Run], expected: Sequence[tuple[str, str, int]]) -> None:
        there = {(r["task"], r["algo"], r["seed"]): r for r in runs}
        self.algos = list(dict.fromkeys(algo for _, algo, _ in expected))
        self.by_task: dict[str, dict[str, list[Run]]] = {}
        whole = dict.fromkeys(task for task, _, _ in expected)
        for task, algo, seed in expected:
            if run := there.get((task, algo, seed)):
                self.by_task.setdefault(task, {}).setdefault(algo, []).append(run)
            else:
                whole.pop(task, None)
        self.whole = list(whole)
        """Tasks with all their runs."""

    def scores(self, algo: str, axis: int, fractions: Sequence[float]) -> np.ndarray:
        """Of a program ``[seeds, whole tasks, fractions]`` of equal seconds (0) or steps (1)."""
        columns = []
        for name in self.whole:
            task, every = TASKS[name], self.by_task[name]
            all_runs = [run for runs in every.values() for run in runs]
            whole = min(
                run["budget"]["seconds"] if axis == 0 else run["env_steps"] for run in all_runs
            )
            columns.append([
                [task.score(value_at(run, axis, f * whole, task.low)) for f in fractions]
                for run in every[algo]
            ])  # fmt: skip
        return np.array(columns).swapaxes(0, 1)

    def evaluated(self, algo: str) -> np.ndarray:
        """Scores of the final deterministic evaluations, ``[seeds, whole tasks]``."""
        return np.array([
            [TASKS[name].score(run["evaluation"]["mean"]) for run in self.by_task[name][algo]]
            for name in self.whole
        ]).T  # fmt: skip


def interquartile(scores: Mapping[str, np.ndarray]) -> dict[str, Estimate]:
    """Interquartile means over seeds and tasks of ``[seeds, tasks, …]``, by program."""
    from scipy.stats import trim_mean

    def iqm(values: np.ndarray) -> np.ndarray:
        return np.atleast_1d(trim_mean(values.reshape(-1, *values.shape[2:]), 0.25, axis=0))

    return _bootstrapped(dict(scores), iqm)


def improvement(scores: Mapping[str, np.ndarray]) -> dict[tuple[str, str], Estimate]:
    """Probability that a program beats a peer, over ``[seeds, tasks]``; a tie counts as half.

    It is rliable's probability_of_improvement, a hundred times faster.
    """

    def better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.atleast_1d(((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean())

    pairs = [(own, peer) for own in scores if own not in PEERS for peer in PEERS if peer in scores]
    named = {f"{own},{peer}": (scores[own], scores[peer]) for own, peer in pairs}
    found = _bootstrapped(named, better)
    return {pair: found[",".join(pair)] for pair in pairs}


def _bootstrapped(scores: dict[str, Any], figure: Any) -> dict[str, Estimate]:
    from rliable.library import get_interval_estimates

    if not scores:
        return {}
    before = np.random.get_state()
    np.random.seed(0)  # rliable draws from NumPy's global generator
    try:
        points, intervals = get_interval_estimates(scores, figure, reps=REPEATS)
    finally:
        np.random.set_state(before)
    return {name: Estimate(points[name], *intervals[name]) for name in scores}
