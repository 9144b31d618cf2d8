"""Draws panels as SVG with Matplotlib; the page sets the colours, light or dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.extras import needs
from headrace.reporting.panels import Panel

# Placeholder colours that the page replaces: text, grid and curves.
_TEXT, _GRID = "#0a0b0c", "#0d0e0f"
COLOURS = 8
_CURVES = [f"#0000f{i}" for i in range(COLOURS)]
_SIZE = (4.6, 2.5)  # inches, 72 units each
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))


def drawn(panels: Sequence[Panel], groups: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Draw each panel as SVG, with the position of its axes for the pointer.

    All panels reuse one figure, because creating axes is slower than drawing in them.

    Args:
        groups: number of groups. Colours mark groups, or metrics if there is one group.
    """
    with needs("a report", "plots"):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

    with _style(0):
        figure = Figure(figsize=_SIZE, dpi=72, frameon=False)
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.125, 0.125, 0.855, 0.84), facecolor="none")
        axes.grid(color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: short(value))
        axes.locator_params(nbins=5)
    for number, panel in enumerate(panels):
        with _style(number):
            yield _svg(axes, panel, groups)


def _svg(axes: Any, panel: Panel, groups: int) -> tuple[str, dict[str, Any]]:
    for artist in [*axes.lines, *axes.collections]:  # of the previous panel
        artist.remove()
    axes.autoscale()
    axes.relim()
    _curves(axes, panel, groups)
    text = io.StringIO()
    axes.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    left, bottom, width, height = axes.get_position().bounds
    w, h = (72 * inches for inches in _SIZE)
    box = [left * w, (1 - bottom - height) * h, width * w, height * h]
    where = {"box": [round(x, 1) for x in box], "x": list(map(float, axes.get_xlim()))}
    return _cleaned(text.getvalue(), panel.title), where


def _style(number: int) -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context({
        "svg.fonttype": "none", "svg.hashsalt": f"panel {number}", "font.size": 9,
        "text.color": _TEXT, "axes.edgecolor": _GRID, "axes.labelcolor": _TEXT,
        "xtick.color": _TEXT, "ytick.color": _TEXT, "axes.spines.top": False,
        "axes.spines.right": False, "text.parse_math": False, "axes.unicode_minus": False,
    })  # fmt: skip


def colour_of(group: int, at: int, groups: int) -> int:
    """Return the number of a line's colour."""
    return (group if groups > 1 else at) % COLOURS


def _curves(axes: Any, panel: Panel, groups: int) -> None:
    for line in panel.lines:
        colour = _CURVES[colour_of(line.group, line.at, groups)]
        style = _DASHES[line.at % len(_DASHES)]
        marker = "o" if line.points or len(line.x) == 1 else None
        axes.plot(
            line.x, line.y, color=colour, linestyle=style, linewidth=1.4, marker=marker,
            markersize=3,
        )  # fmt: skip
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    elif panel.level is not None and math.isfinite(panel.level):
        axes.axhline(panel.level, color=_TEXT, linewidth=0.8, linestyle=":")


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


def _cleaned(svg: str, title: str) -> str:
    """Reduce an SVG to its element, with the page's colours and font and without shared ids."""
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    referenced = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in referenced else "", svg)
    svg = re.sub(r"font: [^;\"]*;?|font-family: [^;\"]*;?", "font-size: 9px;", svg)
    for text, colour in _colours():
        svg = svg.replace(text, colour)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{title_text(title)}" ', 1)
    return re.sub(r"\n\s*", "\n", svg)


def title_text(title: str) -> str:
    """Escape text for an attribute."""
    for mark, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        title = title.replace(mark, name)
    return title


def _colours() -> Iterator[tuple[str, str]]:
    yield _TEXT, "currentColor"
    yield _GRID, "var(--grid)"
    for i, text in enumerate(_CURVES):
        yield text, f"var(--c{i})"
