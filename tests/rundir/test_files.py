"""Files of a running run: lines after a resume replace those that it undid."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.api import resume_config
from headrace.processes import safe_files
from headrace.rundir import checkpoint_writer
from headrace.rundir.files import RunLog, append_jsonl, read_jsonl
from tests.rundir.test_result import make_result


def scalars(run_dir: Path, name: str) -> dict[int, float]:
    """Return TensorBoard's values of a name by step; no step may occur twice."""
    events = EventAccumulator(str(run_dir)).Reload().Scalars(name)
    steps = [event.step for event in events]
    assert steps == sorted(set(steps))
    return {event.step: event.value for event in events}


def next_second() -> None:
    """Event files are read in the order of their names, which start with the second."""
    time.sleep(1.01 - time.time() % 1)


def write(log: RunLog, *steps: int, sps: float) -> None:
    for env_steps in steps:
        log.result(make_result(env_steps=env_steps, updates=env_steps // 10, sps=sps))
    log.close()


def test_a_long_run_is_continued_whatever_the_size_of_its_files(tmp_path, monkeypatch):
    file = tmp_path / "iterations" / "rank_0.jsonl"
    file.parent.mkdir()
    append_jsonl(file, [{"env_steps": steps, "update": steps // 10} for steps in (10, 20, 30)])
    monkeypatch.setattr(safe_files, "LINES_BYTES", 10)  # of files that are only shown
    write(RunLog(tmp_path, 1, keep_until=(20, 2)), sps=1.0)
    assert file.read_bytes().count(b"\n") == 2


def test_results_and_events_beyond_the_checkpoint_are_replaced_on_resume(tmp_path):
    write(RunLog(tmp_path, 0), 10, 20, 30, 40, sps=1.0)
    assert scalars(tmp_path, "charts/SPS") == {10: 1.0, 20: 1.0, 30: 1.0, 40: 1.0}
    next_second()
    write(RunLog(tmp_path, 0, keep_until=(20, 2)), 30, 50, sps=2.0)
    wanted = {10: 1.0, 20: 1.0, 30: 2.0, 50: 2.0}
    assert scalars(tmp_path, "charts/SPS") == wanted
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert {line["env_steps"]: line["charts/SPS"] for line in lines} == wanted


def test_tensorboard_shows_the_results_of_a_run_that_was_resumed_and_no_step_twice(tiny, finish):
    config = tiny(transport="serial", total_steps=1280, checkpoint_interval=320)
    first, _ = finish(config, until=lambda result: result.env_steps >= 640)
    checkpoints = sorted(first.run_dir.glob("checkpoints/step_*"), key=lambda p: int(p.name[5:]))
    assert len(checkpoints) > 1
    checkpoint_writer.point(
        "latest", checkpoints[0]
    )  # as if it had been killed before the later ones
    assert max(scalars(first.run_dir, "charts/updates")) > int(checkpoints[0].name[5:])
    next_second()
    second, _ = finish(resume_config(first.run_dir, log_interval_s=0.0))
    lines = read_jsonl(second.run_dir / "metrics.jsonl")
    shown = scalars(second.run_dir, "charts/updates")
    assert max(shown) == second.env_steps >= 1280
    assert shown == {line["env_steps"]: line["charts/updates"] for line in lines}


def test_lines_are_added_and_one_cut_short_is_left_out(tmp_path):
    file = tmp_path / "lines.jsonl"
    append_jsonl(file, [{"a": 1}, {"b": 0.5}])
    append_jsonl(file, [])
    append_jsonl(file, iter([{"c": None}]))
    file.write_text(file.read_text() + '{"d": ')
    assert read_jsonl(file) == [{"a": 1}, {"b": 0.5}, {"c": None}]
    with pytest.raises(FileNotFoundError):
        read_jsonl(tmp_path / "none.jsonl")
