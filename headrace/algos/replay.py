"""Learner-owned memories of batches: a uniform ring of columns, and IMPACT's circular buffer.

Both hold what ``fresh()`` returned, in the order of its columns, and copy nothing to the actors'
side. Their ``state_dict`` holds tensors and plain values only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.types import Batch


def concatenate(batches: list[Batch]) -> Batch:
    """The columns of several batches side by side, in their order.

    Args:
        batches: ``[T, B_i]`` each, with equal T, trees of one structure and the same targets.

    Returns:
        a batch of ``[T, sum(B_i)]`` in memory of its own.

    Raises:
        ValueError: the trees differ.
    """

    def join(name: str) -> Any:
        parts = [getattr(batch, name) for batch in batches]
        return tree.map_leaves(lambda *leaves: torch.cat(leaves, _dim(name)), *parts)

    return Batch(**{field.name: join(field.name) for field in fields(Batch)})


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
        parts = _as_dict(batch.columns(kept))
        if self._store is None:
            self._store = {name: self._allocate(name, part) for name, part in parts.items()}
        index = torch.arange(kept.stop - kept.start, device=self._device)
        index = (index + self._next) % self._capacity
        for name, part in parts.items():
            for held, new in zip(tree.leaves(self._store[name]), tree.leaves(part), strict=True):
                place = (slice(None),) * _dim(name) + (index,)
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
            held = _as_dict(Batch(**self._store).columns(torch.arange(self._size)))
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
            self.add(Batch(**saved["columns"]))
        self._next = saved["next"]

    def _allocate(self, name: str, part: Any) -> Any:
        def zeros(x: Tensor) -> Tensor:
            shape = list(x.shape)
            shape[_dim(name)] = self._capacity
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
            "batches": [None if b is None else _as_dict(b) for b in self._batches],
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
            None if b is None else Batch(**tree.map_leaves(lambda x: x.to(self._device), b))
            for b in saved["batches"]
        ]


def _as_dict(batch: Batch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(Batch)}


def _dim(name: str) -> int:
    """Where a field of Batch has its columns."""
    return 0 if name == "core" else 1
