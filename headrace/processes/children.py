"""Child processes: how they are started, and end no later than their parent."""

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
from headrace.processes.process_tree import begin_session, end_kin, is_ending

_ATTEMPTS, _PAUSE_S = 5, 0.1  # to start a process
_NICER = 10  # than the learner, which so never waits for a core: these take what it leaves


def new_mark() -> str:
    """What a child of this process is to be known by, see
    ``headrace/processes/process_tree.py``."""
    return f"{family()}/{secrets.token_hex(8)}"


def die_with_parent(mark: str = "") -> None:
    """End this child process as soon as its parent is gone, and all that both have started.

    So one child that runs is enough to end others that are stopped, or hang in the kernel. Without
    a ``mark`` (``headrace/processes/process_tree.py``) only this one ends, and what is in a
    session of its own.
    """
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        end_kin([os.getpid()], [mark, mark.rpartition("/")[0]])
        os._exit(1)

    threading.Thread(target=watch, name="headrace-parent-watch", daemon=True).start()


def end_own_kin(mark: str) -> None:
    """End what this child has started, and, where its parent is gone, all that both have started.

    For the end of a child's work. What that waited for may end with the parent, so that it comes
    before :func:`die_with_parent` has seen it, or while that ends the others.
    """
    parent = parent_process()
    gone = parent is not None and parent.pid is not None and is_ending(parent.pid)
    end_kin([os.getpid()], [mark, mark.rpartition("/")[0]] if gone else [mark])


def finish_own_kin(mark: str) -> None:
    """Shut down what ``multiprocessing`` objects of this child still run, then end its kin.

    For the regular end of a child's work. A ``Pool`` that an environment left open would otherwise
    wait at exit for a lock that a killed worker holds.
    """
    util._run_finalizers(0)  # type: ignore[attr-defined]
    end_own_kin(mark)


class Child:
    """A process of this machine that runs ``work(*args, pipe)`` and ends no later than this one.

    What it has started ends with it (``headrace/processes/process_tree.py``).

    It ignores Ctrl-C, which is for the process that started it to handle, computes with one thread
    and keeps the memory that it frees. It never runs the user's script: ``work`` is a function of a
    module, and what a script defines has to be in ``args`` by value (cloudpickle). ``work`` tells
    of its own errors, each in the way of its pipe.

    Args:
        name: of the process.
        pipe: the child's end, where somebody else has ours; None: a new pipe.
        nice: let others go first where cores are short.
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
        self.pipe: Any  # our end of it, if it is new
        self.pipe, theirs = (None, pipe) if pipe is not None else multiprocessing.Pipe()
        context: Any = process_context()
        self._mark = new_mark()
        self._alone = False  # what it had started is gone
        self.process: BaseProcess = context.Process(
            target=_live, args=(work, args, theirs, nice, self._mark), name=name, daemon=daemon
        )
        self._start()
        theirs.close()

    def _start(self) -> None:
        """Start the process, also where the fork server is killed meanwhile.

        Raises:
            WorkerFailed: that happened again and again.
        """
        for _ in range(_ATTEMPTS):
            with starting(), contextlib.suppress(EOFError, ConnectionError, FileNotFoundError):
                self.process.start()
                return
            time.sleep(_PAUSE_S)  # until that is seen of the fork server
        raise WorkerFailed(f"{self.process.name} can't be started: its fork server was killed")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid or 0

    def exit_code(self, timeout_s: float = 10.0) -> int | None:
        """How it ended, once it has; None if it lives after ``timeout_s`` seconds."""
        end_stopped_server()
        self.process.join(timeout_s)
        if self.process.exitcode is not None:
            _end_kin_of([self])
        return self.process.exitcode

    def kill(self) -> None:
        """End it at once."""
        end_children([self], 0.0)


def end_children(children: Iterable[Child], timeout_s: float = 5.0) -> None:
    """Close the pipes, which asks them to end; kill those that live ``timeout_s`` seconds later."""
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
    _end_kin_of(children)


def end_kin_of_dead(children: Iterable[Child]) -> None:
    """End what the dead among these have started, and wait for all of it together."""
    end_stopped_server()
    _end_kin_of([child for child in children if child.process.exitcode is not None])


def _end_kin_of(children: list[Child]) -> None:
    """End what these have started, which have ended."""
    left = [child for child in children if not child._alone]
    if left:
        end_kin([child.pid for child in left], [child._mark for child in left])
    for child in left:
        child._alone = True


def _live(
    work: Callable[..., None],
    args: tuple[Any, ...],
    pipe: connection.Connection,
    nice: bool,
    mark: str,
) -> None:
    """What a :class:`Child` is."""
    begin_session(mark, _NICER if nice else 0)
    let_environments_start_processes()
    gc.freeze()  # pages shared with the fork server stay so: no collection writes to its objects
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
        finish_own_kin(mark)  # as the parent does, if it lives
    except BaseException as error:  # of which it has told; nor do threads of others hold it
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        flush_output()
        end_own_kin(mark)
        code = getattr(error, "code", None)
        os._exit(code if isinstance(code, int) else 1)
