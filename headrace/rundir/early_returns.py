"""Adds points to the curve of returns within the first updates, which may be the whole run."""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

from torch import Tensor

from headrace.rundir.episodes import Episodes
from headrace.types import Group

FEWEST_POINTS = 60  # of a curve of returns, if enough episodes end


class ReturnPoint(NamedTuple):
    """A point of the curve between two results."""

    env_steps: int
    updates: int
    seconds: float
    episode_return: float


class _Ended(NamedTuple):
    """An episode of one learner."""

    position: float  # updates before its end, with a fraction of the current update's steps
    episode_return: float
    task: int


class _Span(NamedTuple):
    """Counters before and after an update, over all learners."""

    updates: int  # after it
    env_steps: tuple[int, int]
    seconds: tuple[float, float]

    def end_of(self, part: int, parts: int) -> tuple[int, float]:
        """Return the environment steps and the seconds at the end of a part, counted from 1."""
        (steps, more_steps), (seconds, more_seconds) = self.env_steps, self.seconds
        env_steps = steps + (more_steps - steps) * part // parts
        return env_steps, seconds + (more_seconds - seconds) * part / parts


def num_parts(updates: int) -> int:
    """Return the number of parts into which the points divide an update, counted from 1."""
    return -(-FEWEST_POINTS // updates)


class EarlyReturns:
    """Computes points of the curve of returns within updates before the 60th.

    The curve is a mean over the latest episodes, and a run with few updates has few results. The
    points divide update ``k`` into ``ceil(60 / k)`` parts with equally many steps, so a run that
    ends at any time has at least 60 parts. Each point is the mean over the window at that step. In
    each rollout, an episode ends at the step of its row; rollouts count in the order in which the
    learner takes them. The seconds are interpolated between updates.
    """

    def __init__(self) -> None:
        self._window = Episodes()
        self._current: list[tuple[float, float, int]] = []  # of this update: steps, return, task
        self._ended: list[_Ended] = []  # since the last result
        self._spans: list[_Span] = []
        self._updates = self._env_steps = self._own_steps = 0
        self._seconds = 0.0

    def begin(self, episodes: Episodes, updates: int, env_steps: int, seconds: float) -> None:
        """Begin or resume after these episodes and counters of all learners."""
        self._window = _copied(episodes)
        self._updates, self._env_steps, self._seconds = updates, env_steps, seconds

    def add(self, episode_return: Tensor, valid: Tensor, steps_before: int, task: int = 0) -> None:
        """Add the episodes of a rollout: returns ``[T, B]``, NaN where none ends.

        Args:
            valid: ``[T, B] bool``, False at reset steps.
            steps_before: valid steps of this learner's rollouts before it in the update.
        """
        if num_parts(self._updates + 1) > 1:
            rows, columns = (~episode_return.isnan()).nonzero(as_tuple=True)
            steps_after = steps_before + valid.sum(1).cumsum(0)
            steps, self._own_steps = steps_after[rows], int(steps_after[-1])
            returns = episode_return[rows, columns]
            self._current += zip(steps.tolist(), returns.tolist(), itertools.repeat(task))

    def end_update(self, updates: int, env_steps: int, seconds: float) -> None:
        """End an update; the counters are of all learners."""
        if num_parts(updates) > 1:
            ends = (self._env_steps, env_steps), (self._seconds, seconds)
            self._spans.append(_Span(updates, *ends))
            for steps, episode_return, task in self._current:
                share = min(1.0, steps / max(1, self._own_steps))
                self._ended.append(_Ended(updates - 1 + share, episode_return, task))
        self._current = []
        self._updates, self._env_steps, self._seconds = updates, env_steps, seconds

    def points(self, group: Group, episodes: Episodes) -> list[ReturnPoint]:
        """Return the points since the last result, on rank 0; each rank calls it with a result.

        Args:
            episodes: latest episodes of all learners at this result.
        """
        spans, mine = self._spans, self._ended
        self._spans, self._ended = [], []
        if not spans:
            return []
        ended = deque(sorted(itertools.chain.from_iterable(group.gather_objects(mine))))
        points = []
        for span in spans:
            parts = num_parts(span.updates)
            for part in range(1, parts + 1):
                here = _taken(ended, span.updates - 1 + part / parts)
                mean = _added(self._window, here)
                if here and mean is not None:
                    env_steps, seconds = span.end_of(part, parts)
                    points.append(ReturnPoint(env_steps, span.updates - 1, seconds, mean))
        self._window = _copied(episodes)
        return [point for point in points if point.env_steps < spans[-1].env_steps[1]]


def _taken(ended: deque[_Ended], position: float) -> list[_Ended]:
    """Remove and return the episodes that end up to a position."""
    taken = []
    while ended and ended[0].position <= position:
        taken.append(ended.popleft())
    return taken


def _copied(episodes: Episodes) -> Episodes:
    """Copy the returns in a window, and in the windows of its tasks."""
    copy = Episodes(episodes.window, tasks=episodes.tasks)
    copy.returns.extend(episodes.returns)
    for name, own in episodes.by_task.items():
        copy.by_task[name] = _copied(own)
    return copy


def _added(window: Episodes, ended: list[_Ended]) -> float | None:
    """Add returns to the window, and return its mean."""
    for one in ended:
        window.returns.append(one.episode_return)
        if window.tasks:
            window.by_task[window.tasks[one.task]].returns.append(one.episode_return)
    return window.mean_return
