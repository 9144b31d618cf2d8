"""Reads learning curves of runs and groups runs that differ only in their seed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from headrace.actors.sizes import AUTO, SIZES
from headrace.envs.info_metrics import PREFIX
from headrace.errors import CheckpointError, shown
from headrace.processes import safe_files
from headrace.rundir.config_file import defaults_of, flat_settings
from headrace.rundir.custom_metrics import LOGGED
from headrace.rundir.files import RETURN, read_jsonl
from headrace.rundir.folders import nested_runs

Curve: TypeAlias = tuple[Sequence[float], Sequence[float]]  # increasing x, and y
# Maps values [runs, points] to an estimate and the ends of its interval, [points] each.
Interval: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
GRID_POINTS = 100
_MOST_SHOWN = 4
_NESTED = ("returns", "lengths", "metrics", "others", "tasks", "agents", "tasks_human_normalized")


@dataclass(frozen=True)
class RunCurves:
    """Settings, results and evaluations read from a run directory.

    Attributes:
        described: contents of ``config.json``; empty without it.
        settings: settings by name, without those of a single run; empty without config.json.
        seed: seed of the run.
        results, evaluations: lines of metrics.jsonl and evaluations.jsonl.
        returns: lines of returns.jsonl: training returns between early results.
    """

    path: Path
    settings: dict[str, Any]
    seed: Any
    results: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    described: dict[str, Any] = field(default_factory=dict)
    returns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def automatic(self) -> list[str]:
        """Names of the sizes that headrace chose."""
        config = self.described.get("config")
        names = config.get("automatic") if isinstance(config, dict) else None
        return [name for name in SIZES if name in names] if isinstance(names, list) else []

    def curve(self, x: str, y: str, evaluated: bool = False) -> Curve:
        """Return the points of the lines that contain both names."""
        lines = self.evaluations if evaluated else self.results
        if y == RETURN and not evaluated and self.returns:
            lines = sorted([*self.returns, *lines], key=lambda line: line.get("env_steps", 0))
        points = [(line[x], line[y]) for line in lines if x in line and y in line]
        return [p[0] for p in points], [p[1] for p in points]


def read_run(path: Path) -> RunCurves:
    """Read the curves in a run directory.

    Raises:
        CheckpointError: it has no metrics; the message names subfolders that do.
    """
    lines = {name: _lines(path / f"{name}.jsonl") for name in ("metrics", "evaluations", "returns")}
    if not lines["metrics"]:
        why = "has no metrics to plot (metrics.jsonl)" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {why}{nested_runs(path)}")
    try:
        described = safe_files.read_json(path / "config.json")
        values = described["config"]
        settings, seed = flat_settings(values), values.get("seed")
    except FileNotFoundError:
        described, settings, seed = {}, {}, None
    except OSError as error:
        raise CheckpointError(f"{path / 'config.json'} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        described, settings, seed = {}, {}, None
    return RunCurves(
        path, settings, seed, lines["metrics"], lines["evaluations"], described, lines["returns"]
    )


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        lines = read_jsonl(file) if os.path.lexists(file) else []
        for line in lines:
            _check_numbers(line)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{file} can't be read: {reason}") from error
    return lines


def _check_numbers(line: dict[str, Any]) -> None:
    """Raise ValueError unless a line has ``env_steps`` and its values are finite numbers."""
    if not _is_number(line.get("env_steps")):
        raise ValueError(f"env_steps={shown(line.get('env_steps'))} is not a number")
    for name, value in line.items():
        nested = name in _NESTED and isinstance(value, list | dict)
        if value is not None and not nested and not _is_number(value):
            raise ValueError(f"{shown(name)} is {shown(value)}, not a number")


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, also as a float."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def custom_metrics(runs: Sequence[RunCurves]) -> list[str]:
    """List metrics from infos and callbacks in any of these runs, sorted."""
    prefixes = PREFIX, LOGGED
    names = {name for run in runs for line in run.results for name in line}
    return sorted(name for name in names if name.startswith(prefixes))


def eval_envs(runs: Sequence[RunCurves]) -> list[str]:
    """List the additional evaluation environments of any of these runs, sorted."""
    pattern = f"eval/(?!{PREFIX})([^/]+)/mean"  # an info may contain a number called mean
    matches = (re.fullmatch(pattern, x) for run in runs for y in run.results for x in y)
    return sorted({match[1] for match in matches if match})


def by_settings(runs: Sequence[RunCurves]) -> dict[str, list[RunCurves]]:
    """Group runs that differ only in their seed, by the settings that distinguish the groups.

    Sizes that headrace chose count as equal. Runs with equal settings and equal seeds aren't a
    group: their directories tell them apart.
    """
    groups: dict[str, list[RunCurves]] = {}
    compared: dict[str, dict[str, Any]] = {}  # settings of each group
    chosen = [{**run.settings, **dict.fromkeys(run.automatic, AUTO)} for run in runs]
    for run, settings in zip(runs, _named_by_module(chosen), strict=True):
        key = json.dumps(settings, sort_keys=True) if settings else str(run.path)
        groups.setdefault(key, []).append(run)
        compared[key] = settings
    named: dict[str, list[RunCurves]] = {}
    for key, group in groups.items():
        label = _label(compared[key], list(compared.values()))
        for folder, part in _by_folder(group).items():
            parts = [label if len(groups) > 1 or not folder else "", folder]
            name = ", ".join(filter(None, parts))
            if not name or name in named:
                name = f"{name}, {part[0].path.name}" if name else part[0].path.name
            named[name if name not in named else str(part[0].path)] = part
    return named


def _named_by_module(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings of runs, with ``__main__`` replaced by the script's module name.

    Only for runs of a single script, if other runs name its environment, as in ``train:Env``.
    """
    pairs = [(one.get("env"), one.get("env_file")) for one in every]
    files = {file for _, file in pairs if file and isinstance(file, str)}
    others = [env for env, file in pairs if not file]
    if len(files) != 1:
        return every
    module = json.dumps(Path(files.pop()).stem)[:-1] + ":"
    renamed = [json.loads(json.dumps(one).replace('"__main__:', module)) for one in every]
    is_named = [bool(new.get("env_file")) and new.get("env") in others for new in renamed]
    return [
        {**new, "env_file": None} if named else one
        for one, new, named in zip(every, renamed, is_named, strict=True)
    ]


def _by_folder(group: list[RunCurves]) -> dict[str, list[RunCurves]]:
    """Split runs with equal settings so that no part has a seed twice, by directory names.

    Runs of one parent directory stay together if that is enough. The name is empty for all of them.
    """
    if _has_own_seeds(group):
        return {"": group}
    parents: dict[Path, list[RunCurves]] = {}
    for run in group:
        parents.setdefault(run.path.resolve().parent, []).append(run)
    if all(map(_has_own_seeds, parents.values())) and any(len(x) > 1 for x in parents.values()):
        return dict(zip(distinct_names(list(parents)), parents.values(), strict=True))
    return dict(zip(distinct_names([x.path for x in group]), ([x] for x in group), strict=True))


def _has_own_seeds(group: Sequence[RunCurves]) -> bool:
    return len({json.dumps(run.seed) for run in group}) == len(group)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of different paths that tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def output_of(run_dirs: Sequence[Path], alone: str, several: str) -> Path:
    """Return the path of a file about runs: in the only run, or next to several.

    Args:
        alone: name in the directory of the only run.
        several: name in the runs' common parent directory; in the working directory if that is
            inside the parent.
    """
    if len(run_dirs) == 1:
        return run_dirs[0] / alone
    parents = {path.resolve().parent for path in run_dirs}
    if len(parents) == 1:
        return run_dirs[0].parent / several
    common, here = Path(os.path.commonpath(parents)), Path.cwd()
    return Path(several) if here.is_relative_to(common) else common / several


def _label(mine: dict[str, Any], all_settings: Sequence[dict[str, Any]]) -> str:
    """Format the settings in which a group differs; algorithm and environment without names."""
    if len(all_settings) == 1 and mine:
        return f"{in_script(mine['algo'])} on {in_script(mine['env'])}"
    names = [
        name for name in mine if any(_distinguishes(name, mine, other) for other in all_settings)
    ]
    parts = [
        in_script(mine[name]) if name in ("algo", "env") else f"{name}={mine[name]}"
        for name in names[:_MOST_SHOWN]
    ]
    return ", ".join(parts) + (
        f" and {len(names) - len(parts)} more" if names[_MOST_SHOWN:] else ""
    )


def in_script(name: Any) -> str:
    """Return the name of an algorithm or environment, without ``__main__`` for a script's own."""
    return str(name).removeprefix("__main__:")


def _distinguishes(name: str, mine: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if a setting distinguishes two groups.

    Between two algorithms only settings that the user chose do, neither defaults nor sizes.
    """
    if name not in other or mine[name] == other[name]:
        return False
    if mine["algo"] == other["algo"] or name == "algo":
        return True
    defaults = defaults_of(mine["algo"])
    return name not in SIZES and (name not in defaults or mine[name] != defaults[name])


def on_grid(full: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves on a common grid ``[GRID_POINTS]``: x and ``[curves, GRID_POINTS]``.

    Raises:
        ValueError: no x is common to all curves.
    """
    low, high = max(x[0] for x, _ in full), min(x[-1] for x, _ in full)
    if low > high:
        raise ValueError(f"curves that start at {low} and end at {high} have no common x")
    x = np.linspace(low, high, GRID_POINTS)
    return x, np.stack([np.interp(x, *curve) for curve in full])


def summary_of(run: RunCurves) -> dict[str, Any]:
    """Read ``summary.json``; empty during a run, after it was killed, or resumed since.

    Raises:
        CheckpointError: as :func:`read_object`.
    """
    summary, steps = read_object(run.path / "summary.json"), run.results[-1].get("env_steps")
    return summary if summary.get("env_steps", steps) == steps else {}


def read_object(file: Path) -> dict[str, Any]:
    """Read an object from a JSON file; empty if it is missing or incomplete.

    Raises:
        CheckpointError: it is a link, a pipe or too large.
    """
    try:
        values = safe_files.read_json(file)
    except (FileNotFoundError, ValueError):
        return {}
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {error.strerror}") from error
    return values if isinstance(values, dict) else {}
