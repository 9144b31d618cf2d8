"""Helpers of several benchmarks: headrace as a child process, memory of children, bar charts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from processor import tree_of

from headrace.errors import ConfigError
from headrace.studies.children import Children, ProcessResult, Watch
from headrace.studies.machine import machine
from headrace.studies.plotting import picture

PSS_INTERVAL_S = 2.0  # slow, because the kernel walks page tables; measured less often
NOT_OF_A_RUN = ("programs", "seeds", "peer_seeds", "first_seed", "output")  # of a comparison


@dataclass
class Memory:
    """Peak memory of a process and all its descendants, in bytes."""

    rss: int = 0  # resident: a page shared by n processes counts n times
    pss: int = 0  # proportional: a page shared by n processes counts once (Linux only)
    processes: int = 0
    next_pss: float = 0.0  # monotonic seconds

    def __call__(self, pid: int) -> None:
        """Measure the process tree of ``pid`` once and update the peaks."""
        rss = pss = 0
        with_pss = time.monotonic() >= self.next_pss
        if with_pss:
            self.next_pss = time.monotonic() + PSS_INTERVAL_S
        tree = tree_of(pid)
        for process in tree:
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                if with_pss:
                    pss += getattr(process.memory_full_info(), "pss", 0)
        self.processes = max(self.processes, len(tree))
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)


def train_command(
    algorithm: str,
    run_dir: Path,
    limit_s: float,
    children: Children | None = None,
    grace_s: float = 10.0,
    watch: Watch | None = None,
    **flags: Any,
) -> ProcessResult:
    """Run ``headrace train``, and ask it to stop after ``limit_s``.

    Args:
        run_dir: a folder that may not exist. The output is written next to it.
        grace_s: seconds that the command has to stop.
        watch: called with the process id several times a second.
        flags: flags of the command; True: a flag without a value.

    Raises:
        RuntimeError: the command failed or wrote no summary.
    """
    command = [f"{sysconfig.get_path('scripts')}/headrace", "train", algorithm]
    for name, value in {**flags, "run_dir": run_dir}.items():
        command.append(f"--{name.replace('_', '-')}")
        command += [] if value is True else [str(value)]
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    output = run_dir.with_name(f"{run_dir.name}.log")
    ended = (children or Children()).run(command, output, limit_s, grace_s, watch=watch)
    if not (run_dir / "summary.json").exists() or (ended.code and not ended.timed_out):
        raise ended.error(" ".join(command))
    return ended


def kept(path: Path, args: Any) -> dict[str, Any] | None:
    """Return the run that :func:`keep` wrote to ``path``; None if there is none.

    Raises:
        ConfigError: it was made with other settings.
    """
    if not path.exists():
        return None
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    before, asked = run.get("asked", {}), _asked(args)
    pairs = {name: (before.get(name, "?"), value) for name, value in asked.items()}
    other = [f"{name}={old} instead of {new}" for name, (old, new) in pairs.items() if old != new]
    if other:
        told = ", ".join(other)
        raise ConfigError(f"{path} was made with {told}: move it away or choose another --output")
    return run


def keep(path: Path, args: Any, run: dict[str, Any]) -> dict[str, Any]:
    """Write a run with its settings. Return the run as read from the file."""
    text = json.dumps(run | {"asked": _asked(args), "machine": machine()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _asked(args: Any) -> dict[str, Any]:
    values = {k: v for k, v in dataclasses.asdict(args).items() if k not in NOT_OF_A_RUN}
    return json.loads(json.dumps(values, default=str))  # type: ignore[no-any-return]


# -- numbers and plots ----------------------------------------------------------------------------


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return ``name_median``, ``name_min`` and ``name_max``."""
    return {
        f"{name}_median": statistics.median(values),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
    }


def draw_bars(
    series: Mapping[str, Mapping[str, tuple[float, float]]], title: str, ylabel: str, path: Path
) -> None:
    """Draw grouped bars with whiskers of one standard error.

    Args:
        series: mean and standard error by name in the legend, then by group on the x axis.
    """
    groups = list(dict.fromkeys(group for bars in series.values() for group in bars))
    width = 0.8 / len(series)
    with picture(path, title, (max(6.0, 1.6 * len(groups) + 2), 4.2)) as (_, (panel,)):
        for i, (name, bars) in enumerate(series.items()):
            at = [groups.index(group) + (i - (len(series) - 1) / 2) * width for group in bars]
            mean, errors = zip(*bars.values(), strict=True)
            panel.bar(at, mean, width, yerr=errors, label=name, capsize=3, ecolor="#333333")
        panel.set_xticks(range(len(groups)), groups)
        panel.set(ylabel=f"{ylabel}, mean and standard error")
        panel.legend(fontsize="small")
        panel.grid(axis="y", alpha=0.3)


def draw_ranges(
    ranges: Mapping[str, tuple[float, float, float]],
    title: str,
    xlabel: str,
    path: Path,
    own: str = "headrace",
) -> None:
    """Draw horizontal bars with whiskers, and their numbers.

    Args:
        ranges: median, minimum and maximum by name.
        own: prefix of names that are highlighted.
    """
    names = list(ranges)
    middle, low, high = (np.array(values) for values in zip(*ranges.values(), strict=True))
    colors = ["#1f77b4" if name.startswith(own) else "#999999" for name in names]
    errors = [middle - low, high - middle]
    with picture(path, title, (9, 0.42 * len(names) + 1.4)) as (_, (panel,)):
        panel.barh(names, middle, xerr=errors, color=colors, ecolor="#333333", capsize=3)
        for i, (value, end) in enumerate(zip(middle, high, strict=True)):
            panel.annotate(f"  {value:,.0f}", (end, i), va="center", fontsize=8)
        panel.set(xlabel=xlabel, xlim=(min(0.0, *low), 1.15 * max(0.0, *high)))
        panel.invert_yaxis()


def draw_rates(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw bars of ``sps_median`` with whiskers from ``sps_min`` to ``sps_max``."""
    ranges = {row["name"]: (row["sps_median"], row["sps_min"], row["sps_max"]) for row in rows}
    draw_ranges(ranges, title, "steps per second", path)
