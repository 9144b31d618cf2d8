"""Environment that holds a port of this machine while it is open."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import headrace as hr


class Port(gymnasium.Env):
    """Listens at ``base + index`` and records its identity in a folder; duplicate indices fail.

    Args:
        folder: for a file per environment. base: the first port. index: None: from the context.
        dies: an actor's first environment with this index ends its process at step 30, once.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(
        self, folder: str, base: int, index: int | None = None, dies: int | None = None
    ) -> None:
        known = hr.env_context()
        self.index = known.index if index is None else index
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", base + self.index))
        self._socket.listen()
        line = f"{known.role} {known.rank} {known.actor} {self.index} {known.num_envs}\n"
        with (Path(folder) / "made").open("a") as file:
            file.write(line)
        self._dies = Path(folder) / "died" if dies == self.index else None
        self._t = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of ten steps."""
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self._t, self._steps = self._t + 1, self._steps + 1
        if self._dies is not None and self._steps == 30 and not self._dies.exists():
            self._dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), 1.0, self._t == 10, False, {}

    def close(self) -> None:
        """Close the port."""
        self._socket.close()


def made_in(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Return role, rank, actor, index and count of each environment, in the order of creation."""
    lines = [line.split() for line in (folder / "made").read_text().splitlines()]
    return [(role, *map(int, numbers)) for role, *numbers in lines]  # type: ignore[misc]
