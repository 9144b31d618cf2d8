"""Draws panels as SVG with Matplotlib; the page sets the colours, light or dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace.extras import needs
from headrace.reporting.panels import COLOURS, Panel, colour_of, short

# Placeholder colours that the page replaces: text, grid and curves.
_TEXT, _GRID = "#0a0b0c", "#0d0e0f"
_CURVES = [f"#0000f{i}" for i in range(COLOURS)]
_SIZE = (4.6, 2.5)  # inches, 72 units each
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))


def drawn(panels: Sequence[Panel], groups: int) -> Iterator[str]:
    """Draw each panel as SVG, for readers without scripts.

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


def _svg(axes: Any, panel: Panel, groups: int) -> str:
    for artist in [*axes.lines, *axes.collections]:  # of the previous panel
        artist.remove()
    axes.autoscale()
    axes.relim()
    _curves(axes, panel, groups)
    text = io.StringIO()
    axes.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _cleaned(text.getvalue(), panel.alt)


def _style(number: int) -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context({
        "svg.fonttype": "none", "svg.hashsalt": f"panel {number}", "font.size": 9,
        "text.color": _TEXT, "axes.edgecolor": _GRID, "axes.labelcolor": _TEXT,
        "xtick.color": _TEXT, "ytick.color": _TEXT, "axes.spines.top": False,
        "axes.spines.right": False, "text.parse_math": False, "axes.unicode_minus": False,
    })  # fmt: skip


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


def _cleaned(svg: str, alt: str) -> str:
    """Reduce an SVG to its element, with the page's colours and font and without shared ids."""
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"-?\d+\.\d{5,}", lambda m: f"{float(m[0]):.1f}", svg)  # coordinates
    referenced = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in referenced else "", svg)
    svg = re.sub(r"font: [^;\"]*;?|font-family: [^;\"]*;?", "font-size: 9px;", svg)
    for text, colour in _colours():
        svg = svg.replace(text, colour)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{attribute(alt)}" ', 1)
    return re.sub(r"\n\s*", "\n", svg)


def attribute(text: str) -> str:
    """Escape text for an attribute."""
    for mark, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(mark, name)
    return text


def _colours() -> Iterator[tuple[str, str]]:
    yield _TEXT, "currentColor"
    yield _GRID, "var(--grid)"
    for i, text in enumerate(_CURVES):
        yield text, f"var(--c{i})"
