"""Answers between two processes of a machine, their arrays through memory that both see.

A pipe copies an array into the kernel and out again in pieces of some 200 kB, and pickling a step's
arrays takes longer than copying them. Here the sender writes them once, and the receiver copies
them once:

    sender                                   receiver
    writes the arrays into its block
    sends where they are, if that has
    changed since the last time, and
    what isn't an array                  ->  copies them out
    waits until it is asked again        <-  asks

So the block is free again whenever there is something to send.
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

_ALIGNMENT = 64  # bytes, of where an array begins


class ArrayLayout(NamedTuple):
    """An answer whose arrays lie in the block in another way than those of the one before."""

    new_block: bool  # which the sender hands over behind this message
    form: Any  # of the value, see :func:`_take_apart`
    rest: tuple[Any, ...]  # what is no array, and the answer's other fields


class ArraySender:
    """Pickles answers without their arrays, which go into a block that grows with them."""

    def __init__(self) -> None:
        self._file, self._memory = -1, memoryview(bytearray())
        self._has_block = True  # the receiver
        self._due = False  # for the block to be handed over
        self._form: Any = ()  # of what was sent last; () is none
        self._places: list[np.ndarray] = []  # of its arrays, in the block

    def dumps(self, answer: Answer) -> bytes:
        """What :class:`ArrayReceiver` makes the answer of; it has to be received before the next.

        Between the two comes :meth:`hand_over`.
        """
        arrays, others = list[np.ndarray](), list[Any]()
        form = _take_apart(answer.value, arrays, others)
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
        self._form = ()  # until a message that tells it is made
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

        It goes as a descriptor, so that the receiver can read it when the sender has gone.
        """
        if self._due:
            reduction.send_handle(pipe, self._file, None)
            self._due, self._has_block = False, True


class ArrayReceiver:
    """The other side of a :class:`ArraySender`."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())
        self._form: Any = None  # of the latest answer
        self._slots, self._size = _slots(None)

    def loads(self, data: bytes, pipe: Connection) -> Any:
        """The answer, with arrays of its own; any other message as it is.

        Args:
            data: a message that came through ``pipe``, behind which a block may come.

        Raises:
            EOFError: the sender has gone before it handed its block over.
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
        return Answer(_put_together(self._form, iter(arrays), iter(others)), *rest)


Slot = tuple[tuple[int, ...], np.dtype, int]  # shape, dtype, and where it begins


def _take_apart(value: Any, arrays: list[np.ndarray], others: list[Any]) -> Any:
    """A tree's form: keys and list of a dict, a list of a tuple, shape and dtype of an array.

    Anything else is None; its leaves are appended to the two lists.
    """
    kind = type(value)
    if kind is dict:
        return tuple(value), [_take_apart(part, arrays, others) for part in value.values()]
    if kind is tuple:
        return [_take_apart(part, arrays, others) for part in value]
    if kind is np.ndarray and not value.dtype.hasobject:
        arrays.append(value)
        return value.shape, value.dtype
    others.append(value)
    return None


def _put_together(form: Any, arrays: Iterator[np.ndarray], others: Iterator[Any]) -> Any:
    """What was taken apart."""
    if form is None:
        return next(others)
    if type(form) is list:
        return tuple([_put_together(part, arrays, others) for part in form])
    keys, parts = form
    if type(parts) is not list:
        return next(arrays)
    return dict(zip(keys, [_put_together(part, arrays, others) for part in parts], strict=True))


def _slots(form: Any) -> tuple[list[Slot], int]:
    """Where the arrays of a form lie, one after the other, and the bytes that they take."""
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
