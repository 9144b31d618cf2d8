"""Stacks of pictures as the actor has them, of which a rollout holds single pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.envs.stack_detection import begins, goes_on
from headrace.errors import StacksChanged
from headrace.ops import tree
from headrace.ops.stacks import OWN, PICTURES, map_stacks
from headrace.transport.slab import ArraySpec
from headrace.types import Rollout


def held(num_rows: int, num_envs: int, stack: Tensor) -> dict[str, ArraySpec]:
    """The specs of stacks ``[1, S, ...]`` of so many rows, see ``headrace/ops/stacks.py``."""
    size, *shape = stack.shape[1:]
    rows = num_rows + size - 1
    own = ArraySpec((num_rows, num_envs), torch.int8)
    return {PICTURES: ArraySpec((rows, num_envs, *shape), stack.dtype), OWN: own}


def with_stacks(rollout: Rollout, name: str) -> Rollout:
    """A rollout whose rows of observations are whole ones, to be read and set by the actor."""
    first = rollout.first.numpy()
    obs = map_stacks(lambda x, own: SingleFrames(x, own, first, name), lambda x: x, rollout.obs)
    return rollout if obs is rollout.obs else replace(rollout, obs=obs)


def closed_columns(obs: Any) -> np.ndarray | None:
    """Which columns ``[B]`` end where they are, as is known while rows are set; None: none ever."""
    return next((x.closed for x in tree.leaves(obs) if isinstance(x, SingleFrames)), None)


class SingleFrames:
    """Stands for a leaf ``[T, B, S, ...]`` of a rollout that holds its pictures.

    Columns are set row by row, each behind its latest; only the latest rows can be read. What is
    set is compared with the row before: it is held exactly, or refused. An episode that opens in a
    way that can't be held closes its column: no step follows in this rollout, and the row, which
    nothing before it is computed from, is the next one's first, which is held whole.

    Args:
        pictures: ``[T + S - 1, B, ...]``; own: ``[T, B]`` int8; first: ``[T, B]`` bool, the
            rollout's, which is set before the row is. name: of the environment.
    """

    def __init__(self, pictures: Tensor, own: Tensor, first: np.ndarray, name: str) -> None:
        self._pictures, self._own, self._name = pictures.numpy(), own.numpy(), name
        self._first, self.closed = first, np.zeros(own.shape[1], bool)
        self._size = size = len(pictures) - len(own) + 1
        known = np.concatenate([np.arange(size + 1), np.arange(-size, 0)], dtype=np.int8)
        # By what a stack has of its own (below 0: counted from the end), what the next one has.
        self._next = np.where(abs(known) < size - 1, known + np.sign(known), size).astype(np.int8)
        shape = self._own.shape[1], self._size, *pictures.shape[2:]
        self._last = np.zeros(shape, self._pictures.dtype)  # [B, S, ...]
        self._given: Callable[[np.ndarray], Any] = torch.from_numpy

    def numpy(self) -> SingleFrames:
        """The same rows, read as arrays."""
        rows = copy.copy(self)
        rows._given = np.asarray
        return rows

    def flatten(self, *_: int) -> SingleFrames:
        """The same rows: a lone array of places counts through rows and columns."""
        return self

    def _at(self, at: Any) -> tuple[Any, Any]:
        """Row or rows, and the columns."""
        if isinstance(at, tuple):
            return tuple(map(np.asarray, at))  # type: ignore[return-value]
        if isinstance(at, int):
            return at, slice(None)
        return np.divmod(at, self._own.shape[1])

    def __getitem__(self, at: Any) -> Any:
        """Latest stacks, of all columns or of the named ones."""
        return self._given(self._last[self._at(at)[1]])

    def __setitem__(self, at: Any, stacks: Any) -> None:
        """Set rows that come next in their columns.

        Raises:
            StacksChanged: the stack can't be stored as single images, and doesn't start an episode.
        """
        (rows, columns), stacks = self._at(at), np.asarray(stacks)
        if isinstance(rows, int) and rows == 0:
            self._pictures[: self._size] = np.moveaxis(stacks, 1, 0)
            self._own[0] = self._size
        else:
            own = self._next[self._own[rows - 1, columns]]
            follows = goes_on(stacks, self._last[columns])
            for i in () if follows.all() else np.flatnonzero(~follows).tolist():
                own[i] = begins(stacks[i]) or self._close(rows, columns, i)
            self._pictures[rows + self._size - 1, columns] = stacks[:, -1]
            self._own[rows, columns] = own
        self._last[columns] = stacks

    def _close(self, rows: Any, columns: Any, i: int) -> int:
        """How a row is held that a closed column ends with."""
        row = rows if isinstance(rows, int) else int(rows[i])
        column = i if isinstance(columns, slice) else int(columns[i])
        if self._first[row, column]:
            self.closed[column] = True
            return -1
        raise StacksChanged(
            f"{self._name} showed pictures that don't go on with those before, in the middle of an "
            f"episode (environment {column} of this actor, row {row} of the fragment): hold its "
            "observations whole with stacked_frames='whole'"
        )

    def pad(self, rows: Tensor, columns: Tensor) -> None:
        """Show the latest picture alone in rows ``[M]`` behind the latest of their columns."""
        t, b = rows.numpy(), columns.numpy()
        self._pictures[t + self._size - 1, b] = self._last[b, -1]
        self._own[t, b] = -1
