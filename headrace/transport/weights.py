"""Stores weights in one flat versioned buffer that is never read half-written.

    learner:  publish(version)        reader:  pull(newer_than)
      write copy[(n + 1) % 2]           n = count; copy out copy[n % 2]
      count = n + 1                     again if count has moved meanwhile

The writer never touches the copy that ``count`` points to, so a reader whose ``count`` did not
move has read one whole publication. Neither side waits for the other.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.transport.slab import Slab, memory_fence

_COUNT, _VERSION, _EPOCH, _CUT = 0, 1, 2, 3
NUM_STORE_FIELDS = 4  # int64 numbers in front of each copy


class WeightSink(Protocol):
    """Learner's end of the weights of any transport; see :class:`WeightStore`."""

    def publish(self, version: int, epoch: int, weights: Any) -> None:
        """Make these weights the current ones."""

    def latest(self) -> tuple[int, int] | None:
        """Return (version, epoch) of the current weights; None before the first."""

    def cut(self, version: int) -> None:
        """Request that actors cut their rollouts of this version short."""


class WeightSource(Protocol):
    """Actor's end of the weights of any transport; see :class:`WeightStore`."""

    def latest(self) -> tuple[int, int] | None:
        """Return (version, epoch) of the current weights; None before the first."""

    def pull(self, newer_than: int, into: Any) -> tuple[int, int] | None:
        """Copy the current weights into the tensors of ``into`` if they are newer."""

    def is_cut(self, version: int) -> bool:
        """Return True if rollouts of this version are to be cut short."""


class WeightStore:
    """Versioned weights with one writer and any number of readers, in one or several processes.

    Args:
        spec: tree of :class:`~headrace.transport.slab.ArraySpec` of the weights.
        buffer: an existing store's buffer to attach to; None allocates.
        shared: allocate in shared memory.
    """

    def __init__(self, spec: Any, buffer: Tensor | None = None, shared: bool = False) -> None:
        self._slab = Slab(spec, 2, NUM_STORE_FIELDS, buffer, shared)
        self.buffer = self._slab.buffer  # other processes attach to it
        self._count = self._slab.headers[0]

    def publish(self, version: int, epoch: int, weights: Any) -> None:
        """Make ``weights``, a tree of tensors on any device, the current ones.

        Args:
            version: number of updates that produced these weights; must increase.
            epoch: actors reset their environments when it changes.

        Raises:
            ValueError: the version did not increase.
        """
        count = int(self._count[_COUNT])
        before = self._slab.headers[count % 2][_VERSION]
        if count and version <= before:
            raise ValueError(f"version {version} was published after {before}")
        target = (count + 1) % 2
        tree.map_leaves(lambda to, src: to.copy_(src.detach()), self._slab.trees[target], weights)
        self._slab.headers[target][[_VERSION, _EPOCH]] = version, epoch
        memory_fence()
        self._count[_COUNT] = count + 1

    def latest(self) -> tuple[int, int] | None:
        """Return (version, epoch) of the current weights without a copy; None before the first."""
        return self.pull(-1, None)

    def pull(self, newer_than: int, into: Any) -> tuple[int, int] | None:
        """Copy the current weights into the tensors of ``into``, if any, if they are newer.

        Returns:
            (version, epoch), or None if nothing newer than ``newer_than`` is published.
        """
        while True:
            count = int(self._count[_COUNT])
            memory_fence()
            if count == 0:
                return None
            _, version, epoch, _ = map(int, self._slab.headers[count % 2])
            if version > newer_than and into is not None:
                with torch.no_grad():
                    tree.map_leaves(Tensor.copy_, into, self._slab.trees[count % 2])
            memory_fence()
            if int(self._count[_COUNT]) == count:
                return (version, epoch) if version > newer_than else None

    def cut(self, version: int) -> None:
        """Request that rollouts of this and earlier versions end where they are."""
        self._count[_CUT] = version + 1

    def is_cut(self, version: int) -> bool:
        """Return True if :meth:`cut` was called for this version or a later one."""
        return bool(self._count[_CUT] > version)
