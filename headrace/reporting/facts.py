"""What a report says in words and tables, from what a run directory holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from headrace.config import Config
from headrace.rundir.config_file import flat_settings
from headrace.rundir.curves import RunCurves
from headrace.rundir.health import findings

VIDEO_BYTES = 700_000  # of all films together, which are in the page; of larger ones it has a link
_SPENT = (("learn", "computing"), ("wait", "waiting for rollouts"), ("publish", "publishing"),
          ("comm", "exchanging"), ("sync", "waiting for others"))  # fmt: skip
_LEFT_OUT = ("init_from", "env_file")


class Film(NamedTuple):
    """An episode; ``source`` is what a page shows or links to."""

    name: str
    source: str
    inside: bool


def summary_of(run: RunCurves) -> dict[str, Any]:
    """What ``summary.json`` holds; empty while the run goes on, or where it was killed."""
    return _json(run.path / "summary.json")


def about(run: RunCurves) -> dict[str, Any]:
    """What the top of the page says of a run: a few figures by name, those that are known."""
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
    seconds = summary.get("seconds_total", last.get("seconds", 0.0))
    known = {
        "evaluated return": None not in (mean, std) and f"{mean:,.1f} ± {std:,.1f}",
        **others,
        "training return": trained is not None and f"{trained:,.1f}",
        "environment steps": f"{last['env_steps']:,}",
        "time": f"{seconds:,.1f} s",
        "speed": f"{summary.get('sps', last.get('charts/SPS', 0.0)):,.0f} steps/s",
        "first update": first is not None and f"after {first:.1f} s",
    }
    state = "ended" if summary else "goes on, or was killed"
    state = "interrupted" if summary.get("interrupted") else state
    spent = summary.get("time") or {}
    shares = [(word, spent[name]) for name, word in _SPENT if spent.get(name)]
    total = sum(seconds for _, seconds in shares) or 1.0
    return {
        "name": run.path.name,
        "what": f"{run.settings.get('algo', '')} on {_env(run)}",
        "seed": run.seed,
        "state": state,
        "figures": {name: value for name, value in known.items() if value},
        "plan": _plan(plan),
        "line": plan.get("line", ""),
        "spent": [(word, f"{s:,.1f} s", s / total) for word, s in shares],
        "warnings": [
            {"name": one.finding.name, "text": one.finding.text, "mends": one.finding.mends,
             "steps": f"{one.env_steps:,}", "earlier": one.earlier}
            for one in findings(run)
        ],
    }  # fmt: skip


def _env(run: RunCurves) -> str:
    return ", ".join(run.settings.get("tasks") or []) or str(run.settings.get("env", "?"))


def _plan(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was measured beside what could have been."""
    rows = (
        ("measured", "measured_sps"),
        ("planned by this run's own costs", "planned_sps"),
        ("actors alone", "actors_sps"),
        ("learners alone", "learners_sps"),
    )
    return [(text, f"{plan[name]:,.0f} steps/s") for text, name in rows if name in plan]


def settings_table(runs: Sequence[RunCurves]) -> dict[str, list[tuple[str, list[str], bool]]]:
    """Rows of a name, a value per run, and whether values differ, under headings.

    Of several runs those come first in which they differ; of one those that aren't the defaults.
    """
    known = [{"seed": run.seed, **run.settings} for run in runs if run.settings]
    if not known:
        return {}
    names = list(dict.fromkeys(n for one in known for n in one if n not in _LEFT_OUT))
    rows = {name: [shown_value(one.get(name, "–")) for one in known] for name in names}
    if len(known) > 1:
        top = [name for name in names if _differ(name, known)]
        headings = ("Settings in which runs differ", "Settings that all have")
    else:
        defaults = _defaults(str(known[0].get("algo")))
        top = [n for n in names if n not in defaults or _differ(n, [known[0], defaults])]
        headings = ("Settings that are not the defaults", "Settings that are")
    rest = [name for name in names if name not in top]
    return {
        heading: [(name, rows[name], _differ(name, known)) for name in part]
        for heading, part in zip(headings, (top, rest), strict=True)
        if part
    }


def _differ(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting does, as JSON has it; where it is missing it has no value."""
    return len({json.dumps(one[name]) if name in one else "" for one in settings}) > 1


def _defaults(algorithm: str) -> dict[str, Any]:
    """Of a run with this algorithm, as a ``config.json`` would have them."""
    from headrace.algos import ALGORITHMS

    if algorithm not in ALGORITHMS:  # custom code isn't imported for a report
        values = Config().settled.to_json()
        return flat_settings(values | {"algo": {"name": algorithm}}) | {"seed": 0}
    return flat_settings(Config(algo=ALGORITHMS[algorithm]()).settled.to_json()) | {"seed": 0}


def shown_value(value: Any) -> str:
    """A setting as a table has it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def machines(runs: Sequence[RunCurves]) -> list[tuple[str, list[str]]]:
    """Rows of a name and a value per run: spaces, machine, versions."""
    columns = []
    for run in runs:
        held = _json(run.path / "machine.json")
        spaces = {n: _space(run.described.get(n)) for n in ("observation_space", "action_space")}
        named = {n.replace("_", " "): text for n, text in spaces.items() if text}
        columns.append({**named, **held.get("machine", {}), **held.get("versions", {})})
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [str(column.get(name, "–")) for column in columns]) for name in names]


def _space(values: Any) -> str:
    """A line about a space as ``config.json`` has it."""
    if not isinstance(values, dict):
        return ""
    kind, inner = str(values.get("type")), values.get("spaces")
    if isinstance(inner, list):
        return f"{kind} of {len(inner)}"
    told = [values[name] for name in ("shape", "n", "nvec") if name in values]
    return f"{kind}({', '.join(map(str, told))})"


def films(runs: Sequence[RunCurves], output: Path) -> list[Film]:
    """The episodes that were filmed in these run directories: in the page while there is room."""
    found, left = [], VIDEO_BYTES
    for run in runs:
        for path in sorted([*run.path.glob("episode.mp4"), *run.path.glob("*/episode.mp4")]):
            name = f"{run.path.name}/{path.relative_to(run.path)}"
            if path.stat().st_size <= left:
                left -= path.stat().st_size
                data = base64.b64encode(path.read_bytes()).decode()
                found.append(Film(name, f"data:video/mp4;base64,{data}", True))
            else:
                found.append(Film(name, _relative(path, output.parent), False))
    return found


def _relative(path: Path, folder: Path) -> str:
    """A link from a page in a folder."""
    import os

    return quote(Path(os.path.relpath(path, folder)).as_posix())


def _json(file: Path) -> dict[str, Any]:
    """What a file holds; empty where it isn't there or isn't whole."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
