"""A run directory has one writer; a second one gets an error that names the first."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import warnings

import pytest
from populations import population

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError
from headrace.rundir import directories
from headrace.rundir.lock import Lock
from headrace.studies.identity import alone
from headrace.studies.machine import wide_console
from headrace.studies.pbt.command import run as run_population
from headrace.studies.sweep.command import run as run_sweep
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store

HOLD = """
import sys, time
from pathlib import Path
from headrace.rundir import directories
held = directories.prepare(Path("run"), False, False)
print("HELD", flush=True)
time.sleep(600)
"""
FORK = """
import os, time
from pathlib import Path
from headrace.rundir import directories
held = directories.prepare(Path("run"), False, False)
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
            directories.prepare(run_dir, resume, overwrite)
        for word in (f"process {script.process.pid} on {socket.gethostname()}", since, "stop it"):
            assert word in str(error.value)
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    directories.prepare(run_dir, False, False).release()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(start, tmp_path):
    script = start("-c", FORK)
    script.wait_for("FORKED")
    child = script.family()[1]
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert child.is_running()
    directories.prepare(tmp_path / "run", False, False).release()


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
    assert "no checkpoint yet" in str(error.value)


def test_learners_write_under_their_parents_lock(tiny):
    config = tiny(num_learners=2, total_steps=256, num_actors=2)
    with hr.LearnerGroup(config, notify=lambda text: None) as group:
        for _ in group:
            with pytest.raises(CheckpointError, match="by this process since"):
                Lock(group.run_dir)
    Lock(group.run_dir).release()


def refuse(*_):
    raise OSError(38, "Function not implemented")


def test_a_file_system_without_locks_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="file system without locks"):
        directories.prepare(tmp_path / "run", False, False).release()


@pytest.mark.parametrize("study", ["pbt", "sweep"])
def test_what_processes_share_needs_locks(tmp_path, monkeypatch, study):
    """Otherwise two of them would train the same run."""
    monkeypatch.setattr(fcntl, "flock", refuse)
    words = r"without locks \(Function not implemented\).*on another one with output='FOLDER'"
    with pytest.raises(CheckpointError, match=words), warnings.catch_warnings():
        warnings.simplefilter("error")
        if study == "pbt":
            run_population(population(str(tmp_path), members=2, jobs=2), wide_console(), None)
        else:
            sample = ("entropy_coef=uniform:0,0.1",)
            run_sweep(Sweep(sample=sample, output=str(tmp_path)), wide_console(), None)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_who_waits_too_long_is_told_for_whom(tmp_path, monkeypatch):
    with alone(tmp_path):
        monkeypatch.setattr("headrace.studies.identity._LOOK_S", 0.0)
        with pytest.raises(CheckpointError, match=f"waited 0 s: .*{tmp_path}"), alone(tmp_path, 0):
            pass
    sweep = Sweep(sample=("entropy_coef=uniform:0,0.1",), output=str(tmp_path))
    store = Store(sweep)
    monkeypatch.setattr("headrace.studies.sweep.store._WAIT_S", 0.05)
    held = os.open(tmp_path / "journal.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match=r"waited 0 s for .*journal\.lock"):
        store.claim(set())
    os.close(held)
    assert store.claim(set()).number == 0


def test_locks_that_are_gone_leave_nothing_behind(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: calls.append(hooks))
    for _ in range(10):
        Lock(tmp_path).release()
    assert calls == []


def test_what_a_run_that_died_at_once_left_is_no_run(tmp_path):
    directories.prepare(tmp_path / "run", False, False).release()
    (tmp_path / "run" / "config.json.tmp").write_text('{"for')
    directories.check(tmp_path / "run", False, False)
