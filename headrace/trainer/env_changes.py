"""Sends environment changes that callbacks request to the actors of all learners."""

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
    """Applies changes to a run's environments, in the order in which rank 0 requested them.

    Args:
        group: group of the run's learners.
        progress: progress of the run; ``env_changes`` lists the changes made so far, as JSON.
    """

    def __init__(self, group: Group, progress: Progress) -> None:
        self._group, self._progress = group, progress
        self._requested = deque[str]()  # other threads append to it

    def request(self, change: str) -> None:
        """Request a change, as JSON, between two results; ignored if its id was made before."""
        self._requested.append(change)

    def take(self) -> list[str]:
        """Return rank 0's new changes, and record them on every learner."""
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
        """Take new changes, send them to the actors and log them."""
        new = self.take()
        order(source, new)
        self.write(new, log)

    def write(self, made: list[str], log: RunLog | None) -> None:
        """Log changes with the current numbers of steps and updates."""
        if log is not None:
            for text in made:
                counted = self._progress.env_steps, self._progress.updates
                log.env_change(EnvChange.from_json(text), *counted)

    def drop_failed(self, error: BaseException | None) -> None:
        """Remove a failed change from the progress, because a resumed run would fail again."""
        if isinstance(error, ChangeFailed):
            made = self._progress.env_changes
            made[:] = [text for text in made if EnvChange.from_json(text).id != error.change]


def order(source: RolloutSource, made: list[str]) -> None:
    """Send the changes of training environments to the actors."""
    for text in made:
        if EnvChange.from_json(text).training:
            source.order(text)
