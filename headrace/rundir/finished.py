"""Recognises runs that have nothing left to train."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.errors import require, setting
from headrace.processes import safe_files
from headrace.rundir import checkpoint


def check_steps(config: Config, saved: Config) -> None:
    """Raise ConfigError if ``total_steps`` was lowered below what the run to resume has trained."""
    steps = _trained_steps(config)
    lower = config.total_steps < saved.total_steps
    require(
        not lower or config.total_steps >= steps,
        "total_steps", config.total_steps, f"at least {steps}, which {config.run_dir} has trained",
    )  # fmt: skip


def nothing_left(config: Config) -> str | None:
    """Return a sentence if the run to resume has reached its limit and was evaluated."""
    run_dir, steps = Path(str(config.run_dir)), _trained_steps(config)
    summary = _summary(run_dir)
    complete = summary.get("env_steps") == steps and not summary.get("interrupted")
    if not complete or summary.get("no_evaluation"):
        return None
    seconds, limit = summary.get("seconds_training"), config.stop_time_s
    value: float
    more: float
    if steps >= config.total_steps:
        has, name, value, more = f"{steps:,} steps", "total_steps", config.total_steps, 2 * steps
    elif limit is not None and isinstance(seconds, int | float) and seconds >= limit:
        has, name, value, more = (
            f"trained for {seconds:.0f} s",
            "stop_time_s",
            limit,
            2 * max(limit, math.ceil(seconds)),
        )
    else:
        return None
    return (
        f"nothing left to train: {run_dir} has {has}, and {name} is {value:,}; to continue, set "
        f"for example {setting(name, str(more))}"
    )


def _trained_steps(config: Config) -> int:
    """Return the environment steps of the latest checkpoint; -1 if its name doesn't tell."""
    name = re.match(r"step_(\d+)", checkpoint.find(Path(str(config.run_dir))).name)
    return int(name[1]) if name else -1


def _summary(run_dir: Path) -> dict[str, Any]:
    try:
        summary = safe_files.read_json(run_dir / "summary.json")
    except (OSError, ValueError):  # the run was killed, or the file is damaged
        return {}
    return summary if isinstance(summary, dict) else {}
