"""Collects hardware and package versions for ``machine.json``."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.processes import num_cores

PACKAGES = (
    *("headrace", "torch", "gymnasium", "numpy", "envpool", "ale-py", "mujoco", "ray"),
    "stable-baselines3",
)


def machine() -> dict[str, str]:
    """Describe processor, cores, memory, system and graphics processors."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = info.split("model name", 1)[1].split("\n", 1)[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        model = platform.processor() or platform.machine()  # starts a process
    info_by_name = {"processor": model, "cores": str(num_cores())}
    with contextlib.suppress(OSError, ValueError):  # not available on every system
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        info_by_name["memory"] = f"{memory / 2**30:.0f} GiB"
    info_by_name["system"] = f"{platform.system()} {platform.release()}"
    return info_by_name | graphics()


def graphics() -> dict[str, str]:
    """Return the graphics processors that torch sees; empty without any."""
    import torch

    if not torch.cuda.is_available():
        return {}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"graphics": ", ".join(names)}


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages, by name."""
    numbers = {package: _version(package) for package in PACKAGES}
    installed = {package: number for package, number in numbers.items() if number is not None}
    return {"Python": platform.python_version()} | installed


@functools.cache  # reading a package's metadata takes a millisecond
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
