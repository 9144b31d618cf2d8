"""Metrics of a scaling study: of one run, from its files, and of a world size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.processes import safe_files
from headrace.rundir.files import read_jsonl
from headrace.studies.aggregation import Row, grouped, over_present
from headrace.studies.scaling.model import PARTS

Lines = Sequence[Row]

TIMES = ("t_iter", *PARTS)
LOSSES = ("approx_kl", "clipfrac", "entropy", "value_loss")
RUN_FIGURES = (
    "iterations", "env_steps", "seconds", "fps", *TIMES, "rho_comm", "rho_sync", "coverage",
    "time_to_target", "final_return", *LOSSES,
)  # fmt: skip
_MEDIANS = ("steps_per_iter", *TIMES, "rho_comm", "rho_sync", "coverage", *LOSSES)


# -- one run ---------------------------------------------------------------------------------------


def run_figures(
    run_dir: Path, world_size: int, warmup_iters: int, target_return: float | None
) -> dict[str, Any]:
    """Return RUN_FIGURES of a finished run; None for missing values.

    Speeds and means are those of the iterations after the warm-up, or None if training ended within
    it. Seconds count from the start of training and exclude evaluations.

    Raises:
        RuntimeError: the files are missing or not those of ``world_size`` ranks.
    """
    return {
        **dict.fromkeys(RUN_FIGURES),
        **_speed(iterations(run_dir, world_size), warmup_iters),
        "time_to_target": time_to_target(evaluations(run_dir), target_return),
        "final_return": final_return(run_dir),
    }


def iterations(run_dir: Path, world_size: int) -> Sequence[Lines]:
    """Return each rank's lines, one per iteration; see :func:`run_figures`."""
    paths = [run_dir / "iterations" / f"rank_{rank}.jsonl" for rank in range(world_size)]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise RuntimeError(f"the run wrote no {', '.join(missing)}")
    ranks = [read_jsonl(path) for path in paths]
    counts = {len(lines) for lines in ranks}
    if len(counts) != 1 or 0 in counts:
        raise RuntimeError(f"the ranks of {run_dir} wrote {sorted(counts)} iterations")
    return ranks


def _speed(ranks: Sequence[Lines], warmup_iters: int) -> dict[str, Any]:
    """Return the metrics of the iterations after the warm-up."""
    lines = [line for rank in ranks for line in rank[warmup_iters:]]
    if not lines:
        return {"iterations": 0}
    start = ranks[0][warmup_iters - 1] if warmup_iters else {"env_steps": 0, "seconds": 0.0}
    steps, seconds = (ranks[0][-1][name] - start[name] for name in ("env_steps", "seconds"))
    total = {name: sum(line[name] for line in lines) for name in TIMES}
    return {
        "iterations": len(ranks[0]) - warmup_iters,
        "env_steps": steps,
        "seconds": seconds,
        "fps": steps / seconds,
        **{name: total[name] / len(lines) for name in TIMES},
        "rho_comm": total["t_comm"] / total["t_iter"],
        "rho_sync": total["t_sync"] / total["t_iter"],
        "coverage": sum(total[name] for name in PARTS) / total["t_iter"],
        **{name: over_present(lines, name, statistics.fmean) for name in LOSSES},
    }


def evaluations(run_dir: Path) -> Lines:
    """Return the evaluations during training, in order."""
    path = run_dir / "evaluations.jsonl"
    return read_jsonl(path) if path.exists() else []


def time_to_target(lines: Lines, target_return: float | None) -> float | None:
    """Return the seconds of training until an evaluation reaches the target, or None."""
    if target_return is None:
        return None
    reached = (line["seconds"] for line in lines if line["return_mean"] >= target_return)
    return next(reached, None)


def final_return(run_dir: Path) -> float | None:
    """Return the mean return of the final evaluation, or else of the latest episodes."""
    summary = safe_files.read_json(run_dir / "summary.json")
    if summary.get("evaluation"):
        return summary["evaluation"]["mean"]
    lines = evaluations(run_dir)
    return lines[-1]["return_mean"] if lines else summary["episodic_return"]


# -- a world size ----------------------------------------------------------------------------------


def summarise(rows: Sequence[Row], cores_per_learner: int, num_cores: int) -> list[dict[str, Any]]:
    """Return a row per world size, smallest first: medians over its runs, and its speed-ups.

    Speed-ups are relative to :func:`reference`, which is assumed to scale ideally from W = 1. A run
    that never reached the target counts as infinitely long, so ``time_to_target`` is None if half
    of the runs didn't reach it.

    Args:
        rows: runs, with ``world_size`` and RUN_FIGURES.
    """
    by_size = grouped(rows, lambda row: row["world_size"])
    summary = [_world_size(size, by_size[size]) for size in sorted(by_size)]
    first = reference(summary)
    for row in summary:
        size = row["world_size"]
        row["speedup_fps"] = _times(first["world_size"], row["fps"], first["fps"])
        row["efficiency"] = _times(1 / size, row["speedup_fps"], 1.0)
        this_s, first_s = row["time_to_target"], first["time_to_target"]
        row["speedup_time"] = _times(first["world_size"], first_s, this_s)
        row["exceeds_cores"] = size * cores_per_learner > num_cores
    return summary


def reference(summary: Sequence[Row]) -> Row:
    """Return the row that speed-ups are relative to: the smallest world size with a speed."""
    return next((row for row in summary if row["fps"] is not None), summary[0])


def _world_size(size: int, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the metrics of one world size alone."""
    rows = [
        dict(row, steps_per_iter=_times(1.0, row["env_steps"], row["iterations"])) for row in rows
    ]
    times = [math.inf if row["time_to_target"] is None else row["time_to_target"] for row in rows]
    returns = [row["final_return"] for row in rows if row["final_return"] is not None]
    median_s = statistics.median(times)
    return {
        "world_size": size,
        "runs": len(rows),
        "fps": over_present(rows, "fps", statistics.median),
        "speedup_fps": None,
        "efficiency": None,
        "time_to_target": median_s if math.isfinite(median_s) else None,
        "speedup_time": None,
        "reached": sum(math.isfinite(value) for value in times),
        **{name: over_present(rows, name, statistics.median) for name in _MEDIANS},
        "final_return": over_present(rows, "final_return", statistics.median),
        "final_return_min": min(returns, default=None),
        "final_return_max": max(returns, default=None),
    }


def _times(factor: float, above: float | None, below: float | None) -> float | None:
    """Return ``factor * above / below``; None if undefined."""
    return None if above is None or not below else factor * above / below
