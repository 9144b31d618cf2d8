"""Environment that changes the global state of its process."""

from __future__ import annotations

import locale
import logging
import os
import signal
import sys
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete


def _leave(away: str) -> None:
    os.chdir(away)
    os.umask(0o077)
    os.environ["MESSY"] = "1"
    np.seterr(all="raise")
    np.set_printoptions(precision=2)
    torch.manual_seed(7)
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    logging.getLogger().addHandler(logging.NullHandler())
    sys.path.insert(0, "/messy")
    sys.setrecursionlimit(3333)
    sys.excepthook = print
    warnings.simplefilter("error")
    locale.setlocale(locale.LC_ALL, "C")
    os.write(1, b"written to the file of standard output\n")


_DEEDS = {
    "float64": lambda _: torch.set_default_dtype(torch.float64),
    "meta": lambda _: torch.set_default_device("meta"),
    "no grad": lambda _: torch.set_grad_enabled(False),
    "numpy": lambda _: np.seterr(all="raise"),
    "everything": _leave,
    "chdir": os.chdir,
    "umask": lambda _: os.umask(0o777),
    "sys.exit": lambda _: sys.exit(3),
    "os._exit": lambda _: os._exit(4),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda _: time.sleep(3600),
    "slow": lambda _: time.sleep(1.2),
}


class MessyEnv(gymnasium.Env):
    """Episodes of ten steps without any reward to train on.

    Args:
        deed: the change. when: in ``init``, ``reset`` or ``step``. to: a folder.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, deed: str, when: str = "init", to: str = "/") -> None:
        self._deed, self._when, self._to = deed, when, to
        self._do("init")

    def _do(self, when: str) -> None:
        if when == self._when:
            _DEEDS[self._deed](self._to)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._do("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._do("step")
        if self._deed == "float64" and self._when == "init":
            assert torch.zeros(1).dtype == torch.float64  # its default stays
        return np.zeros(2, np.float32), 1.0, self._steps == 10, False, {}
