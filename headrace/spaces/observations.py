"""Leaves of observation spaces: paths, and numeric encodings of discrete values."""

from __future__ import annotations

# x.shape[0] and not len(x) below: a traced export takes the latter for a constant.
import json
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from headrace.errors import ConfigError, wrapper
from headrace.spaces import walk
from headrace.spaces.text import is_text
from headrace.spaces.walk import Path, map_space, place
from headrace.types import Tree

_MOST_CODES = 2**20  # limit of values in a one-hot or an embedding
_LEAVES = (Box, Discrete, MultiDiscrete, MultiBinary)
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Dict or Tuple of these"


def leaves(space: gymnasium.Space) -> Iterator[tuple[Path, Any]]:
    """Return the paths and spaces of all leaves, in order.

    Raises:
        ConfigError: one of them is not supported; names its path.
    """
    for path, leaf in walk.leaves(space):
        if not isinstance(leaf, _LEAVES):
            raise ConfigError(
                f"observation space{place(path)} {type(leaf).__name__} isn't supported: use "
                f"{_SUPPORTED}, or {_remedy(space)}"
            )
        yield path, leaf


def _remedy(space: gymnasium.Space) -> str:
    """Suggest a flag that removes unsupported leaves."""
    if isinstance(space, Dict):
        kept = [
            key
            for key, part in space.items()
            if all(isinstance(leaf, _LEAVES) or is_text(leaf) for _, leaf in walk.leaves(part))
        ]
        if kept:
            keys = json.dumps({"filter_keys": kept}, separators=(",", ":"))
            return f"leave it out with {wrapper(f'FilterObservation:{keys}')}"
    return f"turn it into numbers with a custom wrapper: {wrapper('module:name')}"


def dotted(path: Path) -> str:
    """Return the name of a leaf in settings, as ``a.0``."""
    return ".".join(map(str, path))


def at(tree: Tree, path: Path) -> Tree:
    """Return the part of a tree at a path."""
    for key in path:
        tree = tree[key]
    return tree


def checked(space: gymnasium.Space, obs: Any) -> tuple[Tree, bool]:
    """Convert a user's observation to arrays ``[N, ...]``; return also whether it was a single one.

    Raises:
        ConfigError: it is none of this space: a part is missing, has another shape, or holds
            fractions for whole numbers, or what isn't finite.
    """
    found: list[np.ndarray] = []
    single, count = False, 0
    for path, leaf in walk.leaves(space):
        array, shape = _part(space, obs, path, leaf), leaf.shape or ()
        if not found:
            single = array.ndim == len(shape)
            count = len(array) if array.ndim and not single else 1
        batch = array[None] if single else array
        if batch.shape != (count, *shape):
            raise ConfigError(
                f"the observation{place(path)} has the shape {array.shape}, but the policy's space "
                f"there is {leaf}, of shape {shape} ([N, …] for N observations at once)"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            value = array[~np.isfinite(array)].flat[0]
            raise ConfigError(
                f"the observation{place(path)} holds {value}: from what isn't finite, no action "
                "can be predicted"
            )
        found.append(batch)
    arrays = iter(found)
    return map_space(lambda leaf: next(arrays), space), single


def _part(space: gymnasium.Space, obs: Any, path: Path, leaf: Any) -> np.ndarray:
    """Convert a leaf of an observation; raises ConfigError unless it has numbers or texts."""
    if is_text(leaf):
        return _texts(space, obs, path)
    try:
        value = np.asarray(at(obs, path))
        if value.dtype.kind not in "biuf":
            raise TypeError(value.dtype)
        return _as_array(leaf, value)
    except ConfigError:
        raise
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the observation has no numbers{place(path)} for {leaf}: the policy's observation "
            f"space is {space}"
        ) from error


def _texts(space: gymnasium.Space, obs: Any, path: Path) -> np.ndarray:
    """Convert one or several texts to an array of strings."""
    try:
        texts = np.asarray(at(obs, path), dtype=object)
    except (KeyError, IndexError, TypeError, ValueError):
        texts = np.asarray(None, dtype=object)
    if not all(isinstance(text, str) for text in texts.reshape(-1)):
        raise ConfigError(
            f"the observation has no text{place(path)}, which must be a str: the policy's "
            f"observation space is {space}"
        )
    return texts


def _as_array(space: gymnasium.Space, obs: Any) -> np.ndarray:
    array = np.asarray(obs)
    if array.dtype.kind == "f" and not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"observations are {array.dtype} but their space is {space}: give whole numbers"
        )
    return array.astype(space.dtype, copy=False)


def zeros(space: gymnasium.Space, num_envs: int) -> Tree:
    """Return zero observations of a space, ``[num_envs, ...]``, as a tree of tensors."""
    return map_space(
        lambda leaf: torch.as_tensor(np.zeros((num_envs, *(leaf.shape or ())), leaf.dtype)), space
    )


def check_codes(path: Path, space: gymnasium.Space) -> None:
    """Reject a space with too many discrete values.

    Raises:
        ConfigError: it has.
    """
    count = flatdim(space)
    if count > _MOST_CODES:
        raise ConfigError(
            f"observation space{place(path)} {space} has {count:,} discrete values, above the "
            f"limit of {_MOST_CODES:,}: encode it as digits in a MultiDiscrete, or as a "
            f"Box, for example with a custom wrapper: {wrapper('module:name')}"
        )


def encode(space: gymnasium.Space, x: Tensor) -> Tensor:
    """Encode Discrete and MultiDiscrete one-hot, MultiBinary as bits: ``[N, flatdim(space)]``."""
    one_hot = nn.functional.one_hot
    if isinstance(space, Discrete):
        return one_hot(x.long() - int(space.start), int(space.n))
    if isinstance(space, MultiDiscrete):
        x = x.long().flatten(1)
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        columns = zip(x.unbind(1), starts, sizes, strict=True)
        return torch.cat([one_hot(c - start, n) for c, start, n in columns], 1)
    return x.flatten(1)


def exceeds_float32(space: Box) -> bool:
    """Return whether a Box has values beyond float32: float64, and integers from 32 bits."""
    dtype = np.dtype(space.dtype)
    return dtype.kind in "iuf" and dtype.itemsize >= (8 if dtype.kind == "f" else 4)


def values(space: Box, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of a Box, ``[N, prod(shape)]``; uint8 scaled to [0, 1]."""
    flat = x.reshape(x.shape[0], math.prod(space.shape)).to(dtype)
    return flat / 255.0 if space.dtype == np.uint8 else flat


def vocabulary(path: Path, space: gymnasium.Space) -> int:
    """Return the number of tokens of a text over this space.

    Raises:
        ConfigError: the space holds no rows of tokens.
    """
    row = len(space.shape or ()) == 1
    if row and isinstance(space, MultiDiscrete) and space.start.min() >= 0:
        return int((space.start + space.nvec).max())
    if row and isinstance(space, Box) and space.dtype.kind in "iu" and space.low.min() >= 0:
        return int(space.high.max()) + 1
    raise ConfigError(
        f"text={dotted(path)!r} is {space}, not a row of tokens: use MultiDiscrete([n] * length) "
        "or an integer Box of one dimension from 0 to the last token; 0 is padding"
    )
