"""The figures of learner.py: interquartile means with intervals, probabilities of improvement.

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
from typing import Any

import numpy as np
from learning_tasks import TASKS

from headrace.studies import statistics
from headrace.studies.statistics import Estimate

PEERS = {"sb3": "Stable-Baselines3 PPO", "cleanrl": "CleanRL-style PPO"}

Run = Mapping[str, Any]  # a file of learner.py


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


def improvement(scores: Mapping[str, np.ndarray]) -> dict[tuple[str, str], Estimate]:
    """Probability that a program beats a peer, over ``[seeds, tasks]``; a tie counts as half."""
    own = [name for name in scores if name not in PEERS]
    return statistics.improvement(scores, [(a, b) for a in own for b in PEERS if b in scores])
