"""Builds the panels of a report from the curves in run directories.

Every point of a single run is an unchanged line of ``metrics.jsonl``, ``returns.jsonl`` or
``evaluations.jsonl``; long runs are thinned to screen resolution. Runs that differ only in their
seed are one curve, an estimate over runs with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from headrace.rundir.curves import Curve, Interval, RunCurves, custom_metrics, eval_envs, on_grid

Array: TypeAlias = np.ndarray

MOST_POINTS = 400  # per curve
COLOURS = 8  # of the page


class Shown(NamedTuple):
    """A metric of a panel."""

    metric: str  # its name in the file
    label: str
    dashed: bool = False
    evaluated: bool = False  # read from evaluations.jsonl
    factor: float = 1.0


class Kind(NamedTuple):
    """Definition of a panel, independent of runs."""

    title: str
    unit: str
    shown: tuple[Shown, ...]
    level: str = ""  # setting drawn as a horizontal line
    share: bool = False  # range from 0 to 1
    about: str = ""  # hint for the reader


KINDS = (
    Kind("Return", "", (
        Shown("charts/episodic_return", "training, last 100 episodes"),
        Shown("return_mean", "evaluated", True, evaluated=True))),
    Kind("Episode length", "steps", (Shown("charts/episodic_length", "length"),)),
    Kind("Speed", "steps/s", (Shown("charts/SPS", "environment steps per second"),)),
    Kind("Explained variance", "", (
        Shown("losses/explained_variance", "of value targets"),),
        about="1: values predict returns; 0 or less: values are useless."),
    Kind("Value loss", "", (Shown("losses/value_loss", "value loss"),)),
    Kind("Policy loss", "", (Shown("losses/policy_loss", "policy loss"),)),
    Kind("Entropy", "nats", (Shown("losses/entropy", "entropy"),),
         about="Falls as the policy becomes deterministic; an immediate drop is too early."),
    Kind("KL", "nats", (
        Shown("losses/approx_kl", "behaviour to current policy"),
        Shown("losses/target_kl", "target to current policy", True)),
        about="How far an update moves the policy: 0.001 to 0.05 is usual."),
    Kind("Clip fraction", "", (Shown("losses/clipfrac", "clipped ratios"),),
         level="clip", about="5% to 30% is usual."),
    Kind("Gradient norm", "", (Shown("losses/grad_norm", "before clipping"),),
         level="max_grad_norm"),
    Kind("Learning rate", "", (Shown("charts/learning_rate", "learning rate"),)),
    Kind("Policy lag", "updates", (
        Shown("lag/mean", "mean"), Shown("lag/max", "greatest", True)),
        about="Updates between acting and training."),
    Kind("Policy lag in optimiser steps", "", (
        Shown("lag/steps", "mean"), Shown("lag/steps_max", "greatest", True))),
    Kind("Utilisation", "share", (
        Shown("utilisation/learner", "learner"), Shown("utilisation/actor", "actors", True),
        Shown("utilisation/environment", "environments in acting", True)), share=True,
        about="The side with low utilisation waits for the other."),
    Kind("Learner time", "s between results", (
        Shown("time/learn", "computing"), Shown("time/wait", "waiting for rollouts", True),
        Shown("time/sync", "waiting for others", True), Shown("time/comm", "all-reduce", True),
        Shown("time/publish", "publishing", True))),
    Kind("Rollouts waiting", "", (Shown("queue/depth", "after taking a batch"),)),
    Kind("Rollouts lost", "", (
        Shown("lag/dropped", "dropped as stale"),
        Shown("queue/lost", "lost with dead actors", True))),
    Kind("Memory", "GB", (
        Shown("memory/learner_bytes", "learner's process", factor=1e-9),
        Shown("memory/free_bytes", "free on the machine", True, factor=1e-9))),
    Kind("Policy divergence", "nats", (Shown("sync/divergence", "KL reported to actors"),)),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A curve. ``low`` and ``high`` are empty without an interval."""

    label: str
    group: int  # number of the runs' group
    at: int  # number of the metric in its panel
    dashed: bool
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    metric: str
    points: bool = False  # draw markers


@dataclass(frozen=True)
class Panel:
    """Curves drawn together, over environment steps."""

    title: str
    unit: str
    about: str
    share: bool
    level: float | None
    level_name: str
    lines: list[Line]

    def values(self, groups: int = 1) -> dict[str, Any]:
        """Return the curves as data for the page's script and for checks.

        Args:
            groups: number of groups of the page; see :func:`colour_of`.
        """
        lines = [
            {"label": one.label, "metric": one.metric, "group": one.group, "at": one.at,
             "colour": colour_of(one.group, one.at, groups), "points": one.points,
             "x": one.x, "y": one.y}
            | ({"low": one.low, "high": one.high} if one.low else {})
            for one in self.lines
        ]  # fmt: skip
        known = {"title": self.title, "unit": self.unit, "share": self.share}
        return known | {"level": self.level, "lines": lines}

    @property
    def alt(self) -> str:
        """Describe the plot for readers who don't see it."""
        unit = f" ({self.unit})" if self.unit else ""
        courses = (
            f"{one.label}: from {short(one.y[0])} at {round(one.x[0]):,} steps to "
            f"{short(one.y[-1])} at {round(one.x[-1]):,}"
            for one in self.lines
        )
        return f"{self.title}{unit} over environment steps. {'; '.join(courses)}."


def colour_of(group: int, at: int, groups: int) -> int:
    """Return the number of a line's colour: of its group, or of its metric in a single group."""
    return (group if groups > 1 else at) % COLOURS


def short(value: float) -> str:
    """Format a number with at most four digits: 1.5M, 0.02."""
    size = abs(value)
    if not math.isfinite(size):
        return str(value)
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= factor and (factor > 1e3 or size >= 1e4):
            return f"{value / factor:.4g}{unit}"
    if size >= 1e-3 or size == 0:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def panels(
    groups: Mapping[str, Sequence[RunCurves]], interval: Interval | None
) -> tuple[list[Panel], list[str]]:
    """Build all panels with values, and list the titles of panels that are 0 throughout.

    Args:
        groups: runs that differ only in their seed, by name.
        interval: interval of several runs' values; None: only their mean.
    """
    pending: list[tuple[Line, Array]] = []
    all_panels = (_panel(kind, groups, pending) for kind in _kinds(groups))
    with_lines = [panel for panel in all_panels if panel.lines]
    if interval is not None:
        _estimate(pending, interval)
    empty = [panel for panel in with_lines if not any(any(line.y) for line in panel.lines)]
    return [panel for panel in with_lines if panel not in empty], [panel.title for panel in empty]


def _kinds(groups: Mapping[str, Sequence[RunCurves]]) -> Iterator[Kind]:
    """Yield the table of panels, and panels for several tasks and custom metrics."""
    tasks: dict[str, None] = {}
    for runs in groups.values():
        for run in runs:
            names = (name.rsplit("/", 1) for name in run.results[-1] if name.startswith("tasks/"))
            tasks |= dict.fromkeys(n[0] for n in names if n[1] == "episodic_return")
    yield KINDS[0]
    for task in tasks:
        name = task.removeprefix("tasks/")
        yield Kind(f"Return in {name}", "", (Shown(f"{task}/episodic_return", "training"),))
    for name in eval_envs([run for runs in groups.values() for run in runs]):
        shown = (Shown(f"eval/{name}/mean", "evaluated"),)
        yield Kind(f"Return evaluated on {name}", "", shown)
    for metric in custom_metrics([run for runs in groups.values() for run in runs]):
        evaluated = Shown(f"eval/{metric}", "evaluated", True)
        yield Kind(metric, "", (Shown(metric, "training"), evaluated))
    yield from KINDS[1:]


def _estimate(pending: Sequence[tuple[Line, Array]], interval: Interval) -> None:
    """Compute the intervals of lines of several runs, together for speed."""
    for count in {len(values) for _, values in pending}:
        those = [(line, values) for line, values in pending if len(values) == count]
        ends = np.cumsum([values.shape[1] for _, values in those])[:-1]
        parts = interval(np.concatenate([values for _, values in those], axis=1))
        for (line, _), *each in zip(those, *(np.split(part, ends) for part in parts), strict=True):
            line.y[:], line.low[:], line.high[:] = ([*map(_six_digits, part)] for part in each)


def _six_digits(value: float) -> float:
    """Round an estimate, whose other digits would triple its size in the page."""
    return float(f"{value:.6g}")


def _panel(
    kind: Kind, groups: Mapping[str, Sequence[RunCurves]], pending: list[tuple[Line, Array]]
) -> Panel:
    lines = [
        line
        for number, (name, runs) in enumerate(groups.items())
        for at, shown in enumerate(kind.shown)
        if (line := _line(shown, at, name, number, runs, pending, len(groups) > 1)) is not None
    ]
    lines = [line for line in lines if line.at == 0 or any(line.y)]  # zero lines are useless
    levels = {run.settings.get(kind.level) for runs in groups.values() for run in runs}
    level = levels.pop() if len(levels) == 1 else None
    level = level if kind.level == "max_grad_norm" and _is_drawn(level) else None
    return Panel(kind.title, kind.unit, kind.about, kind.share, level, kind.level, lines)


def _is_drawn(level: Any) -> bool:
    return isinstance(level, float) and math.isfinite(level)


def _line(
    shown: Shown, at: int, name: str, group: int, runs: Sequence[RunCurves],
    pending: list[tuple[Line, Array]], named: bool,
) -> Line | None:  # fmt: skip
    curves = [run.curve("env_steps", shown.metric, shown.evaluated) for run in runs]
    curves = [finite for curve in curves if (finite := _known(curve, shown.factor))[0]]
    if not curves:
        return None
    label = f"{name}: {shown.label}" if named else shown.label
    try:
        grid = on_grid(curves) if len(curves) > 1 else None
    except ValueError:  # one run ended before another's first point
        return None
    x, y = _thinned(curves[0])
    if grid is not None:
        x, y = grid[0].tolist(), grid[1].mean(axis=0).tolist()
    marked = shown.evaluated and len(x) < 60
    line = Line(label, group, at, shown.dashed, x, y, [], [], shown.metric, marked)
    if grid is not None:
        pending.append((line, grid[1]))
    return line


def _known(curve: Curve, factor: float) -> tuple[list[float], list[float]]:
    points = [(x, y if factor == 1.0 else y * factor) for x, y in zip(*curve, strict=True)
              if x is not None and y is not None]  # fmt: skip
    return [x for x, _ in points], [y for _, y in points]


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """Thin a long curve to the first, least, greatest and last point of each stretch."""
    x, y = list(curve[0]), list(curve[1])
    if len(x) <= MOST_POINTS:
        return x, y
    indices: set[int] = set()
    for part in np.array_split(np.arange(len(x)), MOST_POINTS // 4):
        values = np.asarray(y, float)[part]
        indices |= {int(part[i]) for i in (0, values.argmin(), values.argmax(), len(part) - 1)}
    at = sorted(indices)
    return [x[i] for i in at], [y[i] for i in at]
