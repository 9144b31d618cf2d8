"""Environments of the page on IMPACT: high-dimensional control, and steps that take time."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import register

LENGTH, PUSH, LIMIT = 50, 0.2, 2.0


class Regulator(gymnasium.Env):
    """Linear-quadratic control: brings points on a line to rest at 0, with one force per point.

    The probability ratio of two policies is a product over the forces, so it varies as much as in
    locomotion, while a policy is found in thousands of steps.

    Places and speeds are limited to 2.

    Args:
        forces: number of points, dimensions of the action.
    """

    def __init__(self, forces: int = 8) -> None:
        self._forces = forces
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (forces,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2 * forces,), np.float32)

    def _seen(self) -> np.ndarray:
        return np.concatenate([self._place, self._speed]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, self._forces)
        self._speed = np.zeros(self._forces)
        self._time = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._speed = np.clip(self._speed + PUSH * np.clip(action, -1, 1), -LIMIT, LIMIT)
        self._place = np.clip(self._place + PUSH * self._speed, -LIMIT, LIMIT)
        self._time += 1
        cost = np.mean(np.square(self._place) + 0.1 * np.square(self._speed))
        return self._seen(), -float(cost), False, self._time == LENGTH, {}


register("Regulator-v0", Regulator, kwargs={"forces": 2})


class Simulator(gymnasium.Wrapper):
    """Wraps a Gymnasium environment so that its steps take longer, as in a slow simulator.

    Args:
        env_id: its id.
        step_s: seconds that each step waits.
    """

    def __init__(self, env_id: str, step_s: float) -> None:
        super().__init__(gymnasium.make(env_id))
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return self.env.step(action)
