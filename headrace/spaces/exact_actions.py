"""Converts actions to the exact types of their space's samples, for spaces that need it.

Rows of a batch are scalars although a Box without dimensions needs an array, and integer actions
are usually int64 although a Discrete space may have another dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from headrace.spaces.walk import Space, leaves, map_space


def exact(space: Space) -> Callable[[Any], Any] | None:
    """Return a function that converts one action to the types of ``space.sample()``.

    Returns None if rows of a batch have these types already, so that common spaces cost nothing.
    """
    if not any(map(_needs_it, (leaf for _, leaf in leaves(space)))):
        return None
    return lambda action: map_space(_converted, space, action)


def _needs_it(leaf: Any) -> bool:
    if isinstance(leaf, Discrete | MultiDiscrete):
        return leaf.dtype != np.int64
    return isinstance(leaf, Box) and leaf.shape == ()


def _converted(leaf: Any, action: Any) -> Any:
    if isinstance(leaf, Discrete):
        return leaf.dtype.type(action)
    return np.asarray(action, leaf.dtype) if isinstance(leaf, Box | MultiDiscrete) else action
