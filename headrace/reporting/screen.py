"""Shows a run in progress in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.reporting.facts import about
from headrace.reporting.panels import panels
from headrace.rundir.curves import RunCurves

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48


def screen(run: RunCurves) -> RenderableType:
    """Build metrics, a small curve of each metric with its latest value, and findings."""
    overview = about(run)
    figures = Text(" · ".join(f"{name} {value}" for name, value in overview["figures"].items()))
    table = Table.grid(padding=(0, 2))
    for panel in panels({run.path.name: [run]}, None)[0]:
        for line in panel.lines[:1]:
            latest = f"{line.y[-1]:,.4g} {panel.unit}"
            table.add_row(Text(panel.title, style="bold"), Text(small(line.y)), Text(latest))
    warned = [
        Text(f"{_finding_text(one)}; usually fixed by: {one['remedy']}", style="yellow")
        for one in overview["warnings"]
    ]
    title = Text(f"{overview['name']}: {overview['what']} ({overview['state']})")
    return Panel(Group(figures, Text(""), table, *warned), title=title, expand=False)


def _finding_text(warning: Mapping[str, Any]) -> str:
    return f"doctor{', earlier' * warning['earlier']}: {warning['text']}"


def small(values: Sequence[float]) -> str:
    """Draw a curve as one line of text, scaled from its least to its greatest value."""
    finite = np.asarray(values, float)
    parts = np.array_split(finite, min(len(finite), _WIDTH))
    means = np.array([part.mean() for part in parts])
    low, size = means.min(), np.ptp(means)
    level = np.full(len(means), 4) if size == 0 else 1 + np.round((means - low) / size * 7)
    return "".join(_BLOCKS[int(i)] for i in level)
