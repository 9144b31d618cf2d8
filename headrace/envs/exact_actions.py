"""Wraps environments whose action space needs a conversion to exact types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from headrace.spaces.exact_actions import exact


class ExactActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Converts the actions of an environment to the exact types of its space."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], convert: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(env)
        self._convert = convert or exact(env.action_space)

    def action(self, action: Any) -> Any:
        """Convert an action to the types of the space."""
        return action if self._convert is None else self._convert(action)


def with_exact_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap ``env`` in :class:`ExactActions` if its action space needs it."""
    convert = exact(env.action_space)
    return env if convert is None else ExactActions(env, convert)
