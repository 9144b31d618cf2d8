"""Plots a scaling study: measurements filled, model predictions hollow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from headrace.studies.aggregation import Row
from headrace.studies.plotting import picture
from headrace.studies.scaling.figures import reference
from headrace.studies.scaling.model import PARTS

MEASURED, BEYOND, HATCH = "C0", "0.55", "////"
COLORS = ("C2", "C0", "C3", "C1", "0.8")  # of PARTS and the rest
LABELS = ("rollout", "learning", "communication", "waiting", "rest")
_LEARNERS = "learners W"


def draw_scaling(
    summary: Sequence[Row], predicted: Sequence[Row], title: str, num_cores: int, path: Path
) -> None:
    """Plot steps per second, speed-up, efficiency and the parts of an iteration against W.

    Args:
        summary: a row per measured world size, one or more with a speed.
        predicted: the model's rows, none or more.
    """
    rows = [row for row in summary if row["fps"] is not None]
    sizes = sorted({row["world_size"] for row in [*rows, *predicted]})
    with picture(path, title, (11.5, 9.0), nrows=2, ncols=2) as (figure, panels):
        rate, speedup, efficiency, shares = panels
        for panel, name in zip(panels, ("fps", "speedup_fps", "efficiency"), strict=False):
            _draw_figure(panel, name, rows, predicted)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_locator(ticker.FixedLocator(sizes))
            panel.xaxis.set_minor_locator(ticker.NullLocator())
            panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
            panel.set(xlabel=_LEARNERS)
            panel.grid(alpha=0.3)
        speedup.plot(sizes, sizes, ":", color="black")
        efficiency.axhline(1.0, linestyle=":", color="black")
        rate.set(title="Throughput", ylabel="environment steps / s", yscale="log")
        rates = [row["fps"] for row in [*rows, *predicted]]
        subs = (1, 1.5, 2, 3, 5, 7) if max(rates) < 10 * min(rates) else (1, 2, 5)
        rate.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
        rate.yaxis.set_major_formatter(ticker.EngFormatter(sep=" "))
        rate.yaxis.set_minor_formatter(ticker.NullFormatter())
        size = reference(rows)["world_size"]
        relative = "W = 1" if size == 1 else f"those of W = {size}, over {size}"
        speedup.set(title="Speed-up", ylabel=f"steps / s relative to {relative}")
        speedup.set_yscale("log", base=2)
        speedup.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        efficiency.set(title="Efficiency", ylabel="speed-up / W")
        efficiency.set_ylim(bottom=0.0, top=max(1.08, 1.08 * efficiency.dataLim.y1))
        _draw_shares(shares, rows, predicted)
        handles = _handles(rows, predicted, num_cores)
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _draw_figure(panel: Axes, name: str, rows: Sequence[Row], predicted: Sequence[Row]) -> None:
    """Plot one metric as measured and as predicted."""

    def columns(chosen: Sequence[Row]) -> tuple[list[float], list[float]]:
        return [row["world_size"] for row in chosen], [row[name] for row in chosen]

    within, beyond = ([r for r in rows if r["exceeds_cores"] == x] for x in (False, True))
    panel.plot(*columns(predicted), "--", color=MEASURED, zorder=2)
    hollow = _not_in(predicted, within)
    panel.plot(*columns(hollow), "o", color=MEASURED, mfc="white", zorder=3)
    panel.plot(*columns(within), "o-", color=MEASURED, markersize=8, zorder=4)
    look: dict[str, Any] = {"facecolor": BEYOND, "edgecolor": "white", "hatch": HATCH}
    panel.scatter(*columns(beyond), s=90, marker="s", linewidth=0.5, zorder=4, **look)


def _not_in(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Return the rows of world sizes that the others lack."""
    sizes = {row["world_size"] for row in others}
    return [row for row in rows if row["world_size"] not in sizes]


def _handles(rows: Sequence[Row], predicted: Sequence[Row], num_cores: int) -> list[Any]:
    """Return the legend handles of the plot."""
    handles: list[Any] = [
        Line2D([], [], marker="o", color=MEASURED, markersize=8, label="measured")
    ]
    if any(row["exceeds_cores"] for row in rows):
        label = f"measured with more ranks than the {num_cores} cores allow"
        handles.append(Patch(facecolor=BEYOND, edgecolor="white", hatch=HATCH, label=label))
    if predicted:
        label = "model, separate cores for each rank"
        handles.append(Line2D([], [], linestyle="--", marker="o", mfc="white", label=label))
    return [*handles, Line2D([], [], linestyle=":", color="black", label="ideal")]


def _draw_shares(panel: Axes, rows: Sequence[Row], predicted: Sequence[Row]) -> None:
    """Plot stacked shares of an iteration for measured and predicted world sizes."""
    others = _not_in(predicted, [row for row in rows if not row["exceeds_cores"]])
    bars = [(float(i), row, True) for i, row in enumerate(rows)]
    bars += [(len(rows) + 0.6 + i, row, False) for i, row in enumerate(others)]
    for x, row, measured in bars:
        _draw_bar(panel, x, row, measured)
    panel.set_xticks([x for x, _, _ in bars], [str(row["world_size"]) for _, row, _ in bars])
    if others:
        panel.axvline(len(rows) - 0.2, color="black", linewidth=0.8, linestyle="--")
    panel.set(title="Parts of an iteration (above: its milliseconds)")
    panel.set(xlabel=f"{_LEARNERS}: measured | model" if others else _LEARNERS)
    panel.set(ylabel="share of an iteration", ylim=(0, 1.1))
    handles = [Patch(color=c, label=label) for c, label in zip(COLORS, LABELS, strict=True)]
    panel.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=5, fontsize="small"
    )


def _draw_bar(panel: Axes, x: float, row: Row, measured: bool) -> None:
    """Plot the bar of one world size; parts in several threads may exceed the iteration."""
    parts = [row[name] for name in PARTS]
    parts.append(max(0.0, row["t_iter"] - sum(parts)))
    total, bottom = sum(parts), 0.0
    look: dict[str, Any] = {"edgecolor": "white"}
    if not measured:
        look = {"alpha": 0.45, "edgecolor": "black", "linestyle": "--", "linewidth": 0.8}
    elif row["exceeds_cores"]:
        look = {"edgecolor": "white", "hatch": HATCH}
    for color, seconds in zip(COLORS, parts, strict=True):
        panel.bar(x, seconds / total, 0.75, bottom=bottom, color=color, **look)
        bottom += seconds / total
    label = f"{row['t_iter'] * 1e3:.3g}" if row["t_iter"] < 1 else f"{row['t_iter'] * 1e3:,.0f}"
    panel.annotate(label, (x, 1.01), ha="center", fontsize=8)
