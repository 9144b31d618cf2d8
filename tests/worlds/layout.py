"""Any action space as one flat vector of components, for environments that set targets in it."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from headrace.errors import ConfigError, require_choice

Path = tuple[str | int, ...]


def named_action_space(name: str) -> gymnasium.Space:
    """One small action space of each kind, by name: env_kwargs that are JSON can't hold a space.

    Args:
        name: ``discrete``, ``multidiscrete``, ``multibinary``, ``box``, ``box2d``, ``dict`` or
            ``tuple``; the last two nest the others.

    Raises:
        ConfigError: the name is unknown.
    """
    box = functools.partial(Box, -1.0, 1.0, dtype=np.float32)
    spaces: dict[str, gymnasium.Space] = {
        "discrete": Discrete(4),
        "multidiscrete": MultiDiscrete([3, 2, 4]),
        "multibinary": MultiBinary(3),
        "box": box((2,)),
        "box2d": box((2, 2)),
        "dict": Dict({"arm": box((2,)), "grip": Discrete(3, start=1), "lamps": MultiBinary(2)}),
        "tuple": Tuple((Discrete(3), Dict({"move": MultiDiscrete([2, 3]), "turn": box((1,))}))),
    }
    require_choice("action_space", name, spaces)
    return spaces[name]


class Layout:
    """The ``K`` components of an action space in order: leaves depth first, each flattened.

    A component is a choice among ``sizes[k]`` actions (Discrete, MultiDiscrete, a bit of
    MultiBinary) or a number (Box, ``sizes[k]`` is 0). Values are float64 ``[..., K]``, which holds
    all of them exactly; choices count from 0 whatever the space's ``start``. Choices of Discrete
    and MultiDiscrete can be masked: their ``num_mask`` actions, side by side.

    Raises:
        ConfigError: the space holds another kind of space, or a Box that lacks a part of [-1, 1].
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.space = space
        self._leaves = _leaves(space, ())
        parts = [_components(path, leaf) for path, leaf in self._leaves]
        self.sizes = np.concatenate([sizes for sizes, _ in parts])  # [K]
        self._starts = np.concatenate([starts for _, starts in parts])  # [K]
        self.labels = [
            f"{_name(path)} component {k}"
            for (path, _), (sizes, _) in zip(self._leaves, parts, strict=True)
            for k in range(len(sizes))
        ]
        maskable = [
            np.full(len(sizes), isinstance(leaf, (Discrete, MultiDiscrete)))
            for (_, leaf), (sizes, _) in zip(self._leaves, parts, strict=True)
        ]
        self.hot = np.concatenate(maskable)  # [K] shown one-hot, and maskable
        widths = np.where(self.hot, self.sizes, 1)
        self._offsets = np.cumsum(widths) - widths  # [K] of the features
        self.num_features = int(widths.sum())
        hot_sizes = self.sizes[self.hot]
        self._mask_offsets = np.cumsum(hot_sizes) - hot_sizes  # [hot]
        self.num_mask = int(hot_sizes.sum())

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Return random values ``[rows, K]``: numbers uniform in [-1, 1], exact in float32."""
        shape = (rows, len(self.sizes))
        numbers = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        return np.where(
            self.sizes > 0, rng.integers(np.maximum(self.sizes, 1), size=shape), numbers
        )

    def draw_mask(self, rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
        """Allow each action with probability 1/2, and those of ``values``: ``[rows, num_mask]``.

        Returns:
            int8.
        """
        mask = (rng.random((len(values), self.num_mask)) < 0.5).astype(np.int8)
        np.put_along_axis(mask, self._masked_actions(values), 1, -1)
        return mask

    def features(self, values: np.ndarray) -> np.ndarray:
        """Return float32 ``[..., num_features]``: one-hots, bits and numbers side by side."""
        shown = np.zeros((*values.shape[:-1], self.num_features), np.float32)
        columns = self._offsets + np.where(self.hot, values, 0).astype(np.int64)
        np.put_along_axis(shown, columns, np.where(self.hot, 1, values).astype(np.float32), -1)
        return shown

    def feature_low(self) -> np.ndarray:
        """Return the minimum of each feature, float32 ``[num_features]``; the maximum is 1."""
        low = np.zeros(self.num_features, np.float32)
        low[self._offsets[self.sizes == 0]] = -1.0
        return low

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds of the numbers, float64 ``[K]`` each; -1 and 1 for choices."""
        low, high = -np.ones(len(self.sizes)), np.ones(len(self.sizes))
        boxes = [leaf for _, leaf in self._leaves if isinstance(leaf, Box)]
        if boxes:
            low[self.sizes == 0] = np.concatenate([box.low.ravel() for box in boxes])
            high[self.sizes == 0] = np.concatenate([box.high.ravel() for box in boxes])
        return low, high

    def values(self, actions: Any, num_envs: int) -> np.ndarray:
        """Return the values ``[num_envs, K]`` of batched actions.

        Raises:
            ValueError: an action isn't in the space; bounds of a Box aren't checked.
        """
        parts = []
        for path, leaf in self._leaves:
            part = np.asarray(functools.reduce(lambda tree, key: tree[key], path, actions))
            expected = (num_envs, *(leaf.shape or ()))
            if part.shape != expected:
                raise ValueError(f"{_name(path)} has shape {part.shape}, not {expected}")
            if not isinstance(leaf, Box) and part.dtype.kind not in "iub":
                raise ValueError(f"{_name(path)} holds {part.dtype}, not integers")
            parts.append(part.reshape(num_envs, -1).astype(np.float64))
        values = np.concatenate(parts, -1) - self._starts
        outside = (self.sizes > 0) & ((values < 0) | (values >= self.sizes))
        for env, k in np.argwhere(outside)[:1]:
            start, size = self._starts[k], self.sizes[k]
            raise ValueError(
                f"{self.labels[k]} is {int(values[env, k] + start)} in environment {env}, "
                f"not one of {start} … {start + size - 1}"
            )
        return values

    def check_mask(self, values: np.ndarray, mask: np.ndarray) -> None:
        """Raise ValueError if ``mask`` ``[B, num_mask]`` forbids one of ``values`` ``[B, K]``."""
        allowed = np.take_along_axis(mask, self._masked_actions(values), -1)
        for env, j in np.argwhere(allowed == 0)[:1]:
            k = np.flatnonzero(self.hot)[j]
            action = int(values[env, k] + self._starts[k])
            begin = self._mask_offsets[j]
            others = np.flatnonzero(mask[env, begin : begin + self.sizes[k]]) + self._starts[k]
            raise ValueError(
                f"{self.labels[k]} is {action} in environment {env}, which its mask forbids; "
                f"allowed: {', '.join(map(str, others)) or 'none'}"
            )

    def _masked_actions(self, values: np.ndarray) -> np.ndarray:
        return values[:, self.hot].astype(np.int64) + self._mask_offsets


def _leaves(space: gymnasium.Space, path: Path) -> list[tuple[Path, gymnasium.Space]]:
    if isinstance(space, Dict):
        return [leaf for key, part in space.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(space, Tuple):
        return [leaf for i, part in enumerate(space) for leaf in _leaves(part, (*path, i))]
    return [(path, space)]


def _components(path: Path, leaf: gymnasium.Space) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes and starts, int64 ``[k]`` each."""
    if isinstance(leaf, Discrete):
        return np.array([leaf.n], np.int64), np.array([leaf.start], np.int64)
    if isinstance(leaf, MultiDiscrete):
        return leaf.nvec.ravel().astype(np.int64), leaf.start.ravel().astype(np.int64)
    zeros = np.zeros(int(np.prod(leaf.shape or ())), np.int64)
    if isinstance(leaf, MultiBinary):
        return zeros + 2, zeros
    if isinstance(leaf, Box) and leaf.dtype is not None and leaf.dtype.kind == "f":
        if (leaf.low > -1).any() or (leaf.high < 1).any():
            raise ConfigError(f"{_name(path)}: {leaf} must contain [-1, 1], where its targets lie")
        return zeros, zeros
    raise ConfigError(
        f"{_name(path)}: {leaf} has no targets; use Discrete, MultiDiscrete, MultiBinary, a "
        "floating Box, or a Dict or Tuple of these"
    )


def _name(path: Path) -> str:
    return f"action at {'/'.join(map(repr, path))}" if path else "action"
