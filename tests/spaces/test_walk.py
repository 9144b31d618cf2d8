"""Nested spaces, leaf by leaf."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from headrace.spaces import walk

ARM, GRIP, MOVE = Box(-1.0, 1.0, (2,)), Discrete(2), Discrete(3, start=5)
NESTED = Dict([("z", Tuple((ARM, GRIP))), ("a", MOVE)])  # pairs keep their order


def check_map_space(module: ModuleType) -> None:
    """Structure, order and corresponding parts match manual values."""
    mapped = module.map_space
    assert mapped(lambda *given: given, MOVE) == (MOVE,)
    assert mapped(lambda leaf: leaf, NESTED) == {"z": (ARM, GRIP), "a": MOVE}
    assert list(mapped(lambda leaf: leaf, NESTED)) == ["z", "a"]
    ones, tens = {"z": (1, 2), "a": 3}, {"a": 30, "z": (10, 20)}
    assert mapped(lambda _, *x: sum(x), NESTED, ones, tens) == {"z": (11, 22), "a": 33}
    assert mapped(lambda leaf, x: (leaf, x), NESTED, ones)["a"] == (MOVE, 3)


def test_map_space_passes() -> None:
    check_map_space(walk)


def test_a_leaf_may_hold_any_value_even_a_tuple_or_a_dict() -> None:
    values = {"z": ((1, 2), {"x": 3}), "a": None}
    assert walk.map_space(lambda _, x: x, NESTED, values) == values


@pytest.mark.parametrize("values", [{"z": (1,), "a": 2}, {"z": (1, 2, 3), "a": 4}])
def test_a_tuple_of_another_length_is_an_error(values: Any) -> None:
    with pytest.raises(ValueError, match="zip"):
        walk.map_space(lambda _, x: x, NESTED, values)


def test_parts_and_leaves_come_in_order_with_their_keys() -> None:
    assert walk.parts(NESTED) == {"z": Tuple((ARM, GRIP)), "a": MOVE}
    assert walk.parts(Tuple((ARM, GRIP))) == {0: ARM, 1: GRIP}
    assert walk.parts(ARM) is None
    assert walk.parts(Dict()) == {}
    expected = [(("z", 0), ARM), (("z", 1), GRIP), (("a",), MOVE)]
    assert list(walk.leaves(NESTED)) == expected
    assert [walk.place(path) for path, _ in expected] == [" at 'z'/0", " at 'z'/1", " at 'a'"]
    assert walk.place(()) == ""
