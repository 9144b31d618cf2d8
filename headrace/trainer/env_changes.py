"""Passes the changes that callbacks make to environments to the actors of all learners."""

from __future__ import annotations

from collections import deque

import torch

from headrace.actors.rollout_source import RolloutSource
from headrace.envs.changes import EnvChange
from headrace.errors import ChangeFailed
from headrace.rundir.files import RunLog
from headrace.rundir.run_progress import Progress
from headrace.types import Group


class EnvChanges:
    """Changes to environments of a run, in the order in which rank 0 requested them.

    Args:
        group: group of the run's learners.
        progress: its ``env_changes`` are the changes that were made, as JSON.
    """

    def __init__(self, group: Group, progress: Progress) -> None:
        self._group, self._progress = group, progress
        self._requested = deque[str]()  # other threads append to it

    def request(self, change: str) -> None:
        """Make a change, as JSON, between two results; ignored if it was made already."""
        self._requested.append(change)

    def take(self) -> list[str]:
        """Return the new changes of rank 0, and adopt them on every learner."""
        new: list[str] = []
        while self._requested:
            new.append(self._requested.popleft())
        if self._group.size > 1:
            some = self._group.gather(torch.tensor([float(len(new))]))
            new = self._group.broadcast(new) if some[0] else []
        made = {EnvChange.from_json(text).id for text in self._progress.env_changes if new}
        new = [text for text in new if EnvChange.from_json(text).id not in made]
        self._progress.env_changes += new
        return new

    def make(self, source: RolloutSource, log: RunLog | None) -> None:
        """Take new changes, and order them from the actors."""
        new = self.take()
        order(source, new)
        self.write(new, log)

    def write(self, made: list[str], log: RunLog | None) -> None:
        """Write changes to the log with the current steps."""
        if log is not None:
            for text in made:
                counted = self._progress.env_steps, self._progress.updates
                log.env_change(EnvChange.from_json(text), *counted)

    def drop_failed(self, error: BaseException | None) -> None:
        """Forget a change that failed, because a resumed run would fail again."""
        if isinstance(error, ChangeFailed):
            made = self._progress.env_changes
            made[:] = [text for text in made if EnvChange.from_json(text).id != error.change]


def order(source: RolloutSource, made: list[str]) -> None:
    """Order the changes of training environments from the actors."""
    for text in made:
        if EnvChange.from_json(text).training:
            source.order(text)
