"""The standard library's fork server, from which processes start that have torch already."""

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
    """How processes are started here: by the fork server where there is one."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every child.

    What a child needs travels by value (cloudpickle), so a script without
    ``if __name__ == "__main__"`` works, and so does an environment defined in it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start_fork_server(preload: str) -> None:
    """Begin importing the module ``preload`` in the fork server; safe to call repeatedly.

    Returns at once. The first module named before it runs is the one that it has.
    """
    context = process_context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
        with main_hidden(), _ctrl_c_blocked():
            _ensure_server()


def fork_server_from_here(preload: str) -> None:
    """Import the module ``preload`` and start the fork server as a fork of this process.

    So it is imported once, and its memory is held once. For a process that has done nothing yet;
    in one that has other threads, or torch, it is :func:`start_fork_server`.
    """
    context, fresh = process_context(), threading.active_count() == 1 and _HAS_PROC
    if context.get_start_method() != "forkserver" or "torch" in sys.modules or not fresh:
        start_fork_server(preload)
        return
    gc.disable()  # hardly anything of an import is garbage
    try:
        importlib.import_module(preload)
    finally:
        gc.enable()
    gc.freeze()  # no collection writes to the pages that are shared from now on
    context.set_forkserver_preload([preload])
    with main_hidden(), _ctrl_c_blocked(), forked.instead():
        _ensure_server()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """In which a process is started; before it the fork server, if there is none.

    It runs nothing of the user's script and sees no Ctrl-C; what the fork server starts is known
    by the name of this process's family. A fork server that was stopped is replaced; where one is
    killed inside the block, an OSError or EOFError is raised there.
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
    """What all that this process starts is to be known by, see
    ``headrace/processes/process_tree.py``."""
    return f"{os.environ.get(MARK, '')}/{_token(os.getpid())}"


@functools.lru_cache(maxsize=1)
def _token(pid: int) -> str:
    """A word of this process's own, which a fork has made another."""
    return secrets.token_hex(8)


def _ensure_server() -> None:
    """Start the fork server if none runs, by the name of the family, which it guards.

    Its socket's file and the file's folder are deleted at once: whoever holds a socket's file can
    connect to it by ``/proc``, where there is one.
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
            folder = f"{_DESCRIPTORS}{number}"  # for the names of sockets must be short
            stack.enter_context(_tempdir(folder))
        forkserver.ensure_running()
        if _HAS_PROC and server._forkserver_address.startswith(f"{folder}/"):
            file = os.open(server._forkserver_address, os.O_PATH)
            server._forkserver_address = f"{_DESCRIPTORS}{file}"
            if earlier.isdigit():  # not the parent's, whose name a child of a fork server has
                os.close(int(earlier))


@contextlib.contextmanager
def _none_started() -> Iterator[None]:
    """Let multiprocessing start no fork server, which would leave its socket behind if killed."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    address = server._forkserver_address
    held = str(address).removeprefix(_DESCRIPTORS)
    try:
        with _tempdir(f"{_DESCRIPTORS}-1") if held.isdigit() else contextlib.nullcontext():
            yield
    finally:
        if held.isdigit() and server._forkserver_address != address:
            os.close(int(held))


@contextlib.contextmanager
def _tempdir(path: str) -> Iterator[None]:
    """Where multiprocessing makes its sockets."""
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
    """Start a process with this variable."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ |= {} if before is None else {name: before}


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Programs that are started inside end with this process, however that ends.

    It is the fork server that ends them, where there is one.
    """
    with _environ(MARK, family()):
        yield


def end_stopped_server() -> None:
    """Kill the fork server if it was stopped (SIGSTOP): it starts nothing, and tells of no end."""
    from multiprocessing import forkserver

    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, TypeError, IndexError):
        with open(f"/proc/{int(pid)}/stat", encoding="ascii", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
        if state in "Tt":
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _runs(child: int | None) -> bool:
    """Whether a process that this one started hasn't ended; it is not reaped."""
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
    """Start processes that never see a Ctrl-C; this one sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which unblocks Ctrl-C when it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
