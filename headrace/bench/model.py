"""How long an iteration takes with W ranks: fitted to what was measured, then extrapolated.

    t_iter(W) = t_rollout(W) + t_learn(W) + t_comm(W) + t_sync(W) + t_other

Numbers in, numbers out. World sizes that want more cores than the machine has measure how processes
take turns, not how ranks scale: no fit uses them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["constant-batch", "growing-batch"]
PARTS = ("t_rollout", "t_learn", "t_comm", "t_sync")


@dataclass(frozen=True)
class Measurement:
    """Medians over the runs of one world size; seconds per iteration, means over the ranks."""

    world_size: int
    within_cores: bool  # no two ranks share a core
    steps: float  # environment steps of all ranks per iteration
    t_iter: float
    t_rollout: float
    t_learn: float
    t_comm: float
    t_sync: float


@dataclass(frozen=True)
class Timing:
    """Seconds that one all-reduce of a message takes."""

    world_size: int
    within_cores: bool
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Link:
    """A network between the ranks that adds to what this machine's loopback costs."""

    latency_s: float = 0.0
    bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Model:
    """The fitted numbers; ``at`` gives the times of a world size."""

    mode: Mode
    messages: tuple[int, ...]  # bytes of each all-reduce of one iteration
    rollout: tuple[float, float]  # a, b of a + b / W, seconds
    learn: tuple[float, float]  # likewise
    alpha_s: float  # of one message between two ranks, whatever its size
    beta_s: float  # of each byte
    comm_factor: float  # t_comm of the runs over what alpha and beta predict for them
    sync_s: float  # deviation of a rank's delay
    other_s: float  # of an iteration, in none of its four parts
    steps: float  # per iteration: of all ranks, in growing-batch of one
    link: Link
    notes: tuple[str, ...]  # what was assumed for want of measurements

    def at(self, world_size: int) -> dict[str, float]:
        """``t_iter`` and its parts, in seconds, ``fps``, ``rho_comm`` and ``rho_sync``."""
        alpha_s = self.comm_factor * self.alpha_s + self.link.latency_s
        beta_s = max(self.comm_factor * self.beta_s, 1.0 / self.link.bytes_per_s)
        times = {
            "t_rollout": self.rollout[0] + self.rollout[1] / world_size,
            "t_learn": self.learn[0] + self.learn[1] / world_size,
            "t_comm": sum(allreduce_s(world_size, n, alpha_s, beta_s) for n in self.messages),
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


def allreduce_s(world_size: int, num_bytes: float, alpha_s: float, beta_s: float) -> float:
    """Seconds of a ring all-reduce: 2(W - 1) messages in a row, each of a W-th of the bytes."""
    hops = 2 * (world_size - 1)
    return hops * alpha_s + hops / world_size * num_bytes * beta_s


def straggling(world_size: int) -> float:
    """About how many deviations the slowest of W normal delays lies above their mean."""
    return math.sqrt(2.0 * math.log(world_size))


def nonnegative_least_squares(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimises ``|columns @ x - y|``; columns ``[M, N]`` with a small N.

    A solution is an unconstrained one over some of the columns, so it tries them all.
    """
    size = columns.shape[1]
    best, error = np.zeros(size), float(y @ y)
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            x = np.zeros(size)
            x[list(chosen)] = np.linalg.lstsq(columns[:, chosen], y, rcond=None)[0]
            residual = columns @ x - y
            if x.min() >= 0 and float(residual @ residual) < error:
                best, error = x, float(residual @ residual)
    return best


def fit_allreduce(timings: Iterable[Timing]) -> tuple[float, float] | None:
    """Alpha and beta in seconds, by least squares of RELATIVE errors; None without a timing.

    The times of small and large messages differ by orders of magnitude; both shall count.
    """
    used = [t for t in timings if t.within_cores and t.world_size > 1 and t.seconds > 0]
    if not used:
        return None
    rows = [
        [allreduce_s(t.world_size, t.num_bytes, *unit) / t.seconds for unit in ((1, 0), (0, 1))]
        for t in used
    ]
    alpha_s, beta_s = nonnegative_least_squares(np.array(rows), np.ones(len(rows)))
    return float(alpha_s), float(beta_s)


def fit_share(points: Sequence[tuple[int, float]], mode: Mode) -> tuple[float, float]:
    """a, b >= 0 of ``a + b / W`` for ``(W, seconds)``.

    In growing-batch each rank's work stays what it is, so a is the mean and b is 0. A single world
    size can't tell the two apart: then all of it is taken to divide.
    """
    if mode == "growing-batch":
        return statistics.fmean(seconds for _, seconds in points), 0.0
    if len({size for size, _ in points}) < 2:
        return 0.0, statistics.fmean(size * seconds for size, seconds in points)
    columns = np.array([[1.0, 1.0 / size] for size, _ in points])
    a, b = nonnegative_least_squares(columns, np.array([seconds for _, seconds in points]))
    return float(a), float(b)


def fit_sync(points: Sequence[tuple[int, float]]) -> float:
    """s >= 0 of ``s * sqrt(2 ln W)``; 0 without a point beyond W = 1."""
    x = np.array([straggling(size) for size, _ in points])
    y = np.array([seconds for _, seconds in points])
    return max(0.0, float(x @ y) / float(x @ x)) if x.any() else 0.0


def comm_factor(
    used: Sequence[Measurement], messages: Sequence[int], alpha_s: float, beta_s: float
) -> float | None:
    """Measured over predicted ``t_comm`` of the runs; None where nothing can be compared."""
    several = [m for m in used if m.world_size > 1]
    predicted = sum(
        allreduce_s(m.world_size, n, alpha_s, beta_s) for m in several for n in messages
    )
    return sum(m.t_comm for m in several) / predicted if predicted > 0 else None


def fit(
    mode: Mode,
    measurements: Sequence[Measurement],
    timings: Sequence[Timing],
    messages: Sequence[int],
    link: Link | None = None,
) -> Model | None:
    """The model of all measurements and timings within the cores; None if there is none of a run.

    Args:
        messages: bytes of each all-reduce of one iteration.
        link: a network to assume between the ranks; None: this machine's loopback.
    """
    used = [m for m in measurements if m.within_cores]
    if not used:
        return None
    known = fit_allreduce(timings)
    alpha_s, beta_s = known or (0.0, 0.0)
    factor = comm_factor(used, messages, alpha_s, beta_s)
    ranks = [m.world_size if mode == "growing-batch" else 1 for m in used]
    others = [m.t_iter - sum(getattr(m, name) for name in PARTS) for m in used]
    return Model(
        mode=mode,
        messages=tuple(messages),
        rollout=fit_share([(m.world_size, m.t_rollout) for m in used], mode),
        learn=fit_share([(m.world_size, m.t_learn) for m in used], mode),
        alpha_s=alpha_s,
        beta_s=beta_s,
        comm_factor=1.0 if factor is None else factor,
        sync_s=fit_sync([(m.world_size, m.t_sync) for m in used]),
        other_s=max(0.0, statistics.fmean(others)),
        steps=statistics.fmean(m.steps / n for m, n in zip(used, ranks, strict=True)),
        link=link or Link(),
        notes=tuple(_notes(mode, used, known is None, factor is None)),
    )


def _notes(
    mode: Mode, used: Sequence[Measurement], no_timing: bool, no_factor: bool
) -> Iterable[str]:
    """What is assumed for want of measurements."""
    sizes = sorted({m.world_size for m in used})
    if len(sizes) == 1 and mode == "constant-batch":
        yield (
            f"Only W = {sizes[0]} was measured within the cores, so rollouts and learning are "
            "assumed to divide among the ranks without a rest: an upper bound."
        )
    if sizes[-1] == 1:
        yield (
            "No world size above 1 was measured within the cores, so nothing is known of waiting "
            "at barriers: it is assumed to be 0."
        )
    if no_timing:
        yield (
            "No all-reduce was timed within the cores, so the loopback's share of communication is "
            "assumed to be 0."
        )
    elif no_factor:
        yield (
            "No run with an all-reduce was measured within the cores, so communication in a run is "
            "assumed to take what the all-reduces alone take."
        )


def extrapolate(
    model: Model, world_sizes: Iterable[int], reference: tuple[int, float]
) -> list[dict[str, float]]:
    """A row per world size: what :meth:`Model.at` gives, with ``speedup_fps`` and ``efficiency``.

    Args:
        reference: the world size, and its measured FPS, that speed-ups are relative to.
    """
    rows: list[dict[str, float]] = []
    for size in world_sizes:
        values = model.at(size)
        speedup = values["fps"] / reference[1] * reference[0]
        speeds = {"speedup_fps": speedup, "efficiency": speedup / size}
        rows.append({"world_size": size, "fps": values.pop("fps"), **speeds, **values})
    return rows


def assumptions(model: Model, num_cores: int) -> list[str]:
    """What the extrapolation rests on, as sentences with the fitted numbers."""
    a, b = model.rollout
    c, d = model.learn
    link, counts = model.link, {n: model.messages.count(n) for n in model.messages}
    messages = " and ".join(f"{count} of {n:,} bytes" for n, count in counts.items())
    bandwidth = f" ({1e-9 / model.beta_s:.2f} GB/s)" if model.beta_s else ""
    network = "the network is this machine's loopback"
    if link != Link():
        network = f"a network adds {link.latency_s * 1e6:g} µs to each of them"
        if math.isfinite(link.bytes_per_s):
            network += f" and carries at most {link.bytes_per_s * 8e-9:g} Gbit/s"
    return [
        "t_iter = t_rollout + t_learn + t_comm + t_sync"
        f" + {_ms(model.other_s)} that no part accounts for.",
        f"t_rollout = {_ms(a)} + {_ms(b)} / W; t_learn = {_ms(c)} + {_ms(d)} / W.",
        f"t_comm: {len(model.messages)} all-reduces per iteration ({messages}), each as on a ring: "
        f"2 (W - 1) messages of {model.alpha_s * 1e6:.1f} µs and {model.beta_s * 1e9:.3f} ns per "
        f"byte{bandwidth}, times {model.comm_factor:.2f}, the ratio of what the runs took to what "
        f"that predicts for them; {network}.",
        "The timed all-reduces are gloo's. Learners of one machine may exchange small messages by "
        "other ways, which that ratio stands for at every W.",
        f"t_sync = {_ms(model.sync_s)} * sqrt(2 ln W): the slowest of W ranks whose delays are "
        "independent and normal.",
        f"Cores beyond this machine's {num_cores} are assumed to be like these and each rank to "
        "have its own; world sizes that exceed them are shown but fitted to nothing.",
        "The model speaks of speed only: how a larger batch learns is not in it.",
        *model.notes,
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
