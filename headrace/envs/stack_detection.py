"""Detects whether observations are stacks of the latest images, and how stacks advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

_LEAST_BYTES = 256  # minimal bytes of an image
_RESETS, _STEPS = 8, 64  # numbers of steps; more after the first two, until images differ


def may_be_stack(space: gymnasium.Space) -> bool:
    """Return whether an observation has the shape ``[S, ...]`` of uint8 images."""
    if not isinstance(space, Box) or space.dtype != np.uint8 or len(space.shape) < 3:
        return False
    return 2 <= space.shape[0] < 128 and int(np.prod(space.shape[1:])) >= _LEAST_BYTES


def goes_on(new: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return which stacks ``[B, S, ...]`` are the ``last`` ones shifted by a new image: ``[B]``."""
    same = new[:, :-1] == last[:, 1:]
    return same.reshape(len(new), -1).all(1)


def begins(stack: np.ndarray) -> int:
    """Classify the first stack ``[S, ...]`` of an episode.

    Returns 1 if it is black except for the newest image, -1 if it repeats one image S times, else
    0.
    """
    if not stack[:-1].any():
        return 1
    return -1 if (stack[:-1] == stack[-1]).all() else 0


def shows_stacks(reset: Callable[[], Any], step: Callable[[], Any]) -> bool:
    """Return whether a few steps and resets of an environment show only stacks.

    Args:
        reset, step: return observations ``[1, S, ...]``; a step's action is random.
    """
    last = None
    for count in range(_RESETS):
        new, informative = np.array(reset()), 0
        if not begins(new[0]) and (last is None or not goes_on(new, last)[0]):
            return False
        last = new
        for _ in range(_STEPS) if count < 2 else ():
            new = np.array(step())
            if not goes_on(new, last)[0] and not begins(new[0]):
                return False
            informative += bool(
                (new[0, :-1] != new[0, 1:]).any()
            )  # otherwise any order would match
            last = new
            if informative > new.shape[1]:
                break
        else:
            if count < 2:
                return False
    return True
