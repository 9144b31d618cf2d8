"""What the learners of a run tell each other once per update, and the lines that are logged of it.

The time that a learner spends in a joint sum is its own waiting for the last one to arrive, and
then the sum itself. Nobody's clock is compared with another's: the last one to arrive waits for
nobody, so the least time among the learners is the sum's (``t_comm``), and what a learner spends
beyond that is its waiting (``t_sync``).
"""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headrace.distributed.ranks import learners
from headrace.errors import LearnerFailed
from headrace.nn.policy import Policy, policy_weights
from headrace.ops import tree
from headrace.records.iteration import Iteration
from headrace.records.meter import Meter
from headrace.records.result import Episodes
from headrace.types import Group

CHECK_EVERY = 100  # updates between two comparisons of the learners' weights
_OWN = ("approx_kl", "clipfrac", "entropy", "value_loss")
_NUM_FLAGS = 7  # what stands in a row before the meter's numbers


@dataclass(frozen=True)
class Agreed:
    """What all learners know after an exchange, each the same."""

    stop: bool  # one of them was asked to stop
    due: bool  # rank 0 wants to report
    mean_return: float | None  # over the latest episodes of all
    full: bool  # whether these are as many as can be
    restarts: int  # of actors
    meter: Meter  # sums over the learners


class Exchange:
    """The exchange at the end of each update.

    An iteration is what is done inside :meth:`timed` and :meth:`tell` from one exchange to the
    next; its parts are taken from the group's clock and from how long the group's calls took.

    Args:
        group: of the learners.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._spent_s = group, 0.0
        self.iterations: list[Iteration] = []  # the latest, by rank

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What is done inside is part of the iteration."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - start

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done inside (reports, checkpoints) is no part of any iteration."""
        group, clock = self._group, self._group.clock
        waits, seconds = group.waits, clock.seconds
        group.waits, clock.seconds = [], {}
        try:
            yield
        finally:
            group.waits, clock.seconds = waits, seconds

    def tell(
        self,
        meter: Meter,
        episodes: Episodes,
        own: dict[str, float],
        *,
        stop: bool,
        due: bool,
        restarts: int,
        checksum: int | None,
    ) -> Agreed:
        """Exchange; returns what all know now. Every learner calls it once per update.

        Args:
            meter: of this update and learner; it gets its times here.
            episodes: of this learner. own: metrics of its data.
            stop: it was asked to stop. due: it wants to report; rank 0's counts.
            restarts: of its actors, since the start.
            checksum: of its weights; None, for all learners alike: not compared.

        Raises:
            LearnerFailed: the checksums differ.
        """
        seconds, waits = self._group.clock.take(), self._group.waits
        spent_s, self._spent_s, self._group.waits = self._spent_s, 0.0, []
        with self.timed(), self._group.clock.phase("publish"):
            meter.wait_s, meter.learn_s = seconds.get("rollout", 0.0), seconds.get("learn", 0.0)
            meter.publish_s = seconds.get("publish", 0.0)
            mean, count = episodes.mean_return, len(episodes.returns)
            row = [
                *(stop, due, -1 if checksum is None else checksum, restarts),
                *(count, 0.0 if mean is None else mean * count, spent_s),
                *meter.numbers(),
                *(own.get(name, math.nan) for name in _OWN),
                *waits,
            ]
            rows = self._group.gather(torch.tensor(row, dtype=torch.float64)).tolist()
            return self._read(rows, episodes.window)

    def _read(self, rows: list[list[float]], window: int) -> Agreed:
        if rows[0][2] >= 0:
            _compare([row[2] for row in rows])
        own_at = _NUM_FLAGS + len(Meter.SUMS) + 1
        waits_at = own_at + len(_OWN)
        least = [min(waits) for waits in zip(*(row[waits_at:] for row in rows), strict=True)]
        total, self.iterations = Meter(), []
        for rank, row in enumerate(rows):
            meter = Meter()
            meter.add_numbers(row[_NUM_FLAGS:own_at])
            meter.comm_s, meter.sync_s = sum(least), sum(row[waits_at:]) - sum(least)
            total.add(meter)
            own = zip(_OWN, row[own_at:waits_at], strict=True)
            known = {name: value for name, value in own if not math.isnan(value)}
            self.iterations.append(Iteration(rank, row[_NUM_FLAGS - 1], meter, known))
        num_episodes = sum(row[4] for row in rows)
        return Agreed(
            stop=any(row[0] for row in rows),
            due=bool(rows[0][1]),
            mean_return=sum(row[5] for row in rows) / num_episodes if num_episodes else None,
            full=all(row[4] == window for row in rows),
            restarts=int(sum(row[3] for row in rows)),
            meter=total,
        )


def _compare(checksums: list[float]) -> None:
    usual = Counter(checksums).most_common(1)[0][0]
    others = [rank for rank, value in enumerate(checksums) if value != usual]
    if others:
        like = learners([r for r in range(len(checksums)) if r not in others])
        raise LearnerFailed(
            f"the weights of {learners(others)} are no longer those of {like}: they took different "
            "steps (a machine that computes differently, or an algorithm's random choice that "
            "isn't the same for all)"
        )


def checksum(policy: Policy) -> int:
    """CRC-32 of all weights and running statistics."""
    value = 0
    for leaf in tree.leaves(policy_weights(policy)):
        value = zlib.crc32(leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), value)
    return value


def gather_episodes(group: Group, episodes: Episodes) -> Episodes:
    """The latest episodes of all learners, the same for each."""
    window = episodes.window
    row = torch.full((1 + 2 * window,), math.nan, dtype=torch.float64)
    row[0] = episodes.count
    for at, values in ((1, episodes.returns), (1 + window, episodes.lengths)):
        row[at : at + len(values)] = torch.tensor(list(values), dtype=torch.float64)
    everyone = Episodes(window * group.size)
    for count, *values in group.gather(row).tolist():
        everyone.count += int(count)
        everyone.returns.extend(x for x in values[:window] if not math.isnan(x))
        everyone.lengths.extend(x for x in values[window:] if not math.isnan(x))
    return everyone
