"""Starts child processes that end no later than their parent."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import connection, parent_process, util
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from headrace.errors import WorkerFailed
from headrace.processes.fork_server import (
    end_stopped_server,
    family,
    let_environments_start_processes,
    process_context,
    starting,
)
from headrace.processes.memory import keep_freed_memory
from headrace.processes.orphan_guard import HEAD
from headrace.processes.output import flush_output, output_best_effort
from headrace.processes.process_tree import (
    begin_session,
    is_ending,
    is_running,
    kill_descendants,
)

_ATTEMPTS, _PAUSE_S = 5, 0.1  # to start a process
_DEATH_S = 10.0  # longest wait for a killed process to exit
_NICER = 10  # extra niceness of children, so that the learner never waits for a core


def new_mark() -> str:
    """Return a mark that identifies a child and its descendants (``process_tree.py``)."""
    return f"{family()}/{secrets.token_hex(8)}"


def become_child(mark: str, nicer: int = 0) -> None:
    """Set up a process that was just started: session, signals, start method, end with its parent.

    Args:
        mark: mark of the process (:func:`new_mark`).
        nicer: extra niceness relative to the parent.
    """
    begin_session(mark, nicer)
    let_environments_start_processes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # blocked by the fork server
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    die_with_parent(mark)


def die_with_parent(mark: str = "") -> None:
    """Kill this process tree as soon as its parent is gone.

    All descendants of the parent are killed too, so that one running child suffices to kill others
    that are stopped or hang in the kernel. Without a ``mark`` (``process_tree.py``) only this
    process and its session are killed.
    """
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        kill_descendants([os.getpid()], [mark, mark.rpartition("/")[0]])
        os._exit(1)

    threading.Thread(target=watch, name="headrace-parent-watch", daemon=True).start()


def kill_own_descendants(mark: str) -> None:
    """Kill the descendants of this child, and if its parent is gone, all of the parent's.

    For the end of a child's work, which may happen because the parent died, before
    :func:`die_with_parent` has noticed.
    """
    parent = parent_process()
    gone = parent is not None and parent.pid is not None and is_ending(parent.pid)
    kill_descendants([os.getpid()], [mark, mark.rpartition("/")[0]] if gone else [mark])


def finalize_and_kill_descendants(mark: str) -> None:
    """Finalize this child's ``multiprocessing`` objects, then kill its descendants.

    For the regular end of a child's work. A ``Pool`` that an environment left open would otherwise
    wait at exit for a lock that a killed worker holds.
    """
    util._run_finalizers(0)  # type: ignore[attr-defined]
    kill_own_descendants(mark)


class Child:
    """A child process that runs ``work(*args, pipe)`` and ends no later than this process.

    Its descendants end with it (``process_tree.py``).

    It ignores Ctrl-C, which its parent handles, computes with one thread and keeps freed memory. It
    has the environment variables of this process at its start. It never runs the user's script:
    ``work`` is a function of a module, objects of a script must be in ``args`` by value
    (cloudpickle). ``work`` reports its own errors through its pipe.

    Args:
        name: name of the process.
        pipe: the child's end of an existing pipe; None: create a pipe.
        nice: run with lower priority.
        daemon: end it with this process without waiting; it may start processes in either case.

    Raises:
        WorkerFailed: the fork server was killed repeatedly.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., None],
        *args: Any,
        pipe: connection.Connection | None = None,
        nice: bool = True,
        daemon: bool = True,
    ) -> None:
        self.pipe: Any  # our end, if the pipe is new
        self.pipe, theirs = (None, pipe) if pipe is not None else multiprocessing.Pipe()
        context: Any = process_context()
        self._mark = new_mark()
        self._alone = False  # its descendants are gone
        self.killed_because = ""  # cause of a kill by this process
        variables = {key: value for key, value in os.environ.items() if key != HEAD}
        how = theirs, nice, self._mark, variables
        self.process: BaseProcess = context.Process(
            target=_live, args=(work, args, *how), name=name, daemon=daemon
        )
        self._start()
        theirs.close()
        self._in_system: psutil.Process | None = None  # also if its fork server was killed
        with contextlib.suppress(psutil.NoSuchProcess):
            self._in_system = psutil.Process(self.pid)

    def _start(self) -> None:
        """Start the process, retrying if the fork server is killed meanwhile."""
        for _ in range(_ATTEMPTS):
            with starting(), contextlib.suppress(EOFError, ConnectionError, FileNotFoundError):
                self.process.start()
                return
            time.sleep(_PAUSE_S)  # until the fork server's death is visible
        raise WorkerFailed(f"{self.process.name} can't be started: its fork server was killed")

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid or 0

    @property
    def is_running(self) -> bool:
        """True until the process has exited."""
        return self._in_system is not None and is_running(self._in_system)

    def exit_code(self, timeout_s: float = 10.0) -> int | None:
        """Return the exit code; None if it is still running after ``timeout_s`` seconds.

        The code is 255 if the fork server was killed, which would have reported it.
        """
        end_stopped_server()
        if not self._ends_in(timeout_s):
            return None
        _kill_descendants_of([self])
        return self.process.exitcode

    def how_ended(self, timeout_s: float = 10.0) -> str:
        """Return the cause of its death; "" if it is still running after ``timeout_s`` seconds."""
        code = self.exit_code(timeout_s)
        return "" if code is None else self.killed_because or f"exited with code {code}"

    def _ends_in(self, timeout_s: float) -> bool:
        """Wait until the process has exited; return False after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            return False
        while self.is_running:  # multiprocessing takes the end of the fork server for its end
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def _kill(self) -> None:
        if self._in_system is not None:
            with contextlib.suppress(psutil.Error):
                self._in_system.kill()

    def kill(self, cause: str = "") -> None:
        """Kill the process at once.

        Args:
            cause: returned by :meth:`how_ended`, unless the process was dead already.
        """
        end_stopped_server()
        if self.is_running:
            self.killed_because = cause
        _kill_all([self])


def end_children(children: Iterable[Child], timeout_s: float = 5.0) -> None:
    """Close the pipes to stop children; kill those still running after ``timeout_s`` seconds."""
    end_stopped_server()
    children = list(children)
    for child in children:
        if child.pipe is not None:
            child.pipe.close()
    deadline = time.monotonic() + timeout_s
    for child in children:
        child._ends_in(max(0.0, deadline - time.monotonic()))
    _kill_all(children)


def _kill_all(children: list[Child]) -> None:
    """Kill children and their descendants, and wait until they have ended."""
    for child in children:
        child._kill()
    for child in children:
        child._ends_in(_DEATH_S)
    _kill_descendants_of(children)


def kill_descendants_of_dead(children: Iterable[Child]) -> None:
    """Kill the descendants of dead children, and wait for all of them together."""
    end_stopped_server()
    _kill_descendants_of([child for child in children if child._ends_in(0.0)])


def _kill_descendants_of(children: list[Child]) -> None:
    """Kill the descendants of children that have ended."""
    remaining = [child for child in children if not child._alone]
    if remaining:
        kill_descendants([child.pid for child in remaining], [child._mark for child in remaining])
    for child in remaining:
        child._alone = True


def _live(
    work: Callable[..., None],
    args: tuple[Any, ...],
    pipe: connection.Connection,
    nice: bool,
    mark: str,
    variables: dict[str, str],
) -> None:
    """Run a :class:`Child` in its process."""
    os.environ.clear()  # of the fork server, which may be older than its parent's variables
    os.environ.update(variables)
    become_child(mark, _NICER if nice else 0)
    gc.freeze()  # keeps pages shared with the fork server: the collector doesn't write to them
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(multiprocessing.current_process().name)  # for top and ps, its first 15 letters
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_freed_memory()
    import torch

    torch.set_num_threads(1)
    try:
        with output_best_effort():
            work(*args, pipe)
        finalize_and_kill_descendants(mark)  # as a living parent does
    except BaseException as error:  # already reported; other threads must not delay the exit
        if not isinstance(error, SystemExit):
            with output_best_effort():
                traceback.print_exc()
        flush_output()
        kill_own_descendants(mark)
        code = getattr(error, "code", None)
        os._exit(code if isinstance(code, int) else 1)
