"""Reads a policy's score from a run directory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.config.algorithms import RESERVED
from headrace.errors import CheckpointError, shown
from headrace.nn.network import Network
from headrace.processes import safe_files
from headrace.rundir.atomic_files import foreign_values
from headrace.rundir.config_file import defaults_of, flat_settings
from headrace.rundir.curves import RunCurves

Means = tuple[float | None, dict[str, float | None]]  # of all episodes, and by task


class NoScore(CheckpointError):
    """Error of a run that has ended without a score."""


class RunScore(NamedTuple):
    """Score of a run in its environment's own units."""

    algorithm: str
    value: float
    """Mean return of the final evaluation, or else of the last 100 training episodes."""
    tasks: dict[str, float]
    """Mean return of each training environment, by its id."""
    env_steps: int
    run: RunCurves
    """Run without curves; its settings are those of algorithm and network, and the task count."""
    unlike_humans: list[str]
    """Atari games whose evaluated returns aren't those of complete games with unclipped rewards."""


def check_ended(run_dir: Path) -> None:
    """Raise RuntimeError if a run that has written its summary was interrupted."""
    summary = safe_files.read_json(run_dir / "summary.json")
    if summary.get("interrupted"):
        raise RuntimeError(f"{run_dir} was interrupted at {summary['env_steps']:,} steps")


def score_of(run_dir: Path) -> RunScore:
    """Return the score of a finished run.

    Raises:
        CheckpointError: the run has no summary. NoScore: no evaluation and no episode ended.
    """
    try:
        summary = safe_files.read_json(run_dir / "summary.json")
        config = safe_files.read_json(run_dir / "config.json")["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        why = f"{shown(str(run_dir))} isn't a finished run ({reason})"
        raise CheckpointError(why) from error
    with foreign_values(run_dir):
        return _score_in(run_dir, summary, config)


def _score_in(run_dir: Path, summary: dict[str, Any], config: dict[str, Any]) -> RunScore:
    """Return the score of a run with this summary and these settings."""
    value, tasks = _evaluated(summary) if summary.get("evaluation") else _trained(summary)
    if value is None or not all(
        x is not None and math.isfinite(x) for x in (value, *tasks.values())
    ):
        raise NoScore(f"{run_dir} has no score: no episode ended, or its return isn't a number")
    of_tasks = {name: float(mean) for name, mean in tasks.items() if mean is not None}
    of_each = of_tasks or {config["env"]: float(value)}
    run = RunCurves(run_dir, _learning(config), config.get("seed"), [], [])
    fields = (config["algo"]["name"], float(value), of_each, summary["env_steps"])
    return RunScore(*fields, run, _unlike_humans(summary, config["env"]))


def _learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm, the network and the number of tasks of a run."""
    try:
        flat = flat_settings(dict(config))
    except (KeyError, TypeError, ValueError):  # of another version
        return {"algo": config["algo"]["name"], "tasks": len(config.get("tasks") or ()) or 1}
    of_network = (field.name for field in dataclasses.fields(Network))
    names = ["algo", *(n for n in config["algo"] if n not in RESERVED), *of_network]
    names += [name for name in defaults_of(flat["algo"]) if name not in names]
    return {name: flat[name] for name in names} | {"tasks": len(flat["tasks"]) or 1}


def _unlike_humans(summary: Mapping[str, Any], env: str) -> list[str]:
    played = summary.get("evaluation") or {}
    each = played.get("tasks") or {env: played}
    return [name for name, one in each.items() if one.get("human_normalized", 0.0) is None]


def _evaluated(summary: Mapping[str, Any]) -> Means:
    parts = summary["evaluation"].get("tasks") or {}
    return summary["evaluation"]["mean"], {name: one["mean"] for name, one in parts.items()}


def _trained(summary: Mapping[str, Any]) -> Means:
    parts = summary.get("tasks") or {}
    by_task = {name: one["episode_return"] for name, one in parts.items()}
    return summary.get("episodic_return"), by_task
