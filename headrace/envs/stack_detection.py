"""Whether what an environment shows is a stack of its latest pictures, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

_LEAST_BYTES = 256  # of a picture for which this is worth its while
_RESETS, _STEPS = 8, 64  # that are looked at; steps after the first two, until pictures differ


def may_be_stack(space: gymnasium.Space) -> bool:
    """Whether an observation has the shape ``[S, ...]`` of pictures, of bytes."""
    if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) < 3:
        return False
    return 2 <= space.shape[0] < 128 and int(np.prod(space.shape[1:])) >= _LEAST_BYTES


def goes_on(new: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Which of the stacks ``[B, S, ...]`` are the ``last`` ones with a new picture: ``[B]``."""
    same = new[:, :-1] == last[:, 1:]
    return same.reshape(len(new), -1).all(1)


def begins(stack: np.ndarray) -> int:
    """How a stack ``[S, ...]`` begins: 1, black but for its newest picture; -1, the same S times.

    0: otherwise.
    """
    if not stack[:-1].any():
        return 1
    return -1 if (stack[:-1] == stack[-1]).all() else 0


def shows_stacks(reset: Callable[[], Any], step: Callable[[], Any]) -> bool:
    """Look at an environment: it does if a few steps and resets show nothing else.

    Args:
        reset, step: return observations ``[1, S, ...]``; a step's action is random.
    """
    last = None
    for count in range(_RESETS):
        new, told = np.array(reset()), 0
        if not begins(new[0]) and (last is None or not goes_on(new, last)[0]):
            return False
        last = new
        for _ in range(_STEPS) if count < 2 else ():
            new = np.array(step())
            if not goes_on(new, last)[0] and not begins(new[0]):
                return False
            told += bool((new[0, :-1] != new[0, 1:]).any())  # else any order would look like it
            last = new
            if told > new.shape[1]:
                break
        else:
            if count < 2:
                return False
    return True
