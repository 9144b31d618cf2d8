"""Maps Gymnasium's action spaces to distributions, and policy actions to environment actions.

A policy's actions are trees of flat arrays: Discrete ``[...]`` int64 counted from 0, MultiDiscrete
``[..., k]`` int64, MultiBinary ``[..., k]`` int8, Box ``[..., k]`` float32, and dicts and tuples of
these, with any leading dimensions. An :class:`ActionTransform` converts them for environments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from torch import Tensor

from headrace.errors import ConfigError
from headrace.ops import distributions as dist
from headrace.ops import tree
from headrace.ops.action_bounds import ActionBounds
from headrace.spaces.walk import Path, Space, map_space, parts, place

WORKS = (
    "use Discrete, MultiDiscrete, MultiBinary, a floating Box, or a Dict or Tuple of these, for "
    "example with a custom wrapper (module:name)"
)
_MOST_CHOICES = 2**20


def distribution_for(space: Space, squash: bool = False, path: Path = ()) -> dist.Distribution:
    """Return the distribution whose actions fit ``space``, as the module's docstring defines.

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


class ActionTransform:
    """Converts a policy's actions into the actions that an environment receives.

    The space's ``start`` is added to Discrete and MultiDiscrete actions, and every array gets the
    space's shape and dtype. Scaled elements of a Box are clipped, or squashed by tanh, to [-1, 1]
    and then mapped linearly to ``[low, high]``. Other elements are clipped to their bounds.
    Training uses the action before this conversion.

    Args:
        space: of a single environment.
        squash: as in :func:`distribution_for`; scales every Box.
        scale: scale the elements of Boxes whose bounds are both finite.
    """

    def __init__(self, space: Space, squash: bool = False, scale: bool = False) -> None:
        self._leaves = map_space(lambda leaf: _transform_of(leaf, squash, scale), space)

    def __call__(self, action: Any) -> Any:
        """Convert a policy's action to the environment's, in new memory.

        Args:
            action: tree of arrays, or of tensors, with any leading dimensions.
        """
        if isinstance(self._leaves, _ToIntegers):  # the usual case, twice as fast
            return self._leaves(action)
        return tree.map_leaves(lambda transform, x: transform(x), self._leaves, action)

    @property
    def is_scaled(self) -> bool:
        """Return True if any element of a Box is mapped to bounds other than -1 and 1."""
        leaves = tree.leaves(self._leaves)
        return any(isinstance(leaf, _ToBox) and leaf.scale is not None for leaf in leaves)


def output_bounds(space: Space, squash: bool, scale: bool) -> ActionBounds | None:
    """Return the range of the means that :class:`ActionTransform` clips; None if there are none.

    Only means with two finite bounds count.
    """
    low, high = _limits(space, squash, scale)
    index = np.flatnonzero(np.isfinite(low) & np.isfinite(high) & (low < high))
    middle, half = high[index] / 2 + low[index] / 2, high[index] / 2 - low[index] / 2
    dtype = torch.get_default_dtype()
    numbers = torch.tensor(middle, dtype=dtype), torch.tensor(half, dtype=dtype)
    return ActionBounds(torch.tensor(index), *numbers) if len(index) else None


def _limits(space: Space, squash: bool, scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a policy's outputs, ``[num_outputs]`` float64; infinite: none."""
    inner = parts(space)
    if inner is not None:
        each = [_limits(part, squash, scale) for part in inner.values()]
        lows, highs = zip(*each, strict=True)
        return np.concatenate(lows), np.concatenate(highs)
    if isinstance(space, spaces.Box) and not squash:
        box = _ToBox.of(space, squash, scale)
        return box.low.astype(np.float64), box.high.astype(np.float64)
    unbounded = np.full(distribution_for(space, squash).num_outputs, np.inf)
    return -unbounded, unbounded


def to_env(space: Space, action: Any, squash: bool = False, scale: bool = False) -> Any:
    """Convert a policy's ``action`` to the environment's; see :class:`ActionTransform`."""
    return ActionTransform(space, squash, scale)(action)


def _transform_of(space: Any, squash: bool, scale: bool) -> Any:
    if isinstance(space, spaces.Box):
        return _ToBox.of(space, squash, scale)
    start = getattr(space, "start", None)  # a MultiBinary has no start
    start = None if start is None or not np.any(start) else np.asarray(start, np.int64)
    return _ToIntegers(start, space.shape, np.dtype(space.dtype))


@dataclass(frozen=True)
class _ToIntegers:
    """Adds a start and converts to the shape and dtype of a Discrete, MultiDiscrete or MultiBinary.

    The policy's MultiDiscrete and MultiBinary actions have one flat dimension; Discrete ones are
    scalars.
    """

    start: np.ndarray | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __call__(self, action: Any) -> Any:
        is_tensor = isinstance(action, Tensor)
        if self.shape:
            action = action.reshape((*action.shape[:-1], *self.shape))
        if self.start is not None:
            action = action + (torch.from_numpy(self.start) if is_tensor else self.start)
        return _converted(action, self.dtype)


@dataclass(frozen=True)
class _ToBox:
    """Clips or squashes, scales, and converts to the shape and dtype of a Box of ``k`` elements.

    ``low`` and ``high`` ``[k]`` are the limits before scaling. ``scale`` and ``offset`` ``[k]``
    float64 map -1 and 1 to the bounds of the Box; None where that changes nothing.
    """

    low: np.ndarray
    high: np.ndarray
    scale: np.ndarray | None
    offset: np.ndarray | None
    squash: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @staticmethod
    def of(space: spaces.Box, squash: bool, scale: bool) -> _ToBox:
        """Create the transform of a float Box; a Box without dimensions has one element."""
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        scaled = (np.isfinite(low) & np.isfinite(high)) if scale or squash else np.zeros(1, bool)
        lower = np.where(scaled, -1.0, low).astype(low.dtype)
        upper = np.where(scaled, 1.0, high).astype(high.dtype)
        factor: np.ndarray | None
        offset: np.ndarray | None
        factor, offset = _affine(low, high, scaled)
        if (factor == 1.0).all() and not offset.any():
            factor = offset = None
        dtype = np.dtype(space.dtype)
        return _ToBox(lower, upper, factor, offset, squash, space.shape or (), dtype)

    def __call__(self, action: Any) -> Any:
        xp: Any = torch if isinstance(action, Tensor) else np
        if self.squash:
            action = xp.tanh(action)
        else:  # np.clip has more overhead
            action = xp.minimum(xp.maximum(action, xp.asarray(self.low)), xp.asarray(self.high))
        if self.scale is not None:
            # float64 keeps the bounds exact, and the widest of float32 finite.
            action = action * xp.asarray(self.scale) + xp.asarray(self.offset)
        return _converted(action.reshape((*action.shape[:-1], *self.shape)), self.dtype)


def _affine(low: np.ndarray, high: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``scale`` and ``offset`` ``[k]`` float64 that map [-1, 1] into [low, high] if
    ``scaled``.

    Bounds are halved before subtraction so that the difference stays finite. The scale is the
    largest one for which rounding doesn't exceed a bound.
    """
    lower = np.where(scaled, low, -1.0).astype(np.float64)
    upper = np.where(scaled, high, 1.0).astype(np.float64)
    scale, offset = upper / 2 - lower / 2, np.clip(upper / 2 + lower / 2, lower, upper)
    while (beyond := (offset + scale > upper) | (offset - scale < lower)).any():
        scale = np.where(beyond, np.nextafter(scale, 0.0), scale)
    return scale, offset


def _converted(action: Any, dtype: np.dtype[Any]) -> Any:
    """Return a copy in the dtype of the space."""
    if isinstance(action, Tensor):
        return action.to(getattr(torch, dtype.name))
    return np.array(action, dtype)


def mask_is_empty(distribution: dist.Distribution, mask: np.ndarray) -> np.ndarray:
    """Return where a component of the action has no legal choice left.

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
    if isinstance(distribution, dist.Bernoulli):
        return np.logical_not(mask.reshape(*mask.shape[:-1], -1, 2).any(-1).all(-1))
    return np.zeros(mask.shape[:-1], bool)
