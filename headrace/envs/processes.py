"""Steps slow environments in parallel, with a process per environment."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import queue
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker

from headrace.envs.bounds_warnings import bounds_warnings_ignored, ignore_bounds_warnings
from headrace.envs.changes import EACH, EnvChange, change_one
from headrace.envs.context import numbered
from headrace.errors import ConfigError, EnvironmentFault, EnvironmentLost, HeadraceError
from headrace.processes import (
    allow_children,
    become_child,
    finalize_and_kill_descendants,
    main_hidden,
    new_mark,
    process_context,
    seed_global_generators,
    start_fork_server,
)
from headrace.processes.process_tree import kill_descendants

_SENTENCE = "headrace: "  # marks a message without a traceback


class Processes(AsyncVectorEnv):
    """Gymnasium's AsyncVectorEnv, one process per environment, with faults attributed to it.

        step(actions) ──► pipe per environment ──► process i: env.step
             ▲                                         │
             └── shared memory (observations), pipe ◄──┘

    The parent waits for every process at each step; a process waits only for its pipe. The wait
    ends at once if a process dies, and after ``timeout_s`` if it hangs. Processes ignore Ctrl-C,
    which the parent handles, and end with the parent. They are started by a fork server if there
    is one, because forking a process with threads (torch) may deadlock.

    Args:
        create: factory of one environment; pickled by value if a script defines it.
        name: name of the environment, for messages.
        timeout_s: timeout of every wait, in seconds.
        seed: seeds the global generators of each process, together with its number.

    Raises:
        ConfigError: its observations don't fit into shared memory.
        EnvironmentFault: an environment raised, died or didn't answer; from the constructor,
            ``reset`` and ``step``. Afterwards it can only be closed.
    """

    def __init__(
        self,
        create: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str = "the environment",
        timeout_s: float = 300.0,
        seed: int = 0,
    ) -> None:
        self._name, self._timeout_s = name, timeout_s
        self.parent_pipes, self.processes = [], []
        start_fork_server(__name__)
        allow_children()
        each = numbered(create, num_envs)
        try:
            with main_hidden():
                super().__init__(
                    [functools.partial(_changeable, one, name) for one in each],
                    copy=False,
                    context=process_context().get_start_method(),
                    worker=functools.partial(_serve, seed, not bounds_warnings_ignored()),
                    autoreset_mode=AutoresetMode.NEXT_STEP,
                )
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__, gymnasium.error.CustomSpaceError):
                raise ConfigError(
                    f"engine='async' can't run {name}: a custom space, as in "
                    f"{self.single_observation_space}, can't be stored in shared memory "
                    "(nearest: 'threads')"
                ) from error
            raise

    def _check_spaces(self) -> None:
        with self._named_faults():
            self.call_async("action_space")
            self.call_wait(self._timeout_s)  # until they have started
            try:
                super()._check_spaces()
            except RuntimeError as error:  # Gymnasium's error, which names the spaces
                raise EnvironmentFault(
                    f"{self._name}: all environments of a run need the same spaces: "
                    f"{' '.join(str(error).split())}"
                ) from error

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        with self._named_faults():
            self.reset_async(seed=seed, options=options)
            return self.reset_wait(self._timeout_s)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment; observations are overwritten by the next step."""
        with self._named_faults():
            self.step_async(actions)
            return self.step_wait(self._timeout_s)

    def change_each(self, change: EnvChange) -> None:
        """Apply a change to every environment."""
        with self._named_faults():
            self.call_async(EACH, change)
            self.call_wait(self._timeout_s)

    @contextlib.contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except multiprocessing.TimeoutError as error:
            silent = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
            for i in silent:
                self.processes[i].kill()
            raise EnvironmentLost(
                f"{self._name}: no answer in {self._timeout_s:g} s from environment "
                f"{', '.join(map(str, silent))}"
            ) from error
        except (EOFError, ConnectionError) as error:
            connection.wait([process.sentinel for process in self.processes], timeout=5.0)
            dead = [i for i, process in enumerate(self.processes) if not process.is_alive()]
            codes = ", ".join(f"{i} (exit code {self.processes[i].exitcode})" for i in dead)
            raise EnvironmentLost(
                f"{self._name}: the process of environment {codes} died"
            ) from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        failed = [i for i, success in enumerate(successes) if not success]
        traces: dict[int, str] = {}
        with contextlib.suppress(queue.Empty):
            while not traces.keys() >= set(failed):
                index, *_, trace = self.error_queue.get(timeout=5.0)
                traces[index] = trace
        for index in failed:
            trace = traces.get(index, "(lost)").rstrip()
            if trace.startswith(_SENTENCE):
                raise EnvironmentFault(trace.removeprefix(_SENTENCE))
            raise EnvironmentLost(
                f"{self._name}: environment {index} failed with {trace.splitlines()[-1]}"
                f"\n\nIts traceback:\n{trace}"
            )

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """End all processes: request it first, and kill them after ``timeout`` seconds."""
        for pipe in self.parent_pipes:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        deadline = time.monotonic() + (0.0 if terminate or timeout is None else timeout)
        for process in self.processes:
            if process.is_alive():
                process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        kill_descendants([process.pid for process in self.processes if process.pid], [])
        for pipe in self.parent_pipes:
            pipe.close()


def _changeable(create: Callable[[], gymnasium.Env], name: str) -> gymnasium.Env:
    """Make an environment that the parent can change through Gymnasium's worker loop."""
    env = create()
    with contextlib.suppress(AttributeError):  # its class has __slots__
        setattr(env, EACH, functools.partial(_change, env, name))
    return env


def _change(env: gymnasium.Env, name: str, change: EnvChange) -> None:
    change_one(env, change, name)


class _SeedingPipe:
    """Pipe of one environment that seeds the global generators at each reset with a seed."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self.send, self.close = pipe, pipe.send, pipe.close

    def recv(self) -> Any:
        command, data = self._pipe.recv()
        if command == "reset" and data.get("seed") is not None:
            seed_global_generators(data["seed"], "epoch")
        return command, data


def _serve(
    seed: int, warns: bool, index: int, env_fn: Callable[[], gymnasium.Env], pipe: Any, *rest: Any
) -> None:
    """Run Gymnasium's worker loop in the process of one environment.

    Args:
        warns: let the first environment warn about observations beyond their bounds.
    """
    mark = new_mark()
    become_child(mark)
    if index or not warns:
        ignore_bounds_warnings()
    parent_pipe, shared_memory, error_queue, *others = rest
    seed_global_generators(seed, "environment", index)

    def put(error: tuple[int, Any, Any, str]) -> None:
        # As text only: a script's own exceptions can't be pickled.
        own = isinstance(error[2], HeadraceError)
        error_queue.put((error[0], None, None, f"{_SENTENCE}{error[2]}" if own else error[3]))

    try:
        with contextlib.suppress(ConnectionError, EOFError):  # the parent has exited
            try:
                env = env_fn()
            except Exception as error:
                put((index, type(error), error, traceback.format_exc()))
                pipe.send((None, False))
                while pipe.recv()[0] != "close":
                    pass  # keep answering the parent's requests
                return
            errors: Any = types.SimpleNamespace(put=put)
            served: Any = _SeedingPipe(pipe)
            _async_worker(index, lambda: env, served, parent_pipe, shared_memory, errors, *others)
    finally:
        finalize_and_kill_descendants(mark)
