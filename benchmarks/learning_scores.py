"""Scores of learning.py: interquartile means with intervals.

Scores are returns on a scale from 0 (random actions) to 1 (the reference of learning_tasks.py).
Aggregates cover the tasks that have every seed of every program.

A run's score at a time is that of its last point before: 0 before the first point, and the last one
after its end. A run's score at a number of steps is interpolated linearly between points, from 0 at
step 0, because fast programs have few points. Equal seconds extend to each task's budget, equal
steps to the smallest number of steps of all runs of the task. Intervals are 95% stratified
bootstraps (Agarwal et al., 2021) by rliable.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from learning_tasks import TASKS, Task

PEERS = {
    "sb3": "Stable-Baselines3 PPO",
    "sb3-default": "Stable-Baselines3 PPO, defaults",
    "cleanrl": "CleanRL-style PPO",
}

Run = Mapping[str, Any]  # a file of learning.py


def value_at(run: Run, axis: int, x: float, before: float) -> float:
    """Return the training return after ``x`` seconds (axis 0) or steps (1); see the module."""
    at, values = ([point[i] for point in run["curve"]] for i in (axis, 2))
    if axis == 1:
        return float(np.interp(x, [0, *at], [before, *values]))
    known = bisect.bisect_right(at, x)
    return values[known - 1] if known else before


def seconds_to(run: Run, threshold: float) -> float:
    """Return the value at which the training return reaches a level; infinite if never."""
    reached = [s for s, _, value in run["curve"] if value >= threshold]
    return reached[0] if reached and reached[0] <= run["budget"]["seconds"] else math.inf


class Suite:
    """Runs by task and program.

    Args:
        expected: (task, program, seed) of the runs of the grid.
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
        """Return a program's scores ``[seeds, whole tasks, fractions]``.

        They are at fractions of equal seconds (axis 0) or steps (1).
        """
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
        """Return scores of the final deterministic evaluations, ``[seeds, whole tasks]``."""
        return np.array([
            [TASKS[name].score(run["evaluation"]["mean"]) for run in self.by_task[name][algo]]
            for name in self.whole
        ]).T  # fmt: skip

    def worst(self, algo: str) -> tuple[float, str]:
        """Return the smallest share of the best program's score over whole tasks, and the task.

        Scores are means over seeds of the better of the last training return and the evaluation.
        Tasks on which no program beats random actions are left out.
        """
        shares = []
        for name in self.whole:
            means = {a: self._final(runs, TASKS[name]) for a, runs in self.by_task[name].items()}
            best = max(means.values())
            if best > 0:
                shares.append((max(means[algo], 0.0) / best, name))
        return min(shares, default=(math.nan, ""))

    @staticmethod
    def _final(runs: Sequence[Run], task: Task) -> float:
        finals = [max(run["training_return"], run["evaluation"]["mean"]) for run in runs]
        return float(np.mean([task.score(value) for value in finals]))
