"""One clock for all files of a run: seconds of training, which a resumed run continues."""

from __future__ import annotations

import json
from pathlib import Path

import headrace as hr
from headrace.api import resume_config
from headrace.rundir.files import read_jsonl


def seconds_of(run_dir: Path, name: str) -> dict[int, float]:
    """Return the seconds of each number of environment steps."""
    return {line["env_steps"]: line["seconds"] for line in read_jsonl(run_dir / f"{name}.jsonl")}


def test_metrics_and_evaluations_of_the_same_step_have_the_same_seconds(tiny, tmp_path):
    settings = {"eval_interval": 64, "eval_episodes": 2, "total_steps": 640}
    hr.train(tiny(transport="serial", log_interval_s=0.0, **settings), quiet=True)
    metrics, played = (seconds_of(tmp_path / "run", x) for x in ("metrics", "evaluations"))
    common = metrics.keys() & played.keys()
    assert len(common) >= 3
    assert {steps: metrics[steps] for steps in common} == {x: played[x] for x in common}
    assert list(metrics.values()) == sorted(metrics.values())


def test_a_resumed_run_continues_its_seconds(tiny, tmp_path):
    hr.train(tiny(transport="serial", total_steps=320), quiet=True)
    before = seconds_of(tmp_path / "run", "metrics")
    config = resume_config(tmp_path / "run", total_steps=640)
    hr.train(config, quiet=True)
    after = seconds_of(tmp_path / "run", "metrics")
    assert before.items() <= after.items()
    assert list(after.values()) == sorted(after.values())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert round(summary["seconds_training"], 6) >= max(after.values())
