"""The pictures of a scaling study: what was measured filled, what the model says hollow."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from headrace.studies.scaling.figures import Lines, Row, reference
from headrace.studies.scaling.model import PARTS
from headrace.studies.table import mean_curve

MEASURED, BEYOND, HATCH = "C0", "0.55", "////"
COLORS = {"t_rollout": "C2", "t_learn": "C0", "t_comm": "C3", "t_sync": "C1", "rest": "0.8"}
LABELS = {
    "t_rollout": "rollout",
    "t_learn": "learning",
    "t_comm": "communication",
    "t_sync": "waiting",
    "rest": "rest",
}
_LEARNERS = "learners W"


def draw_scaling(
    summary: Sequence[Row], predicted: Sequence[Row], title: str, num_cores: int, path: Path
) -> None:
    """Steps per second, speed-up, efficiency and where the time of an iteration goes, against W.

    Args:
        summary: a row per measured world size, one or more with a speed.
        predicted: the model's rows, none or more.
    """
    rows = [row for row in summary if row["fps"] is not None]
    picture = Figure(figsize=(11.5, 9.0), layout="constrained")
    (rate, speedup), (efficiency, shares) = picture.subplots(2, 2)
    for panel, name in ((rate, "fps"), (speedup, "speedup_fps"), (efficiency, "efficiency")):
        _draw_figure(panel, name, rows, predicted)
    sizes = sorted({row["world_size"] for row in [*rows, *predicted]})
    speedup.plot(sizes, sizes, ":", color="black")
    efficiency.axhline(1.0, linestyle=":", color="black")
    rate.set(title="Throughput", ylabel="environment steps / s", yscale="log")
    rates = [row["fps"] for row in [*rows, *predicted]]
    narrow = max(rates) < 10 * min(rates)
    rate.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if narrow else (1, 2, 5)))
    rate.yaxis.set_major_formatter(EngFormatter(sep=" "))
    rate.yaxis.set_minor_formatter(NullFormatter())
    speedup.set(title="Speed-up", ylabel=f"steps / s relative to {_reference(rows)}")
    speedup.set_yscale("log", base=2)
    speedup.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    efficiency.set(title="Efficiency", ylabel="speed-up / W")
    efficiency.set_ylim(bottom=0.0, top=max(1.08, 1.08 * efficiency.dataLim.y1))
    for panel in (rate, speedup, efficiency):
        _world_size_axis(panel, sizes)
    _draw_shares(shares, rows, predicted)
    handles = _handles(rows, predicted, num_cores)
    picture.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    picture.suptitle(title)
    picture.savefig(path, dpi=120)


def _draw_figure(panel: Axes, name: str, rows: Sequence[Row], predicted: Sequence[Row]) -> None:
    """One figure as measured and by the model."""
    within = [row for row in rows if not row["exceeds_cores"]]
    beyond = [row for row in rows if row["exceeds_cores"]]
    points = [(row["world_size"], row[name]) for row in predicted]
    known = {row["world_size"] for row in within}
    hollow = [(size, value) for size, value in points if size not in known]
    panel.plot(*_columns(points), "--", color=MEASURED, zorder=2)
    panel.plot(*_columns(hollow), "o", color=MEASURED, mfc="white", zorder=3)
    points = [(row["world_size"], row[name]) for row in within]
    panel.plot(*_columns(points), "o-", color=MEASURED, markersize=8, zorder=4)
    points = [(row["world_size"], row[name]) for row in beyond]
    look: dict[str, Any] = {"facecolor": BEYOND, "edgecolor": "white", "hatch": HATCH}
    panel.scatter(*_columns(points), s=90, marker="s", linewidth=0.5, zorder=4, **look)


def _reference(rows: Sequence[Row]) -> str:
    """What a speed-up of 1 is."""
    size = reference(rows)["world_size"] if rows else 1
    return "W = 1" if size == 1 else f"those of W = {size}, over {size}"


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _world_size_axis(panel: Axes, sizes: Sequence[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(list(sizes)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    panel.set(xlabel=_LEARNERS)
    panel.grid(alpha=0.3)


def _handles(rows: Sequence[Row], predicted: Sequence[Row], num_cores: int) -> list[Any]:
    """What the legend of the whole picture says."""
    handles: list[Any] = [
        Line2D([], [], marker="o", color=MEASURED, markersize=8, label="measured")
    ]
    if any(row["exceeds_cores"] for row in rows):
        label = f"measured, but more cores wanted than there are ({num_cores})"
        handles.append(Patch(facecolor=BEYOND, edgecolor="white", hatch=HATCH, label=label))
    if predicted:
        label = "model, each rank with cores of its own"
        handles.append(Line2D([], [], linestyle="--", marker="o", mfc="white", label=label))
    return [*handles, Line2D([], [], linestyle=":", color="black", label="ideal")]


def _draw_shares(panel: Axes, rows: Sequence[Row], predicted: Sequence[Row]) -> None:
    """Stacked shares of an iteration: a bar per measured world size, then the model's others."""
    known = {row["world_size"] for row in rows if not row["exceeds_cores"]}
    others = [row for row in predicted if row["world_size"] not in known]
    bars = [(float(i), row, True) for i, row in enumerate(rows)]
    bars += [(len(rows) + 0.6 + i, row, False) for i, row in enumerate(others)]
    for x, row, measured in bars:
        _draw_bar(panel, x, row, measured)
    panel.set_xticks([x for x, _, _ in bars], [str(row["world_size"]) for _, row, _ in bars])
    if others:
        panel.axvline(len(rows) - 0.2, color="black", linewidth=0.8, linestyle="--")
    panel.set(title="Where an iteration goes (above: its milliseconds)")
    panel.set(xlabel=f"{_LEARNERS}: measured | model" if others else _LEARNERS)
    panel.set(ylabel="share of an iteration", ylim=(0, 1.1))
    handles = [Patch(color=COLORS[name], label=LABELS[name]) for name in COLORS]
    panel.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=5, fontsize="small"
    )


def _draw_bar(panel: Axes, x: float, row: Row, measured: bool) -> None:
    """One world size; the parts of several threads may add up to more than the iteration."""
    parts = {name: row[name] for name in PARTS}
    parts["rest"] = max(0.0, row["t_iter"] - sum(parts.values()))
    total, bottom = sum(parts.values()), 0.0
    look: dict[str, Any] = {"edgecolor": "white"}
    if not measured:
        look = {"alpha": 0.45, "edgecolor": "black", "linestyle": "--", "linewidth": 0.8}
    elif row["exceeds_cores"]:
        look = {"edgecolor": "white", "hatch": HATCH}
    for name, seconds in parts.items():
        panel.bar(x, seconds / total, 0.75, bottom=bottom, color=COLORS[name], **look)
        bottom += seconds / total
    label = f"{row['t_iter'] * 1e3:.3g}" if row["t_iter"] < 1 else f"{row['t_iter'] * 1e3:,.0f}"
    panel.annotate(label, (x, 1.0), (0, 3), textcoords="offset points", ha="center", fontsize=8)


def draw_curves(
    curves: Mapping[int, Sequence[Lines]],
    exceeding: Sequence[int],
    target_return: float | None,
    title: str,
    path: Path,
) -> None:
    """Evaluated returns against steps and seconds: a line per run, their mean and its error.

    Args:
        curves: by world size, the evaluations of each run. exceeding: sizes beyond the cores.
    """
    picture = Figure(figsize=(11.5, 4.8), layout="constrained")
    panels = picture.subplots(1, 2, sharey=True)
    axes = {"env_steps": "environment steps", "seconds": "seconds of training, without evaluations"}
    for panel, (x, label) in zip(panels, axes.items(), strict=True):
        for i, (size, runs) in enumerate(curves.items()):
            points = [([e[x] for e in run], [e["return_mean"] for e in run]) for run in runs]
            _draw_runs(panel, points, f"C{i}", dashed=size in exceeding)
        if target_return is not None:
            panel.axhline(target_return, linestyle=":", color="black")
        panel.set(xlabel=label)
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3)
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=" "))
    panels[0].set(ylabel="return of the deterministic policy")
    handles = [_curve_handle(i, size, size in exceeding) for i, size in enumerate(curves)]
    if target_return is not None:
        handles.append(Line2D([], [], linestyle=":", color="black", label="target"))
    picture.legend(handles=handles, loc="outside right center", fontsize="small")
    picture.suptitle(f"{title}; mean over runs, band of one standard error")
    picture.savefig(path, dpi=120)


def _draw_runs(
    panel: Axes, points: Sequence[tuple[list[float], list[float]]], color: str, dashed: bool
) -> None:
    style = "--" if dashed else "-"
    for steps, returns in points:
        panel.plot(steps, returns, style, marker=".", color=color, alpha=0.3, linewidth=0.8)
    with contextlib.suppress(ValueError):  # runs that ended before another's first evaluation
        at, mean, error = mean_curve(points)
        panel.plot(at, mean, style, color=color, linewidth=2.0)
        panel.fill_between(at, mean - error, mean + error, color=color, alpha=0.15, linewidth=0)


def _curve_handle(index: int, size: int, exceeds: bool) -> Line2D:
    label = f"W = {size}, beyond the cores" if exceeds else f"W = {size}"
    return Line2D([], [], color=f"C{index}", linestyle="--" if exceeds else "-", label=label)
