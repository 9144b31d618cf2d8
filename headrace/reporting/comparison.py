"""Compares groups of runs in a table: final return, speed, and seconds to a return."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.reporting.facts import environment_of
from headrace.rundir.curves import Interval, RunCurves, in_script, summary_of

_TRAINED = "charts/episodic_return"
_SHARE = 0.9  # of the way from the first return to the best one, for the time to a return
_MOST_NAMES = 4  # in a title

Groups = Mapping[str, Sequence[RunCurves]]


@dataclass(frozen=True)
class Comparison:
    """A table with a row per group, and the names of its columns."""

    columns: list[str]
    rows: list[tuple[str, list[str]]]  # name of the group, and its cells
    about: str


def compare(groups: Groups, interval: Interval | None) -> Comparison:
    """Build the table of several groups of runs.

    Args:
        groups: runs that differ only in their seed, by name.
        interval: interval of several runs' values; None: only their mean.
    """
    kind, finals = _finals(groups)
    level, about_level = _threshold(groups)
    columns = ["runs", kind, "steps/s"]
    if level is not None:
        columns.append(f"seconds to {level:,.4g}")
    rows = []
    for name, runs in groups.items():
        noun = "seed" if len({run.seed for run in runs}) == len(runs) else "run"
        cells = [f"{len(runs)} {noun}{'s' * (len(runs) > 1)}", _estimate(finals[name], interval)]
        cells.append(f"{statistics.fmean(map(_speed, runs)):,.0f}")
        if level is not None:
            cells.append(_seconds_to(level, runs))
        rows.append((name, cells))
    several = any(len(runs) > 1 for runs in groups.values())
    middle = "Mean" if interval is None else "Interquartile mean and 95% bootstrap interval"
    sentences = [f"{middle} over runs; mean speed." if several else "", about_level]
    return Comparison(columns, rows, " ".join(filter(None, sentences)))


def title_of(groups: Groups) -> str:
    """Say what several runs compare: their algorithms, settings or directories."""
    runs = [run for group in groups.values() for run in group]
    names, envs = list(groups), {environment_of(run) for run in runs}
    algos = {in_script(run.settings.get("algo", "")) for run in runs}
    if len(names) == 1:
        return f"{names[0]}: {len(runs)} runs"
    common = " on ".join(min(part) for part in (algos, envs) if len(part) == 1 and min(part))
    title = " vs. ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} settings"
    if not common or common in title:
        return title
    return f"{title} on {common}" if algos == {""} or len(algos) > 1 else f"{title}: {common}"


def _finals(groups: Groups) -> tuple[str, dict[str, list[float]]]:
    """Return the name and the final returns, from evaluations if all runs have one."""
    played = {
        name: [(summary_of(run).get("evaluation") or {}).get("mean") for run in runs]
        for name, runs in groups.items()
    }
    if all(value is not None for values in played.values() for value in values):
        return "evaluated return", played  # type: ignore[return-value]
    trained = {
        name: [curve[-1] for run in runs if (curve := _returns(run)[1])]
        for name, runs in groups.items()
    }
    return "training return", trained


def _returns(run: RunCurves) -> tuple[list[float], list[float]]:
    """Return seconds and training returns, where both are known."""
    points = [p for p in zip(*run.curve("seconds", _TRAINED), strict=True) if None not in p]
    return [p[0] for p in points], [p[1] for p in points]


def _estimate(values: Sequence[float], interval: Interval | None) -> str:
    if not values:
        return "–"
    if interval is None or len(values) < 2:
        return f"{statistics.fmean(values):,.1f}"
    middle, low, high = (float(part[0]) for part in interval(np.array(values, float)[:, None]))
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def _speed(run: RunCurves) -> float:
    return float(summary_of(run).get("sps") or run.results[-1].get("charts/SPS", 0.0))


def _threshold(groups: Groups) -> tuple[float | None, str]:
    """Return the return whose time is compared, and a sentence about it."""
    runs = [run for group in groups.values() for run in group]
    names = "target_return", "stop_return"
    wanted = ([run.settings[n] for n in names if run.settings.get(n) is not None] for run in runs)
    asked = {next(iter(some), None) for some in wanted}  # a target may be 0
    if len(asked) == 1 and isinstance(level := asked.pop(), int | float):
        return float(level), "Seconds: median of the training time to the target return."
    curves = [[_returns(run)[1] for run in group] for group in groups.values()]
    known = [[curve for curve in group if curve] for group in curves]
    first = min((curve[0] for group in known for curve in group), default=math.nan)
    best = max((statistics.fmean(c[-1] for c in group) for group in known if group), default=first)
    if not best > first:
        return None, ""
    about = (
        "Seconds: median of the training time until the training return has risen by 90% of the "
        "way to the best final one."
    )
    return first + _SHARE * (best - first), about


def _seconds_to(level: float, runs: Sequence[RunCurves]) -> str:
    """Format the median of the seconds in which runs reached a training return."""
    reached = []
    for run in runs:
        seconds, returns = _returns(run)
        reached += [s for s, value in zip(seconds, returns, strict=True) if value >= level][:1]
    if not reached:
        return "not reached"
    of_all = "" if len(reached) == len(runs) else f" ({len(reached)} of {len(runs)} runs)"
    return f"{statistics.median(reached):,.1f} s{of_all}"
