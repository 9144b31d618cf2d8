"""Mean and variance of a stream of samples, merged exactly from parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_AT_ONCE = 1 << 18  # float64 numbers at a time, so that images need no copies of many MB


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of samples of ``F`` numbers each."""

    count: Tensor  # 0-d int64: float32 can't count beyond 2**24
    mean: Tensor  # [F] float64
    square: Tensor  # [F] float64  sum of squared deviations from the mean

    @property
    def variance(self) -> Tensor:
        """Population variance ``[F]`` float64; 1 while there are no samples."""
        if not self.count:
            return torch.ones_like(self.mean)
        return self.square / self.count


@torch.no_grad()
def moments(x: Tensor) -> Moments:
    """Compute the moments of ``[N, F]`` samples; N may be 0.

    Raises:
        ValueError: x is not of rank 2.
    """
    if x.dim() != 2:
        raise ValueError(f"x must be [N, F], got {tuple(x.shape)}")
    parts = x.split(max(1, _AT_ONCE // max(1, x.shape[1])))
    mean, square = x.new_zeros((2, x.shape[1]), dtype=torch.float64)
    for part in parts:
        mean += part.double().sum(0)
    mean /= max(1, len(x))
    for part in parts:
        square += (part.double() - mean).square_().sum(0)
    return Moments(torch.tensor(len(x), device=x.device), mean, square)


@torch.no_grad()
def merge(a: Moments, b: Moments) -> Moments:
    """Compute the moments of the union of two sets of samples (Chan et al. 1979)."""
    count = a.count + b.count
    share = b.count.double() / count.clamp_min(1)
    delta = b.mean - a.mean
    mean = a.mean + delta * share
    return Moments(count, mean, a.square + b.square + delta.square() * a.count * share)


def pack(a: Moments) -> Tensor:
    """Pack count (exact up to 2**53), mean and square into one vector ``[1 + 2 F]`` float64."""
    return torch.cat((a.count.double().reshape(1), a.mean, a.square))


def unpack(vector: Tensor) -> Moments:
    """Restore the moments from a vector of :func:`pack`.

    Raises:
        ValueError: vector is not ``[1 + 2 F]``.
    """
    if vector.dim() != 1 or len(vector) % 2 == 0:
        raise ValueError(f"vector must be [1 + 2 F], got {tuple(vector.shape)}")
    mean, square = vector[1:].chunk(2)
    return Moments(vector[0].long(), mean, square)


def of_all(parts: Sequence[Moments], gather: Callable[[Tensor], Tensor]) -> list[Moments]:
    """Merge the moments of all learners for several streams, in one exchange.

    Args:
        parts: moments of this learner's samples, one per stream.
        gather: maps the float64 vector ``[n]`` of one learner to ``[W, n]`` of all W learners, in
            the same order on each. All learners then have the same moments, bit for bit.
    """
    if not parts:
        return []
    own = [pack(part) for part in parts]
    columns = gather(torch.cat(own)).split([len(vector) for vector in own], 1)
    return [functools.reduce(merge, map(unpack, rows)) for rows in columns]


class MovingMoments:
    """Moving mean and standard deviation of a drifting stream.

    Both are exponentially weighted averages over batches, divided by the sum of the weights, so
    that the first batch counts in full (as in Adam: Kingma & Ba 2015).

    Args:
        share: weight of the newest batch.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._weight = self._first = self._second = 0.0

    def note(self, mean: float, square: float) -> None:
        """Add a batch by its mean and mean square; ignored if the square is 0 or not finite."""
        if not 0.0 < square < math.inf:
            return
        self._weight += self._share * (1.0 - self._weight)
        self._first += self._share * (mean - self._first)
        self._second += self._share * (square - self._second)

    @property
    def mean(self) -> float:
        """Moving mean; 0 before the first batch."""
        return self._first / self._weight if self._weight else 0.0

    @property
    def deviation(self) -> float:
        """Moving standard deviation, at least 0.001 of the root mean square; 0 before any batch."""
        square = self._second / self._weight if self._weight else 0.0
        return max(square - self.mean**2, 1e-6 * square) ** 0.5

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"weight": self._weight, "first": self._first, "second": self._second}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: the weight or the mean square is negative.
        """
        if min(saved["weight"], saved["second"]) < 0.0:
            raise ValueError(f"{saved} are not moments")
        self._weight, self._first, self._second = saved["weight"], saved["first"], saved["second"]
