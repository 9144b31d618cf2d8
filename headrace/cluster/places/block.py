"""Large arrays between two processes of a machine, through memory that both see.

A pipe copies an array into the kernel and out again in pieces of some 200 kB, and wakes both sides
for each. Here the sender writes it once, and the receiver copies it once:

    sender                                  receiver
    writes the arrays into its block
    sends where they are, and the rest  ->  copies them out
    waits until it is asked again       <-  asks

So the block is free again whenever there is something to send.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from typing import Any, NamedTuple

from headrace.process.memory import memory_file

LARGE_BYTES = 1 << 16  # of an array that goes through the block


class Blocked(NamedTuple):
    """A message whose large arrays are in a block, one after the other."""

    block: tuple[str, int]  # its path, and how many there were before
    sizes: list[int]  # bytes of each
    pickled: bytes


class Sender:
    """Pickles messages; large arrays go into a block, which grows with them."""

    def __init__(self) -> None:
        self._files = contextlib.ExitStack()
        self._block, self._memory = ("", 0), memoryview(bytearray())

    def dumps(self, message: Any) -> bytes:
        """What :class:`Receiver` makes the message of; it has to be received before the next."""
        large: list[memoryview] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            with contextlib.suppress(BufferError):  # not in one piece
                raw = buffer.raw()
                if raw.nbytes >= LARGE_BYTES:
                    large.append(raw)
                    return False
            return True

        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=stays)
        if not large:
            return pickled
        sizes = [raw.nbytes for raw in large]
        self._make_room(sum(sizes))
        start = 0
        for raw, size in zip(large, sizes, strict=True):
            self._memory[start : start + size] = raw
            start += size
        return pickle.dumps(Blocked(self._block, sizes, pickled), pickle.HIGHEST_PROTOCOL)

    def _make_room(self, num_bytes: int) -> None:
        if num_bytes > len(self._memory):
            self._files.close()
            path = self._files.enter_context(memory_file(num_bytes))
            self._block, self._memory = (path, self._block[1] + 1), memoryview(_mapped(path))


class Receiver:
    """The other side of a :class:`Sender`."""

    def __init__(self) -> None:
        self._block, self._memory = ("", 0), memoryview(bytearray())

    def loads(self, data: bytes) -> Any:
        """The message, with arrays of its own.

        Raises:
            OSError: the sender has gone, and its block with it.
        """
        message = pickle.loads(data)
        if not isinstance(message, Blocked):
            return message
        if message.block != self._block:  # a path may come again
            self._memory, self._block = memoryview(_mapped(message.block[0])), message.block
        arrays, start = [], 0
        for size in message.sizes:
            arrays.append(bytearray(self._memory[start : start + size]))
            start += size
        return pickle.loads(message.pickled, buffers=arrays)


def _mapped(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size)
