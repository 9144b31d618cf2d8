"""A pod's command starts, resumes, fails once, and may save before it is stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from patience import PATIENCE_S

from headrace.jobs.job_spec import JobSpec
from headrace.jobs.kubernetes import entry
from tests.jobs.conftest import await_file


def test_what_the_pod_runs_begins_and_goes_on_from_a_checkpoint_of_its_own(tmp_path):
    run_dir = tmp_path / "runs/run"
    show = [sys.executable, "-c", "import sys; print(*sys.argv[1:])"]
    begin = [*show, "begin", "{run}", "{address}"]
    orders = JobSpec(begin, [*begin, "--overwrite"], [*show, "again"], str(run_dir))

    def runs() -> str:
        words = [sys.executable, "-m", "headrace.jobs.kubernetes.entry"]
        known = os.environ | {"HEADRACE_JOB_SPEC": orders.write()}
        return subprocess.run(
            words, env=known, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        ).stdout.strip()

    assert runs() == f"begin {run_dir} auto"
    run_dir.mkdir()
    assert runs() == f"begin {run_dir} auto"  # never with --overwrite
    (run_dir / "checkpoints/step_8").mkdir(parents=True)
    assert runs() == "again"


@pytest.fixture
def fails(tmp_path, monkeypatch):
    """Runs commands that record a start and exit with status 3; returns status and starts."""
    monkeypatch.setattr(entry, "RUNS", str(tmp_path))
    monkeypatch.setattr(entry, "_LOST_S", 0.0)
    orders = JobSpec(["sh", "-c", f"echo >> {tmp_path}/starts; exit 3"], [], [])
    monkeypatch.setenv("HEADRACE_JOB_SPEC", orders.write())
    before = signal.getsignal(signal.SIGTERM)

    def run() -> tuple[int, int]:
        return entry.main(), len((tmp_path / "starts").read_text())

    yield run
    signal.signal(signal.SIGTERM, before)


def test_a_command_that_failed_is_not_run_on_another_cluster(fails, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        assert [fails(), fails()] == [(3, 1), (3, 1)]
    assert "the command has failed" in capsys.readouterr().out
    monkeypatch.setenv("HEADRACE_JOB_SPEC", JobSpec(["true"], [], []).write())
    assert entry.main() == 0  # which another job's is


def test_a_command_that_failed_with_its_cluster_is_run_on_the_next(fails, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
    assert [fails(), fails()] == [(3, 1), (3, 2)]


def test_a_command_that_can_t_be_started_is_told_and_fails(fails, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("HEADRACE_JOB_SPEC", JobSpec(["no-such-program"], [], []).write())
    assert entry.main() == 1
    assert "no-such-program can't be started" in capsys.readouterr().out


def test_what_waits_is_deaf_to_an_end_before_the_command_begins(fails, monkeypatch):
    def begin(words, **settings):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)  # at the command's first moment
        return begun(words, **settings)

    begun = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.setenv("HEADRACE_JOB_SPEC", JobSpec(["true"], [], []).write())
    assert entry.main() == 0


def test_a_command_that_is_told_to_end_may_save(tmp_path):
    saves = f"trap 'sleep 0.5; touch {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/begun; "
    orders = JobSpec(["bash", "-c", f"{saves} while :; do sleep 0.05; done"], [], [])
    words = [sys.executable, "-m", "headrace.jobs.kubernetes.entry"]
    known = os.environ | {"HEADRACE_JOB_SPEC": orders.write()}
    with subprocess.Popen(words, env=known, start_new_session=True) as job:
        await_file(tmp_path / "begun")
        os.killpg(job.pid, signal.SIGTERM)  # as Ray ends a job
        assert job.wait(PATIENCE_S) == 0
    assert (tmp_path / "saved").exists()
