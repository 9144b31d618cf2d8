"""Collects the text and tables of a report from run directories."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from headrace.actors.sizes import AUTO, SIZES
from headrace.config import Config
from headrace.doctor.doctor import no_findings
from headrace.nn.network import SYMBOLS
from headrace.processes import safe_files
from headrace.rundir.config_file import flat_settings
from headrace.rundir.curves import RunCurves, in_script, read_object, summary_of
from headrace.rundir.health import findings

VIDEO_BYTES = 700_000  # total size of embedded videos; others are linked
_SPENT = (("learn", "computing"), ("wait", "waiting for rollouts"), ("publish", "publishing"),
          ("comm", "all-reduce"), ("sync", "waiting for others"))  # fmt: skip
_LEFT_OUT = ("init_from", "env_file", "automatic")


class Video(NamedTuple):
    """A video of an episode; ``source`` is its link or data URL."""

    name: str
    source: str
    inside: bool


def about(run: RunCurves) -> dict[str, Any]:
    """Collect the overview of a run: known metrics by name, state, times and findings."""
    summary, last = summary_of(run), run.results[-1]
    played = summary.get("evaluation") or {}
    mean, std = played.get("mean"), played.get("std")  # null: not finite
    trained = last.get("charts/episodic_return")
    others = {
        f"evaluated return on {name}": f"{one['mean']:,.1f} ± {one['std']:,.1f}"
        for name, one in (played.get("others") or {}).items()
        if None not in (one.get("mean"), one.get("std"))
    }
    plan = summary.get("plan") or {}
    first = summary.get("seconds_to_first_update")
    seconds = summary.get("seconds_training", last.get("seconds", 0.0))
    figures = {
        "evaluated return": None not in (mean, std) and f"{mean:,.1f} ± {std:,.1f}",
        **others,
        "training return": trained is not None and f"{trained:,.1f}",
        "environment steps": f"{last['env_steps']:,}",
        "training time": f"{seconds:,.1f} s",
        "speed": (sps := summary.get("sps", last.get("charts/SPS"))) and f"{sps:,.0f} steps/s",
        "first update": first is not None and f"after {first:.1f} s",
    }
    state = "ended" if summary else "running, or killed"
    state = "interrupted" if summary.get("interrupted") else state
    spent = summary.get("time") or {}
    shares = [(word, spent[name]) for name, word in _SPENT if spent.get(name)]
    total = sum(seconds for _, seconds in shares) or 1.0
    return {
        "name": run.path.name,
        "what": f"{in_script(run.settings.get('algo', ''))} on {environment_of(run)}",
        "seed": run.seed,
        "state": state,
        "figures": {name: value for name, value in figures.items() if value},
        "plan": _plan(plan),
        "line": plan.get("line", ""),
        "spent": [(word, f"{s:,.1f} s", s / total) for word, s in shares],
        "warnings": [
            {"name": one.finding.name, "text": one.finding.text, "remedy": one.finding.remedy,
             "steps": f"{one.env_steps:,}", "earlier": one.earlier}
            for one in findings(run)
        ],
        "no_warnings": no_findings(run.results, run.settings),
    }  # fmt: skip


def environment_of(run: RunCurves) -> str:
    """Return the environment or the tasks of a run."""
    return ", ".join(run.settings.get("tasks") or []) or in_script(run.settings.get("env", "?"))


def _plan(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format measured and planned speeds."""
    rows = (
        ("measured", "measured_sps"),
        ("planned by this run's own costs", "planned_sps"),
        ("actors alone", "actors_sps"),
        ("learners alone", "learners_sps"),
    )
    return [(text, f"{plan[name]:,.0f} steps/s") for text, name in rows if name in plan]


def settings_table(runs: Sequence[RunCurves]) -> dict[str, list[tuple[str, list[str], bool]]]:
    """Return rows of a name, a value per run, and whether values differ, under headings.

    For several runs, settings that differ come first; for one, those that aren't defaults, then
    those that headrace chooses at the start unless they are set.
    """
    columns = [{"seed": run.seed, **run.settings} for run in runs if run.settings]
    if not columns:
        return {}
    names = list(dict.fromkeys(n for one in columns for n in one if n not in _LEFT_OUT))
    rows = {name: [shown_value(one.get(name, "–")) for one in columns] for name in names}
    if len(columns) > 1:
        parts = {"Settings that differ": [name for name in names if _differ(name, columns)]}
        last = "Settings in common"
    else:
        defaults = _defaults(str(columns[0].get("algo")))
        top = [n for n in names if n not in defaults or _differ(n, [columns[0], defaults])]
        (run,) = [one for one in runs if one.settings]
        given = {*SIZES} - {*run.automatic} if run.automatic else set()
        chosen = [n for n in top if n not in given and (defaults.get(n) == AUTO or n in SYMBOLS)]
        parts = {"Changed settings": [name for name in top if name not in chosen]}
        parts["Chosen at the start, unless set"] = chosen
        last = "Default settings"
    parts[last] = [name for name in names if not any(name in part for part in parts.values())]
    return {
        heading: [(name, rows[name], _differ(name, columns)) for name in part]
        for heading, part in parts.items()
        if part
    }


def _differ(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a setting's JSON values differ; a missing setting has no value."""
    return len({json.dumps(one[name]) if name in one else "" for one in settings}) > 1


def _defaults(algorithm: str) -> dict[str, Any]:
    """Return the default settings with this algorithm, in the form of ``config.json``."""
    from headrace.algos import ALGORITHMS

    if algorithm not in ALGORITHMS:  # custom code isn't imported for a report
        values = Config().settled.to_json()
        return flat_settings(values | {"algo": {"name": algorithm}}) | {"seed": 0}
    return flat_settings(Config(algo=ALGORITHMS[algorithm]()).settled.to_json()) | {"seed": 0}


def shown_value(value: Any) -> str:
    """Format a setting for a table."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def machines(runs: Sequence[RunCurves]) -> list[tuple[str, list[str]]]:
    """Return rows of a name and a value per run: spaces, hardware, versions."""
    columns = []
    for run in runs:
        machine_info = read_object(run.path / "machine.json")
        spaces = {n: _space(run.described.get(n)) for n in ("observation_space", "action_space")}
        named = {n.replace("_", " "): text for n, text in spaces.items() if text}
        columns.append(
            {**named, **machine_info.get("machine", {}), **machine_info.get("versions", {})}
        )
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [str(column.get(name, "–")) for column in columns]) for name in names]


def _space(values: Any) -> str:
    """Summarize a space of ``config.json`` in a line."""
    if not isinstance(values, dict):
        return ""
    kind, inner = str(values.get("type")), values.get("spaces")
    if isinstance(inner, list):
        return f"{kind} of {len(inner)}"
    parts = [str(values[name]) for name in ("shape", "n", "nvec") if name in values]
    if "low" in values and "high" in values:
        parts.append(f"{_extreme(values['low'], min)} to {_extreme(values['high'], max)}")
    if "dtype" in values:
        parts.append(str(values["dtype"]))
    return f"{kind}({', '.join(parts)})"


def _extreme(bounds: Any, of: Callable[[Iterable[float]], float]) -> str:
    """Return the lowest or highest of nested bounds, which ``config.json`` stores as text."""
    # Errors of values from an untrusted file.
    with contextlib.suppress(ValueError, TypeError, ArithmeticError, RecursionError):
        return f"{of(map(float, _flat(bounds))):g}"
    return "?"


def _flat(values: Any) -> Iterator[Any]:
    if not isinstance(values, list):
        yield values
        return
    for one in values:
        yield from _flat(one)


def videos(runs: Sequence[RunCurves], output: Path) -> list[Video]:
    """List the videos in these run directories, embedding them while the size limit allows."""
    result, remaining = [], VIDEO_BYTES
    for run in runs:
        for path in sorted([*run.path.glob("episode.mp4"), *run.path.glob("*/episode.mp4")]):
            name = f"{run.path.name}/{path.relative_to(run.path)}"
            status = safe_files.status(path, run.path)
            if status is None:  # a link or a pipe
                continue
            if status.st_size <= remaining:
                content = safe_files.read_bytes(path, remaining, run.path)
                remaining -= len(content)
                data = base64.b64encode(content).decode()
                result.append(Video(name, f"data:video/mp4;base64,{data}", True))
            else:
                result.append(Video(name, _relative(path, output.parent), False))
    return result


def _relative(path: Path, folder: Path) -> str:
    """Return a relative link from a page in a folder."""
    import os

    return quote(Path(os.path.relpath(path, folder)).as_posix())
