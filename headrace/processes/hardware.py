"""Configures cores, threads and devices of a process, and reports its start time."""

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
    """Return the start time of this process (``time.monotonic()``); now if unknown."""
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
    """Return the numbers of the cores that this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return the number of cores that this process may use: its affinity, or a lower CPU quota.

    A quota of control groups (``docker --cpus``, Kubernetes limits) is rounded down, but to at
    least 1. With more threads than it allows, all of them would be throttled at times.
    """
    count, quota = len(cores()), cpu_quota()
    return count if quota is None else max(1, min(count, int(quota + 1e-6)))


@contextlib.contextmanager
def pinned(num_cores: int | None, index: int) -> Iterator[None]:
    """Restrict this thread, and processes it starts, to ``num_cores`` cores inside the block.

    Args:
        num_cores: number of cores; None, or on systems without affinity: all cores.
        index: index of the block of cores; blocks wrap around.
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


def set_affinity(processors: Collection[int] | None) -> None:
    """Restrict this thread, and processes it starts, to these cores; None: all."""
    if processors is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)


def use_batch_scheduling() -> None:
    """Use batch scheduling on Linux, so that this thread wakes without preempting others.

    An actor and the thread that steps its environments wake each other at each step. If they may
    preempt what runs on their previous core, actors disturb each other while other cores are idle:
    two HalfCheetah actors on two cores lose a tenth of their steps. The inference server receives
    larger batches.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def yield_to_waking_threads() -> None:
    """Let waking threads run before this one, on Linux from 6.12 on; no effect elsewhere.

    There a running thread keeps the core for its time slice (some ms), regardless of niceness,
    unless the waking thread has a shorter slice. So this thread gets a long one.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler"):
        return
    policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    if policy in (os.SCHED_OTHER, os.SCHED_BATCH):
        attributes = struct.pack("=IIQiIQQQ", 48, policy, 0, nice, 0, _TURN_NS, 0, 0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)


_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # system call without a C library function
_TURN_NS = 20_000_000


def allow_open_files(count: int) -> int:
    """Raise the limit on open files to ``count``, as far as the hard limit allows.

    Returns:
        the resulting limit, or ``count`` if there is none.
    """
    try:
        import resource
    except ImportError:  # systems without this limit
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
    """Compute float32 convolutions on a GPU in full precision instead of TF32."""
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
        lacks = ", because mps has no float64, which statistics need" if device == "mps" else ""
        choose = ", ".join(available)
        raise ConfigError(f"device={device!r} is not available here{lacks}; choose {choose}")
