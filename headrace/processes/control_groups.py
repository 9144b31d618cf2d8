"""Reads Linux control groups, with which containers and schedulers limit memory and cores."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_OF_PROCESS = Path("/proc/self/cgroup")
_CONTROLLERS = {"memory": ("memory",), "cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu")}


def folders(controller: str) -> list[Path]:
    """List the folders of this process's control groups (version 1 and 2) and their parents.

    If a container hides the parents, its own group is at the root.

    Args:
        controller: ``memory`` or ``cpu``.
    """
    roots = [ROOT, ROOT / "unified", *(ROOT / name for name in _CONTROLLERS[controller])]
    group_folders = list(roots)
    with contextlib.suppress(OSError):
        for line in _OF_PROCESS.read_text().splitlines():
            of = Path(line.split(":", 2)[-1].lstrip("/"))
            group_folders += [root / part for root in roots for part in (of, *of.parents)]
    return list(dict.fromkeys(group_folders))


def cpu_quota() -> float | None:
    """Return the number of cores that control groups allow on average; None: no limit.

    This is the lowest ``cpu.max`` (version 2) or ``cpu.cfs_quota_us`` (version 1) of all groups.
    """
    quotas = []
    for folder in folders("cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _quota(folder)
            if quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _quota(folder: Path) -> tuple[int, int]:
    """Read the CPU time per period and the period, in microseconds.

    Raises:
        ValueError, OSError: there is no limit.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota), int(period)  # "max" is not a number
    names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    quota, period = ((folder / name).read_text() for name in names)
    return int(quota), int(period)
