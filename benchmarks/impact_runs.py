"""Runs of impact.py: settings, and execution in a separate process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.rundir.files import read_jsonl
from headrace.studies.children import Children
from headrace.studies.run_table import fingerprint

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Run:
    """Settings of a run; all others are headrace's defaults."""

    env: str
    algo: str
    name: str
    """An algorithm, and its differences from TASKS."""
    hyper: Mapping[str, Any]
    config: Mapping[str, Any]
    network: Mapping[str, Any]
    eval_episodes: int
    seed: int = 0

    def changed(self, **changes: Any) -> Run:
        """Return a copy with other hyperparameters or run settings."""
        config = {k: v for k, v in changes.items() if k in self.config}
        hyper = {k: v for k, v in changes.items() if k not in config}
        changed = {k: v for k, v in changes.items() if {**self.hyper, **self.config}.get(k) != v}
        name = " ".join([self.name, *(f"{k}={v}" for k, v in changed.items())])
        return replace(
            self, name=name, hyper={**self.hyper, **hyper}, config={**self.config, **config}
        )

    @property
    def settings(self) -> str:
        """Return a fingerprint of all settings except the seed."""
        return fingerprint(asdict(replace(self, seed=0)))

    @property
    def case(self) -> dict[str, Any]:
        """Return the columns that identify the run in the table."""
        return {
            "env": self.env,
            "run": self.name,
            "batch_size": self.config["batch_size"],
            "total_steps": self.config["total_steps"],
            "settings": self.settings,
            "seed": self.seed,
        }


# -- one run ---------------------------------------------------------------------------------------


def train(request: dict[str, Any]) -> None:
    """Train in this process."""
    import headrace as hr
    from headrace.algos import ALGORITHMS

    run = Run(**request["run"])
    hr.train(
        run.env,
        ALGORITHMS[run.algo](**run.hyper),
        network=hr.Network(**run.network),
        seed=run.seed,
        eval_episodes=run.eval_episodes,
        run_dir=request["run_dir"],
        log_interval_s=request["log_interval_s"],
        checkpoint_interval=run.config["total_steps"],  # one evaluation, at the end
        **run.config,
    )


def measure(
    run: Run, threshold: float, folder: Path, log_interval_s: float, children: Children
) -> dict[str, Any]:
    """Train in a separate process. Return the results and write the curve to ``folder``.

    Raises:
        RuntimeError: it failed or took too long.
    """
    with tempfile.TemporaryDirectory() as temporary:
        run_dir = Path(temporary) / "run"
        request = {"run": asdict(run), "run_dir": str(run_dir), "log_interval_s": log_interval_s}
        children.call(train, request, TIMEOUT_S)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        lines = read_jsonl(run_dir / "metrics.jsonl")
    curve = curve_of(lines, lines[0]["seconds"])  # the first line belongs to the first update
    path = curve_path(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"run": asdict(run), "summary": summary, "curve": curve})
    path.write_text(text + "\n", encoding="utf-8")
    return results(summary, curve, threshold)


def curve_path(folder: Path, run: Run) -> Path:
    """Return the path of a run's learning curve."""
    return folder / "curves" / f"{run.env}-{run.algo}-{run.settings}-{run.seed}.json"


def curve_of(lines: list[dict[str, float]], first_s: float) -> dict[str, list[float]]:
    """Return steps, seconds since the first update and returns, one point per number of steps.

    Args:
        first_s: time of the first update, on the clock of the lines.
    """
    curve: dict[str, list[float]] = {"env_steps": [], "seconds": [], "return": []}
    for line in lines:
        value = line.get("charts/episodic_return")
        if value is None or line["env_steps"] in curve["env_steps"][-1:]:
            continue
        curve["env_steps"].append(line["env_steps"])
        curve["seconds"].append(max(0.0, line["seconds"] - first_s))
        curve["return"].append(value)
    return curve


def results(
    summary: Mapping[str, Any], curve: Mapping[str, list[float]], threshold: float
) -> dict[str, Any]:
    """Return a run's measures; None if undefined, such as the steps to a missed threshold.

    ``area`` is the area under the curve over steps, divided by its width: the mean training return.
    """
    steps, returns = np.array(curve["env_steps"]), np.array(curve["return"])
    reached = np.flatnonzero(returns >= threshold)
    first = reached[0] if len(reached) else None
    area = None
    if len(steps) > 1:
        heights = (returns[1:] + returns[:-1]) / 2
        area = float(np.sum(heights * np.diff(steps)) / (steps[-1] - steps[0]))
    evaluation, busy = summary["evaluation"], summary["utilisation"]
    return {
        "final_return": summary["episodic_return"],
        "eval_return": evaluation["mean"],
        "eval_std": evaluation["std"],
        "area": area,
        "threshold": threshold,
        "steps_to": None if first is None else curve["env_steps"][first],
        "seconds_to": None if first is None else curve["seconds"][first],
        "sps": summary["sps"],
        "seconds": summary["seconds_total"] - summary["seconds_to_first_update"],
        "startup_s": summary["seconds_to_first_update"],
        "lag_mean": summary["lag"]["mean"],
        "learner_busy": busy["learner"],
        "actor_busy": busy["actor"],
    }
