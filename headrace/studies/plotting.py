"""Plots of studies: figures, and curves with confidence bands."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.extras import needs
from headrace.rundir.curves import Curve, on_grid
from headrace.rundir.plot import save_figure
from headrace.studies import statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAYOUT = "constrained"  # layout engine of panels; None is faster
Series = Mapping[str, Sequence[Curve]]  # one curve per run, by the name in the legend


@contextlib.contextmanager
def picture(
    path: Path, title: str, size: tuple[float, float], **panels: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Create a figure and an array of its axes, and save it as a PNG when the block ends.

    Args:
        panels: arguments of ``Figure.subplots`` (nrows, ncols, sharey); one panel without them.
    """
    figure = new_figure(figsize=size, layout=LAYOUT)
    yield figure, np.ravel(figure.subplots(**panels))  # type: ignore[arg-type]
    figure.suptitle(title, fontsize="small" if size[0] < 11 else "medium", wrap=True)
    save_figure(figure, path, 120)


def new_figure(**settings: Any) -> Figure:
    """Create an empty figure.

    Raises:
        ConfigError: Matplotlib isn't installed.
    """
    with needs("a plot", "plots"):
        from matplotlib.figure import Figure

    return Figure(**settings)


def curves(
    panel: Axes, series: Series, *, runs: bool = False, dashed: Collection[str] = ()
) -> None:
    """Plot the interquartile mean of runs and its interval, which :func:`band` describes.

    Args:
        runs: also plot each run.
        dashed: names of series with dashed lines.
    """
    from matplotlib.ticker import EngFormatter

    for i, (name, each) in enumerate(series.items()):
        look: dict[str, Any] = {"color": f"C{i}", "linestyle": "--" if name in dashed else "-"}
        for x, y in each if runs else ():
            panel.plot(x, y, marker=".", alpha=0.3, linewidth=0.8, **look)
        panel.plot([], [], label=name, **look)
        if full := [curve for curve in each if len(curve[0])]:
            with contextlib.suppress(ValueError):  # runs without a common range
                at, values = on_grid(full)
                mean, low, high = _middle(values)
                alone = "o" if at[0] == at[-1] else None  # a line of one point is invisible
                panel.plot(at, mean, linewidth=2.0 if runs else None, marker=alone, **look)
                panel.fill_between(at, low, high, alpha=0.2, color=f"C{i}", linewidth=0)
    panel.xaxis.set_major_formatter(EngFormatter(sep=" "))  # plain millions would overlap
    panel.grid(alpha=0.3)


def _middle(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the central line and interval of ``[runs, points]``; a single run has no interval."""
    if len(values) > 1 and statistics.are_there():
        return statistics.over_runs(values)
    mean = statistics.middle(values[:, None, :])
    return mean, mean, mean


def band() -> str:
    """Describe the band that :func:`curves` plots."""
    interval = " and its 95% interval" if statistics.are_there() else ""
    return f"interquartile mean{interval} over runs"


def draw_curves(
    panels: Mapping[str, Series],
    title: str,
    ylabel: str,
    path: Path,
    *,
    level: float | None = None,
    **look: Any,
) -> None:
    """Plot learning curves in adjacent panels.

    Args:
        panels: series of each panel, by the label of its x axis.
        level: target return, plotted as a line.
        look: arguments of :func:`curves`.
    """
    size = (5.5 * len(panels), 4.2)
    with picture(path, title, size, ncols=len(panels), sharey=True) as (_, axes):
        named: list[str] = []
        for panel, (xlabel, series) in zip(axes, panels.items(), strict=True):
            curves(panel, series, **look)
            if level is not None:
                panel.axhline(level, linestyle=":", color="black", label="target")
            panel.set(xlabel=xlabel)
            if list(series) != named:
                panel.legend(fontsize="small")
            named = named or list(series)
        axes[0].set(ylabel=f"{ylabel}\n{band()}")
