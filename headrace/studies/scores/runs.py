"""What a run directory says of how good its policy is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from headrace.errors import CheckpointError, shown


class Score(NamedTuple):
    """A run's score in its environment's own units."""

    env: str
    algorithm: str
    seed: int
    value: float
    """Mean return of its final evaluation, or else of its last 100 training episodes."""
    returns: list[float]
    """Of each episode of that evaluation; empty: there was none."""
    env_steps: int


def check_ended(run_dir: Path) -> None:
    """Raise RuntimeError if a run that has written its summary was interrupted before."""
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    if summary.get("interrupted"):
        raise RuntimeError(f"{run_dir} was interrupted at {summary['env_steps']:,} steps")


def score_of(run_dir: Path) -> Score:
    """The score of a run that has ended.

    Raises:
        CheckpointError: it holds no summary, or neither evaluation nor episode ended.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError) as error:
        why = f"{shown(str(run_dir))} is no run that has ended ({type(error).__name__})"
        raise CheckpointError(why) from error
    evaluation = summary.get("evaluation") or {}
    value = evaluation.get("mean", summary.get("episodic_return"))
    if value is None:
        raise CheckpointError(f"{run_dir} has no score: no episode ended, nor was it evaluated")
    known = config["env"], config["algo"]["name"], config["seed"]
    return Score(*known, float(value), evaluation.get("returns", []), summary["env_steps"])
