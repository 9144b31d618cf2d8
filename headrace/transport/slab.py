"""Lays out trees of tensors in one flat byte buffer, private or shared between processes.

Slots and weights are both such trees. A buffer in shared memory has no name on disk, so the kernel
frees it with the last process that maps it, even if that process is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.errors import NoRoom
from headrace.ops import tree
from headrace.processes.memory import ENLARGE, SHARED_FOLDER

ALIGNMENT_BYTES = 64
_MAX_RECENT = 1024  # slots


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one leaf."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size in bytes, rounded up so that the next leaf starts on a cache line."""
        size = torch.Size(self.shape).numel() * self.dtype.itemsize
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def spec_of(values: Any) -> Any:
    """Return the tree of :class:`ArraySpec` that describes a tree of tensors."""
    return tree.map_leaves(lambda x: ArraySpec(tuple(x.shape), x.dtype), values)


def num_bytes(spec: Any) -> int:
    """Return the bytes that one tree of this spec occupies."""
    return sum(leaf.num_bytes for leaf in tree.leaves(spec))


def allocate(size: int, shared: bool) -> Tensor:
    """Allocate ``size`` zero bytes, private or in shared memory.

    Raises:
        NoRoom: there is not enough shared memory.
    """
    buffer = torch.zeros(size, dtype=torch.uint8)
    if not shared:
        return buffer
    try:
        return buffer.share_memory_()
    except (OSError, RuntimeError) as error:
        raise NoRoom(
            f"{size / 1e6:.1f} MB of shared memory can't be allocated in {SHARED_FOLDER} "
            f"({str(error).splitlines()[0]}): enlarge it with {ENLARGE}"
        ) from error


def views(buffer: Tensor, spec: Any) -> Any:
    """Return the tree of tensors of ``spec`` that alias ``buffer``, a flat uint8 tensor."""
    offset = 0

    def view(leaf: ArraySpec) -> Tensor:
        nonlocal offset
        size = torch.Size(leaf.shape).numel() * leaf.dtype.itemsize
        part = buffer[offset : offset + size].view(leaf.dtype).view(leaf.shape)
        offset += leaf.num_bytes
        return part

    return tree.map_leaves(view, spec)


class Slab:
    """``num_slots`` trees of one spec, each with an int64 header row.

    Args:
        spec: tree of :class:`ArraySpec` of one slot.
        num_slots: number of slots.
        num_header_fields: int64 numbers in front of each slot.
        buffer: an existing slab's buffer to attach to; None allocates.
        shared: allocate in shared memory.
    """

    def __init__(
        self,
        spec: Any,
        num_slots: int,
        num_header_fields: int,
        buffer: Tensor | None = None,
        shared: bool = False,
    ) -> None:
        header = ArraySpec((num_header_fields,), torch.int64)
        stride = header.num_bytes + num_bytes(spec)
        self.buffer = allocate(stride * num_slots, shared) if buffer is None else buffer
        self._slots = self.buffer[: stride * num_slots].view(num_slots, stride)
        self.headers = self._slots.view(torch.int64)[:, :num_header_fields].numpy()
        self.trees = SlotTrees(self._slots[:, header.num_bytes :], spec)

    def poison(self, slot: int) -> None:
        """Fill a slot with bytes that are NaN as floats and -1 as integers."""
        self._slots[slot].fill_(255)


class SlotTrees(Sequence[Any]):
    """Trees of tensors that alias the rows of ``[num_slots, bytes] uint8``; made on access."""

    def __init__(self, rows: Tensor, spec: Any) -> None:
        self._rows, self._spec = rows, spec
        self._recent: dict[int, Any] = {}  # views take more memory than small slots

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, slot: Any) -> Any:
        if slot not in self._recent:
            if len(self._recent) >= _MAX_RECENT:
                self._recent.clear()
            self._recent[slot] = views(self._rows[slot], self._spec)
        return self._recent[slot]


def memory_fence() -> None:
    """Order the memory accesses before it before those after it, on every processor."""
    lock = threading.Lock()
    for _ in range(2):  # accesses before a release stay before the next acquire
        with lock:
            pass
