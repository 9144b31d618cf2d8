"""Renders one or several runs as an HTML file that needs no network.

Names and settings of runs are plain text in it: the template escapes them, and the page's content
security policy only allows its own script.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.processes.terminal_text import printable
from headrace.reporting.comparison import compare, title_of
from headrace.reporting.drawing import drawn
from headrace.reporting.facts import about, machines, settings_table, videos
from headrace.reporting.panels import COLOURS, Interval, Panel, panels
from headrace.rundir.atomic_files import checkpoint_errors, foreign_values, replace_text
from headrace.rundir.curves import RunCurves, by_settings, distinct_names, output_of, read_run
from headrace.rundir.machine_info import versions

NAME, COMPARISON = "report.html", "comparison.html"


def write(
    run_dirs: Sequence[Path], output: Path | None = None, interval: Interval | None = None,
    notes: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the report of one or more runs, and return its path.

    Runs that differ only in their seed are one curve.

    Args:
        output: path of the file; None: ``report.html`` in a single run, and ``comparison.html``
            next to several.
        interval: interval of several runs' values; None: only their mean.
        notes: sentences at the top.

    Raises:
        CheckpointError: a directory has no metrics, or the file can't be written.
        ConfigError: no run directories are named.
    """
    if not run_dirs:
        raise ConfigError("report needs one or more run directories: headrace report runs/one")
    paths = list(dict.fromkeys(run_dirs))
    file = output or output_of(paths, NAME, COMPARISON)
    runs = [read_run(path) for path in paths]
    with foreign_values(*paths):
        text = page(runs, file, interval, notes)
    with checkpoint_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)  # the user's, or the run directory
        replace_text(file, printable(text))
    return file


def page(
    runs: Sequence[RunCurves],
    output: Path,
    interval: Interval | None = None,
    notes: Sequence[str] = (),
    refresh_s: float | None = None,
) -> str:
    """Render the text of the page.

    Args:
        output: path of the page, for links to videos that are too large to embed.
        refresh_s: seconds between reloads, which need a server; None: never.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    groups = by_settings(runs)
    number = {id(run): i for i, group in enumerate(groups.values()) for run in group}
    several = any(len(group) > 1 for group in groups.values())
    panel_list, empty = panels(groups, interval)
    pictures = map(Markup, drawn(panel_list, len(groups)))
    names = distinct_names([run.path for run in runs])
    overviews = [about(run) | {"name": name} for run, name in zip(runs, names, strict=True)]
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_file("page.html")).render(
        version=versions().get("headrace", ""),
        title=runs[0].path.resolve().name if len(runs) == 1 else title_of(groups),
        written=time.strftime("%Y-%m-%d %H:%M"),
        refresh_s=refresh_s,
        script=Markup(script),
        script_hash=digest,
        style=Markup(_file("page.css")),
        notes=notes,
        runs=overviews,
        comparison=compare(groups, interval) if len(runs) > 1 else None,
        figures=list(dict.fromkeys(name for one in overviews for name in one["figures"])),
        colours=[number[id(run)] % COLOURS if len(groups) > 1 else 0 for run in runs],
        groups=[(name, len(group)) for name, group in groups.items()],
        about_bands=_bands(several, interval),
        panels=[_shown(*one) for one in zip(panel_list, pictures, strict=True)],
        data=[panel.values(len(groups)) for panel in panel_list],
        empty=empty,
        videos=videos(runs, output),
        settings=settings_table(runs),
        machines=machines(runs),
    )


def _bands(several: bool, interval: Interval | None) -> str:
    if not several:
        return ""
    if interval is None:
        return "Runs that differ only in their seed are one curve, their mean."
    return (
        "Runs that differ only in their seed are one curve: their interquartile mean and its 95% "
        "bootstrap interval."
    )


def _shown(panel: Panel, svg: str) -> dict[str, Any]:
    """Return the template variables of a panel."""
    keys = {line.at: {"at": line.at, "label": line.label.rsplit(": ", 1)[-1]}
            for line in panel.lines}  # fmt: skip
    level = "" if panel.level is None else f"{panel.level_name}={panel.level:g}"
    return {"title": panel.title, "unit": panel.unit, "about": panel.about, "level": level,
            "legend": list(keys.values()), "svg": svg}  # fmt: skip


def _script() -> str:
    """Return the page's script: drawing of charts, then what the reader does with them."""
    return _file("chart.js") + _file("page.js")


def _file(name: str) -> str:
    return resources.files("headrace.reporting").joinpath(name).read_text(encoding="utf-8")
