"""Environments that fail on purpose or sleep."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from headrace.errors import require_choice


class _NoiseEnv(gymnasium.Env):
    """Four numbers of noise, two actions, reward 1 per step, episodes of 20 steps."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observe(), 1.0, self._step >= 20, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class FaultyEnv(_NoiseEnv):
    """Observes noise until it fails; four observed numbers, two actions, reward 1 per step.

    Args:
        fail_at_step: the step of its life that fails, from 1; resets don't count.
        mode: ``"raise"`` a RuntimeError, observe ``"nan"``, ``"hang"`` for ever, or ``"exit"`` the
            process with status 13.
        once: a path; only the environment that creates this file fails, so that its replacement
            doesn't.
        evaluated: fail only in evaluations, which have seeds from 1,000,000.

    Raises:
        ConfigError: the mode is unknown.
    """

    def __init__(
        self,
        fail_at_step: int = 10,
        mode: str = "raise",
        once: str | None = None,
        evaluated: bool = False,
    ) -> None:
        super().__init__()
        self._never = self._evaluated = evaluated
        require_choice("mode", mode, ("raise", "nan", "hang", "exit"))
        self._fail_at_step, self._mode, self._once = fail_at_step, mode, once
        self._life = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Record whether this is an evaluation, and reset."""
        if seed is not None:
            self._never = self._evaluated and not 1_000_000 <= seed < 1_000_128
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step, or fail."""
        self._life += 1
        result = super().step(action)
        if self._never or self._life != self._fail_at_step or not _is_first(self._once):
            return result
        if self._mode == "raise":
            raise RuntimeError(f"FaultyEnv failed at step {self._life}, as asked")
        if self._mode == "exit":
            os._exit(13)
        while self._mode == "hang":
            time.sleep(1.0)
        return np.full_like(result[0], np.nan), *result[1:]


def _is_first(once: str | None) -> bool:
    """Return whether this call creates the file; always True without a file."""
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class SlowEnv(_NoiseEnv):
    """Observes noise, as FaultyEnv does, and sleeps at every step.

    Args:
        step_seconds: duration of a step.
        once: a path; only the environment that creates this file sleeps. Its third step creates it,
            as the first look at an environment takes fewer.
    """

    def __init__(self, step_seconds: float = 0.01, once: str | None = None) -> None:
        super().__init__()
        self._step_seconds, self._once, self._life = step_seconds, once, 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Sleep, then take a step."""
        self._life += 1
        if self._once is not None and self._life == 3:
            self._step_seconds *= _is_first(self._once)
        if self._once is None or self._life >= 3:
            time.sleep(self._step_seconds)
        return super().step(action)
