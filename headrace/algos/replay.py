"""Replay memories in the learner: a uniform ring buffer of columns, and IMPACT's circular buffer.

Both hold the batches of ``fresh()``, in the order of their columns. ``state_dict`` contains only
tensors and plain values; ``load_state_dict`` raises ValueError for a state of another size.

With several learners, each holds its part of the columns. ``reshard(states, rank, size)`` returns
the state of learner ``rank`` of ``size`` from the states of all saved learners, in order. If the
number of learners is unchanged, that is ``states[rank]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.types import Batch, map_columns


class ReplayBuffer:
    """Holds the last ``capacity`` columns (trajectories) and samples them uniformly.

    Memory for all columns is allocated with the first batch and never grows.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self._capacity, self._device = capacity, torch.device(device)
        self._store: Batch | None = None  # of ``capacity`` columns
        self._next = self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: Batch) -> None:
        """Copy a batch's columns into the buffer, replacing the oldest ones.

        Raises:
            ValueError: its trees differ from those of the first batch.
            RuntimeError: its number of rows or its dtypes differ.
        """
        if self._store is None:
            self._store = map_columns(self._allocate, batch)
        kept = batch.columns(slice(-self._capacity, None))
        index = torch.arange(kept.valid.shape[1], device=self._device)
        index = (index + self._next) % self._capacity

        def put(dim: int, held: Tensor, new: Tensor) -> Tensor:
            return held.index_copy_(dim, index, new.to(self._device))

        map_columns(put, self._store, kept)
        self._next = (self._next + len(index)) % self._capacity
        self._size = min(self._size + len(index), self._capacity)

    def sample(self, num_columns: int, generator: torch.Generator) -> Batch:
        """Sample copies of ``num_columns`` columns, uniformly with replacement.

        Args:
            generator: random generator on the CPU.

        Raises:
            ValueError: the buffer is empty.
        """
        if self._store is None:
            raise ValueError("the replay buffer holds nothing to sample from")
        index = torch.randint(self._size, (num_columns,), generator=generator)
        return self._store.columns(index.to(self._device))

    def state_dict(self) -> dict[str, Any]:
        """Return the stored columns and the position in the ring."""
        all_columns = torch.arange(self._size, device=self._device)
        held = None if self._store is None else self._store.columns(all_columns)
        columns = None if held is None else as_dict(held)
        return {"capacity": self._capacity, "next": self._next, "columns": columns}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        if saved["capacity"] != self._capacity:
            raise ValueError(
                f"the state's replay buffer has {saved['capacity']} columns, not {self._capacity}"
            )
        self._store, self._next, self._size = None, 0, 0
        if saved["columns"] is not None:
            self.add(from_dict(saved["columns"]))
        self._next = saved["next"]

    @staticmethod
    def reshard(states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Divide the columns of all learners among ``size`` learners.

        The newest columns that fit are kept and dealt out in turn, so each learner gets the same
        share, up to one column, of every age. Two columns are equally old if the same number of
        columns followed them in their buffers. The capacity is an equal share, rounded down.

        Raises:
            ValueError: the capacity would be less than one column per learner.
        """
        if len(states) == size:
            return states[rank]
        total = sum(state["capacity"] for state in states)
        capacity = total // size
        if not capacity:
            raise ValueError(f"replay of {total} columns can't be shared out to {size} learners")
        held = [from_dict(s["columns"]) for s in states if s["columns"] is not None]
        starts = [s["next"] for s in states if s["columns"] is not None]
        order = oldest_first([batch.valid.shape[1] for batch in held], starts)[-capacity * size :]
        share = order[(len(order) + rank) % size :: size]  # the last column goes to the last rank
        columns = as_dict(pick(held, share)) if len(share) else None
        return {"capacity": capacity, "next": len(share) % capacity, "columns": columns}

    def _allocate(self, dim: int, x: Tensor) -> Tensor:
        shape = (*x.shape[:dim], self._capacity, *x.shape[dim + 1 :])
        return torch.zeros(shape, dtype=x.dtype, device=self._device)


class CircularBuffer:
    """Slots of batches that are each used ``passes`` times (IMPACT, section 3.2).

    Args:
        size: N, the number of slots.
        passes: K, the number of uses of a batch before it is discarded.
        device: device of restored batches.
    """

    def __init__(self, size: int, passes: int, device: torch.device | str = "cpu") -> None:
        self._batches: list[Batch | None] = [None] * size
        self._traversed = [0] * size
        self._passes, self._device = passes, torch.device(device)

    def visit(self, iteration: int, new: Callable[[], Batch]) -> Batch:
        """Return the batch of slot ``iteration mod N``, after filling an empty slot with ``new()``.

        The visit counts as one use; after the last use the slot is empty again.
        """
        slot = iteration % len(self._batches)
        batch = self._batches[slot]
        if batch is None:
            batch, self._traversed[slot] = new(), 0
        self._traversed[slot] += 1
        self._batches[slot] = batch if self._traversed[slot] < self._passes else None
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the batches that will be used again, and the number of uses so far."""
        return {
            "passes": self._passes,
            "traversed": list(self._traversed),
            "batches": [None if b is None else as_dict(b) for b in self._batches],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        theirs = len(saved["batches"]), saved["passes"]
        if theirs != (len(self._batches), self._passes):
            raise ValueError(
                f"the state's circular buffer has {theirs[0]} batches of {theirs[1]} passes, not "
                f"{len(self._batches)} of {self._passes}"
            )
        self._traversed = list(saved["traversed"])
        self._batches = [
            None if b is None else from_dict(tree.map_leaves(lambda x: x.to(self._device), b))
            for b in saved["batches"]
        ]

    @staticmethod
    def reshard(states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Divide the columns of each slot among ``size`` learners.

        The batches of a slot are concatenated in the order of the learners and split into equal
        parts. Columns keep their targets.

        Raises:
            ValueError: ``size`` doesn't divide the number of columns of a batch, or the learners
                were saved at different steps.
        """
        if len(states) == size:
            return states[rank]
        done = [(s["passes"], s["traversed"], [b is None for b in s["batches"]]) for s in states]
        if any(one != done[0] for one in done):
            raise ValueError("the learners' circular buffers were not saved at the same step")

        def part(*slot: Any) -> Any:
            if slot[0] is None:
                return None
            batches = [from_dict(b) for b in slot]
            total = sum(batch.valid.shape[1] for batch in batches)
            if total % size:
                raise ValueError(
                    f"a batch of {total} columns can't be shared out evenly to {size} learners"
                )
            share = total // size
            return as_dict(pick(batches, torch.arange(rank * share, (rank + 1) * share)))

        return {**states[0], "batches": list(map(part, *(state["batches"] for state in states)))}


# -- columns of several batches -------------------------------------------------------------------


def concatenate(batches: list[Batch]) -> Batch:
    """Concatenate the columns of several batches, in order.

    Args:
        batches: ``[T, B_i]`` each, with equal T, trees of one structure and the same targets.

    Returns:
        a batch of ``[T, sum(B_i)]`` in new memory.

    Raises:
        ValueError: the trees differ.
    """
    return map_columns(lambda dim, *leaves: torch.cat(leaves, dim), *batches)


def pick(batches: list[Batch], index: Tensor) -> Batch:
    """Select columns by their index in the concatenation of several batches.

    Args:
        batches: as in :func:`concatenate`.
        index: ``[N]`` int64 on the CPU, N >= 1, each within the columns.

    Returns:
        a batch of ``[T, N]`` in the order of ``index``, in new memory.
    """
    parts, places, start = [], [], 0
    for batch in batches:
        stop = start + batch.valid.shape[1]
        here = ((index >= start) & (index < stop)).nonzero().flatten()
        if len(here):
            parts.append(batch.columns(index[here] - start))
            places.append(here)
        start = stop
    return concatenate(parts).columns(torch.cat(places).argsort())


def oldest_first(sizes: list[int], starts: list[int]) -> Tensor:
    """Return the indices of all columns of several rings, from the oldest to the newest, int64.

    Args:
        sizes: number of columns in each ring, 1 or more.
        starts: position of the oldest column in each ring, modulo its size.
    """
    befores = itertools.accumulate(sizes, initial=0)
    newer_and_column = [
        (size - 1 - i, before + (start + i) % size)
        for before, size, start in zip(befores, sizes, starts, strict=False)
        for i in range(size)
    ]
    newer_and_column.sort(key=lambda pair: -pair[0])  # equally old: by rank
    return torch.tensor([column for _, column in newer_and_column], dtype=torch.int64)


def as_dict(batch: Batch) -> dict[str, Any]:
    """Return the fields of a batch, for :func:`from_dict`."""
    return dict(vars(batch))


def from_dict(saved: dict[str, Any]) -> Batch:
    """Restore a batch from the fields that :func:`as_dict` returned."""
    return Batch(**saved)
