"""Action spaces one component at a time: slow and literal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import strategies as st

from headrace.ops import tree

NAMES = ("discrete", "multidiscrete", "multibinary", "box", "box2d", "dict", "tuple")
MASKABLE = ("discrete", "multidiscrete", "dict", "tuple")

CASES = [(name, mask) for name in NAMES for mask in (None, "obs", "info")]
CASES = [(name, mask) for name, mask in CASES if mask is None or name in MASKABLE]

leaf_spaces = st.one_of(
    st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.just(MultiDiscrete(np.array([[2, 3], [4, 1]]), start=np.array([[0, 1], [-1, 5]]))),
    st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
    st.builds(
        lambda shape, bound: Box(-bound, bound, shape, np.float32),
        st.sampled_from([(1,), (2, 3), ()]),
        st.sampled_from([1.0, 2.5]),
    ),
)
spaces = st.recursive(
    leaf_spaces,
    lambda parts: (
        st.builds(Tuple, st.lists(parts, min_size=1, max_size=3))
        | st.builds(Dict, st.dictionaries(st.sampled_from("abc"), parts, min_size=1))
    ),
    max_leaves=5,
)


def parts_of(space: gymnasium.Space, action: Any) -> list[tuple[gymnasium.Space, Any]]:
    """Yield leaf spaces with their actions, depth first."""
    if isinstance(space, Dict):
        return [x for key in space for x in parts_of(space[key], action[key])]
    if isinstance(space, Tuple):
        return [x for i in range(len(space)) for x in parts_of(space[i], action[i])]
    return [(space, np.asarray(action))]


def to_action(space: gymnasium.Space, features: list[float]) -> Any:
    """Return the action that the observed features show, and remove them from the list."""
    if isinstance(space, Dict):
        return {key: to_action(space[key], features) for key in space}
    if isinstance(space, Tuple):
        return tuple(to_action(part, features) for part in space)
    if isinstance(space, Discrete):
        return space.start + [features.pop(0) for _ in range(space.n)].index(1.0)
    if isinstance(space, MultiDiscrete):
        hot = [[features.pop(0) for _ in range(n)].index(1.0) for n in space.nvec.ravel()]
        return np.array(hot).reshape(space.shape) + space.start
    values = [features.pop(0) for _ in range(int(np.prod(space.shape)))]
    return np.array(values, space.dtype).reshape(space.shape)


def optimal(space: gymnasium.Space, target: np.ndarray) -> Any:
    """Return batched actions for observed targets ``[B, F]``."""
    rows = []
    for row in target:
        features = row.tolist()
        rows.append(to_action(space, features))
        assert not features
        assert space.contains(tree.map_leaves(np.asarray, rows[-1])) or isinstance(space, Discrete)
    return tree.map_leaves(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *rows)


def literal_reward(space: gymnasium.Space, action: Any, target: Any) -> float:
    """Return the mean over components, one by one."""
    scores = []
    for (leaf, a), (_, t) in zip(parts_of(space, action), parts_of(space, target), strict=True):
        for x, y in zip(a.ravel().tolist(), t.ravel().tolist(), strict=True):
            if isinstance(leaf, Box):
                scores.append(max(0.0, 1.0 - abs(x - y)))
            else:
                scores.append(1.0 if x == y else 0.0)
    return sum(scores) / len(scores)


def literal_mask(space: gymnasium.Space, action: Any) -> list[bool]:
    """Mark the choices of ``action`` in the Discrete and MultiDiscrete components."""
    marks: list[bool] = []
    for leaf, part in parts_of(space, action):
        if not isinstance(leaf, (Discrete, MultiDiscrete)):
            continue
        sizes = [leaf.n] if isinstance(leaf, Discrete) else leaf.nvec.ravel().tolist()
        for n, chosen in zip(sizes, (part - leaf.start).ravel().tolist(), strict=True):
            marks += [i == chosen for i in range(n)]
    return marks


def target_of(obs: Any) -> np.ndarray:
    return obs["target"] if isinstance(obs, dict) else obs
