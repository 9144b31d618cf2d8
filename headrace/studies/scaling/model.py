"""Model of an iteration's duration with W ranks, fitted to measurements and extrapolated.

    t_iter(W) = t_rollout(W) + t_learn(W) + t_comm(W) + t_sync(W) + t_other

World sizes that need more cores than the machine has are excluded from all fits: they measure time
sharing of processes instead of the scaling of ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.distributed import tree_allreduce
from headrace.studies.aggregation import Row

Mode = Literal["constant-batch", "growing-batch"]
Way = Literal["memory", "sockets"]  # shared memory within a machine, gloo between machines
PARTS = ("t_rollout", "t_learn", "t_comm", "t_sync")


@dataclass(frozen=True)
class Timing:
    """Measured seconds of one all-reduce."""

    way: Way
    world_size: int
    within_cores: bool
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Cost of one message between ranks: ``alpha_s + bytes * beta_s`` seconds."""

    alpha_s: float = 0.0
    beta_s: float = 0.0

    def of(self, messages: float, num_bytes: float) -> float:
        """Return the seconds of a number of messages with a total of bytes."""
        return messages * self.alpha_s + num_bytes * self.beta_s


@dataclass(frozen=True)
class Link:
    """Network between the ranks whose costs add to those of this machine's loopback."""

    latency_s: float = 0.0
    bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Model:
    """Fitted parameters of the model; ``at`` returns the times of a world size."""

    mode: Mode
    messages: tuple[int, ...]  # bytes of each sum of one iteration
    rows: tuple[int, ...]  # bytes of each broadcast of a rank in one iteration
    rollout: tuple[float, float]  # a, b of a + b / W, seconds
    learn: tuple[float, float]  # likewise
    memory: Cost  # between ranks of this machine
    sockets: Cost  # between machines
    largest: int  # largest world size within this machine's cores
    own_comm_s: float  # part of t_comm outside messages: publishing weights to actors
    sync_s: float  # deviation of a rank's delay
    other_s: float  # part of an iteration outside its four parts
    steps: float  # per iteration: of all ranks, or of one in growing-batch
    link: Link
    notes: tuple[str, ...]  # assumptions made for lack of measurements

    def at(self, world_size: int) -> dict[str, float]:
        """Return ``t_iter`` and its parts, in seconds, ``fps``, ``rho_comm`` and ``rho_sync``."""
        times = {
            "t_rollout": self.rollout[0] + self.rollout[1] / world_size,
            "t_learn": self.learn[0] + self.learn[1] / world_size,
            "t_comm": self.own_comm_s + self._exchange_s(world_size),
            "t_sync": self.sync_s * straggling(world_size),
        }
        t_iter = sum(times.values()) + self.other_s
        steps = self.steps * (world_size if self.mode == "growing-batch" else 1)
        return {
            "fps": steps / t_iter,
            "t_iter": t_iter,
            **times,
            "rho_comm": times["t_comm"] / t_iter,
            "rho_sync": times["t_sync"] / t_iter,
        }

    def _exchange_s(self, world_size: int) -> float:
        """Return the seconds of an iteration's sums within and between machines."""
        here, machines = min(world_size, self.largest), math.ceil(world_size / self.largest)
        memory = sum(sum_s("memory", here, n, self.memory) for n in self.messages)
        if machines == 1:
            return memory + sum(sum_s("memory", here, n, self.memory) for n in self.rows)
        beta_s = max(self.sockets.beta_s, 1.0 / self.link.bytes_per_s)
        cost = Cost(self.sockets.alpha_s + self.link.latency_s, beta_s)
        between = sum(sum_s("sockets", machines, n, cost) for n in self.messages)
        return (
            2 * memory
            + between
            + sum(cost.of(*tree_allreduce.rows_parts(world_size, n)) for n in self.rows)
        )


def sum_parts(way: Way, world_size: int, num_bytes: float) -> tuple[float, float]:
    """Return the sequential messages and bytes that a rank waits for in one sum.

    Shared memory takes one wait for all ranks, then a read of all rows. Sockets: see
    ``distributed/tree_allreduce.py``.
    """
    if world_size == 1:
        return 0.0, 0.0
    if way == "memory":
        return 1.0, world_size * num_bytes
    return tree_allreduce.sum_parts(world_size, num_bytes)


def sum_s(way: Way, world_size: int, num_bytes: float, cost: Cost) -> float:
    """Return the seconds of one sum."""
    return cost.of(*sum_parts(way, world_size, num_bytes))


def straggling(world_size: int) -> float:
    """Return the approximate deviations of the slowest of W normal delays from their mean."""
    return math.sqrt(2.0 * math.log(world_size))


def nonnegative_least_squares(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the x >= 0 that minimises ``|columns @ x - y|``; columns ``[M, N]``."""
    from scipy.optimize import nnls  # slow to import (0.5 s)

    lengths = np.linalg.norm(columns, axis=0)
    lengths[lengths == 0.0] = 1.0  # nnls uses one tolerance for all columns
    return nnls(columns / lengths, y)[0] / lengths


def fit_allreduce(timings: Iterable[Timing], way: Way) -> Cost | None:
    """Fit alpha and beta by least squares of relative errors; None without a timing.

    Relative errors weight small and large messages equally, though their times differ by orders of
    magnitude.
    """
    of_way = [t for t in timings if t.way == way and t.within_cores]
    used = [t for t in of_way if t.world_size > 1 and t.seconds > 0]
    if not used:
        return None
    parts = np.array([sum_parts(t.way, t.world_size, t.num_bytes) for t in used])
    rows = parts / np.array([[t.seconds] for t in used])
    return Cost(*map(float, nonnegative_least_squares(rows, np.ones(len(rows)))))


def fit_share(points: Sequence[tuple[int, float]], mode: Mode) -> tuple[float, float]:
    """Fit a, b >= 0 of ``a + b / W`` to ``(W, seconds)``.

    In growing-batch each rank's work is constant, so a is the mean and b is 0. A single world size
    can't separate the two; then all of the time is assumed to divide.
    """
    if mode == "growing-batch":
        return statistics.fmean(seconds for _, seconds in points), 0.0
    if len({size for size, _ in points}) < 2:
        return 0.0, statistics.fmean(size * seconds for size, seconds in points)
    columns = np.array([[1.0, 1.0 / size] for size, _ in points])
    a, b = nonnegative_least_squares(columns, np.array([seconds for _, seconds in points]))
    return float(a), float(b)


def fit_sync(points: Sequence[tuple[int, float]]) -> float:
    """Fit s >= 0 of ``s * sqrt(2 ln W)``; 0 without a point beyond W = 1."""
    columns = np.array([[straggling(size)] for size, _ in points])
    return float(nonnegative_least_squares(columns, np.array([s for _, s in points]))[0])


def fit(
    mode: Mode,
    rows: Sequence[Row],
    timings: Sequence[Timing],
    messages: Sequence[int],
    largest: int,
    *,
    rows_told: Sequence[int] = (),
    link: Link | None = None,
) -> Model | None:
    """Fit the model to all speeds and timings within the cores; None if there is no speed.

    Args:
        rows: result of ``figures.summarise``, one per world size.
        messages: bytes of each sum of one iteration.
        rows_told: bytes of each broadcast of a rank in one iteration.
        largest: largest world size within this machine's cores; larger ones use sockets.
        link: network to assume between the ranks; None: this machine's loopback.
    """
    used = [row for row in rows if row["fps"] is not None and not row["exceeds_cores"]]
    if not used:
        return None
    fitted = fit_allreduce(timings, "memory"), fit_allreduce(timings, "sockets")
    memory, sockets = (cost or Cost() for cost in fitted)
    sizes = (*messages, *rows_told)
    rest = [
        row["t_comm"] - sum(sum_s("memory", row["world_size"], n, memory) for n in sizes)
        for row in used
    ]
    grows = mode == "growing-batch"
    steps = [row["steps_per_iter"] / (row["world_size"] if grows else 1) for row in used]
    others = [row["t_iter"] - sum(row[name] for name in PARTS) for row in used]

    def points(name: str) -> list[tuple[int, float]]:
        return [(row["world_size"], row[name]) for row in used]

    return Model(
        mode=mode,
        messages=tuple(messages),
        rows=tuple(rows_told),
        rollout=fit_share(points("t_rollout"), mode),
        learn=fit_share(points("t_learn"), mode),
        memory=memory,
        sockets=sockets,
        largest=largest,
        own_comm_s=max(0.0, statistics.fmean(rest)),
        sync_s=fit_sync(points("t_sync")),
        other_s=max(0.0, statistics.fmean(others)),
        steps=statistics.fmean(steps),
        link=link or Link(),
        notes=tuple(_notes(mode, sorted(row["world_size"] for row in used), None in fitted)),
    )


def _notes(mode: Mode, sizes: Sequence[int], no_timing: bool) -> Iterable[str]:
    """Describe assumptions made for lack of measurements."""
    if len(sizes) == 1 and mode == "constant-batch":
        yield (
            f"Only W = {sizes[0]} was measured within the cores, so rollouts and learning are "
            "assumed to divide perfectly among the ranks: an upper bound."
        )
    if len(sizes) == 2 and mode == "constant-batch":
        yield (
            f"Two world sizes ({sizes[0]} and {sizes[1]}) determine both parameters exactly, so "
            "all their noise enters the extrapolation: it is accurate to orders of magnitude only."
        )
    if sizes[-1] == 1:
        yield (
            "No world size above 1 was measured within the cores, so waiting at barriers is "
            "assumed to be 0."
        )
    if no_timing:
        yield (
            "Not every transport was timed within the cores; the others are assumed to cost "
            "nothing."
        )


def extrapolate(
    model: Model, world_sizes: Iterable[int], reference: tuple[int, float]
) -> list[dict[str, float]]:
    """Return a row per world size: :meth:`Model.at` with ``speedup_fps`` and ``efficiency``.

    Args:
        reference: world size that speed-ups are relative to, and its measured FPS.
    """
    rows: list[dict[str, float]] = []
    for size in world_sizes:
        values = model.at(size)
        speedup = values["fps"] / reference[1] * reference[0]
        speeds = {"speedup_fps": speedup, "efficiency": speedup / size}
        rows.append({"world_size": size, "fps": values.pop("fps"), **speeds, **values})
    return rows
