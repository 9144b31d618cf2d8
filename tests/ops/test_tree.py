"""Nested dicts and tuples."""

from __future__ import annotations

import pytest

from headrace.ops import tree


def test_a_leaf_is_a_tree() -> None:
    assert tree.map_leaves(lambda x: x + 1, 1) == 2
    assert tree.leaves(1) == [1]


def test_mapping_keeps_the_structure_and_the_order_of_keys() -> None:
    nested = {"b": (1, {"z": 2, "y": 3}), "a": ()}
    result = tree.map_leaves(lambda x: 10 * x, nested)
    assert result == {"b": (10, {"z": 20, "y": 30}), "a": ()}
    assert list(result) == ["b", "a"]
    assert list(result["b"][1]) == ["z", "y"]


def test_several_trees_are_mapped_leaf_by_leaf_by_key() -> None:
    a, b = {"x": 1, "y": (2, 3)}, {"y": (20, 30), "x": 10}
    assert tree.map_leaves(lambda p, q: p + q, a, b) == {"x": 11, "y": (22, 33)}


def test_leaves_come_depth_first_in_insertion_order() -> None:
    assert tree.leaves({"b": (1, {"z": 2, "y": 3}), "a": 4, "c": ()}) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("a", "b"),
    [({"x": 1}, {"y": 1}), ({"x": 1}, {"x": 1, "y": 1}), ((1, 2), (1,)), (((1,),), ((),))],
)
def test_trees_of_different_structure_are_an_error(a: object, b: object) -> None:
    with pytest.raises(ValueError, match="trees differ"):
        tree.map_leaves(lambda p, q: p, a, b)
