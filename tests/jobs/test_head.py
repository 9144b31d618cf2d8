"""SLURM's signals on a job's first node: which jobs are requeued."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until

from headrace.errors import LaunchFailed
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.slurm import head
from headrace.ray import node as ray_node
from headrace.ray.node import Ray

SCONTROL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$*" in
    *"show job"*) echo "JobId=7 JobState=$(cat state) Restarts=0 ExitCode=0:0 NodeList=node1" ;;
    requeue*)
        left=$(cat refuses)
        [ "$left" = 0 ] && exit 0
        echo $((left - 1)) > refuses
        echo "Unable to contact slurm controller" >&2
        exit 1 ;;
esac
"""
SAVES = "trap 'echo told >> told; exit 0' TERM; touch begun; while :; do sleep 0.02; done"
SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class Nodes:
    """Replaces the allocation's processes, with callbacks at their start and end."""

    hosts = ("node1", "node2")
    ray = Ray("127.0.0.1:1", "secret")

    def __init__(self, begin: Callable = lambda: None, end: Callable = lambda: None) -> None:
        self._begin, self._end, self.terminated, self.words = begin, end, False, list[str]()

    def __call__(self, *args) -> Nodes:
        return self

    def news(self) -> list[str]:
        said, self.words = self.words, []
        return said

    def __enter__(self) -> Nodes:
        self._begin()
        return self

    def __exit__(self, *_) -> None:
        self._end()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Runs a job of a shell command; returns its exit status and whether it was requeued."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"_ENDED_S": 0.0, "_PAUSE_S": 0.01, "_SPREAD_S": 0.3}.items():
        monkeypatch.setattr(head, name, value)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    (tmp_path / "refuses").write_text("0")
    (tmp_path / "calls").touch()

    def run(command: str, nodes: Nodes | None = None, **settings) -> tuple[int, int]:
        words = ["bash", "-c", command]
        orders = JobSpec(words, words, words, ray=nodes is not None, **settings)
        monkeypatch.setattr(head, "Allocation", nodes)
        status = head.BatchScriptHead(orders).run()
        return status, (tmp_path / "calls").read_text().count("requeue 7")

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def send():
    """Sends this process a signal, or calls something, once the command has started."""
    threads = []

    def later(what: signal.Signals | Callable, count: int = 1, pause_s: float = 0.0) -> None:
        def work() -> None:
            wait_until(Path("begun").exists)
            for _ in range(count):
                what() if callable(what) else os.kill(os.getpid(), what)
                time.sleep(pause_s)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield later
    for thread in threads:
        thread.join(PATIENCE_S)


def notice() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_command_that_has_notice_of_the_time_limit_is_told_and_queues_again(job, send):
    send(signal.SIGUSR1)
    assert job(SAVES) == (head._CUT, 1)
    assert Path("told").read_text() == "told\n"


def test_a_command_is_told_once_however_often_slurm_tells_the_job(job, send):
    send(signal.SIGTERM, count=3, pause_s=0.05)
    slow = "trap 'echo told >> told' TERM; touch begun; sleep 1 & wait; wait; exit 0"
    assert job(slow) == (head._CUT, 1)
    assert Path("told").read_text() == "told\n"  # SLURM, which tells it, too, isn't here


def test_nodes_that_hear_sigterm_tell_the_command(job, send):
    nodes = Nodes()
    send(lambda: setattr(nodes, "terminated", True))
    assert job(SAVES, nodes) == (head._CUT, 1)
    assert Path("told").read_text() == "told\n"


def test_a_time_limit_that_ends_before_ray_is_up_is_told_and_not_tried_again(job, capsys):
    def fail() -> None:
        notice()
        raise LaunchFailed("stopped before Ray was up on node2")

    assert job("touch ran", Nodes(begin=fail)) == (1, 0)
    said = capsys.readouterr().out
    assert "headrace: stopped before Ray was up on node2\n" in said
    assert "came too early: raise --time-limit" in said


def test_a_job_that_is_told_to_end_before_its_command_began_does_not_begin_it(job):
    nodes = Nodes()
    nodes.terminated = True
    assert job("touch ran", nodes) == (head._CUT, 1)
    assert not Path("ran").exists()


def test_preemption_before_ray_is_up_queues_again(job):
    nodes = Nodes()

    def fail() -> None:
        nodes.terminated = True
        raise LaunchFailed("stopped before Ray was up on node2")

    nodes._begin = fail
    assert job("touch ran", nodes) == (head._CUT, 1)


def test_a_start_that_fails_by_itself_ends_the_job(job, capsys):
    def fail() -> None:
        raise LaunchFailed("node2 has ray 1.0")

    assert job("touch ran", Nodes(begin=fail)) == (1, 0)
    assert "headrace: node2 has ray 1.0\n" in capsys.readouterr().out


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_that_had_ended_before_the_notice_is_not_run_again(job, code):
    assert job(f"exit {code}", Nodes(end=notice)) == (code, 0)


def test_a_command_that_fails_as_it_is_told_fails(job, send):
    send(signal.SIGUSR1)
    assert job(SAVES.replace("exit 0", "exit 7")) == (7, 0)


def test_a_command_that_dies_by_the_signal_a_moment_before_it_is_heard_of_queues_again(job):
    send_late = "touch begun; (sleep 0.2; kill -TERM $PPID) & kill -TERM $$"
    assert job(send_late.replace("$PPID", str(os.getpid()))) == (head._CUT, 1)


def test_a_command_that_was_cut_off_has_not_succeeded(job, send, capsys):
    send(signal.SIGUSR1)
    assert job(SAVES, requeue=False) == (143, 0)
    assert "the job is not requeued" in capsys.readouterr().out


def test_a_job_that_was_cancelled_does_not_queue_again(job, send):
    Path("state").write_text("COMPLETING")
    send(signal.SIGUSR1)
    assert job(SAVES) == (143, 0)


def test_a_requeue_that_slurm_refuses_for_a_while_is_tried_again(job, send, capsys):
    Path("refuses").write_text("2")
    send(signal.SIGUSR1)
    assert job(SAVES) == (143, 3)
    assert "can't be requeued" not in capsys.readouterr().out


def test_a_requeue_that_never_works_is_told_with_the_command(job, send, capsys):
    Path("refuses").write_text("99")
    send(signal.SIGUSR1)
    assert job(SAVES) == (143, 5)
    words = "(scontrol failed: Unable to contact slurm controller): run `scontrol requeue 7`"
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("saved", "number", "queued"),
    [("step_8", "USR1", 0), ("step_8-2", "USR1", 0), ("step_9", "USR1", 1), ("step_8", "TERM", 1)],
)
def test_a_run_that_gets_no_further_in_its_time_limit_does_not_queue_again(
    job, send, capsys, saved, number, queued
):
    Path("x.job").write_text(json.dumps({"job": "k 7", "before": {}}))  # of the start before
    Path("x/checkpoints/step_8").mkdir(parents=True)
    send(getattr(signal, f"SIG{number}"))
    saves = SAVES.replace("exit 0", f"mkdir -p x/checkpoints/{saved}; exit 0")
    if number == "TERM":
        saves = f"{SAVES.replace('sleep 0.02', 'sleep 0.3; exit 0')}"
    assert job(saves, run_dir="x", key="k") == (143, queued)
    assert ("it resumed at 8 steps and saved no later checkpoint" in capsys.readouterr().out) is (
        not queued
    )


def test_checkpoints_of_a_run_that_a_job_replaces_are_no_measure_of_its_progress(job, send):
    Path("x/checkpoints/step_900").mkdir(parents=True)
    send(signal.SIGUSR1)
    assert job(SAVES.replace("exit 0", "mkdir x/checkpoints/step_8; exit 0"), run_dir="x")[1] == 1


def test_what_nodes_say_of_their_end_is_told_while_the_command_runs(job, capsys):
    nodes = Nodes()
    nodes.words = ["Ray ended on node2: killed"]
    assert job("sleep 0.3", nodes) == (0, 0)
    assert "headrace: Ray ended on node2: killed\n" in capsys.readouterr().out


def test_a_command_that_can_t_be_started_is_told(job, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    orders = JobSpec(["no-such-program"], [], [], ray=False)
    assert head.BatchScriptHead(orders).run() == 1
    assert "no-such-program can't be started" in capsys.readouterr().out


def test_a_port_for_ray_is_none_that_the_system_gives_to_connections(monkeypatch, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        only = probe.getsockname()[1]
    (tmp_path / "range").write_text(f"{only + 1}\t{only + 100}\n")
    monkeypatch.setattr(ray_node, "_OF_CONNECTIONS", tmp_path / "range")
    monkeypatch.setattr(ray_node, "_LOWEST_PORT", only)
    assert ray_node.free_port("127.0.0.1") == only
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", only))
        listener.listen()
        assert ray_node.free_port("127.0.0.1") != only


@pytest.mark.parametrize("words", ["1024\t65535\n", ""])
def test_where_all_ports_are_for_connections_the_system_chooses_one(monkeypatch, tmp_path, words):
    if words:
        (tmp_path / "range").write_text(words)
    monkeypatch.setattr(ray_node, "_OF_CONNECTIONS", tmp_path / "range")
    assert ray_node.free_port("127.0.0.1") > 1024
