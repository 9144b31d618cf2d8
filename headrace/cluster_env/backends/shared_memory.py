"""Passes the arrays of answers between two processes of a machine in shared memory.

A pipe copies an array into the kernel and out again in pieces of some 200 kB, and pickling a step's
arrays takes longer than copying them. Here the sender writes them once, and the receiver copies
them once:

    sender                                   receiver
    writes the arrays into its block
    sends their layout, if that has
    changed since the last time, and
    all other values                     ->  copies them out
    waits for the next request           <-  sends a request

So the block is always free when the sender has an answer.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from headrace.cluster_env.messages import Answer
from headrace.processes.memory import memory_file

_ALIGNMENT = 64  # alignment of arrays, in bytes


class ArrayLayout(NamedTuple):
    """Answer whose arrays have another layout in the block than those of the previous answer."""

    new_block: bool  # the sender passes it after this message
    form: Any  # of the value, see :func:`_flatten`
    rest: tuple[Any, ...]  # non-array leaves and the answer's other fields


class ArraySender:
    """Pickles answers without their arrays, which it writes to a growing shared block."""

    def __init__(self) -> None:
        self._file, self._memory = -1, memoryview(bytearray())
        self._has_block = True  # the receiver
        self._due = False  # a new block to pass on
        self._form: Any = ()  # form of the previous answer; () if none
        self._places: list[np.ndarray] = []  # slots of its arrays in the block

    def dumps(self, answer: Answer) -> bytes:
        """Pickle an answer for :class:`ArrayReceiver`, which must receive it before the next one.

        :meth:`hand_over` is called between two answers.
        """
        arrays, others = list[np.ndarray](), list[Any]()
        form = _flatten(answer.value, arrays, others)
        message: Any = (others, *answer[1:])
        if changed := form != self._form:
            self._lay_out(form)
            message = ArrayLayout(not self._has_block, form, message)
        for place, array in zip(self._places, arrays, strict=True):
            place[...] = array
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if changed:
            self._form, self._due = form, not self._has_block
        return pickled

    def _lay_out(self, form: Any) -> None:
        self._form = ()  # until a message that announces it is pickled
        slots, size = _slots(form)
        if size > len(self._memory):
            if self._file >= 0:
                os.close(self._file)
            with memory_file(size) as path:
                self._file = os.open(path, os.O_RDWR)
            self._memory, self._has_block = _mapped(self._file), False
        self._places = _arrays(slots, self._memory)

    def hand_over(self, pipe: Connection) -> None:
        """Send a new block after the message that announces it.

        It is sent as a file descriptor, so the receiver can read it after the sender has exited.
        """
        if self._due:
            reduction.send_handle(pipe, self._file, None)
            self._due, self._has_block = False, True


class ArrayReceiver:
    """Restores the answers of an :class:`ArraySender`."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())
        self._form: Any = None  # form and slots of the latest answer
        self._slots, self._size = _slots(None)

    def loads(self, data: bytes, pipe: Connection) -> Any:
        """Unpickle an answer with copied arrays; other messages are unpickled unchanged.

        Args:
            data: a message from ``pipe``, which may be followed by a block.

        Raises:
            EOFError: the sender exited before it sent its block.
        """
        message = pickle.loads(data)
        if isinstance(message, ArrayLayout):
            if message.new_block:
                file = reduction.recv_handle(pipe)
                self._memory = _mapped(file)
                os.close(file)
            self._form, (self._slots, self._size) = message.form, _slots(message.form)
            message = message.rest
        elif type(message) is not tuple:
            return message
        others, *rest = message
        arrays = _arrays(self._slots, bytearray(self._memory[: self._size]))
        return Answer(_unflatten(self._form, iter(arrays), iter(others)), *rest)


Slot = tuple[tuple[int, ...], np.dtype, int]  # shape, dtype and offset


def _flatten(value: Any, arrays: list[np.ndarray], others: list[Any]) -> Any:
    """Return a tree's form: keys and list of a dict, a list of a tuple, shape and dtype of an
    array.

    Other leaves have form None; leaves are appended to the two lists.
    """
    kind = type(value)
    if kind is dict:
        return tuple(value), [_flatten(part, arrays, others) for part in value.values()]
    if kind is tuple:
        return [_flatten(part, arrays, others) for part in value]
    if kind is np.ndarray and not value.dtype.hasobject:
        arrays.append(value)
        return value.shape, value.dtype
    others.append(value)
    return None


def _unflatten(form: Any, arrays: Iterator[np.ndarray], others: Iterator[Any]) -> Any:
    """Rebuild a tree from its form and leaves."""
    if form is None:
        return next(others)
    if type(form) is list:
        return tuple([_unflatten(part, arrays, others) for part in form])
    keys, parts = form
    if type(parts) is not list:
        return next(arrays)
    return dict(zip(keys, [_unflatten(part, arrays, others) for part in parts], strict=True))


def _slots(form: Any) -> tuple[list[Slot], int]:
    """Return the consecutive offsets of a form's arrays, and their total size in bytes."""
    slots, size = list[Slot](), 0

    def walk(form: Any) -> None:
        nonlocal size
        if form is None:
            return
        if type(form) is not list:
            first, form = form
            if type(form) is not list:
                slots.append((first, form, size))
                size += -(-math.prod(first) * form.itemsize // _ALIGNMENT) * _ALIGNMENT
                return
        for part in form:
            walk(part)

    walk(form)
    return slots, size


def _arrays(slots: list[Slot], memory: memoryview | bytearray) -> list[np.ndarray]:
    return [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in slots]


def _mapped(file: int) -> memoryview:
    return memoryview(mmap.mmap(file, os.fstat(file).st_size))
