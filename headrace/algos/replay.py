"""Learner-owned memories of batches: a uniform ring of columns, and IMPACT's circular buffer.

Both hold what ``fresh()`` returned, in the order of its columns, and copy nothing to the actors'
side. Their ``state_dict`` holds tensors and plain values only. Where several learners work side by
side, each holds the columns of its own part; ``reshard`` shares their states out among another
number of learners.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.algos.columns import as_dict, concatenate, dim_of, from_dict, oldest_first, pick
from headrace.ops import tree
from headrace.types import Batch

__all__ = ["CircularBuffer", "ReplayBuffer", "concatenate"]


class ReplayBuffer:
    """The last ``capacity`` columns (trajectories), from which any is drawn with equal chance.

    Memory is allocated for all columns when the first batch comes and never grows.

    Args:
        capacity: columns.
        device: where they are kept.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self._capacity, self._device = capacity, torch.device(device)
        self._store: dict[str, Any] | None = None  # Batch's fields with ``capacity`` columns
        self._next = self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: Batch) -> None:
        """Copy a batch's columns in; the oldest ones make room.

        Raises:
            ValueError: its trees are not those of the first batch.
            RuntimeError: its rows are not as many, or its dtypes others.
        """
        num_columns = batch.valid.shape[1]
        kept = slice(max(0, num_columns - self._capacity), num_columns)
        parts = as_dict(batch.columns(kept))
        if self._store is None:
            self._store = {name: self._allocate(name, part) for name, part in parts.items()}
        index = torch.arange(kept.stop - kept.start, device=self._device)
        index = (index + self._next) % self._capacity
        for name, part in parts.items():
            for held, new in zip(tree.leaves(self._store[name]), tree.leaves(part), strict=True):
                place = (slice(None),) * dim_of(name) + (index,)
                held[place] = new.to(self._device)
        self._next = (self._next + len(index)) % self._capacity
        self._size = min(self._size + len(index), self._capacity)

    def sample(self, num_columns: int, generator: torch.Generator) -> Batch:
        """``num_columns`` columns drawn uniformly with replacement, copied.

        Args:
            num_columns: how many.
            generator: on the CPU.

        Raises:
            ValueError: nothing is held.
        """
        if self._store is None:
            raise ValueError("the replay buffer holds nothing to sample from")
        index = torch.randint(self._size, (num_columns,), generator=generator)
        return Batch(**self._store).columns(index.to(self._device))

    def state_dict(self) -> dict[str, Any]:
        """The columns held and the position in the ring."""
        held = None
        if self._store is not None:
            held = as_dict(Batch(**self._store).columns(torch.arange(self._size)))
        return {"capacity": self._capacity, "next": self._next, "columns": held}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            ValueError: it is of another capacity.
        """
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
        """The state of learner ``rank`` of ``size``, out of those of all learners there were.

        As many columns as fit are kept, the newest ones, and dealt out in turn, so that each
        learner has an even share, up to one column, of every age. Columns count as equally old
        where as many came after them in their own buffers.

        Args:
            states: what :meth:`state_dict` returned on each of the learners, in order.
            rank: of the new learner; size: the new number of learners.

        Returns:
            a state with an equal share of the capacity, rounded down; for as many learners as
            there were, ``states[rank]`` itself.

        Raises:
            ValueError: the capacity is less than a column for each learner.
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

    def _allocate(self, name: str, part: Any) -> Any:
        def zeros(x: Tensor) -> Tensor:
            shape = list(x.shape)
            shape[dim_of(name)] = self._capacity
            return torch.zeros(shape, dtype=x.dtype, device=self._device)

        return tree.map_leaves(zeros, part)


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
        """Restore what :meth:`state_dict` returned.

        Raises:
            ValueError: it is of another size or number of passes.
        """
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
        """The state of learner ``rank`` of ``size``, out of those of all learners there were.

        The batches of a slot are joined in the order of the learners and cut into equal parts;
        what was computed of a column, its targets, stays with it.

        Args:
            states: what :meth:`state_dict` returned on each of the learners, in order.
            rank: of the new learner; size: the new number of learners.

        Returns:
            for as many learners as there were, ``states[rank]`` itself.

        Raises:
            ValueError: a batch has a number of columns that ``size`` doesn't divide, or the
                learners had not come equally far.
        """
        if len(states) == size:
            return states[rank]
        head = states[0]
        if any(_progress(state) != _progress(head) for state in states):
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

        return {**head, "batches": list(map(part, *(state["batches"] for state in states)))}


def _progress(state: dict[str, Any]) -> tuple[Any, ...]:
    """What the circular buffers of learners that work in step agree on."""
    return state["passes"], state["traversed"], [batch is None for batch in state["batches"]]
