"""Action spaces: distributions, actions of environments, and masks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.errors import ConfigError
from headrace.ops import tree
from headrace.ops.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from headrace.spaces import actions as action_spaces
from headrace.spaces import masks
from headrace.spaces.actions import (
    ActionTransform,
    distribution_for,
    mask_is_empty,
    output_bounds,
    to_env,
)
from headrace.spaces.masks import flatten_mask

Space = gymnasium.Space[Any]

UNIT = spaces.Box(-1.0, 1.0, (2,))
NESTED = spaces.Dict(
    arm=spaces.Tuple((spaces.MultiDiscrete([2, 4]), UNIT, spaces.MultiBinary(2))),
    move=spaces.Discrete(3, start=5),
)


def shapes(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, 3), min_size=rank, max_size=2).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    low = draw(st.floats(-1e3, 1e3, width=16))
    width = draw(st.sampled_from([1e-2, 1.0, 7.5, 1e3]))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    return spaces.Box(low, low + width, draw(shapes(0)), dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    shape = draw(shapes(1))
    size = int(np.prod(shape))
    nvec, start = (
        np.array(draw(st.lists(st.integers(*ends), min_size=size, max_size=size)))
        for ends in ((1, 4), (-2, 2))
    )
    dtype = draw(st.sampled_from([np.int64, np.int32]))
    return spaces.MultiDiscrete(nvec.reshape(shape), dtype, start=start.reshape(shape))


LEAVES = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 4), start=st.integers(-3, 3)),
    multi_discretes(),
    shapes(1).map(spaces.MultiBinary),
    boxes(),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def arrays(action: Any) -> Any:
    return tree.map_leaves(lambda x: x.numpy(), action)


def first(action: Any) -> Any:
    """Return row 0 of every leaf."""
    return tree.map_leaves(lambda x: np.asarray(x[0]), action)


@examples(150)
@given(SPACES, st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_every_space_samples_and_its_actions_are_contained_in_it(
    space: Space, squash: bool, scale: bool, seed: int
) -> None:
    distribution = distribution_for(space, squash)
    generator = torch.Generator().manual_seed(seed)
    params = 5.0 * torch.randn(4, distribution.num_params, generator=generator)
    noise = distribution.noise((4,), generator)
    assert noise.shape == (4, distribution.num_noise)
    mask = torch.rand(4, distribution.num_mask, generator=generator) < 0.5
    params = distribution.apply_mask(params, mask)
    sample, mode = distribution.sample(params, noise), distribution.mode(params)
    for action in (sample, mode):
        assert distribution.log_prob(params, action).isfinite().all()
        assert distribution.features(action).shape == (4, distribution.num_features)
        assert all(leaf.shape[0] == 4 for leaf in tree.leaves(action))
        received = to_env(space, arrays(action), squash, scale)
        assert space.contains(first(received))
        alone = to_env(space, first(arrays(action)), squash, scale)
        assert space.contains(alone)
        tree.map_leaves(np.testing.assert_array_equal, first(received), alone)
        steps = to_env(space, tree.map_leaves(lambda x: x[None], arrays(action)), squash, scale)
        tree.map_leaves(np.testing.assert_array_equal, first(steps), received)
    assert distribution.entropy(params).isfinite().all()
    assert distribution.kl(params, params).abs().max() < 1e-5
    assert mask_is_empty(distribution, mask.numpy()).shape == (4,)


@examples(60)
@given(SPACES, st.integers(0, 2**31))
def test_masks_given_flat_and_by_component_are_the_same(space: Space, seed: int) -> None:
    size = distribution_for(space).num_mask
    flat = np.random.default_rng(seed).random((3, size)) < 0.5

    def nest(part: Space, bits: np.ndarray) -> Any:
        if isinstance(part, spaces.Dict | spaces.Tuple):
            items = part.spaces.items() if isinstance(part, spaces.Dict) else enumerate(part.spaces)
            result, at = {}, 0
            for key, sub in items:
                width = distribution_for(sub).num_mask
                result[key] = nest(sub, bits[:, at : at + width])
                at += width
            return result if isinstance(part, spaces.Dict) else tuple(result.values())
        if isinstance(part, spaces.MultiDiscrete):
            return tuple(np.split(bits, np.cumsum(part.nvec)[:-1], -1))
        return bits if bits.shape[-1] else None

    assert np.array_equal(flatten_mask(space, flat), flat)
    if size:
        assert np.array_equal(flatten_mask(space, nest(space, flat)), flat)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4), Categorical(4)),
        (spaces.Discrete(3, start=-1), Categorical(3)),
        (spaces.Box(-1.0, 1.0, (6,)), DiagGaussian(6)),
        (spaces.Box(-1.0, 1.0, (2, 3)), DiagGaussian(6)),
        (spaces.Box(-1.0, 1.0, ()), DiagGaussian(1)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), DiagGaussian(2)),
        (spaces.MultiDiscrete([2, 3]), MultiCategorical((2, 3))),
        (spaces.MultiDiscrete([[2, 3], [4, 1]]), MultiCategorical((2, 3, 4, 1))),
        (spaces.MultiBinary(3), Bernoulli(3)),
        (spaces.MultiBinary([2, 3]), Bernoulli(6)),
        (
            NESTED,
            Composite(
                {
                    "arm": (MultiCategorical((2, 4)), DiagGaussian(2), Bernoulli(2)),
                    "move": Categorical(3),
                }
            ),
        ),
    ],
)
def test_every_supported_space_has_its_distribution(space: Space, expected: Distribution) -> None:
    assert distribution_for(space) == expected


def test_squash_replaces_the_gaussians_of_boxes_only() -> None:
    space = spaces.Tuple((spaces.Discrete(2), spaces.Dict(a=UNIT)))
    squashed = Composite((Categorical(2), {"a": SquashedGaussian(2)}))
    assert distribution_for(space, squash=True) == squashed


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Text(5),
        spaces.Graph(UNIT, None),
        spaces.Sequence(UNIT),
        spaces.OneOf((UNIT, spaces.Discrete(2))),
    ],
)
def test_other_spaces_are_a_config_error_that_names_path_and_what_works(space: Space) -> None:
    with pytest.raises(ConfigError, match=r"^action space: ") as info:
        distribution_for(space)
    assert str(space) in str(info.value)
    assert action_spaces.WORKS in str(info.value)
    with pytest.raises(ConfigError, match=r"^action space at 'arm'/1: ") as info:
        distribution_for(spaces.Dict(arm=spaces.Tuple((UNIT, space))))
    assert str(space) in str(info.value)


@pytest.mark.parametrize("empty", [spaces.Dict(), spaces.Tuple(()), spaces.Box(-1.0, 1.0, (0,))])
def test_an_empty_space_is_a_config_error(empty: Space) -> None:
    with pytest.raises(ConfigError, match=r"at 0: .*at least one"):
        distribution_for(spaces.Tuple((empty, UNIT)))


@pytest.mark.parametrize(("low", "high"), [(-np.inf, 1.0), (0.0, np.inf)])
def test_squash_without_finite_bounds_is_a_config_error_that_names_them(
    low: float, high: float
) -> None:
    space = spaces.Dict(a=spaces.Tuple((spaces.Box(low, high, (2,)),)))
    with pytest.raises(ConfigError, match=r"at 'a'/0: .*squash_actions=True") as info:
        distribution_for(space, squash=True)
    assert f"from {low} to {high}" in str(info.value)
    distribution_for(space)


# The checks take the module so that test_mutants can hand them a broken one.


def check_to_env(module: ModuleType) -> None:
    """Starts, shapes, dtypes, clipping and squashing match manual values."""
    action = np.array([0, 2])
    same = module.to_env(spaces.Discrete(3), action)
    assert same.tolist() == [0, 2]
    assert not np.shares_memory(same, action)
    assert module.to_env(spaces.Discrete(3, dtype=np.int8), action).dtype == np.int8
    assert module.to_env(spaces.Discrete(3, start=5), action).tolist() == [5, 7]
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], np.int32, start=[[0, 1], [-2, 0]])
    received = module.to_env(space, np.array([[0, 1, 2, 3], [1, 2, 3, 4]]))
    assert received.tolist() == [[[0, 2], [0, 3]], [[1, 3], [1, 4]]]
    assert received.dtype == np.int32
    bits = module.to_env(spaces.MultiBinary([2, 2]), np.array([0, 1, 1, 1], np.int8))
    assert bits.tolist() == [[0, 1], [1, 1]]
    assert bits.dtype == np.int8
    box = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 8.0]]), dtype=np.float64)
    values = np.array([[-3.0, 9.0], [0.25, -1.0]], np.float32)
    clipped = module.to_env(box, values)
    assert clipped.tolist() == [[[-1.0, 8.0]], [[0.25, 0.0]]]
    assert clipped.dtype == np.float64
    squashed = module.to_env(box, values, True)
    expected = [[(np.tanh(a), 4.0 * (np.tanh(b) + 1.0))] for a, b in values]
    np.testing.assert_allclose(squashed, expected, rtol=1e-6, atol=1e-6)
    scaled = module.to_env(box, values, False, True)
    assert scaled.tolist() == [[[-1.0, 8.0]], [[0.25, 0.0]]]
    assert module.to_env(box, np.float32([0.25, -0.5]), scale=True).tolist() == [[0.25, 2.0]]
    found = module.to_env(box, torch.tensor(values))
    assert (found.tolist(), found.dtype) == (clipped.tolist(), torch.float64)
    both = spaces.Dict(a=spaces.Tuple((box, spaces.Discrete(2, start=1))))
    received = module.to_env(both, {"a": (values, action[:1])}, True)
    assert list(received) == ["a"]
    assert isinstance(received["a"], tuple)
    np.testing.assert_array_equal(received["a"][0], squashed)
    assert received["a"][1].tolist() == [1]


def check_flatten_mask(module: ModuleType) -> None:
    """Every form that an environment may return works."""
    flatten = module.flatten_mask
    given = np.array([[1, 0, 1], [0, 1, 1]], np.int8)
    flat = flatten(spaces.Discrete(3), given)
    assert flat.dtype == bool
    assert flat.tolist() == given.astype(bool).tolist()
    multi = spaces.MultiDiscrete([2, 3])
    rows = (np.array([[1, 0], [0, 1]]), given)
    assert flatten(multi, rows).tolist() == np.concatenate(rows, -1).astype(bool).tolist()
    assert flatten(multi, (None, given[0])).tolist() == [True, True, True, False, True]
    assert flatten(multi, (1, 0, 0, 1, 0)).tolist() == [True, False, False, True, False]
    grid = spaces.MultiDiscrete([[2, 1], [1, 2]])
    nested = (((0, 1), (1,)), ((1,), (1, 0)))
    nested_arrays = tuple(tuple(np.array(row) for row in part) for part in nested)
    assert flatten(grid, nested_arrays).tolist() == [False, True, True, True, True, False]
    pad = spaces.Tuple((UNIT, spaces.Discrete(3), spaces.MultiBinary(2)))
    space = spaces.Dict([("z", multi), ("a", pad)])  # pairs keep their order
    of_z, of_a = [False, True, True, False, True], [True, False, True]
    expected = of_z + of_a + [True] * 4  # of the two bits
    whole = {"a": (None, np.array(of_a), None), "z": np.array(of_z)}
    assert flatten(space, whole).tolist() == expected
    assert flatten(space, np.array(expected)).tolist() == expected
    assert flatten(space, np.array(of_z + of_a)).tolist() == expected  # without the bits
    bits = np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.int8)
    assert flatten(spaces.MultiBinary(2), bits).tolist() == bits.astype(bool).tolist()
    assert flatten(space, {"a": (None, None, bits[0])}).tolist() == [True] * 10 + [False, True]
    without_z = flatten(space, {"a": (None, given, None)})
    rows_of_a = given.astype(bool).tolist()
    assert without_z.tolist() == [[True] * 5 + row + [True] * 4 for row in rows_of_a]
    assert flatten(space, None).tolist() == flatten(space, {}).tolist() == [True] * 12
    assert flatten(UNIT, None).shape == (0,)


def check_mask_is_empty(module: ModuleType) -> None:
    """A component without any choice matches manual values."""
    empty = module.mask_is_empty
    bits = np.array([[0, 0, 0, 1, 1], [1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    assert empty(Categorical(5), bits).tolist() == [False, False, False, True]
    assert empty(MultiCategorical((2, 3)), bits).tolist() == [True, True, False, True]
    parts = Composite((Bernoulli(2), {"a": MultiCategorical((2, 1)), "b": Categorical(2)}))
    both = np.ones((4, 4), bool)
    assert empty(parts, np.concatenate((both, bits), 1)).tolist() == [True, True, True, True]
    full = np.array([[1, 0, 1, 0, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 0]], bool)
    assert empty(parts, np.concatenate((both[:3], full), 1)).tolist() == [False, True, True]
    pairs = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]], bool)
    assert empty(Bernoulli(2), pairs).tolist() == [False, True, True]
    assert empty(DiagGaussian(2), bits[:, :0]).tolist() == [False] * 4
    assert bool(empty(Categorical(5), bits[3]))


CHECKS = {
    check_to_env: action_spaces,
    check_flatten_mask: masks,
    check_mask_is_empty: action_spaces,
}


@pytest.mark.parametrize(("check", "module"), CHECKS.items(), ids=lambda f: f.__name__)
def test_the_function_passes(check: Callable[[ModuleType], None], module: ModuleType) -> None:
    check(module)


def test_squashing_reaches_the_largest_bounds_without_overflow() -> None:
    bound = float(np.finfo(np.float32).max)
    space = spaces.Box(-bound, bound, (3,))
    received = to_env(space, np.array([-100.0, 0.0, 100.0], np.float32), squash=True)
    assert received.tolist() == [-bound, 0.0, bound]


FLOAT_MAX = float(np.finfo(np.float32).max)
BOUNDS = [(-1, 1), (0, 1000), (-5, 100), (1e-4, 1e-2), (1e6, 1e6 + 1), (-FLOAT_MAX, FLOAT_MAX)]
BOUNDS += [(3, 3), (-1e9, 1e-9), (1e-6, 2e-6), (0, 65504)]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), BOUNDS, ids=str)
def test_scaled_actions_reach_both_bounds_and_stay_between_them(low, high, dtype, squash):
    if dtype == np.float16 and (max(-low, high) > 65504 or high < 1e-3):
        return  # float16 has no such numbers
    space = spaces.Box(low, high, (3,), dtype)
    rows = np.array([[-1e30, 0.0, 1e30], [-0.5, 0.25, 0.5]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        received = to_env(space, rows, squash, scale=True)
    assert received.dtype == dtype
    assert all(space.contains(row) for row in received)
    ends = np.array([space.low[0], space.low[0] / 2 + space.high[0] / 2, space.high[0]])
    size = max(abs(space.low[0]), abs(space.high[0]))
    np.testing.assert_allclose(received[0], ends, rtol=0, atol=2 * np.finfo(dtype).eps * size)
    assert (np.diff(received[1]) > 0).all() or high - low <= np.spacing(dtype(size))


@examples(100)
@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=4),
)
def test_a_scaled_action_is_recovered_from_its_place_between_the_bounds(low, width, unit):
    space = spaces.Box(low, low + width, (len(unit),), np.float64)
    received = to_env(space, np.array(unit, np.float32), scale=True)
    back = 2.0 * (received - space.low) / (space.high - space.low) - 1.0
    np.testing.assert_allclose(back, unit, rtol=0, atol=1e-5)


def test_elements_without_two_finite_bounds_keep_their_units():
    inf = np.inf
    space = spaces.Box(np.float32([0, -inf, -inf, 2, 7]), np.float32([inf, 0, inf, 4, 7]))
    rows = np.float32([[-3, -3, -3, -3, -3], [5, 5, 5, 0.5, 0.5], [0, 0, 0, 0, 0]])
    received = to_env(space, rows, scale=True)
    assert received.tolist() == [[0, -3, -3, 2, 7], [5, 0, 5, 3.5, 7], [0, 0, 0, 3, 7]]
    assert to_env(space, rows).tolist() == [[0, -3, -3, 2, 7], [5, 0, 5, 2, 7], [0, 0, 0, 2, 7]]
    tensors = to_env(space, torch.from_numpy(rows), scale=True)
    assert tensors.tolist() == received.tolist()


@pytest.mark.parametrize(
    ("space", "is_scaled"),
    [
        (spaces.Box(-1, 1, (2,)), False),
        (spaces.Box(-2, 2, (2,)), True),
        (spaces.Box(0, np.inf, (2,)), False),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(0, 1, ())])), True),
        (NESTED, False),
    ],
    ids=str,
)
def test_a_transform_knows_whether_it_scales(space, is_scaled):
    assert ActionTransform(space, scale=True).is_scaled is is_scaled
    assert not ActionTransform(space).is_scaled


@pytest.mark.parametrize(
    ("space", "mask", "words"),
    [
        (spaces.Discrete(3), np.ones((2, 4)), r"mask has the shape \(2, 4\): .*\[\.\.\., 3\]"),
        (spaces.Discrete(3), True, r"shape \(\): .*\[\.\.\., 3\]"),
        (spaces.Discrete(3), "yes", "booleans"),
        (spaces.Discrete(2), [[1], [1, 0]], "isn't an array"),
        (spaces.MultiDiscrete([2, 3]), (np.ones(2), np.ones(2)), "at 1 has the shape .* 3 choices"),
        (spaces.MultiDiscrete([2, 3]), (np.ones(2),), r"1 parts: .* 2, of the sizes \[2, 3\]"),
        (spaces.MultiDiscrete([2, 3]), np.ones((4, 6)), r"\(4, 6\): .*\[\.\.\., 5\]"),
        (UNIT, np.ones(2), "can't be masked"),
        (NESTED, {"arm": (None, np.ones(2), None)}, "at 'arm'/1 .*can't be masked"),
        (NESTED, {"arm": (np.ones(6), None)}, "at 'arm' must be a tuple of 3 .* tuple of 2"),
        (NESTED, {"mvoe": np.ones(3)}, "key 'mvoe'.* Did you mean 'move'"),
        (NESTED, (None, None), "is a tuple: give a dict"),
        (NESTED, np.ones(8), r"\(8,\): .*\[\.\.\., 13\]"),
        (
            NESTED,
            {"move": np.ones((2, 3)), "arm": (np.ones((3, 6)), None, None)},
            "leading dimensions",
        ),
    ],
)
def test_a_mask_that_fits_nothing_is_a_config_error_with_the_sizes(
    space: Space, mask: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        flatten_mask(space, mask)


@pytest.mark.parametrize("xp", [torch, np], ids=["tensor", "array"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_float64_box_contains_what_is_clipped_to_its_bounds(xp, shape):
    space = spaces.Box(4.0, 4.01, shape, np.float64)
    actions = [xp.asarray([[9.0]], dtype=xp.float32), xp.asarray([9.0], dtype=xp.float32)]
    for action, leading in zip(actions, [(1,), ()], strict=True):
        received = np.asarray(to_env(space, action))
        assert received.shape == (*leading, *shape)
        assert space.contains(received.reshape(shape))


def test_bounds_of_means_are_those_of_finite_boxes():
    space = spaces.Tuple(
        (
            spaces.Discrete(3),
            spaces.Box(np.float32([-2, 0, -np.inf]), np.float32([4, np.inf, 1])),
            spaces.MultiBinary(2),
            spaces.Box(-1, 1, (2,)),
        )
    )
    bounds = output_bounds(space, squash=False, scale=False)
    assert bounds.places.tolist() == [3, 8, 9]
    assert bounds.middle.tolist() == [1, 0, 0]
    assert bounds.half.tolist() == [3, 1, 1]
    scaled = output_bounds(space, squash=False, scale=True)
    assert scaled.places.tolist() == [3, 8, 9]
    assert scaled.middle.tolist() == [0, 0, 0]
    assert scaled.half.tolist() == [1, 1, 1]
    assert output_bounds(spaces.Box(-1, 1, (2,)), squash=True, scale=True) is None
    assert output_bounds(spaces.Discrete(3), squash=False, scale=True) is None
    assert output_bounds(spaces.Box(0, 0, (1,)), squash=False, scale=False) is None
