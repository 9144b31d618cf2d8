"""Environments that report numbers in their infos."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

STEPS = 4  # of an episode


class Reporting(gymnasium.Env):
    """Episodes of four steps, in which step ``t`` reports ``drive`` ``t`` (1, 2, 3, 4).

    The last step also reports a flag, a nested number, a text and a number that isn't finite.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, scale: float = 1.0) -> None:
        self._scale, self._t = scale, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; the info of a reset belongs to no episode."""
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {"begun": 1.0, "parts": {"drive": 100.0}}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one of four steps."""
        self._t += 1
        info: dict[str, Any] = {"parts": {"drive": self._scale * self._t}}
        if over := self._t == STEPS:
            info |= {"is_success": True, "extra": {"crashes": np.float32(3.0)}, "why": "late"}
            info["broken"] = float("nan")
        return np.zeros(2, np.float32), 1.0, over, False, info


class ReportingVector(VectorEnv):
    """The same, natively vectorised with common episode ends, in NEXT_STEP autoreset.

    Args:
        in_lists: infos hold a list with a dict for each environment instead of arrays.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, in_lists: bool = False) -> None:
        self.num_envs, self._in_lists, self._t = num_envs, in_lists, 0
        self.single_observation_space = Reporting.observation_space
        self.single_action_space = Reporting.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes."""
        self._t = 0
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        if self._t == STEPS:
            obs, infos = self.reset()
            never = np.zeros(self.num_envs, bool)
            return obs, np.zeros(self.num_envs), never, never, infos
        self._t += 1
        over = np.full(self.num_envs, self._t == STEPS)
        parts: Any = {"drive": np.full(self.num_envs, float(self._t))}
        if self._in_lists:
            parts = [{"drive": float(self._t)} for _ in range(self.num_envs)]
        infos: dict[str, Any] = {"parts": parts}
        if over.all():
            infos |= {"is_success": over.copy(), "_is_success": over.copy()}
        obs = np.zeros((self.num_envs, 2), np.float32)
        return obs, np.ones(self.num_envs), over, np.zeros_like(over), infos
