"""Actions in the exact types that samples of their space have, for the spaces that need it.

The rows of a batch of numbers are scalars where a Box without dimensions asks for an array, and the
integers of other people's agents are mostly int64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from headrace.spaces.walk import Space, leaves, map_space


def exact(space: Space) -> Callable[[Any], Any] | None:
    """A function that converts one action to the types of ``space.sample()``.

    None if rows of a batch have them already, so that common spaces cost nothing.
    """
    if not any(map(_needs_it, (leaf for _, leaf in leaves(space)))):
        return None
    return lambda action: map_space(_converted, space, action)


def _needs_it(leaf: Any) -> bool:
    if isinstance(leaf, Discrete | MultiDiscrete):
        return leaf.dtype != np.int64
    return isinstance(leaf, Box) and leaf.shape == ()


def _converted(leaf: Any, action: Any) -> Any:
    if isinstance(leaf, Discrete):
        return leaf.dtype.type(action)
    return np.asarray(action, leaf.dtype) if isinstance(leaf, Box | MultiDiscrete) else action


class ExactActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Gives an environment its actions by such a function."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], convert: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(env)
        self._convert = convert or exact(env.action_space)

    def action(self, action: Any) -> Any:
        """The same action in the space's types."""
        return action if self._convert is None else self._convert(action)


def with_exact_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """``env`` itself, wrapped only if its action space needs it."""
    convert = exact(env.action_space)
    return env if convert is None else ExactActions(env, convert)
