"""Converts environments' action masks to bits, without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim

from headrace.errors import ConfigError, nearest
from headrace.spaces.walk import Path, Space, leaves, map_space, parts, place

MASK = "action_mask"
"""The key of a mask in an observation or in infos."""


def flatten_mask(space: Space, mask: Any, path: Path = ()) -> np.ndarray:
    """Flatten an environment's action mask to bits in the order of the distribution's logits.

    Args:
        space: of a single environment.
        mask: true (or 1) where a choice is allowed. None allows everything. Discrete: ``[..., n]``;
            MultiDiscrete: ``[..., sum(nvec)]`` or a tuple of ``[..., nvec[i]]``; MultiBinary:
            ``[..., 2 * n]``, for each bit whether 0 and whether 1 is allowed; Dict and Tuple: a
            dict, which may lack keys, or a tuple with the mask of each component. Every mask may
            also be flat, ``[..., num_mask]``; in a Dict or Tuple, a flat mask may leave out
            MultiBinaries. Boxes have no entries.
        path: where ``space`` lies in a nested one, for messages.

    Returns:
        ``[..., num_mask]`` bool; the leading dimensions of components are broadcast, and those of a
        mask that names no component are ().

    Raises:
        ConfigError: the mask fits the space in none of these ways.
    """
    size = sum(_num_bits(leaf) for _, leaf in leaves(space))
    if mask is None:
        return np.ones(size, bool)
    if isinstance(space, spaces.Dict | spaces.Tuple) and isinstance(mask, dict | tuple):
        inner, given = parts(space) or {}, _components(space, mask, path)
        each = [flatten_mask(part, given.get(key), (*path, key)) for key, part in inner.items()]
        return _join(each, path)
    if isinstance(space, spaces.MultiDiscrete) and isinstance(mask, tuple):
        rows = _rows(mask)
        if any(row is None or np.ndim(row) for row in rows):
            return _join(_row_masks(space, rows, path), path)
    return _bits(space, mask, size, path)


def _num_bits(leaf: Space) -> int:
    if isinstance(leaf, spaces.MultiBinary):
        return 2 * flatdim(leaf)
    return flatdim(leaf) if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0


def _is_given(space: Space) -> np.ndarray:
    """Return ``[num_mask]`` bool: True for entries of a flat mask without MultiBinaries."""
    each = [(_num_bits(leaf), leaf) for _, leaf in leaves(space)]
    return np.concatenate([np.full(n, not isinstance(x, spaces.MultiBinary)) for n, x in each])


def _bits(space: Space | str, mask: Any, size: int, path: Path) -> np.ndarray:
    try:
        array = np.asarray(mask)
    except ValueError as error:
        raise ConfigError(f"action mask{place(path)} isn't an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"action mask{place(path)} is {type(mask).__name__} of {array.dtype}: give booleans "
            f"[..., {size}] for {space}"
        )
    if array.ndim and array.shape[-1] != size and isinstance(space, spaces.Dict | spaces.Tuple):
        given = _is_given(space)
        if 0 < array.shape[-1] == given.sum():
            whole = np.ones((*array.shape[:-1], size), bool)
            whole[..., given] = array
            return whole
    if array.ndim == 0 or array.shape[-1] != size:
        hint = f"[..., {size}]" if size else "no mask (None), because it can't be masked"
        raise ConfigError(
            f"action mask{place(path)} has the shape {array.shape}: {space} needs {hint}"
        )
    return array.astype(bool, copy=False)


def _components(space: spaces.Dict | spaces.Tuple, mask: Any, path: Path) -> dict[Any, Any]:
    """Return the given masks by key or index."""
    if isinstance(space, spaces.Dict):
        if not isinstance(mask, dict):
            raise ConfigError(
                f"action mask{place(path)} is a tuple: give a dict with keys of "
                f"{list(space.spaces)}"
            )
        for key in mask:
            if key not in space.spaces:
                hint = nearest(str(key), map(str, space.spaces))
                raise ConfigError(
                    f"action mask{place(path)} has the key {key!r}, which the action space "
                    f"has not; it has {list(space.spaces)}.{hint}"
                )
        return mask
    if isinstance(mask, dict) or len(mask) != len(space.spaces):
        raise ConfigError(
            f"action mask{place(path)} must be a tuple of {len(space.spaces)} masks (None allows "
            f"everything), got a {type(mask).__name__} of {len(mask)}"
        )
    return dict(enumerate(mask))


def _rows(mask: Any) -> list[Any]:
    """Return the arrays in nested tuples: one per choice of a MultiDiscrete of any rank."""
    return [row for part in mask for row in _rows(part)] if isinstance(mask, tuple) else [mask]


def _row_masks(space: spaces.MultiDiscrete, rows: list[Any], path: Path) -> list[np.ndarray]:
    nvec = space.nvec.ravel().tolist()
    if len(rows) != len(nvec):
        raise ConfigError(
            f"action mask{place(path)} has {len(rows)} parts: {space} needs {len(nvec)}, "
            f"of the sizes {nvec}"
        )
    return [
        np.ones(n, bool) if row is None else _bits(f"{n} choices", row, n, (*path, i))
        for i, (n, row) in enumerate(zip(nvec, rows, strict=True))
    ]


def _join(parts: list[np.ndarray], path: Path) -> np.ndarray:
    """Concatenate along the last dimension what agrees in, or lacks, the leading ones."""
    shapes = [part.shape[:-1] for part in parts]
    try:
        lead = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ConfigError(
            f"action mask{place(path)} has parts with the leading dimensions {shapes}: "
            f"give them the same"
        ) from error
    return np.concatenate([np.broadcast_to(p, (*lead, p.shape[-1])) for p in parts], -1)


def sample_allowed(space: Space, mask: Any) -> Any:
    """Sample an action of a seeded ``space`` that an environment's mask allows.

    Args:
        mask: as for :func:`flatten_mask`, of a single action. Where it allows nothing, or fits the
            space in no way, anything may come.
    """
    try:
        bits = flatten_mask(space, mask).reshape(-1)
    except ConfigError:  # told where the mask is to be used
        return space.sample()
    start = 0

    def sample(leaf: Any) -> Any:
        nonlocal start
        own, start = bits[start : start + _num_bits(leaf)], start + _num_bits(leaf)
        if isinstance(leaf, spaces.MultiBinary):
            zero, one = own.reshape(*leaf.shape, 2)[..., 0], own.reshape(*leaf.shape, 2)[..., 1]
            return np.where(zero == one, leaf.sample(), one).astype(leaf.dtype)
        if not len(own):
            return leaf.sample()
        if isinstance(leaf, spaces.Discrete):
            return leaf.sample(mask=own.astype(np.int8))
        rows = np.split(own.astype(np.int8), np.cumsum(leaf.nvec.ravel())[:-1])
        flat = spaces.MultiDiscrete(leaf.nvec.ravel(), seed=leaf.np_random)
        action = flat.sample(mask=tuple(rows)).reshape(leaf.shape) + leaf.start
        return action.astype(leaf.dtype)

    return map_space(sample, space)
