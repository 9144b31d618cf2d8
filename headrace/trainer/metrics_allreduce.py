"""All-reduces metrics between the learners of a run once per update.

The time of a collective consists of waiting for the last rank and of the operation itself. Clocks
of different ranks are never compared. The last rank doesn't wait, so the least time among the
ranks is the operation's (``t_comm``), and the excess of each rank is its waiting (``t_sync``).
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.distributed.ranks import learners
from headrace.errors import LearnerFailed
from headrace.nn.multi_policy import AnyPolicy
from headrace.nn.policy import policy_weights
from headrace.ops import tree
from headrace.rundir.episodes import Episodes
from headrace.rundir.metric_accumulators import (
    BY_RANK,
    GREATEST,
    SUMS,
    Iteration,
    MetricAccumulator,
)
from headrace.types import Group

CHECK_EVERY = 100  # updates between two comparisons of the learners' weights
_MOST_LOGGED = 32  # learners; all wait while rank 0 writes a line for each, about 40 µs


@dataclass(frozen=True)
class GroupState:
    """State shared by all learners after an all-reduce; only ``meter.noted`` differs by rank."""

    stop: bool  # one learner must stop
    due: bool  # rank 0 will report
    save: bool  # it is time for a checkpoint
    mean_return: float | None  # over the latest episodes of all
    full: bool  # the episode window is full
    restarts: int  # of actors
    trained_s: float  # seconds of training, by rank 0's clock
    meter: MetricAccumulator  # counts of all learners, and values noted by this one
    approx_kl: float  # mean of the update, over learners; NaN: unknown


@dataclass(frozen=True)
class LearnerRow:
    """Values that one learner contributes to the all-reduce."""

    stop: float  # 1: it must stop
    due: float  # 1: it will report
    save: float  # 1: it is time for a checkpoint
    checksum: float  # of its weights; -1: not compared
    restarts: float  # of its actors, since the start
    trained_s: float  # its seconds of training
    num_episodes: float  # in the window
    return_sum: float  # of these episodes
    seconds: float  # of its iteration
    meter: MetricAccumulator
    own: dict[str, float]  # metrics of its data
    waits: list[float]  # seconds of each collective; equally many for all ranks

    def pack(self) -> Tensor:
        """Pack the values into a ``[n]`` float64 tensor of the same length for all ranks."""
        *numbers, meter, own, waits = vars(self).values()
        numbers += [*meter.numbers(), *(own.get(name, math.nan) for name in BY_RANK), *waits]
        return torch.tensor(numbers, dtype=torch.float64)

    @staticmethod
    def unpack(packed: Tensor) -> LearnerRow:
        """Unpack the result of :meth:`pack`; NaN means that a metric is absent."""
        values = iter(packed.tolist())
        names = [field.name for field in fields(LearnerRow)][:-3]
        numbers: dict[str, Any] = dict(zip(names, values, strict=False))
        meter = MetricAccumulator.read(values)
        own = {name: x for name, x in zip(BY_RANK, values, strict=False) if not math.isnan(x)}
        return LearnerRow(**numbers, meter=meter, own=own, waits=list(values))


_WIDTHS = len(fields(LearnerRow)) - 3, len(SUMS), len(GREATEST), len(BY_RANK)
_KL = BY_RANK.index("approx_kl")
_ENDS = list(itertools.accumulate(_WIDTHS))  # of a row's parts; the waits come last


class MetricsAllReduce:
    """All-reduces metrics at the end of each update.

    An iteration is the work inside :meth:`timed` and :meth:`all_reduce` from one all-reduce to the
    next. Its phases come from the group's clock and the durations of the group's calls.

    Args:
        group: group of the learners.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._spent_s = group, 0.0
        self._rows = torch.empty(0)  # of the latest update

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the enclosed work as part of the iteration."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - start

    def untimed(self) -> AbstractContextManager[None]:
        """Exclude the enclosed work (reports, checkpoints) from every iteration."""
        return self._group.clock.aside()

    def all_reduce(
        self,
        meter: MetricAccumulator,
        episodes: Episodes,
        own: dict[str, float],
        *,
        stop: bool = False,
        due: bool = False,
        save: bool = False,
        restarts: int = 0,
        trained_s: float = 0.0,
        checksum: int | None = None,
    ) -> GroupState:
        """All-reduce the metrics and return the shared state; every rank calls it once per update.

        Args:
            meter: metrics of this learner's update; receives its phase durations here.
            episodes: episodes of this learner.
            own: metrics of its data.
            stop: this learner must stop.
            due: this learner will report; only rank 0's value counts.
            save: it is time for a checkpoint; only rank 0's value counts.
            restarts: actor restarts since the start.
            trained_s: seconds of training so far; only rank 0's value counts.
            checksum: checksum of its weights; None, for all learners: not compared.

        Raises:
            LearnerFailed: the checksums differ.
        """
        clock, spent_s = self._group.clock, self._spent_s
        phases, waits, self._spent_s = clock.take(), clock.take_waits(), 0.0
        with self.timed(), clock.phase("publish"):
            meter.wait_s, meter.learn_s = phases.get("rollout", 0.0), phases.get("learn", 0.0)
            meter.publish_s = phases.get("publish", 0.0)
            num_episodes = len(episodes.returns)
            mine = LearnerRow(
                stop=stop,
                due=due,
                save=save,
                checksum=-1 if checksum is None else checksum,
                restarts=restarts,
                trained_s=trained_s,
                num_episodes=num_episodes,
                return_sum=(episodes.mean_return or 0.0) * num_episodes,
                seconds=spent_s,
                meter=meter,
                own=own,
                waits=waits,
            )
            self._rows = self._group.gather(mine.pack())
            return self._read(self._rows.numpy(), meter, episodes.window)

    def iterations(self) -> Iterator[Iteration]:
        """Yield the latest update's iteration of each rank."""
        rows = list(map(LearnerRow.unpack, self._rows))
        least_s = sum(map(min, zip(*(row.waits for row in rows), strict=True)))
        for row in rows:
            row.meter.comm_s, row.meter.sync_s = least_s, sum(row.waits) - least_s
        for rank, row in enumerate(rows):
            yield Iteration(rank, row.seconds, row.meter, row.own)

    def _read(self, rows: np.ndarray, mine: MetricAccumulator, window: int) -> GroupState:
        """Reduce ``[W, n]`` rows column by column: there may be hundreds in each update."""
        heads, sums, greatest, by_rank, waits = np.split(rows, _ENDS, 1)
        stop, due, save, checksums, restarts, trained_s, num_episodes, return_sum, _ = heads.T
        if checksums[0] >= 0:
            _compare(checksums.tolist())
        total = MetricAccumulator.read([*sums.sum(0).tolist(), *greatest.max(0).tolist()])
        total.comm_s = len(rows) * float(waits.min(0).sum())
        total.sync_s, total.noted = float(waits.sum()) - total.comm_s, mine.noted
        episodes = float(num_episodes.sum())
        return GroupState(
            stop=bool(stop.any()),
            due=bool(due[0]),
            save=bool(save[0]),
            mean_return=float(return_sum.sum()) / episodes if episodes else None,
            full=bool((num_episodes == window).all()),
            restarts=int(restarts.sum()),
            trained_s=float(trained_s[0]),
            meter=total,
            approx_kl=float(by_rank[:, _KL].mean()),
        )


def logs_iterations(num_learners: int) -> bool:
    """Return True if per-update lines are logged by default."""
    return 1 < num_learners <= _MOST_LOGGED


def _compare(checksums: list[float]) -> None:
    usual = Counter(checksums).most_common(1)[0][0]
    others = [rank for rank, value in enumerate(checksums) if value != usual]
    if others:
        like = learners([r for r in range(len(checksums)) if r not in others])
        raise LearnerFailed(
            f"the weights of {learners(others)} are no longer those of {like}: they took different "
            "steps (a machine that computes differently, or a random choice of the algorithm that "
            "isn't the same on all ranks)"
        )


def checksum(policy: AnyPolicy) -> int:
    """CRC-32 of all weights and running statistics."""
    value = 0
    for leaf in tree.leaves(policy_weights(policy)):
        value = zlib.crc32(leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), value)
    return value
