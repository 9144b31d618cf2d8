"""Detects image and symbol-grid observations, their layouts, and converts them for convolutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from headrace.errors import ConfigError

Layout: TypeAlias = Literal["auto", "channels_first", "channels_last"]

_MIN_SIDE = 8  # of an image that isn't uint8
_FEW = 4  # most channels of a usual image
_FAR = 4  # a dimension this many times longer than the other is a side
_MOST_SYMBOLS = 2**12


def is_image(space: gymnasium.Space) -> bool:
    """Return whether an observation is an image, which is processed by convolutions.

    A uint8 Box with two or more dimensions is an image. So is any other Box with three or more
    dimensions, if height and width are at least 8.
    """
    if not isinstance(space, Box) or len(space.shape) < 2:
        return False
    if space.dtype == np.uint8:
        return True
    if len(space.shape) < 3:
        return False
    found = layout_of(space)
    sides = [_sides(space, found)] if found else [_sides(space, w) for w in _LAYOUTS]
    return max(map(min, sides)) >= _MIN_SIDE


_LAYOUTS: tuple[Layout, ...] = ("channels_first", "channels_last")


def layout_of(space: Box) -> Layout | None:
    """Return the position of the channels as far as the shape determines it, or None.

    The other two of the last three dimensions are height and width. They are recognised by being
    equal, or by the number of channels, which is at most four or far less than the width.
    If all three are equal, channels come last, as in Gymnasium. Dimensions before these three
    are stacked frames; there must be fewer of them than the longer side.
    """
    if len(space.shape) == 2:
        return "channels_first"  # it has none
    *stack, a, b, c = space.shape
    first, last = _LAYOUTS
    few, many = min(a, c), max(a, c)
    if a == c and b != a:
        return None
    if b in (a, c):
        found = last if a == b else first
    elif few <= _FEW < many or few * _FAR <= many:
        found = first if a < c else last
    else:
        return None
    return None if any(n >= max(_sides(space, found)) for n in stack) else found


def _sides(space: Box, layout: Layout) -> tuple[int, int]:
    if len(space.shape) == 2 or layout == "channels_first":
        return space.shape[-2], space.shape[-1]
    return space.shape[-3], space.shape[-2]


def image_shape(space: Box, layout: Layout = "auto") -> tuple[int, int, int]:
    """Return channels (including stacked ones), height and width; see :func:`channels_first`.

    Raises:
        ConfigError: ``layout`` is "auto", and the shape doesn't tell which it is.
    """
    known = layout_of(space) if layout == "auto" else layout
    if known is None:
        shape = ", ".join(map(str, space.shape))
        raise ConfigError(
            f"the shape ({shape}) doesn't tell which of its dimensions are an image's channels: "
            "set image_layout to 'channels_first' or 'channels_last'"
        )
    height, width = _sides(space, known)
    return math.prod(space.shape) // max(height * width, 1), height, width


def channels_first(space: Box, layout: Layout) -> Callable[[Tensor], Tensor]:
    """Return a function from images ``[N, *space.shape]`` to ``[N, channels, height, width]``.

    Leading dimensions, such as stacked frames, are merged with the channels.
    """
    known = layout_of(space) if layout == "auto" else layout
    moves = len(space.shape) > 2 and known == "channels_last"
    shape = image_shape(space, layout)
    if shape == space.shape and not moves:
        return _same
    return functools.partial(_ordered, shape=shape, moves=moves)


def _same(x: Tensor) -> Tensor:
    return x


def _ordered(x: Tensor, shape: tuple[int, int, int], moves: bool) -> Tensor:
    # x.shape[0] and not len(x): a traced export takes the latter for a constant.
    return (x.movedim(-1, -3) if moves else x).reshape(x.shape[0], *shape)


def num_symbols(name: str, space: gymnasium.Space, given: int | None) -> int:
    """Return the number of symbols of a grid: the given number, or all between the Box's bounds.

    Raises:
        ConfigError: the space isn't a grid of integers, or has too many symbols.
    """
    if not isinstance(space, Box) or space.dtype.kind not in "iu" or len(space.shape) < 2:
        raise ConfigError(
            f"one_hot={name!r} is {space}, not a grid of symbols: use an integer Box of two "
            "dimensions or more"
        )
    count = int(space.high.max()) - int(space.low.min()) + 1 if given is None else given
    if count > _MOST_SYMBOLS:
        raise ConfigError(
            f"one_hot={name!r} is {space}, which has {count:,} symbols by its bounds: set "
            f"num_symbols, at most {_MOST_SYMBOLS:,}"
        )
    return count


def one_hot_channels(
    x: Tensor,
    space: Box,
    symbols: int,
    dtype: torch.dtype,
    layout: Layout = "auto",
    clips: bool = False,
) -> Tensor:
    """One-hot encode grids ``[N, *space.shape]`` as ``[N, channels * symbols, height, width]``.

    Channel ``c * symbols + s`` is 1 where channel c holds symbol s, counted from the lower bound of
    the space. The result is in channels-last memory.

    Args:
        clips: other values count as the nearest symbol; False: they are 0 in all channels.
    """
    x = channels_first(space, layout)(x).movedim(1, -1).long() - int(space.low.min())
    nearest = x.clamp(0, symbols - 1)
    ones = (torch.ones_like(x) if clips else x == nearest).to(dtype)
    channels = x.shape[-1]
    index = nearest + symbols * torch.arange(channels, device=x.device)
    planes = torch.zeros(*x.shape[:-1], channels * symbols, dtype=dtype, device=x.device)
    return planes.scatter(-1, index, ones).movedim(-1, 1)
