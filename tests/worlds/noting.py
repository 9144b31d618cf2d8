"""Wrapper that records in a folder where environments run."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import gymnasium


class Noting(gymnasium.Wrapper):
    """Records the SLURM node or host in a folder, and takes a moment for each episode."""

    def __init__(self, env: gymnasium.Env, folder: str, pause_s: float = 0.0) -> None:
        super().__init__(env)
        self._pause_s = pause_s
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        Path(folder, f"{node}-{os.getpid()}").touch()

    def reset(self, **kwargs):
        time.sleep(self._pause_s)
        return self.env.reset(**kwargs)
