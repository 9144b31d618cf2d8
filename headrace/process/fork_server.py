"""The standard library's fork server, from which processes start that have torch already."""

from __future__ import annotations

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
from typing import Any

from headrace.exits.kin import MARK

_DESCRIPTORS = "/proc/self/fd/"


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
        from multiprocessing import forkserver, resource_tracker

        context.set_forkserver_preload([preload])
        resource_tracker.ensure_running()  # which unblocks Ctrl-C when it has started
        with starting():
            forkserver.ensure_running()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """In which a process is started, and the fork server with it if there is none.

    It runs nothing of the user's script and sees no Ctrl-C; what the fork server starts is known
    by the name of this process's family. A fork server that was stopped is replaced.
    """
    end_stopped_server()
    with main_hidden(), _ctrl_c_blocked(), _socket_unnamed(), _as_family():
        yield


def family() -> str:
    """What all that this process starts is to be known by, see ``headrace/exits/kin.py``."""
    return f"{os.environ.get(MARK, '')}/{_token(os.getpid())}"


@functools.lru_cache(maxsize=1)
def _token(pid: int) -> str:
    """A word of this process's own, which a fork has made another."""
    return secrets.token_hex(8)


@contextlib.contextmanager
def _as_family() -> Iterator[None]:
    """Start the fork server, if it is started inside, by the name of the family."""
    from multiprocessing import forkserver

    if _runs(forkserver._forkserver._forkserver_pid):  # type: ignore[attr-defined]
        yield
        return
    before = os.environ.get(MARK)
    os.environ[MARK] = family()
    try:
        yield
    finally:
        del os.environ[MARK]
        os.environ |= {} if before is None else {MARK: before}


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


@contextlib.contextmanager
def _socket_unnamed() -> Iterator[None]:
    """Start the fork server, if it is started inside, without a socket that a kill leaves behind.

    The file and its folder are deleted at once: whoever holds a socket's file can connect to it by
    ``/proc``, where there is one.
    """
    from multiprocessing import current_process, forkserver

    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    settings: Any = getattr(current_process(), "_config", None)
    able = hasattr(os, "O_PATH") and os.path.exists("/proc/self/fd") and settings is not None
    if not able or _runs(server._forkserver_pid):
        yield
        return
    before, earlier = settings.get("tempdir"), server._forkserver_address
    with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as named:
        number = os.open(named, os.O_PATH)
        settings["tempdir"] = folder = f"{_DESCRIPTORS}{number}"  # as short as sockets need it
        try:
            yield
        finally:
            settings.pop("tempdir", None)
            settings |= {} if before is None else {"tempdir": before}
            address = server._forkserver_address
            if isinstance(address, str) and address.startswith(f"{folder}/"):
                file = os.open(address, os.O_PATH)
                server._forkserver_address = f"{_DESCRIPTORS}{file}"
                held = str(earlier).removeprefix(_DESCRIPTORS)
                if held.isdigit():  # not the parent's, whose name a child of a fork server has
                    os.close(int(held))
            os.close(number)


def _runs(child: int | None) -> bool:
    """Whether a process that this one started hasn't ended; it is not reaped."""
    if child is None:
        return False
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Start processes that never see a Ctrl-C; this one sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
