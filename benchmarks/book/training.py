"""Trains a config, and returns the results that verdicts are computed from."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import Config
from headrace.rundir.files import read_jsonl

CURVE_POINTS = 40


def trained(config: Config) -> dict[str, Any]:
    """Train in this process. Return JSON values by name.

    Without a run directory in the config, a temporary one is used. ``evaluated`` and
    ``evaluated_sampled`` are the mean returns of the deterministic and of the sampled policy;
    ``area`` is the mean of the training curve over steps; ``seconds`` count from the first update.
    """
    import headrace as hr

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(config.run_dir or folder) / "run"
        config = dataclasses.replace(config, run_dir=str(run_dir), log_interval_s=0.1)
        kind = hr.LearnerGroup if config.num_learners > 1 else hr.Trainer
        with kind(config) as trainer:
            for _ in trainer:
                pass
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        lines = read_jsonl(run_dir / "metrics.jsonl")
    return values_of(summary, lines)


def values_of(summary: Mapping[str, Any], lines: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the results of a run from its summary and its metrics."""
    curve = curve_of(lines)
    steps, _, returns = np.array(curve).reshape(-1, 3).T
    busy = summary["utilisation"]
    area = None
    if len(steps) > 1:
        heights = (returns[1:] + returns[:-1]) / 2
        area = float(np.sum(heights * np.diff(steps)) / (steps[-1] - steps[0]))
    return {
        "final_return": summary["episodic_return"],
        **evaluations(summary.get("evaluation")),
        "area": area,
        "peak_return": float(returns.max()) if len(returns) else None,
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "seconds": summary["seconds_total"] - summary["seconds_to_first_update"],
        "seconds_total": summary["seconds_total"],
        "sps": summary["sps"],
        "lag_mean": summary["lag"]["mean"],
        "learner_busy": busy["learner"],
        "actor_busy": busy["actor"],
        "curve": thinned(curve),
    }


def evaluations(evaluation: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Return the mean returns of the deterministic and of the sampled policy, if evaluated."""
    by_mode: dict[bool, float] = {}
    while evaluation:
        by_mode[evaluation["deterministic"]] = evaluation["mean"]
        evaluation = evaluation["other_mode"]
    return {"evaluated": by_mode.get(True), "evaluated_sampled": by_mode.get(False)}


def curve_of(lines: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Return points of the training curve: steps, seconds, mean return of the last episodes."""
    points: list[list[float]] = []
    for line in lines:
        value = line.get("charts/episodic_return")
        if value is not None and (not points or line["env_steps"] > points[-1][0]):
            points.append([line["env_steps"], round(line["seconds"], 2), round(value, 4)])
    return points


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """Return at most ``CURVE_POINTS`` points at equal distances, with the first and the last."""
    if len(curve) <= CURVE_POINTS:
        return curve
    return [curve[i] for i in np.linspace(0, len(curve) - 1, CURVE_POINTS).round().astype(int)]
