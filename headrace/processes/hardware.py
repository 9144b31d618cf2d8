"""What of the machine a process takes: cores, threads, devices; and since when it runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.processes.control_groups import cpu_quota

if TYPE_CHECKING:
    import torch


def process_started() -> float:
    """When this process was started, on the clock of ``time.monotonic()``; now where unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        age_s = 0.0
    return time.monotonic() - age_s


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads per operation inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> set[int]:
    """Numbers of the cores that this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Number of cores that this process may use: its affinity, or a lower CPU quota.

    A quota of control groups (``docker --cpus``, Kubernetes limits) is rounded down, but to at
    least 1. With more threads than it allows, all of them would be throttled at times.
    """
    count, quota = len(cores()), cpu_quota()
    return count if quota is None else max(1, min(count, int(quota + 1e-6)))


@contextlib.contextmanager
def pinned(num_cores: int | None, index: int) -> Iterator[None]:
    """Keep this thread, and what it starts, on ``num_cores`` cores inside the block.

    Args:
        num_cores: None, or where a system can't: all cores.
        index: which block of that many cores; they are dealt out in a circle.
    """
    if num_cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = sorted(cores())
    count = min(num_cores, len(before))
    mine = {before[(index * num_cores + i) % len(before)] for i in range(count)}
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def stay_on(processors: Collection[int] | None) -> None:
    """Keep this thread, and what it starts, on these cores; None, or where a system can't: all."""
    if processors is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def push_nobody_aside() -> None:
    """Let this thread, and those that it starts, wake without taking a busy core, on Linux.

    An actor and the thread that steps its environments wake each other at each step. Where one may
    push aside what runs on the core that it had before, the actors get in one another's way while
    other cores idle: with two of HalfCheetah on two cores a tenth of all steps. Who acts for all of
    them begins with more calls so.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_way() -> None:
    """Let whoever wakes go before this thread, on Linux from 6.12 on; no effect elsewhere.

    There who runs keeps the core for a turn (some ms), however nice it is, unless the turns of who
    wakes are shorter. So this thread's become long ones.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler"):
        return
    policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    if policy in (os.SCHED_OTHER, os.SCHED_BATCH):
        attributes = struct.pack("=IIQiIQQQ", 48, policy, 0, nice, 0, _TURN_NS, 0, 0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)


_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # Linux's number of what C libraries lack
_TURN_NS = 20_000_000


def allow_open_files(count: int) -> int:
    """Let this process, and what it starts, have so many files open, if its hard limit allows it.

    Returns:
        how many it may have.
    """
    try:
        import resource
    except ImportError:  # there is no such limit
        return count
    endless, kind = resource.RLIM_INFINITY, resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    if soft == endless or soft >= count:
        return count
    most = count if hard == endless else min(count, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, hard))
        return most
    return soft


def full_float32(device: str | torch.device) -> None:
    """Let float32 be float32 in convolutions on a GPU, as it is on processors, not TF32."""
    import torch

    if torch.device(device).type != "cpu":
        torch.backends.cudnn.allow_tf32 = False


def check_device(device: str) -> None:
    """Raise ConfigError unless a learner can compute on ``device`` here."""
    import torch

    available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.cuda.is_available():
        available.append("cuda")
    if device not in available:
        lacks = ", as mps has no float64, which statistics need" if device == "mps" else ""
        choose = ", ".join(available)
        raise ConfigError(f"device={device!r} is not available here{lacks}; choose {choose}")
