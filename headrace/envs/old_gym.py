"""Adapts environments of Gym, Gymnasium's predecessor, and of the same interface."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import VectorEnv

_NEEDED = ("reset", "step", "observation_space", "action_space")


def is_gym(env: Any) -> bool:
    """Return whether ``env`` has Gym's interface but isn't a Gymnasium environment."""
    is_gymnasium = isinstance(env, gymnasium.Env | VectorEnv)
    return not is_gymnasium and all(hasattr(env, name) for name in _NEEDED)


class GymEnv(gymnasium.Env):
    """Adapts an environment of any Gym version to Gymnasium.

    Before 0.26 ``reset`` had no arguments and returned only the observation, and ``step`` returned
    four values; ``done`` is ``truncated`` where ``info["TimeLimit.truncated"]`` is true, else
    ``terminated``. Seeds are passed to ``reset`` or ``seed``, whichever exists. If neither does
    and ``create`` has a parameter ``seed``, a reset with a seed recreates the environment.

    Args:
        env: has ``reset``, ``step`` and two spaces, Gym's or with the attributes of Gym's.
        create: the factory that made it.
    """

    def __init__(self, env: Any, create: Callable[..., Any]) -> None:
        self._env, self._create = env, create
        self.observation_space = _space(env.observation_space)
        self.action_space = _space(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = "rgb_array"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None and not _reset_takes(self._env, "seed"):
            if callable(getattr(self._env, "seed", None)):
                self._env.seed(seed)
            elif _takes(self._create, "seed"):
                self.close()
                self._env = self._create(seed=seed)
        options_by_name = {"seed": seed, "options": options}
        kwargs = {
            key: value for key, value in options_by_name.items() if _reset_takes(self._env, key)
        }
        returned = self._env.reset(**kwargs)
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            return returned
        return returned, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        returned = self._env.step(action)
        if len(returned) != 4:
            return returned  # type: ignore[no-any-return]
        obs, reward, done, info = returned
        truncated = bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, bool(done) and truncated, info

    def render(self) -> np.ndarray:
        """Return Gym's image in mode ``rgb_array``."""
        kwargs = {"mode": "rgb_array"} if _takes(self._env.render, "mode") else {}
        return np.asarray(self._env.render(**kwargs))

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def _reset_takes(env: Any, name: str) -> bool:
    """Return whether ``reset`` takes an argument; Gym's wrappers pass ``**kwargs`` to their env."""
    while not _takes(env.reset, name):
        inner = getattr(env, "env", None)
        if not _passes_on(env.reset) or not callable(getattr(inner, "reset", None)):
            return False
        env = inner
    return True


def _passes_on(function: Callable[..., Any]) -> bool:
    with contextlib.suppress(TypeError, ValueError):  # some builtins have no signature
        parameters = inspect.signature(function).parameters.values()
        return any(one.kind is one.VAR_KEYWORD for one in parameters)
    return False


def _space(space: Any) -> Any:
    """Convert a space with the attributes of Gym's to Gymnasium; return others unchanged."""
    if isinstance(space, gymnasium.Space):
        return space
    kind = type(space).__name__
    if hasattr(space, "spaces"):
        inner = space.spaces
        if hasattr(inner, "items"):
            return Dict({key: _space(part) for key, part in inner.items()})
        return Tuple([_space(part) for part in inner])
    if hasattr(space, "low") and hasattr(space, "high"):
        dtype, shape = np.dtype(space.dtype), tuple(space.shape)
        low, high = (np.broadcast_to(x, shape).astype(dtype) for x in (space.low, space.high))
        return Box(low, high, shape, dtype.type)
    if hasattr(space, "nvec"):
        return MultiDiscrete(np.asarray(space.nvec))
    if kind.startswith("MultiBinary"):
        return MultiBinary(space.n)
    if hasattr(space, "n"):
        return Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    return space
