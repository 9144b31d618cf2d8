"""A run directory has one writer; a second one is told who it is."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket

import pytest

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError
from headrace.records import rundir
from headrace.records.lock import Lock

HOLD = """
import sys, time
from pathlib import Path
from headrace.records import rundir
held = rundir.prepare(Path("run"), False, False)
print("HELD", flush=True)
time.sleep(600)
"""
FORK = """
import os, time
from pathlib import Path
from headrace.records import rundir
held = rundir.prepare(Path("run"), False, False)
if os.fork() == 0:
    print("FORKED", flush=True)
    time.sleep(600)
time.sleep(600)
"""


def quiet(config: hr.Config) -> hr.Trainer:
    return hr.Trainer(config, notify=lambda text: None)


def test_a_second_writer_is_told_who_holds_the_directory_until_that_dies(start, tmp_path):
    script = start("-c", HOLD)
    script.wait_for("HELD")
    run_dir = tmp_path / "run"
    since = json.loads((run_dir / "lock").read_text())["since"]
    for resume, overwrite in ((False, False), (False, True), (True, False)):
        with pytest.raises(CheckpointError) as error:
            rundir.prepare(run_dir, resume, overwrite)
        for word in (f"process {script.process.pid} on {socket.gethostname()}", since, "stop it"):
            assert word in str(error.value)
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    rundir.prepare(run_dir, False, False).release()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(start, tmp_path):
    script = start("-c", FORK)
    script.wait_for("FORKED")
    child = script.family()[1]
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert child.is_running()
    rundir.prepare(tmp_path / "run", False, False).release()


def test_a_trainer_holds_the_lock_until_it_is_closed(tiny, finish):
    settings = {"transport": "serial", "checkpoint_interval": 64}
    with quiet(tiny(**settings)) as trainer:
        training = iter(trainer)
        while next(training).env_steps < 128:
            pass
        for other, words in (
            (tiny(**settings), "exists already"),
            (tiny(**settings, overwrite=True), "by this process since"),
            (resume_config(trainer.run_dir), "by this process since"),
        ):
            with pytest.raises(CheckpointError, match=words):
                quiet(other)
    resumed, _ = finish(resume_config(trainer.run_dir, total_steps=1280))
    assert resumed.env_steps >= 1280
    assert hr.load(trainer.run_dir) is not None  # readers need no lock


def test_a_refused_run_holds_no_lock(tiny, finish):
    trainer, _ = finish(tiny(transport="serial", total_steps=64))
    (trainer.run_dir / "checkpoints" / "latest").write_text("step_999\n")
    for folder in trainer.run_dir.glob("checkpoints/step_*"):
        (folder / "trainer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError) as error:  # which keeps the Trainer's frames alive
        quiet(tiny(resume=True))
    Lock(trainer.run_dir).release()
    assert "no latest checkpoint" in str(error.value)


def test_learners_write_under_their_parents_lock(tiny):
    config = tiny(num_learners=2, total_steps=256, num_actors=2)
    with hr.LearnerGroup(config, notify=lambda text: None) as group:
        for _ in group:
            with pytest.raises(CheckpointError, match="by this process since"):
                Lock(group.run_dir)
    Lock(group.run_dir).release()


def test_a_file_system_without_locks_is_noted(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="file system without locks"):
        rundir.prepare(tmp_path / "run", False, False).release()


def test_what_a_run_that_died_at_once_left_is_no_run(tmp_path):
    rundir.prepare(tmp_path / "run", False, False).release()
    (tmp_path / "run" / "config.json.tmp").write_text('{"for')
    rundir.check(tmp_path / "run", False, False)
