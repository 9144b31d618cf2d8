"""All-reduce and all-gather over a network in about log2(W) sequential messages.

With direct messages between all pairs, W - 1 messages follow each other, and in a ring 2(W - 1).
Here a rank exchanges with the rank that differs in one bit, bit by bit. *Doubling* sends the whole
vector each time; *halving* sends a half, then a quarter ..., and back (Thakur, Rabenseifner and
Gropp 2005, "Optimization of Collective Communication Operations in MPICH").

Both ranks of a pair add the same two vectors, and a + b = b + a, so all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

DOUBLING_BYTES = 1 << 17  # bytes whose transfer takes as long as a message's latency
Swap: TypeAlias = Callable[[int, Tensor, int, Tensor], None]  # to, out, source, into


class RankLost(RuntimeError):
    """Raised if a rank didn't answer."""

    def __init__(self, rank: int, cause: object) -> None:
        super().__init__(str(cause))
        self.rank = rank


def swap(to: int, out: Tensor, source: int, into: Tensor) -> None:
    """Send one vector and receive another, through torch's default group.

    Raises:
        RankLost: one of the two is gone, or silent until the group's timeout.
    """
    lost = source
    try:
        receiving = dist.irecv(into, source) if into.numel() else None
        lost = to
        sending = dist.isend(out, to) if out.numel() else None
        lost = source
        if receiving is not None:
            receiving.wait()
        lost = to
        if sending is not None:
            sending.wait()
    except RuntimeError as error:
        raise RankLost(lost, error) from error


def add_up(values: Tensor, ranks: Sequence[int], me: int, swap: Swap = swap) -> Tensor:
    """All-reduce ``[n]`` over some ranks, in place; bitwise equal on all of them.

    Args:
        values: contiguous vector.
        ranks: participating ranks.
        me: index of this rank among them.

    Raises:
        RankLost: see ``swap``.
    """
    size, nothing = len(ranks), values[:0]
    if size == 1:
        return values
    full = _power_of_two(size)
    rest = size - full
    if me >= full:
        swap(ranks[me - full], values, ranks[me - full], nothing)
        swap(ranks[me - full], nothing, ranks[me - full], values)
        return values
    if me < rest:
        other = torch.empty_like(values)
        swap(ranks[me + full], nothing, ranks[me + full], other)
        values += other
    halves = _halves(full, values.numel() * values.element_size())
    (_halving if halves else _doubling)(values, ranks[:full], me, swap)
    if me < rest:
        swap(ranks[me + full], values, ranks[me + full], nothing)
    return values


def _power_of_two(size: int) -> int:
    """Return the largest power of two; other ranks first send their vector to one of these."""
    return 1 << (size.bit_length() - 1)


def _halves(full: int, num_bytes: int) -> bool:
    """Return True if halving saves more bytes than its extra messages cost."""
    steps = full.bit_length() - 1
    return num_bytes * (steps - 2 * (full - 1) / full) > steps * DOUBLING_BYTES


def sum_parts(size: int, num_bytes: float) -> tuple[float, float]:
    """Return the sequential messages and bytes of one :func:`add_up` of this many ranks."""
    full = _power_of_two(size)
    steps, handed = full.bit_length() - 1, 2 if size > full else 0
    if _halves(full, int(num_bytes)):
        return handed + 2.0 * steps, (handed + 2.0 * (full - 1) / full) * num_bytes
    return float(handed + steps), (handed + steps) * num_bytes


def rows_parts(size: int, num_bytes: float) -> tuple[float, float]:
    """Return the sequential messages and bytes of one :func:`rows` of this many ranks."""
    return float((size - 1).bit_length()), (size - 1) * num_bytes


def _doubling(values: Tensor, ranks: Sequence[int], me: int, swap: Swap) -> None:
    other, bit = torch.empty_like(values), 1
    while bit < len(ranks):
        swap(ranks[me ^ bit], values, ranks[me ^ bit], other)
        values += other
        bit *= 2


def _halving(values: Tensor, ranks: Sequence[int], me: int, swap: Swap) -> None:
    low, high, bit = 0, len(values), len(ranks) // 2
    other, done = torch.empty_like(values), list[tuple[int, slice, slice]]()
    while bit:
        middle = (low + high) // 2
        lower, upper = slice(low, middle), slice(middle, high)
        mine, theirs = (upper, lower) if me & bit else (lower, upper)
        swap(ranks[me ^ bit], values[theirs], ranks[me ^ bit], other[mine])
        values[mine] += other[mine]
        done.append((ranks[me ^ bit], mine, theirs))
        low, high, bit = mine.start, mine.stop, bit // 2
    for rank, mine, theirs in reversed(done):
        swap(rank, values[mine], rank, values[theirs])


def rows(values: Tensor, size: int, me: int, swap: Swap = swap) -> Tensor:
    """All-gather ``[n]`` as ``[W, n]`` in log2(W) messages (Bruck; Thakur et al., 4.1).

    Raises:
        RankLost: see ``swap``.
    """
    gathered = values.new_empty(size, *values.shape)  # row j is that of rank (me + j) % W
    gathered[0], count = values, 1
    while count < size:
        more = min(count, size - count)
        swap(
            (me - count) % size,
            gathered[:more],
            (me + count) % size,
            gathered[count : count + more],
        )
        count += more
    return gathered.roll(me, 0)
