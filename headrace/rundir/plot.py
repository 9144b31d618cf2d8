"""Plots learning curves of one or more runs."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, require_choice
from headrace.extras import needs
from headrace.rundir.atomic_files import foreign_values, replace_bytes
from headrace.rundir.curves import (
    Curve,
    Interval,
    RunCurves,
    by_settings,
    on_grid,
    output_of,
    read_run,
)

_TRAINED = "charts/episodic_return"
_RETURN, _EVALUATED = "return (last 100 episodes)", "(dashed: evaluated)"
_SECONDS = "seconds of training\n(without start-up and evaluations)"


def plot(
    run_dirs: Sequence[Path],
    output: Path | None = None,
    interval: Interval | None = None,
    metrics: Sequence[str] = (),
) -> Path:
    """Plot return against steps, return against seconds, and steps per second.

    Runs that differ only in their seed are one curve with a band, over the steps that all of them
    have. Returns are from training; dashed lines are evaluations, where a run has more than one.

    Args:
        run_dirs: run directories.
        output: path of the PNG, which is returned; None: ``curve.png`` in a single run, and
            ``comparison.png`` next to several.
        interval: interval of several runs' values; None: only their mean.
        metrics: names in ``metrics.jsonl``. Each gets a panel over environment steps.

    Raises:
        CheckpointError: a directory has no metrics.
        ConfigError: no runs are named, a metric is in none of them, or the plot can't be written.
    """
    if not run_dirs:
        raise ConfigError("plot needs one or more run directories: headrace plot runs/one runs/two")
    paths = list(dict.fromkeys(run_dirs))
    runs = [read_run(path) for path in paths]
    with foreign_values(*paths):
        figure = draw(runs, interval, metrics)
    path = output or output_of(paths, "curve.png", "comparison.png")
    try:
        save_figure(figure, path, 110)
    except (
        OSError,
        ValueError,
    ) as error:  # an invalid path, or a format that Matplotlib doesn't know
        raise ConfigError(f"output={str(path)!r} can't be written: {error}") from error
    return path


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Save a Matplotlib figure atomically, in the format of the file's suffix.

    Raises:
        OSError, ValueError: the file can't be written, or Matplotlib doesn't know the format.
    """
    data = io.BytesIO()
    figure.savefig(data, dpi=dpi, format=path.suffix[1:] or "png")
    replace_bytes(path, data.getvalue())


def draw(
    runs: Sequence[RunCurves], interval: Interval | None = None, metrics: Sequence[str] = ()
) -> Any:
    """Draw three panels for these runs, and below them one for each of ``metrics``.

    Returns:
        a ``matplotlib.figure.Figure``.
    """
    with needs("a plot", "plots"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter

    evaluated = any(len(run.evaluations) > 1 for run in runs)
    label = f"{_RETURN}\n{_EVALUATED}" if evaluated else _RETURN
    panels = [  # x, y, and the two labels
        ("env_steps", _TRAINED, "environment steps", label),
        ("seconds", _TRAINED, _SECONDS, label),
        ("seconds", "charts/SPS", _SECONDS, "environment steps / s"),
    ]
    for metric in metrics:
        names = sorted({name for run in runs for line in run.results for name in line})
        require_choice("metric", metric, names)
        panels.append(("env_steps", metric, "environment steps", metric))
    groups = by_settings(runs)
    several = len(groups) < len(runs)
    rows = -(-len(panels) // 3)
    figure = Figure(figsize=(12, 3.6 * rows + 0.3 * several), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    for panel, (x, of, x_label, y_label) in zip(axes, panels, strict=False):
        for name, group in groups.items():
            text = f"{name} ({_count(group, x, of)})" if several else name
            if len(runs) == 1:
                text = runs[0].path.name
            colour = _draw_group(panel, [run.curve(x, of) for run in group], text, interval)
            played = [run.curve(x, "return_mean", True) for run in group]
            played = [curve for curve in played if len(curve[0]) > 1]
            if of == _TRAINED and played:
                _draw_group(panel, played, "", interval, linestyle="--", marker=".", color=colour)
        panel.set(xlabel=x_label, ylabel=y_label)
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3)
        if x == "env_steps":
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # plain millions would overlap
    axes[2].set_ylim(bottom=0)
    if len(runs) > 1:
        for text in axes[0].legend(fontsize="small").get_texts():
            text.set_parse_math(False)
    if several:
        statistic = (
            "mean" if interval is None else "interquartile mean and its 95% bootstrap interval"
        )
        figure.supxlabel(
            f"Runs that differ only in their seed are one curve, their {statistic}, over the steps "
            "that all of them have.",
            fontsize="small",
        )
    return figure


def _count(group: Sequence[RunCurves], x: str, y: str) -> str:
    """Format the number of runs behind a mean: those that have values."""
    have = [run for run in group if run.curve(x, y)[0]]
    noun = "seed" if len({run.seed for run in have}) == len(have) else "run"
    return f"{len(have)} {noun}" + ("s" if len(have) != 1 else "")


def _draw_group(
    panel: Any, curves: Sequence[Curve], label: str, interval: Interval | None, **look: Any
) -> Any:
    """Draw a line, and around that of several runs its interval; return the line's colour.

    Args:
        label: name in the legend; empty: none.
        look: look of the line, in Matplotlib's terms.
    """
    label = textwrap.fill(label.lstrip("_"), 44)  # Matplotlib hides labels that begin with _
    full = [curve for curve in curves if len(curve[0])]
    if len(full) < 2:
        (line,) = panel.plot(*(full[0] if full else ([], [])), label=label, **look)
        return line.get_color()
    try:
        x, values = on_grid(full)
    except ValueError:  # one ended before another's first point
        text = f"{label}: no common steps" if label else ""
        return panel.plot([], [], label=text, **look)[0].get_color()
    mean, low, high = (values.mean(0),) * 3 if interval is None else interval(values)
    (line,) = panel.plot(x, mean, label=label, **look | {"marker": None})
    panel.fill_between(x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    return line.get_color()
