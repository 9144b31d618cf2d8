from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from headrace.errors import ConfigError
from headrace.spaces import images


def box(*shape, dtype=np.uint8):
    return Box(0, 9, shape, dtype)


LAYOUTS = {
    (84, 84, 3): "channels_last",
    (3, 84, 84): "channels_first",
    (210, 160, 3): "channels_last",
    (4, 72, 96): "channels_first",
    (8, 8, 111): "channels_last",  # a board and its planes
    (111, 8, 8): "channels_first",
    (7, 7, 3): "channels_last",
    (3, 7, 7): "channels_first",
    (10, 12, 3): "channels_last",
    (60, 80, 12): "channels_last",
    (12, 60, 80): "channels_first",
    (4, 84, 84, 3): "channels_last",
    (4, 3, 84, 84): "channels_first",
    (42, 40): "channels_first",
    (10, 9, 14): None,
    (10, 20, 15): None,
    (9, 40, 9): None,
    (10, 10, 10): "channels_last",  # as in MinAtar
    (3, 10, 10, 10): "channels_last",
    (10, 10, 10, 10): None,
    (2, 3, 4): None,
    (84, 84, 3, 4): None,  # frames are stacked behind
}


@pytest.mark.parametrize(("shape", "layout"), LAYOUTS.items(), ids=str)
def test_channels_are_told_apart_by_the_shape_or_asked_for(shape, layout):
    space = box(*shape)
    assert images.layout_of(space) == layout
    if layout is None:
        with pytest.raises(ConfigError, match="set image_layout to 'channels_first' or"):
            images.image_shape(space)
        return
    channels, *sides = images.image_shape(space)
    assert channels * sides[0] * sides[1] == np.prod(shape)
    given = images.image_shape(space, layout)
    assert given == (channels, *sides)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("rows", [5, 6])
def test_a_layout_that_is_given_holds(layout, rows):
    x = torch.arange(2 * 5 * rows * 5).view(2, 5, rows, 5).remainder(256).to(torch.uint8)
    found = images.channels_first(box(5, rows, 5), layout)(x)
    assert found.shape == ((2, 5, rows, 5) if layout == "channels_first" else (2, 5, 5, rows))
    for n, a, b, c in np.ndindex(*x.shape):
        at = (n, a, b, c) if layout == "channels_first" else (n, c, a, b)
        assert found[at] == x[n, a, b, c]


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (box(4, 4), True),
        (box(3), False),
        (box(9, 10, 3, dtype=np.float32), True),
        (box(9, 10, 14, dtype=np.float32), True),
        (box(5, 6, 7, dtype=np.float32), False),
        (box(8, 8, 111, dtype=np.float32), True),
        (box(2, 8, 9, dtype=np.int16), True),
        (box(20, 20, dtype=np.float32), False),
        (Discrete(3), False),
    ],
)
def test_what_counts_as_an_image(space, image):
    assert images.is_image(space) == image


def literal(x, low, symbols, layout):
    """Set a 1 in the channel of each cell's symbol."""
    n, a, b, c = x.shape
    height, width, channels = (b, c, a) if layout == "channels_first" else (a, b, c)
    y = np.zeros((n, channels * symbols, height, width))
    for i, j, k, m in np.ndindex(*x.shape):
        channel, row, column = (j, k, m) if layout == "channels_first" else (m, j, k)
        y[i, channel * symbols + x[i, j, k, m] - low, row, column] = 1
    return y


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("low", [0, -2])
def test_symbols_become_channels(layout, low):
    space = Box(low, low + 3, (2, 3, 4), np.int16)
    space.seed(0)
    x = np.stack([space.sample() for _ in range(3)])
    got = images.one_hot_channels(torch.as_tensor(x), space, 4, torch.float64, layout)
    np.testing.assert_array_equal(got, literal(x, low, 4, layout))


@pytest.mark.parametrize("clips", [False, True])
def test_other_values_are_in_no_channel_or_clipped(clips):
    x = torch.tensor([-3, 0, 2, 9]).view(1, 2, 2)
    got = images.one_hot_channels(x, Box(-9, 9, (2, 2), np.int64), 12, torch.float32, clips=clips)
    by_hand = torch.zeros(1, 12, 2, 2)
    by_hand[0, 6, 0, 0] = by_hand[0, 9, 0, 1] = by_hand[0, 11, 1, 0] = 1
    by_hand[0, 11, 1, 1] = clips
    torch.testing.assert_close(got, by_hand)


@pytest.mark.parametrize(
    ("space", "given", "found"),
    [(box(7, 7, 3), None, 10), (box(7, 7, 3), 6, 6), (Box(-3, 4, (2, 2), np.int64), None, 8)],
)
def test_symbols_are_those_given_or_those_between_the_bounds(space, given, found):
    assert images.num_symbols("map", space, given) == found


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (box(3), "not a grid of symbols"),
        (Discrete(3), "not a grid of symbols"),
        (box(3, 3, dtype=np.float32), "not a grid of symbols"),
        (Box(0, 2**20, (3, 3), np.int32), r"1,048,577 symbols by its bounds: set num_symbols"),
    ],
)
def test_what_is_no_grid_is_named(space, words):
    with pytest.raises(ConfigError, match=words):
        images.num_symbols("map", space, None)
