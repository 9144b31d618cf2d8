"""Starts child processes from the standard library's fork server, which has torch imported.

    process ──► fork server (imports torch once, watches the process) ──► children (forks)

Every process that starts children has its own fork server. Where the system has none, children are
started by ``spawn``. Two of multiprocessing's private settings are changed: children may be started
by daemonic processes, and on Linux the server's socket loses its name.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import psutil

from headrace.processes import orphan_guard
from headrace.processes.process_tree import MARK

_DESCRIPTORS = "/proc/self/fd/"
_CAN_UNNAME = hasattr(os, "O_PATH") and os.path.exists(_DESCRIPTORS)
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def process_context() -> multiprocessing.context.BaseContext:
    """Return the start method of processes: the fork server if available, else spawn."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every child.

    Objects are sent to children by value (cloudpickle), so a script without
    ``if __name__ == "__main__"`` works, and so does an environment defined in it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start_fork_server(preload: str) -> None:
    """Start importing the module ``preload`` in the fork server; safe to call repeatedly.

    Returns at once. Only the first call before the server runs sets its module.
    """
    context = process_context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
        with main_hidden(), _ctrl_c_blocked():
            _ensure_server()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Prepare for starting a process inside the block; starts the fork server if needed.

    The process doesn't run the user's script, is unaffected by Ctrl-C, and has the mark of this
    process tree. A stopped fork server is replaced. If it is killed inside the block, that raises
    OSError or EOFError there.
    """
    end_stopped_server()
    allow_children()
    with main_hidden(), _ctrl_c_blocked():
        if process_context().get_start_method() == "forkserver":
            _ensure_server()
        yield


def allow_children() -> None:
    """Allow this process to start processes even if it is daemonic, such as a Pool's worker.

    Python forbids that because a daemonic process may be killed without ending its children. The
    processes of headrace and of environments end with their parent anyway.
    """
    _settings_of_multiprocessing()["daemon"] = False


def let_environments_start_processes() -> None:
    """Let environments in this child process start processes as in a normal program.

    The inherited start method would not find objects that a script defines.
    """
    allow_children()
    multiprocessing.set_start_method(None, force=True)


def family() -> str:
    """Return the mark of all processes that this one starts (``process_tree.py``)."""
    return f"{os.environ.get(MARK, '')}/{_token(os.getpid())}"


@functools.lru_cache(maxsize=1)
def _token(pid: int) -> str:
    """Return a random token of this process; forks get their own."""
    return secrets.token_hex(8)


@contextlib.contextmanager
def marked(separately: bool = False) -> Iterator[str]:
    """End programs started inside the block with this process, even if it is killed.

    The fork server, if there is one, kills them. Yields their mark.

    Args:
        separately: use a mark that no other process has.
    """
    mark = f"{family()}/{secrets.token_hex(8)}" if separately else family()
    with environment_variable(MARK, mark):
        yield mark


def end_stopped_server() -> None:
    """Kill a stopped fork server (SIGSTOP): it starts nothing and reports no exit codes."""
    from multiprocessing import forkserver

    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with contextlib.suppress(psutil.Error, OSError):
        if pid is not None and psutil.Process(pid).status() in _STOPPED:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _continue_servers() -> None:
    """Continue the fork server and the resource tracker if they are stopped.

    Otherwise they don't notice the end of this process, which may wait for the tracker.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker  # type: ignore[attr-defined]
    for pid in (server._forkserver_pid, tracker._pid):
        with contextlib.suppress(OSError):
            if pid is not None and hasattr(signal, "SIGCONT"):
                os.kill(pid, signal.SIGCONT)


def _ensure_server() -> None:
    """Start this process's fork server, with the mark of this process tree, unless it runs."""
    from multiprocessing import forkserver

    if _own_server_runs():
        return
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    others = [
        name for name in server._preload_modules if name not in (orphan_guard.__name__, "__main__")
    ]
    forkserver.set_forkserver_preload([orphan_guard.__name__, *others])
    head = environment_variable(orphan_guard.HEAD, str(os.getpid()))
    with marked(), head, _unnamed_socket() if _CAN_UNNAME else contextlib.nullcontext():
        forkserver.ensure_running()
    atexit.unregister(_continue_servers)
    atexit.register(_continue_servers)


def _own_server_runs() -> bool:
    """Return True if this process's fork server runs.

    Forgets a server that another process has started, of which this one is a fork: multiprocessing
    would wait for it as for a child.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if server._forkserver_pid is None:
        return False
    try:
        process = psutil.Process(server._forkserver_pid)
        if process.ppid() == os.getpid():
            return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        pass
    server.__init__()
    return False


@contextlib.contextmanager
def _unnamed_socket() -> Iterator[None]:
    """Delete the file of a fork server's socket after its start, so that a kill leaves none behind.

    Linux lets a process that has the file open connect through ``/proc``, where its name is short
    as well; those of sockets are limited to 107 bytes.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    settings = _settings_of_multiprocessing()
    before = settings.get("tempdir")
    earlier = str(server._forkserver_address).removeprefix(_DESCRIPTORS)
    with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as folder:
        number = os.open(folder, os.O_PATH)
        short = settings["tempdir"] = f"{_DESCRIPTORS}{number}"
        try:
            yield
            if server._forkserver_address.startswith(f"{short}/"):
                socket = os.open(server._forkserver_address, os.O_PATH)
                server._forkserver_address = f"{_DESCRIPTORS}{socket}"
                if earlier.isdigit():  # that of a killed server, not of the parent's
                    os.close(int(earlier))
        finally:
            os.close(number)
            settings["tempdir"] = before


def _settings_of_multiprocessing() -> dict[str, Any]:
    return multiprocessing.current_process()._config  # type: ignore[attr-defined, no-any-return]


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block, also for processes started there."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {} if before is None else {name: before}


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C for processes started inside the block; this one receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # unblocks Ctrl-C after its start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
