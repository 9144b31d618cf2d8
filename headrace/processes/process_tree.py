"""Finds and kills the process tree of a child, even after the child has died.

A child starts a session and sets an environment variable, and its descendants inherit both. A
program that starts its own session is found by the variable, a forked process that executes no
program by the session. A process that does both, or clears its variables, isn't found. Without
``/proc``, only the child's process group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path

MARK = "HEADRACE_CHILD"  # path of tokens from the root to this process
NICER = "HEADRACE_NICER"  # extra niceness relative to the root process
_ROUNDS = 20  # processes may start others during the search
_DEATH_S = 2.0  # longest wait for killed processes to exit
_NICE, _NICE_S = "headrace-nice", 60.0  # name and duration of the thread that retries
_PROC = Path("/proc")
_EXITING = 4  # the kernel's PF_EXITING


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
    group = _PROC / "self" / "autogroup"
    if nicer and group.exists() and not _set_niceness(group, nicer):
        trying = threading.Thread(
            target=_retry_niceness, args=(group, nicer), name=_NICE, daemon=True
        )
        with contextlib.suppress(RuntimeError):  # there may be no more threads
            trying.start()


def _retry_niceness(group: Path, nicer: int) -> None:
    deadline, own = time.monotonic() + _NICE_S, random.Random()
    while not _set_niceness(group, nicer) and time.monotonic() < deadline:
        time.sleep(0.05 + 0.1 * own.random())


def _set_niceness(group: Path, nicer: int) -> bool:
    """Set the session's niceness; return False if it has to be tried again."""
    try:
        group.write_text(str(nicer))
    except BlockingIOError:
        return False
    except OSError:  # not permitted here
        return True
    return True


def set_own_mark(mark: str) -> bool:
    """Write a mark into this process's initial environment, as shown by ``/proc``.

    ``/proc`` shows the variables with which a program started. They are overwritten: first the
    mark, then as many others as fit, the shortest first.

    Returns:
        True if the mark fits.
    """
    start, end = (int(x) for x in _stat("self")[47:49])
    begun = ctypes.string_at(start, end - start).rstrip(b"\0").split(b"\0")
    own = f"{MARK}={mark}".encode()
    others = [one for one in begun if one and not one.startswith(f"{MARK}=".encode())]
    block = own + b"\0"
    if len(block) > end - start:
        return False
    for one in sorted(others, key=len):
        if len(block) + len(one) + 1 <= end - start:
            block += one + b"\0"
    for name, value in os.environ.items():  # the C library copies them
        os.putenv(name, value)
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))
    return True


def kill_descendants(pids: Collection[int], marks: Collection[str]) -> None:
    """Kill the descendants of these children, but neither them nor this process.

    With ``/proc``, waits up to two seconds until they have exited, because processes started next
    may need their ports.

    Args:
        pids: process ids of the children, which are session leaders.
        marks: marks of the children.
    """
    if not hasattr(os, "killpg"):
        return
    if not (_PROC / "self" / "stat").exists():
        for pid in {pid for pid in pids if pid > 1} - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        return
    names = {mark.rpartition("/")[2].encode() for mark in marks} - {b""}
    leaders = {pid for pid in pids if pid > 1}
    killed = leaders | {os.getpid()}
    deadline = time.monotonic() + _DEATH_S
    for _ in range(_ROUNDS):
        stopped_by_pid = {
            pid: stops for pid, stops in _kin(leaders, names).items() if pid not in killed
        }
        if not stopped_by_pid:
            return
        # Stopped processes first: running ones may be killing their own descendants meanwhile.
        for pid in sorted(stopped_by_pid, key=lambda pid: not stopped_by_pid[pid]):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= stopped_by_pid.keys()
        for pid in stopped_by_pid:
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.002)


def _stat(pid: int | str) -> list[str]:
    """Read the fields of ``/proc/<pid>/stat`` after the name; the state is first."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _runs(pid: int) -> bool:
    """Return True unless a process, with all its threads, has ended; zombies have."""
    try:
        numbers = _stat(pid)
    except OSError:
        return False
    return numbers[0] not in "ZX" or int(numbers[17]) > 1


def is_ending(pid: int) -> bool:
    """Return True if a process has ended or is exiting, while its files are being closed."""
    try:
        numbers = _stat(pid)
    except OSError:
        return (_PROC / "self" / "stat").exists()
    return numbers[0] in "ZX" or bool(int(numbers[6]) & _EXITING)


def _kin(leaders: set[int], names: set[bytes]) -> dict[int, bool]:
    """Find processes in sessions of these leaders or with these marks, and add them to leaders.

    Returns:
        by process id, True if it is stopped.
    """
    stopped_by_pid = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.stat().st_uid != os.getuid():
                continue
            numbers = _stat(folder.name)
            if int(numbers[3]) in leaders or names & _names(folder):
                stopped_by_pid[int(folder.name)] = numbers[0] in "Tt"
    leaders |= stopped_by_pid.keys()
    return stopped_by_pid


def _names(folder: Path) -> set[bytes]:
    """Return the tokens in a process's mark."""
    for variable in (folder / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return set(value.split(b"/"))
    return set()
