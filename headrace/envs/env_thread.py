"""Runs one environment in its own thread and stores its results on a shared board."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from headrace.envs.changes import EnvChange, change_one


class StepBoard:
    """Latest results of the environments, row by row, and flags of new rows."""

    def __init__(self, num_envs: int) -> None:
        self.obs: list[Any] = [None] * num_envs
        self.info: list[dict[str, Any]] = [{}] * num_envs
        self.reward = np.zeros(num_envs)  # of games [num_envs, agents]
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)
        self.errors: dict[int, tuple[BaseException, str]] = {}
        self.outbox: queue.SimpleQueue[int] = queue.SimpleQueue()


@dataclass
class EnvThread:
    """One environment and its thread; holds no reference to ``Threads``, which may be collected."""

    index: int
    make: Callable[[], gymnasium.Env]
    board: StepBoard
    env: Any = None
    inbox: Any = field(default_factory=queue.SimpleQueue)  # queue of tasks and their arguments
    _ended: bool = False  # so the next step is a reset

    def __post_init__(self) -> None:
        name = f"headrace-env-{self.index}"
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        task = None
        while task != self.close:
            task, argument = self.inbox.get()
            try:
                task(argument)
            except BaseException as error:
                self.board.errors[self.index] = (error, traceback.format_exc().rstrip())
            del argument
            self.board.outbox.put(self.index)

    def create(self, _: None) -> None:
        self.env = self.make()

    def reset(self, how: tuple[int | None, Any]) -> None:
        seed, options = how
        obs, info = self.env.reset(seed=seed, options=options)
        self._put(obs, 0.0, False, False, info)

    def step(self, action: Any) -> None:
        if self._ended:
            self.reset((None, None))
        else:
            self._put(*self.env.step(action))

    def _put(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        i, board = self.index, self.board
        board.obs[i], board.reward[i], board.info[i] = obs, reward, info
        board.terminated[i], board.truncated[i] = terminated, truncated
        self._ended = bool(terminated or truncated)

    def change(self, change: tuple[EnvChange, str]) -> None:
        change_one(self.env, *change, self.index)

    def close(self, _: None) -> None:
        if self.env is not None:
            self.env.close()
