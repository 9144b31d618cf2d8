"""Environments of Gym, from which Gymnasium comes, and what has its interface without its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import VectorEnv

_NEEDED = ("reset", "step", "observation_space", "action_space")


def is_gym(env: Any) -> bool:
    """Whether it is no environment of Gymnasium's, but looks like one of Gym's."""
    known = isinstance(env, gymnasium.Env | VectorEnv)
    return not known and all(hasattr(env, name) for name in _NEEDED)


class GymEnv(gymnasium.Env):
    """An environment of Gym, of any version, as one of Gymnasium's.

    Before 0.26 ``reset`` took nothing and returned the observation alone, and ``step`` returned
    four values; ``done`` is ``truncated`` where ``info["TimeLimit.truncated"]`` says so, else
    ``terminated``. Seeds go to ``reset`` or ``seed``, whichever there is. Where neither is and
    ``create`` takes a ``seed``, a reset with a seed makes the environment anew.

    Args:
        env: has ``reset``, ``step`` and two spaces, Gym's or with the attributes of Gym's.
        create: made it.
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
        if seed is not None and not _takes(self._env.reset, "seed"):
            if callable(getattr(self._env, "seed", None)):
                self._env.seed(seed)
            elif _takes(self._create, "seed"):
                self.close()
                self._env = self._create(seed=seed)
        given = {"seed": seed, "options": options}
        kwargs = {key: value for key, value in given.items() if _takes(self._env.reset, key)}
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
        """The picture that Gym gives for ``rgb_array``."""
        kwargs = {"mode": "rgb_array"} if _takes(self._env.render, "mode") else {}
        return np.asarray(self._env.render(**kwargs))

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have none
        return False


def _space(space: Any) -> Any:
    """A space of Gymnasium's for one that has the attributes of Gym's; itself if it has none."""
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
