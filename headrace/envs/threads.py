"""Steps environments that wait (remote simulators, network games) in a thread each.

    send(rows, actions) ──► inbox of thread i ──► env.step ──► row i of the board
                                                                     │
    receive() ──► all rows that are ready ◄── one outbox ◄── number i┘

A thread waits only for its inbox, so each environment advances at its own pace and Python's lock is
free while it waits. The board needs no lock: thread i writes row i between a task and its answer,
and the caller reads it between an answer and the next task.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from headrace.envs.changes import EnvChange
from headrace.envs.context import numbered
from headrace.envs.env_thread import EnvThread, StepBoard
from headrace.errors import ConfigError, EnvironmentFault, EnvironmentLost, HeadraceError
from headrace.games.infos import GAME
from headrace.spaces.agreement import check_alike

_CLOSE_S = 5.0  # how long close waits for busy threads
_LOOKS = 4  # polling interval of receive while it lingers


class Threads(VectorEnv):
    """A vector environment in NEXT_STEP autoreset, whose environments may also be stepped alone.

    ``reset`` and ``step`` wait for every environment. ``send``, ``receive``, ``results`` and
    ``infos`` step those that are ready. Each environment is made, reset, stepped and closed in its
    own thread. Returned arrays are never overwritten.

    Args:
        create: makes one environment; called in all threads at once.
        num_envs: B.
        name: name of the environment, for messages.
        timeout_s: timeout of an environment's answer, in seconds.

    Raises:
        ConfigError: the system allows fewer threads.
        EnvironmentLost: an environment raised, or didn't answer.
        EnvironmentFault: it broke its contract, or their spaces differ; from the
            constructor, ``reset``, ``step``, ``send`` and ``receive``. Afterwards it can only be
            closed. Its cause is what the environment raised.
    """

    def __init__(
        self,
        create: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str = "the environment",
        timeout_s: float = 240.0,  # below actor_timeout_s, whose error names no environment
    ) -> None:
        self.num_envs, self._name, self._timeout_s = num_envs, name, timeout_s
        self._board = StepBoard(num_envs)
        self._since: dict[int, float] = {}  # when each busy environment was sent its task
        self._fault: EnvironmentFault | None = None
        each = enumerate(numbered(create, num_envs))
        self._workers = [EnvThread(i, one, self._board) for i, one in each]
        weakref.finalize(self, _end, self._workers).atexit = False
        try:
            self._start_threads()
            self._give((i, worker.create, None) for i, worker in enumerate(self._workers))
            self._wait_for_all()
            self._adopt_spaces()
        except BaseException:
            with contextlib.suppress(EnvironmentFault):  # the first fault is reported
                self.close()
            raise

    def _start_threads(self) -> None:
        for i, worker in enumerate(self._workers):
            try:
                worker.thread.start()
            except RuntimeError as error:
                raise ConfigError(
                    f"num_envs={self.num_envs} with engine='threads' needs as many threads, but "
                    f"the system allows this process only {i} (nearest: {i})"
                ) from error

    def _adopt_spaces(self) -> None:
        for i, worker in enumerate(self._workers):
            check_alike(self._name, self._workers[0].env, worker.env, i)
        for kind in ("observation_space", "action_space"):
            first = getattr(self._workers[0].env, kind)
            setattr(self, f"single_{kind}", first)
            setattr(self, kind, batch_space(first, self.num_envs))
        one = self._workers[0].env
        self.metadata = {**one.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = one.render_mode
        if spec := one.metadata.get(GAME):  # a reward for each agent
            self._board.reward = np.zeros((self.num_envs, len(spec.agents)))

    # -- all together --------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        self._wait_for_all()  # an interrupted step may still run
        if seed is None or isinstance(seed, (int, np.integer)):
            seed = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} environments")
        self._give(
            (i, worker.reset, (one, options))
            for i, (worker, one) in enumerate(zip(self._workers, seed, strict=True))
        )
        self._wait_for_all()
        rows = np.arange(self.num_envs)
        return self.results(rows)[0], self.infos(rows)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = np.arange(self.num_envs)
        self.send(rows, actions)
        self._wait_for_all()
        return *self.results(rows), self.infos(rows)

    def change_each(self, change: EnvChange) -> None:
        """Apply a change to every environment; none of them may be busy."""
        task = change, self._name
        self._give((i, worker.change, task) for i, worker in enumerate(self._workers))
        self._wait_for_all()

    # -- each at its own pace ------------------------------------------------------------------

    @property
    def num_busy(self) -> int:
        """Number of environments that :meth:`receive` has yet to report."""
        return len(self._since)

    def send(self, rows: np.ndarray, actions: Any) -> None:
        """Begin a step of environments ``rows`` ``[n]``, none busy; ``actions``: ``[n, ...]``."""
        workers, each = self._workers, list(iterate(self.action_space, actions))
        if len(each) != len(rows):
            raise ValueError(f"{len(each)} actions were given for {len(rows)} environments")
        self._give((i, workers[i].step, a) for i, a in zip(rows.tolist(), each, strict=True))

    def receive(self, enough: int = 1, linger_s: float = 0.0) -> np.ndarray:
        """Wait until a busy environment has finished its step.

        Args:
            enough: number of finished environments to wait for, for at most ``linger_s`` seconds.

        Returns:
            ``[n]`` int64, all finished environments, in order of completion.
        """
        done = [self._next()]
        enough = min(enough, len(self._since)) - 1  # more
        end = time.monotonic() + linger_s
        while self._board.outbox.qsize() < enough and time.monotonic() < end:
            time.sleep(linger_s / _LOOKS)
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._board.outbox.get_nowait())
        for index in done:
            del self._since[index]
        if self._board.errors:
            self._raise_error()
        return np.array(done)

    def results(self, rows: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return the results of the last steps of environments, none of which is busy.

        Returns:
            observations ``[n, ...]``, rewards ``[n]`` float64 (of games ``[n, agents]``), and
            terminated and truncated ``[n]`` bool.
        """
        board, space = self._board, self.single_observation_space
        empty: Any = create_empty_array(space, len(rows), np.empty)
        obs = concatenate(space, [board.obs[i] for i in rows.tolist()], empty)
        return obs, board.reward[rows], board.terminated[rows], board.truncated[rows]

    def infos(self, rows: np.ndarray, only: str | None = None) -> dict[str, Any]:
        """Return their infos as Gymnasium vectorises them, ``[B, ...]``; all keys or ``only``
        one.
        """
        infos: dict[str, Any] = {}
        for i in rows.tolist():
            info = self._board.info[i]
            if only is not None:
                info = {only: info[only]} if only in info else {}
            infos = self._add_info(infos, info, i)
        return infos

    # -- threads -------------------------------------------------------------------------------

    def _give(self, tasks: Iterable[tuple[int, Callable[[Any], None], Any]]) -> None:
        if self._fault is not None:
            raise self._fault
        now = time.monotonic()
        for i, task, argument in tasks:
            self._since[i] = now
            self._workers[i].inbox.put((task, argument))

    def _wait_for_all(self) -> None:
        while self._since:
            self.receive()

    def _next(self) -> int:
        """Return the next environment that has answered; times out for the longest pending one."""
        while True:
            oldest = next(iter(self._since.values()))  # a dict keeps the order of its entries
            patience_s = oldest + self._timeout_s - time.monotonic()
            with contextlib.suppress(queue.Empty):
                return self._board.outbox.get(timeout=max(0.0, patience_s))
            end = time.monotonic() - self._timeout_s
            silent = [i for i, since in self._since.items() if since <= end]
            if silent and not self._board.outbox.qsize():
                self._fault = EnvironmentLost(
                    f"{self._name}: no answer in {self._timeout_s:g} s from environment "
                    f"{', '.join(map(str, silent))}"
                )
                raise self._fault

    def _raise_error(self) -> None:
        index = min(list(self._board.errors))  # a copy, because threads may add to it
        error, trace = self._board.errors[index]
        message = f"{self._name}: environment {index} failed with {trace.splitlines()[-1]}"
        message += f"\n\nIts traceback:\n{trace}"
        own = isinstance(error, HeadraceError)
        self._fault = EnvironmentFault(str(error)) if own else EnvironmentLost(message)
        raise self._fault from error

    def close_extras(self, timeout: float | None = _CLOSE_S, **kwargs: Any) -> None:
        """Close all environments and end their threads.

        A thread whose environment hangs for longer than ``timeout`` seconds is left behind; it
        ends with the process.
        """
        _end(self._workers)
        deadline = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        for worker in self._workers:
            if worker.thread.ident is not None:  # or it was never started
                worker.thread.join(max(0.0, deadline - time.monotonic()))
        self.closed = True
        if self._fault is None and self._board.errors:
            self._raise_error()


def _end(workers: list[EnvThread]) -> None:
    for worker in workers:
        worker.inbox.put((worker.close, None))
