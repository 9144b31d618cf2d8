"""Environment that draws from the global random generators of its process."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete


class GlobalDrawsEnv(gymnasium.Env):
    """Observes random numbers of ``numpy.random``, ``random`` and ``torch``.

    Args:
        log: a file that gets a line for the constructor and for each reset; "": none is written.
        fails: the process ends at the reset after this number; 0: never.
    """

    observation_space = Box(0, 1, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, log: str = "", fails: int = 0) -> None:
        self._log, self._fails, self._resets = log, fails, 0
        self._write()

    def _write(self) -> np.ndarray:
        drawn = np.random.random(), random.random(), float(torch.rand(()))
        if self._log:
            with open(self._log, "a", encoding="ascii") as file:
                file.write(" ".join(map(repr, (os.getpid(), *drawn))) + "\n")
        return np.array(drawn, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._resets = 0, self._resets + 1
        if self._resets == self._fails and Path(self._log).read_text("ascii").count("\n") < 100:
            os._exit(1)
        return self._write(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        drawn = np.random.random(), random.random(), float(torch.rand(()))
        return np.array(drawn, np.float32), float(drawn[0]), self._steps == 10, False, {}
