"""The machine that a run is on, and the versions that matter, for ``machine.json``."""

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
    """What it is, by name: processor, cores, memory, system and graphics processors."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = info.split("model name", 1)[1].split("\n", 1)[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        model = platform.processor() or platform.machine()  # which starts a process
    found = {"processor": model, "cores": str(num_cores())}
    with contextlib.suppress(OSError, ValueError):  # these names are not everywhere
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        found["memory"] = f"{memory / 2**30:.0f} GiB"
    found["system"] = f"{platform.system()} {platform.release()}"
    return found | graphics()


def graphics() -> dict[str, str]:
    """The graphics processors that torch sees; empty without any."""
    import torch

    if not torch.cuda.is_available():
        return {}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"graphics": ", ".join(names)}


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed, by name."""
    found = {package: _version(package) for package in PACKAGES}
    known = {package: number for package, number in found.items() if number is not None}
    return {"Python": platform.python_version()} | known


@functools.cache  # to read all that a package says of itself takes a millisecond
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
