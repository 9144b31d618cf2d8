from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from worlds.symbols import Symbols

from headrace.envs.probe import probe
from headrace.envs.symbol_grids import common_to_tasks, largest_values, num_symbols_of

BYTES = Box(0, 255, (7, 7, 3), np.uint8)


def grids(space, *observations):
    """Grids of an environment that shows these observations in turn, then the last one again."""
    shown = list(observations)
    one = lambda: shown.pop(0) if len(shown) > 1 else shown[0]  # noqa: E731
    return num_symbols_of(space, largest_values(space, one, one))


def filled(value, shape=(7, 7, 3), dtype=np.uint8):
    return np.full((1, *shape), value, dtype)


@pytest.mark.parametrize(
    ("largest", "symbols"), [(1, 16), (10, 16), (12, 32), (24, 32), (25, 64), (31, 64)]
)
def test_small_values_are_symbols_with_room_for_more(largest, symbols):
    assert grids(BYTES, filled(0), filled(largest), filled(1)) == {"obs": symbols}


@pytest.mark.parametrize("values", [[0], [32], [1, 2, 32], [0] * 60 + [200]])
def test_black_and_brighter_images_are_not_symbols(values):
    assert grids(BYTES, *map(filled, values)) == {}


def test_it_stops_looking_at_the_first_bright_image():
    seen = []
    largest_values(BYTES, lambda: filled(255), lambda: seen.append(1))
    assert not seen


@pytest.mark.parametrize(
    ("space", "symbols"),
    [
        (Box(0, 9, (7, 7, 1), np.uint8), 10),
        (Box(0, 31, (10, 10, 3), np.int64), 32),
        (Box(0, 2, (4, 5, 5), np.uint8), 3),
        (Box(0, 40, (7, 7), np.uint8), 41),  # not more than it declares
        (Box(0, 1, (7, 7, 3), np.uint8), None),  # planes
        (Box(-1, 3, (10, 10, 3), np.int64), 5),
        (Box(-1, 99, (10, 10, 3), np.int64), None),
        (Box(0, 100, (4, 4), np.int8), 64),  # a table of codes
        (Box(-6, 6, (8, 8), np.int64), 13),
        (Box(0, 9, (3, 8), np.int64), None),
        (Box(0, 9, (2, 20, 20, 2), np.int64), 10),
        (Box(0, 1, (10, 10, 3), np.float32), None),
        (Box(0, 1, (10, 10, 3), np.bool_), None),
        (Box(0, 9, (30,), np.uint8), None),  # no image
        (Box(0, 255, (84, 84), np.uint8), None),  # an image that is dark at first
        (Box(0, 255, (4, 84, 84), np.uint8), None),
    ],
    ids=str,
)
def test_bounds_and_shape_decide_as_well(space, symbols):
    shown = np.full((1, *space.shape), 31).clip(None, space.high.max()).astype(space.dtype)
    assert grids(space, shown) == ({} if symbols is None else {"obs": symbols})


def test_parts_are_named():
    space = Dict({"a": Tuple([Discrete(3), BYTES]), "b": BYTES, "c": Box(0, 4, (3, 3), np.uint8)})
    shown = {"a": (np.zeros(1), filled(5)), "b": filled(99), "c": filled(4, (3, 3))}
    assert grids(space, shown) == {"a.1": 16, "c": 5}


def test_tasks_must_agree():
    assert common_to_tasks([{"a": 3, "b": 2}, {"a": 200}, {"b": 9}]) == {"a": 200, "b": 9}


def test_probes_see_the_same_values_with_every_seed():
    probes = [probe(Symbols, "auto", {}, 3) for _ in range(2)]
    assert [one.largest_values for one in probes] == [{"obs": 7}] * 2
    several = [probe(Symbols, "auto", {"rare": 20}, seed).largest_values for seed in range(8)]
    assert several == several[:1] * 8
    assert probe(Symbols, "auto", {}, 3, looks_for_stacks=False).largest_values == {}
