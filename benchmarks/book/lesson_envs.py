"""Environments that wait, stepped as a vector: ``book.lesson_envs:Waiting-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from waiting import Wait

OBSERVATION, ACTION = Box(-1, 1, (32,), np.float32), Discrete(4)


class Waiting(gymnasium.Env):
    """Waits at every step, and never ends; see :class:`waiting.Wait` for the arguments."""

    observation_space, action_space = OBSERVATION, ACTION

    def __init__(self, step_s: float, claim: str = "") -> None:
        self._wait, self._obs = Wait(step_s, claim), np.zeros(OBSERVATION.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._wait()
        return self._obs, 1.0, False, False, {}


class WaitingVector(VectorEnv):
    """Waits once per step for all its environments, as if each waited in parallel."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, step_s: float, claim: str = "") -> None:
        self.num_envs, self._wait = num_envs, Wait(step_s, claim)
        self.single_observation_space, self.single_action_space = OBSERVATION, ACTION
        self.observation_space = batch_space(OBSERVATION, num_envs)
        self.action_space = batch_space(ACTION, num_envs)
        shape = (num_envs, *OBSERVATION.shape)
        self._obs = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        self._reward, self._never = np.ones(num_envs), np.zeros(num_envs, bool)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        return self._obs, {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        self._wait()
        return self._obs, self._reward, self._never, self._never, {}


gymnasium.register("Waiting-v0", entry_point=Waiting, vector_entry_point=WaitingVector)
