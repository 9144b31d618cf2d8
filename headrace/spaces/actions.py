"""From Gymnasium's action spaces to distributions, and from their actions back to environments'.

A policy's actions are trees of flat arrays: Discrete ``[...]`` int64 counted from 0, MultiDiscrete
``[..., k]`` int64, MultiBinary ``[..., k]`` int8, Box ``[..., k]`` float32, and dicts and tuples of
these, with any leading dimensions. Environments want :func:`to_env` of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from torch import Tensor

from headrace.errors import ConfigError
from headrace.ops import distributions as dist
from headrace.spaces.walk import Path, Space, map_space, parts, place

WORKS = (
    "use Discrete, MultiDiscrete, MultiBinary, a floating Box, or a Dict or Tuple of these, for "
    "example with --wrapper module:name of your own"
)
_MOST_CHOICES = 2**20


def distribution_for(space: Space, squash: bool = False, path: Path = ()) -> dist.Distribution:
    """The distribution whose actions fit ``space``, as the module's docstring says.

    Args:
        space: of a single environment.
        squash: Boxes get a :class:`SquashedGaussian` between their bounds in place of a
            :class:`DiagGaussian` that is clipped to them.
        path: where ``space`` lies in a nested one, for messages.

    Raises:
        ConfigError: something in the space is not supported, or ``squash`` lacks finite bounds;
            the message names its path.
    """
    where, inner = f"action space{place(path)}: {space}", parts(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and flatdim(space) > _MOST_CHOICES:
        raise ConfigError(
            f"{where} has {flatdim(space):,} choices, above the limit of {_MOST_CHOICES:,}: give "
            "them as digits in a MultiDiscrete, or as a Box"
        )
    if isinstance(space, spaces.Discrete):
        return dist.Categorical(int(space.n))
    if inner is not None:
        if not inner:
            raise ConfigError(f"{where} is empty: give it at least one action")
        each = tuple(distribution_for(part, squash, (*path, key)) for key, part in inner.items())
        return dist.Composite(each, tuple(inner) if isinstance(space, spaces.Dict) else None)
    size = math.prod(space.shape or ())
    if size == 0:
        raise ConfigError(f"{where} has no elements: give it at least one")
    if isinstance(space, spaces.MultiDiscrete):
        return dist.MultiCategorical(tuple(map(int, space.nvec.ravel())))
    if isinstance(space, spaces.MultiBinary):
        return dist.Bernoulli(size)
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(f"{where} is not supported: {WORKS}")
    if squash and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(
            f"{where} has bounds from {space.low.min()} to {space.high.max()}, but "
            "squash_actions=True needs finite ones: bound the Box, for example from -1 to 1, or "
            "leave squash_actions out"
        )
    return dist.SquashedGaussian(size) if squash else dist.DiagGaussian(size)


def to_env(space: Space, action: Any, squash: bool = False) -> Any:
    """What an environment with ``space`` receives for a policy's ``action``.

    Discrete and MultiDiscrete are counted from their ``start``, arrays get the space's shape and
    dtype (a Discrete keeps its own), and Boxes are clipped to their bounds or, with ``squash``,
    ``low + (tanh(action) + 1) / 2 * (high - low)``. Training uses the action as it was.

    Args:
        space: of a single environment.
        action: tree of arrays, or of tensors, any leading dimensions; a Discrete that starts at 0
            comes back as the very same one.
        squash: as in :func:`distribution_for`.
    """
    return map_space(lambda leaf, part: _leaf_to_env(leaf, part, squash), space, action)


def _leaf_to_env(space: Any, action: Any, squash: bool) -> Any:
    if isinstance(space, spaces.Discrete):
        return action + int(space.start) if space.start else action
    xp: Any = torch if isinstance(action, Tensor) else np
    shape = action.shape[:-1] + (space.shape or ())
    shaped = action.reshape(shape)
    if isinstance(space, spaces.MultiDiscrete):
        shaped = shaped + xp.asarray(space.start)
    elif isinstance(space, spaces.Box):
        low, high = xp.asarray(space.low), xp.asarray(space.high)
        if not space.shape:  # numbers without dimensions promote others in their own ways
            low, high, shaped = low.reshape(1), high.reshape(1), shaped.reshape(-1)
        if squash:
            # The difference of two finite bounds may overflow, this sum may not.
            share = (xp.tanh(shaped) + 1.0) / 2.0
            shaped = low * (1.0 - share) + high * share
        shaped = xp.minimum(xp.maximum(shaped, low), high).reshape(shape)  # np.clip asks more
    dtype = space.dtype if xp is np else getattr(torch, space.dtype.name)
    return xp.asarray(shaped, dtype=dtype)


def mask_is_empty(distribution: dist.Distribution, mask: np.ndarray) -> np.ndarray:
    """Where some component of the action has nothing left to choose.

    Args:
        mask: ``[..., distribution.num_mask]`` bool.

    Returns:
        ``[...]`` bool; :meth:`apply_mask` leaves these components as they are.
    """
    if isinstance(distribution, dist.Composite):
        ends = np.cumsum([part.num_mask for part in distribution.parts])
        pairs = zip(distribution.parts, np.split(mask, ends[:-1], -1), strict=True)
        return np.logical_or.reduce([mask_is_empty(part, m) for part, m in pairs])
    if isinstance(distribution, dist.MultiCategorical):
        starts = np.cumsum([0, *distribution.nvec[:-1]])
        return np.logical_not(np.logical_or.reduceat(mask, starts, axis=-1).all(-1))
    if isinstance(distribution, dist.Categorical):
        return np.logical_not(mask.any(-1))
    return np.zeros(mask.shape[:-1], bool)
