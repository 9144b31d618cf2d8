"""Stores stacked images as single images in rollouts and reconstructs the stacks for actors."""

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
    """Return the specs of stored stacks ``[1, S, ...]``, see ``headrace/ops/stacks.py``."""
    size, *shape = stack.shape[1:]
    rows = num_rows + size - 1
    own = ArraySpec((num_rows, num_envs), torch.int8)
    return {PICTURES: ArraySpec((rows, num_envs, *shape), stack.dtype), OWN: own}


def with_stacks(rollout: Rollout, name: str) -> Rollout:
    """Return a rollout whose observation rows read and write as whole stacks."""
    first = rollout.first.numpy()
    obs = map_stacks(lambda x, own: SingleFrames(x, own, first, name), lambda x: x, rollout.obs)
    return rollout if obs is rollout.obs else replace(rollout, obs=obs)


def closed_columns(obs: Any) -> np.ndarray | None:
    """Return the columns ``[B]`` closed early in this rollout; None if no column can be."""
    return next((x.closed for x in tree.leaves(obs) if isinstance(x, SingleFrames)), None)


class SingleFrames:
    """View of a leaf ``[T, B, S, ...]`` of a rollout that stores single images.

    Rows of a column are written in order, and only the latest can be read. Each new stack is
    compared with the previous row and stored exactly, or rejected. A first stack of an episode that
    can't be stored closes its column: the column has no further steps in this rollout, and the
    stack becomes the first row of the next rollout, which stores a whole stack.

    Args:
        pictures: ``[T + S - 1, B, ...]`` single images.
        own: ``[T, B]`` int8.
        first: ``[T, B]`` bool of the rollout, set before the row.
        name: name of the environment.
    """

    def __init__(self, pictures: Tensor, own: Tensor, first: np.ndarray, name: str) -> None:
        self._pictures, self._own, self._name = pictures.numpy(), own.numpy(), name
        self._first, self.closed = first, np.zeros(own.shape[1], bool)
        self._size = size = len(pictures) - len(own) + 1
        codes = np.concatenate([np.arange(size + 1), np.arange(-size, 0)], dtype=np.int8)
        # Maps a stack's code (negative: counted from the end) to the code of the next stack.
        self._next = np.where(abs(codes) < size - 1, codes + np.sign(codes), size).astype(np.int8)
        shape = self._own.shape[1], self._size, *pictures.shape[2:]
        self._last = np.zeros(shape, self._pictures.dtype)  # [B, S, ...]
        self._given: Callable[[np.ndarray], Any] = torch.from_numpy

    def numpy(self) -> SingleFrames:
        """Return the same rows as NumPy arrays."""
        rows = copy.copy(self)
        rows._given = np.asarray
        return rows

    def flatten(self, *_: int) -> SingleFrames:
        """Return the same rows with one flat index over rows and columns."""
        return self

    def _at(self, at: Any) -> tuple[Any, Any]:
        """Split an index into rows and columns."""
        if isinstance(at, tuple):
            return tuple(map(np.asarray, at))  # type: ignore[return-value]
        if isinstance(at, int):
            return at, slice(None)
        return np.divmod(at, self._own.shape[1])

    def __getitem__(self, at: Any) -> Any:
        """Return the latest stacks of all or the indexed columns."""
        return self._given(self._last[self._at(at)[1]])

    def __setitem__(self, at: Any, stacks: Any) -> None:
        """Write the next rows of columns.

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
        """Store the last row of a closed column."""
        row = rows if isinstance(rows, int) else int(rows[i])
        column = i if isinstance(columns, slice) else int(columns[i])
        if self._first[row, column]:
            self.closed[column] = True
            return -1
        raise StacksChanged(
            f"{self._name} returned images that don't continue the previous stack, in the middle "
            "of an "
            f"episode (environment {column} of this actor, row {row} of the fragment): store its "
            "observations whole with stacked_frames='whole'"
        )

    def pad(self, rows: Tensor, columns: Tensor) -> None:
        """Write the latest image into unused rows ``[M]`` after the last row of their columns."""
        t, b = rows.numpy(), columns.numpy()
        self._pictures[t + self._size - 1, b] = self._last[b, -1]
        self._own[t, b] = -1
