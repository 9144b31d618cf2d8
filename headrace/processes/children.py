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

from headrace.errors import WorkerFailed
from headrace.processes.fork_server import (
    end_stopped_server,
    family,
    let_environments_start_processes,
    process_context,
    starting,
)
from headrace.processes.memory import keep_freed_memory
from headrace.processes.output import flush_output
from headrace.processes.process_tree import begin_session, is_ending, kill_descendants

_ATTEMPTS, _PAUSE_S = 5, 0.1  # to start a process
_NICER = 10  # extra niceness of children, so that the learner never waits for a core


def new_mark() -> str:
    """Return a mark that identifies a child and its descendants (``process_tree.py``)."""
    return f"{family()}/{secrets.token_hex(8)}"


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
    never runs the user's script: ``work`` is a function of a module, objects of a script must be
    in ``args`` by value (cloudpickle). ``work`` reports its own errors through its pipe.

    Args:
        name: name of the process.
        pipe: the child's end of an existing pipe; None: create a pipe.
        nice: run with lower priority.
        daemon: end it with this process without waiting; it may start processes in either case.
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
        self.process: BaseProcess = context.Process(
            target=_live, args=(work, args, theirs, nice, self._mark), name=name, daemon=daemon
        )
        self._start()
        theirs.close()

    def _start(self) -> None:
        """Start the process, retrying if the fork server is killed meanwhile.

        Raises:
            WorkerFailed: the fork server was killed repeatedly.
        """
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

    def exit_code(self, timeout_s: float = 10.0) -> int | None:
        """Return the exit code; None if it is still running after ``timeout_s`` seconds."""
        end_stopped_server()
        self.process.join(timeout_s)
        if self.process.exitcode is not None:
            _kill_descendants_of([self])
        return self.process.exitcode

    def kill(self) -> None:
        """Kill the process at once."""
        end_children([self], 0.0)


def end_children(children: Iterable[Child], timeout_s: float = 5.0) -> None:
    """Close the pipes to stop children; kill those still running after ``timeout_s`` seconds."""
    children = list(children)
    for child in children:
        if child.pipe is not None:
            child.pipe.close()
    deadline = time.monotonic() + timeout_s
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join(10.0)
    _kill_descendants_of(children)


def kill_descendants_of_dead(children: Iterable[Child]) -> None:
    """Kill the descendants of dead children, and wait for all of them together."""
    end_stopped_server()
    _kill_descendants_of([child for child in children if child.process.exitcode is not None])


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
) -> None:
    """Run a :class:`Child` in its process."""
    begin_session(mark, _NICER if nice else 0)
    let_environments_start_processes()
    gc.freeze()  # keeps pages shared with the fork server: the collector doesn't write to them
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
        file.write(multiprocessing.current_process().name)  # for top and ps, its first 15 letters
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # blocked by the fork server
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    die_with_parent(mark)
    keep_freed_memory()
    import torch

    torch.set_num_threads(1)
    try:
        work(*args, pipe)
        finalize_and_kill_descendants(mark)  # as a living parent does
    except BaseException as error:  # already reported; other threads must not delay the exit
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        flush_output()
        kill_own_descendants(mark)
        code = getattr(error, "code", None)
        os._exit(code if isinstance(code, int) else 1)
