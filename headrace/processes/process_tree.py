"""What a child process has started, and how to end it with the child, however that ends.

A child begins a session, which what it starts belongs to, and sets an environment variable, which
what it starts inherits. A program that begins a session of its own is known by the variable, a
process that was forked and executes no program by the session; who does both, or clears its
variables, isn't found. Where there is no ``/proc``, only the child's process group is ended.
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

MARK = "HEADRACE_CHILD"  # a path of names: whose child, whose grandchild …
NICER = "HEADRACE_NICER"  # by how much than who began
_ROUNDS = 20  # a process may start another one while it is looked for
_DEATH_S = 2.0  # what is killed may yet need a core, or a disk, to end
_NICE, _NICE_S = "headrace-nice", 60.0  # a thread that tries, and for how long
_PROC = Path("/proc")
_EXITING = 4  # a flag of the kernel's (PF_EXITING)


def begin_session(mark: str, nicer: int = 0) -> None:
    """Begin a session, and mark all that this process will start.

    Linux may share cores among sessions first (``man 7 sched``, autogroup). Niceness counts within
    a session alone then, so the session becomes nicer, too.

    Args:
        nicer: by how much this process becomes nicer than who started it.
    """
    os.environ[MARK] = mark
    with contextlib.suppress(OSError, AttributeError):
        os.nice(nicer)
    nicer += int(os.environ.get(NICER, 0))
    os.environ[NICER] = str(nicer)
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):  # it leads one already
            os.setsid()
            _make_session_nicer(min(nicer, 19))


def _make_session_nicer(nicer: int) -> None:
    """Tell the kernel, which takes ten a second of the whole machine, root's apart."""
    group = _PROC / "self" / "autogroup"
    if nicer and group.exists() and not _told(group, nicer):
        trying = threading.Thread(target=_tell, args=(group, nicer), name=_NICE, daemon=True)
        with contextlib.suppress(RuntimeError):  # there may be no more threads
            trying.start()


def _tell(group: Path, nicer: int) -> None:
    deadline, own = time.monotonic() + _NICE_S, random.Random()
    while not _told(group, nicer) and time.monotonic() < deadline:
        time.sleep(0.05 + 0.1 * own.random())


def _told(group: Path, nicer: int) -> bool:
    """Whether there is nothing left to try."""
    try:
        group.write_text(str(nicer))
    except BlockingIOError:
        return False
    except OSError:  # it may not be set here
        return True
    return True


def be_known_by(mark: str) -> bool:
    """Have this process marked, too, as one is that has begun with the variable.

    What ``/proc`` shows of a process are the variables with which its program began. They are
    written over, the mark first and then as many others as there is room for, the shortest first.

    Returns:
        whether there was room.
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
    for name, value in os.environ.items():  # the C library has copies from now on
        os.putenv(name, value)
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))
    return True


def end_kin(pids: Collection[int], marks: Collection[str]) -> None:
    """Kill what these children have started, but neither them nor this process.

    Where there is ``/proc`` it waits, for two seconds at most, until they have ended: what starts
    next may need their ports.

    Args:
        pids: of the children, which lead sessions. marks: of the children.
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
        found = {pid: stops for pid, stops in _kin(leaders, names).items() if pid not in killed}
        if not found:
            return
        # Those that are stopped come first: who is killed by one that did this needn't do it.
        for pid in sorted(found, key=lambda pid: not found[pid]):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found.keys()
        for pid in found:
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.002)


def _stat(pid: int | str) -> list[str]:
    """What ``/proc`` shows of a process behind its name; its state is first."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _runs(pid: int) -> bool:
    """Whether a process hasn't ended; one that only waits to be reaped has, with all threads."""
    try:
        numbers = _stat(pid)
    except OSError:
        return False
    return numbers[0] not in "ZX" or int(numbers[17]) > 1


def is_ending(pid: int) -> bool:
    """Whether a process has ended or begun to, when its files are closed one after the other."""
    try:
        numbers = _stat(pid)
    except OSError:
        return (_PROC / "self" / "stat").exists()
    return numbers[0] in "ZX" or bool(int(numbers[6]) & _EXITING)


def _kin(leaders: set[int], names: set[bytes]) -> dict[int, bool]:
    """Processes in sessions of these leaders, or marked by these names, which are leaders, too.

    Returns:
        by process id, whether it is stopped.
    """
    found = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.stat().st_uid != os.getuid():
                continue
            numbers = _stat(folder.name)
            if int(numbers[3]) in leaders or names & _names(folder):
                found[int(folder.name)] = numbers[0] in "Tt"
    leaders |= found.keys()
    return found


def _names(folder: Path) -> set[bytes]:
    """Whose child or grandchild a process is."""
    for variable in (folder / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return set(value.split(b"/"))
    return set()
