"""Finds and kills the process tree of a child, even after the child has died.

A child starts a session and sets an environment variable, and its descendants inherit both. A
program that starts its own session is found by the variable, a forked process that executes no
program by the session. A process that does both, or clears its variables, isn't found.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

MARK = "HEADRACE_CHILD"  # path of tokens from the root to this process
NICER = "HEADRACE_NICER"  # extra niceness relative to the root process
_ROUNDS = 20  # processes may start others during the search
_DEATH_S = 2.0  # longest wait for killed processes to exit
_NICE, _NICE_S = "headrace-nice", 60.0  # name and duration of the thread that retries
_GROUP = Path("/proc/self/autogroup")
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def begin_session(mark: str, nicer: int = 0) -> None:
    """Start a session, and mark all processes that this one will start.

    Linux may divide cores among sessions first (``man 7 sched``, autogroup). Niceness then only
    counts within a session, so the session becomes nicer as well.

    Args:
        nicer: extra niceness relative to the parent.
    """
    os.environ[MARK] = mark
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nicer)
    nicer += int(os.environ.get(NICER, 0))
    os.environ[NICER] = str(nicer)
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):  # already a session leader
            os.setsid()
            _make_session_nicer(min(nicer, 19))


def _make_session_nicer(nicer: int) -> None:
    """Set the session's niceness; the kernel accepts ten changes a second per machine."""
    if nicer and _GROUP.exists() and not _set_niceness(nicer):
        trying = threading.Thread(target=_retry_niceness, args=(nicer,), name=_NICE, daemon=True)
        with contextlib.suppress(RuntimeError):  # there may be no more threads
            trying.start()


def _retry_niceness(nicer: int) -> None:
    deadline, own = time.monotonic() + _NICE_S, random.Random()
    while not _set_niceness(nicer) and time.monotonic() < deadline:
        time.sleep(0.05 + 0.1 * own.random())


def _set_niceness(nicer: int) -> bool:
    """Set the session's niceness; return False if it has to be tried again."""
    try:
        _GROUP.write_text(str(nicer))
    except BlockingIOError:
        return False
    except OSError:  # not permitted here
        return True
    return True


def kill_descendants(pids: Collection[int], marks: Collection[str]) -> None:
    """Kill the descendants of these children, but neither them nor this process.

    Waits up to two seconds until they have exited, because processes started next may need their
    ports.

    Args:
        pids: process ids of the children, which are session leaders.
        marks: marks of the children.
    """
    tokens = {mark.rpartition("/")[2] for mark in marks} - {""}
    sessions = {pid for pid in pids if pid > 1}
    spared = sessions | {os.getpid()}
    deadline = time.monotonic() + _DEATH_S
    for _ in range(_ROUNDS):
        found = [one for one in _members(sessions, tokens) if one.pid not in spared]
        if not found:
            return
        # Stopped processes first: running ones may be killing their own descendants meanwhile.
        for process in sorted(found, key=lambda one: not _is_stopped(one)):
            with contextlib.suppress(psutil.Error):
                process.kill()
        ids = {process.pid for process in found}
        spared, sessions = spared | ids, sessions | ids
        while any(map(is_running, found)) and time.monotonic() < deadline:
            time.sleep(0.002)


def _members(sessions: set[int], tokens: set[str]) -> Iterator[psutil.Process]:
    """Yield the processes in sessions of these leaders, or with one of these tokens."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            in_session = hasattr(os, "getsid") and os.getsid(pid) in sessions
            if in_session or (tokens and not tokens.isdisjoint(_tokens(process))):
                yield process


def _tokens(process: psutil.Process) -> list[str]:
    """Return the tokens in a process's mark."""
    return process.environ().get(MARK, "").split("/")


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in _STOPPED
    except psutil.Error:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return True until a process, with all its threads, has ended; zombies have."""
    try:
        ended = process.status() in _ENDED and process.num_threads() <= 1
        return process.is_running() and not ended
    except psutil.NoSuchProcess:
        return False


def is_ending(pid: int) -> bool:
    """Return True if a process has ended or is exiting, while its files are being closed.

    The kernel frees its memory first.
    """
    try:
        return psutil.Process(pid).memory_info().vms == 0
    except psutil.NoSuchProcess:
        return True
