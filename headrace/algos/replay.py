"""Learner-owned memories of batches: a uniform ring of columns, and IMPACT's circular buffer.

Both hold what ``fresh()`` returned, in the order of its columns, and copy nothing to the actors'
side. Their ``state_dict`` holds tensors and plain values only; ``load_state_dict`` raises
ValueError for one of another size.

Where several learners work side by side, each holds the columns of its own part. ``reshard(states,
rank, size)`` gives the state of learner ``rank`` of ``size`` out of what ``state_dict`` returned on
each learner there was, in order; for as many learners as there were it is ``states[rank]`` itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.types import Batch, map_columns


class ReplayBuffer:
    """The last ``capacity`` columns (trajectories), from which any is drawn with equal chance.

    Memory is allocated for all columns when the first batch comes and never grows.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self._capacity, self._device = capacity, torch.device(device)
        self._store: Batch | None = None  # of ``capacity`` columns
        self._next = self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: Batch) -> None:
        """Copy a batch's columns in; the oldest ones make room.

        Raises:
            ValueError: its trees are not those of the first batch.
            RuntimeError: its rows are not as many, or its dtypes others.
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
        """``num_columns`` columns drawn uniformly with replacement, copied.

        Args:
            generator: on the CPU.

        Raises:
            ValueError: nothing is held.
        """
        if self._store is None:
            raise ValueError("the replay buffer holds nothing to sample from")
        index = torch.randint(self._size, (num_columns,), generator=generator)
        return self._store.columns(index.to(self._device))

    def state_dict(self) -> dict[str, Any]:
        """The columns held and the position in the ring."""
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
        """Share the columns of all learners out anew.

        As many columns as fit are kept, the newest ones, and dealt out in turn, so that each
        learner has an even share, up to one column, of every age. Columns count as equally old
        where as many came after them in their own buffers. The capacity is an equal share, rounded
        down.

        Raises:
            ValueError: that is less than a column for each learner.
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
        mine = order[(len(order) + rank) % size :: size]  # the last one is that of the last rank
        columns = as_dict(pick(held, mine)) if len(mine) else None
        return {"capacity": capacity, "next": len(mine) % capacity, "columns": columns}

    def _allocate(self, dim: int, x: Tensor) -> Tensor:
        shape = (*x.shape[:dim], self._capacity, *x.shape[dim + 1 :])
        return torch.zeros(shape, dtype=x.dtype, device=self._device)


class CircularBuffer:
    """Slots whose batches are traversed ``passes`` times each (IMPACT, section 3.2).

    Args:
        size: N, the number of slots.
        passes: K, how often a batch is traversed before it is discarded.
        device: where restored batches are put.
    """

    def __init__(self, size: int, passes: int, device: torch.device | str = "cpu") -> None:
        self._batches: list[Batch | None] = [None] * size
        self._traversed = [0] * size
        self._passes, self._device = passes, torch.device(device)

    def visit(self, iteration: int, new: Callable[[], Batch]) -> Batch:
        """The batch of slot ``iteration mod N``; an empty slot is filled with ``new()`` first.

        The visit counts as a traversal, and after the last one the slot is empty again.
        """
        slot = iteration % len(self._batches)
        batch = self._batches[slot]
        if batch is None:
            batch, self._traversed[slot] = new(), 0
        self._traversed[slot] += 1
        self._batches[slot] = batch if self._traversed[slot] < self._passes else None
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The batches that are still to be traversed, and how often each was."""
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
        """Share the columns of each slot out anew.

        The batches of a slot are joined in the order of the learners and cut into equal parts;
        what was computed of a column, its targets, stays with it.

        Raises:
            ValueError: a batch has a number of columns that ``size`` doesn't divide, or the
                learners had not come equally far.
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
    """The columns of several batches side by side, in their order.

    Args:
        batches: ``[T, B_i]`` each, with equal T, trees of one structure and the same targets.

    Returns:
        a batch of ``[T, sum(B_i)]`` in memory of its own.

    Raises:
        ValueError: the trees differ.
    """
    return map_columns(lambda dim, *leaves: torch.cat(leaves, dim), *batches)


def pick(batches: list[Batch], index: Tensor) -> Batch:
    """Columns of batches that are counted through as if they stood side by side.

    Args:
        batches: as in :func:`concatenate`.
        index: ``[N]`` int64 on the CPU, N >= 1, each within the columns.

    Returns:
        a batch of ``[T, N]`` in the order of ``index``, in memory of its own.
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
    """The columns of several rings, counted through, from the oldest to the newest, int64.

    Args:
        sizes: columns of each ring, 1 or more; starts: where its oldest one is, modulo its size.
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
    """Its fields, which :func:`from_dict` makes the batch of again."""
    return dict(vars(batch))


def from_dict(saved: dict[str, Any]) -> Batch:
    """The batch of its fields, more or fewer of which an older version had."""
    if "version" not in saved:
        unknown = saved["terminated"].new_full(saved["terminated"].shape[1:], -1, dtype=torch.int64)
        saved = saved | {"version": unknown}
    return Batch(**{field.name: saved[field.name] for field in fields(Batch)})
