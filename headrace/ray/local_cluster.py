"""Starts a Ray cluster on this machine for this program, and deletes its files afterwards."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from headrace.processes.fork_server import marked
from headrace.processes.process_tree import kill_descendants
from headrace.processes.signals import handlers_kept
from headrace.ray.agents import agents_may_die

# Ray's system config: a node counts as dead after 4 * (1 + 2) s of silence instead of 80 s.
HEALTH = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 4,
}
_SERVERS = ("raylet", "gcs_server")
_LOOK_S = 1.0  # between two checks for stopped processes
_DELETE_S = 2.0  # time for Ray's processes to exit


def start(ray: Any, num_cpus: float) -> tuple[Path, str]:
    """Start a cluster on this machine; return its session folder and the mark of its processes.

    Ctrl-C and SIGTERM cancel the start at once.

    Raises:
        KeyboardInterrupt, SystemExit: a signal arrived; nothing is left running.
        Exception: Ray raises several kinds.
    """
    settings = {
        "address": "local",
        "num_cpus": math.ceil(max(1.0, num_cpus)),
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.WARNING,
        "_system_config": dict(HEALTH),  # Ray modifies it
    }
    earlier = _sessions()
    with contextlib.ExitStack() as stack:
        stack.enter_context(handlers_kept())
        mark = stack.enter_context(marked(separately=True))
        stack.enter_context(agents_may_die())
        stack.enter_context(_interruptible())
        try:
            ray.init(**settings)
        except BaseException as error:
            kill_descendants([], [mark])
            if isinstance(error, Exception):  # its logs may contain the cause
                raise
            for folder in _sessions() - earlier:
                delete_session(folder)
            if isinstance(error, SystemExit):  # Ray's handler of SIGTERM
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
    own = [one for one in psutil.Process().children() if one.name() in _SERVERS]
    threading.Thread(target=keep_running, args=(own,), name="headrace-ray", daemon=True).start()
    atexit.register(end, ray, None, mark)  # of programs that don't close their clusters
    return raylet_socket(ray).parents[1], mark


def end(ray: Any, folder: Path | None, mark: str) -> None:
    """Disconnect; shut down what :func:`start` returned, if anything, and delete its folder."""
    ray.shutdown()
    if mark:
        kill_descendants([], [mark])  # the agents, see agents.py
    if folder is not None:
        delete_session(folder)


def keep_running(processes: list[psutil.Process]) -> None:
    """Resume processes that are stopped (SIGSTOP), until all have exited.

    Ray waits for its raylet and its control store without a time limit, ignoring Ctrl-C.
    """
    while processes:
        time.sleep(_LOOK_S)
        for process in list(processes):
            try:
                status = process.status()
                if status == psutil.STATUS_ZOMBIE:
                    processes.remove(process)
                elif status == psutil.STATUS_STOPPED:
                    process.resume()
            except psutil.NoSuchProcess:
                processes.remove(process)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C inside the block, after the usual handler."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return

    def handle(number: int, frame: Any) -> None:
        usual(number, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    yield  # handlers_kept() restores it


def _sessions() -> set[Path]:
    """Return the session folders of this process, whose id is in their names."""
    parents = {os.environ.get(name, "/tmp") for name in ("RAY_TMPDIR", "TMPDIR")}
    return {path for one in parents for path in Path(one).glob(f"ray/session_*_{os.getpid()}")}


def raylet_socket(ray: Any) -> Path:
    """Return the path of the socket of this node's raylet, ``SESSION/sockets/NAME``."""
    here = str(ray.get_runtime_context().get_node_id())
    return Path(next(x["RayletSocketName"] for x in ray.nodes() if x["NodeID"] == here))


def delete_session(folder: Path) -> None:
    """Delete the session folder of a cluster that has ended, as far as possible."""
    latest = folder.with_name("session_latest")
    with contextlib.suppress(OSError):
        if latest.is_symlink() and latest.resolve() == folder.resolve():
            latest.unlink()
    deadline = time.monotonic() + _DELETE_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)  # its processes may still write
        time.sleep(0.02)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # if no other cluster uses it
