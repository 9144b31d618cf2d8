"""Starts processes from the standard library's fork server, which has torch imported."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

from headrace.processes import forked, orphan_guard
from headrace.processes.process_tree import MARK

_DESCRIPTORS = "/proc/self/fd/"
_HAS_PROC = hasattr(os, "O_PATH") and os.path.exists(_DESCRIPTORS)


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


def fork_server_from_here(preload: str) -> None:
    """Import the module ``preload`` and start the fork server as a fork of this process.

    The module is imported, and its memory allocated, only once. For a fresh process; in one with
    other threads or torch, this is :func:`start_fork_server`.
    """
    context, fresh = process_context(), threading.active_count() == 1 and _HAS_PROC
    if context.get_start_method() != "forkserver" or "torch" in sys.modules or not fresh:
        start_fork_server(preload)
        return
    gc.disable()  # imports create hardly any garbage
    try:
        importlib.import_module(preload)
    finally:
        gc.enable()
    gc.freeze()  # the collector doesn't write to pages shared from now on
    context.set_forkserver_preload([preload])
    with main_hidden(), _ctrl_c_blocked(), forked.instead():
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
        with _none_started():
            yield


def allow_children() -> None:
    """Allow this process to start processes even if it is daemonic, such as a Pool's worker.

    Python forbids that because a daemonic process may be killed without ending its children. The
    processes of headrace and of environments end with their parent anyway.
    """
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["daemon"] = False


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


def _ensure_server() -> None:
    """Start the fork server, with the mark of this process tree, unless it runs.

    Its socket's file and folder are deleted at once: processes that have the file open can
    connect through ``/proc`` if available.
    """
    from multiprocessing import forkserver

    _forget_anothers()
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if _runs(server._forkserver_pid):
        return
    others = [
        name for name in server._preload_modules if name not in (orphan_guard.__name__, "__main__")
    ]
    forkserver.set_forkserver_preload([orphan_guard.__name__, *others])
    earlier = str(server._forkserver_address).removeprefix(_DESCRIPTORS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environ(MARK, family()))
        stack.enter_context(_environ(orphan_guard.HEAD, str(os.getpid())))
        if _HAS_PROC:
            made = tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
            number = os.open(stack.enter_context(made), os.O_PATH)
            stack.callback(os.close, number)
            folder = f"{_DESCRIPTORS}{number}"  # socket names must be short
            stack.enter_context(_tempdir(folder))
        forkserver.ensure_running()
        if _HAS_PROC and server._forkserver_address.startswith(f"{folder}/"):
            file = os.open(server._forkserver_address, os.O_PATH)
            server._forkserver_address = f"{_DESCRIPTORS}{file}"
            if earlier.isdigit():  # not inherited from the parent
                os.close(int(earlier))


@contextlib.contextmanager
def _none_started() -> Iterator[None]:
    """Keep multiprocessing from starting a fork server, which could leave its socket behind."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    address = server._forkserver_address
    descriptor = str(address).removeprefix(_DESCRIPTORS)
    try:
        with _tempdir(f"{_DESCRIPTORS}-1") if descriptor.isdigit() else contextlib.nullcontext():
            yield
    finally:
        if descriptor.isdigit() and server._forkserver_address != address:
            os.close(int(descriptor))


@contextlib.contextmanager
def _tempdir(path: str) -> Iterator[None]:
    """Set the folder in which multiprocessing creates its sockets."""
    settings: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    before = settings.get("tempdir")
    settings["tempdir"] = path
    try:
        yield
    finally:
        settings.pop("tempdir", None)
        settings |= {} if before is None else {"tempdir": before}


@contextlib.contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for processes started inside the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {} if before is None else {name: before}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """End programs started inside the block with this process, even if it is killed.

    The fork server, if there is one, kills them.
    """
    with _environ(MARK, family()):
        yield


def end_stopped_server() -> None:
    """Kill a stopped fork server (SIGSTOP): it starts nothing and reports no exit codes."""
    from multiprocessing import forkserver

    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, TypeError, IndexError):
        with open(f"/proc/{int(pid)}/stat", encoding="ascii", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
        if state in "Tt":
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _runs(child: int | None) -> bool:
    """Return True if a child of this process is running; doesn't reap it."""
    if child is None:
        return False
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _forget_anothers() -> None:
    """Forget the fork server and resource tracker that a forked process inherited."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    try:
        _runs(server._forkserver_pid)
    except ChildProcessError:
        server.__init__()
        resource_tracker._resource_tracker.__init__()  # type: ignore[attr-defined, misc]


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
