"""Ray clusters on this machine: dead agents, signals while Ray starts, leftover files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from patience import PATIENCE_S, wait_until

from headrace.errors import WorkerFailed
from headrace.ray import agents, connection, local_cluster, local_node
from headrace.ray.connection import RayCluster

BUILDER = "_build_python_executable_command_memory_profileable"


@pytest.fixture
def services(monkeypatch):
    """Replaces the module of Ray that builds command lines."""
    module = SimpleNamespace(**{BUILDER: lambda component, folder: ["python", folder]})
    monkeypatch.setitem(sys.modules, "ray._private.services", module)
    return module


@pytest.fixture
def sleeper():
    """Starts processes that sleep, with these words at the end of their command lines."""
    started = []

    def start(*words):
        started.append(subprocess.Popen(["sh", "-c", "sleep 60; :", *words]))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_agents_are_started_by_a_shell_that_outlives_them(services):
    before = getattr(services, BUILDER)
    with agents.agents_may_die():
        build = getattr(services, BUILDER)
        assert build("gcs", "f") == ["python", "f"]
        for component in ("dashboard_agent", "runtime_env_agent"):
            assert build(component, "f") == [*agents._OUTLIVED, "python", "f"]
        assert os.environ[agents._BY_PIPE] == "1"
    assert getattr(services, BUILDER) is before
    assert agents._BY_PIPE not in os.environ


def test_the_shell_ends_with_its_input_only():
    agent = [*agents._OUTLIVED, "sh", "-c", "echo $$; exec sleep 600"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(agent, **pipes) as shell:
        pid = int(shell.stdout.readline())
        shell.send_signal(signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)  # which the agent doesn't ignore
        shell.send_signal(signal.SIGINT)  # at a terminal, every process receives Ctrl-C
        with pytest.raises(subprocess.TimeoutExpired):
            shell.wait(0.1)
        wait_until(lambda: not psutil.pid_exists(pid))
        shell.stdin.close()
        assert shell.wait(PATIENCE_S) == 0


def test_another_version_of_ray_starts_its_agents_as_usual(services):
    delattr(services, BUILDER)
    with agents.agents_may_die():
        assert vars(services) == {}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/ray/dashboard/agent.py", "dashboard agent"),
        ("ray::RuntimeEnvAgent", "runtime environment agent"),
    ],
)
def test_an_agent_that_died_is_named_before_ray_ends_this_program(
    sleeper, monkeypatch, tmp_path, words, name
):
    monkeypatch.setattr(local_node, "_server", lambda path: os.getpid())
    monkeypatch.setattr(RayCluster, "_session", tmp_path)
    agent, other = sleeper(words), sleeper("worker.py", "--agent-port=1")
    cluster = RayCluster.__new__(RayCluster)
    cluster._node = node = local_node.LocalNode(tmp_path / "sockets/raylet")
    other.kill()
    other.wait()
    cluster.check_here()
    agent.kill()
    agent.wait()
    with pytest.raises(WorkerFailed, match=f"^Ray: the {name} of this node, .*{tmp_path}/logs/.*"):
        cluster.check_here()
    assert RayCluster._session is None  # the log that the message names is kept
    node.close()
    node.close()


def test_nodes_are_not_watched_on_systems_without_poll(monkeypatch, tmp_path):
    monkeypatch.delattr(local_node.select, "poll")
    node = local_node.LocalNode(tmp_path / "sockets/raylet")
    node.check()
    node.close()


class StartingRay:
    """Stands in for Ray; starts a process and receives a signal in ``init``."""

    def __init__(self, start, number):
        self._start, self._number = start, number

    def init(self, **settings):
        if self._number == signal.SIGTERM:  # as Ray does
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        self.process = self._start()
        os.kill(os.getpid(), self._number)


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(
    ("number", "error", "text"),
    [(signal.SIGINT, KeyboardInterrupt, ""), (signal.SIGTERM, SystemExit, "143")],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_stops_a_starting_cluster_at_once(sleeper, number, error, text, monkeypatch):
    ray, received = StartingRay(sleeper, number), []
    usual = lambda number, frame: received.append(number)  # noqa: E731 - as a run's
    before = {n: signal.signal(n, usual) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(error) as raised:
            local_cluster.start(ray, 1)
        assert [signal.getsignal(n) for n in before] == [usual, usual]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert str(raised.value) == text
    assert ray.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert received == ([signal.SIGINT] if number == signal.SIGINT else [])


def test_stopped_servers_of_ray_are_resumed(sleeper, monkeypatch):
    monkeypatch.setattr(local_cluster, "_LOOK_S", 0.01)
    one, other = sleeper(), sleeper()
    processes = [psutil.Process(process.pid) for process in (one, other)]
    one.send_signal(signal.SIGSTOP)
    wait_until(lambda: processes[0].status() == psutil.STATUS_STOPPED, str)
    watcher = threading.Thread(target=local_cluster.keep_running, args=(list(processes),))
    watcher.start()
    wait_until(lambda: processes[0].status() != psutil.STATUS_STOPPED, str)
    one.kill()
    other.kill()
    other.wait()  # the other one is a zombie
    watcher.join(PATIENCE_S)
    assert not watcher.is_alive()


def test_ray_never_mistakes_the_parent_of_this_program_for_its_raylet(monkeypatch):
    seen = []
    cluster = RayCluster.__new__(RayCluster)
    cluster.api = SimpleNamespace(init=lambda *_, **__: seen.append(os.environ["RAY_RAYLET_PID"]))
    cluster._where = "at '127.0.0.1:1'"
    monkeypatch.setattr(connection, "reach", str)
    monkeypatch.setattr(local_cluster, "start", lambda ray, num_cpus: ray.init())
    for address in (None, "127.0.0.1:1"):
        cluster._connect(address, 1)
    assert seen == [str(os.getpid())] * 2
    assert "RAY_RAYLET_PID" not in os.environ


def test_only_the_folder_of_the_session_is_deleted(tmp_path):
    ray = tmp_path / "ray"
    ours, theirs = ray / "session_1", ray / "session_2"
    for folder in (ours, theirs):
        (folder / "logs").mkdir(parents=True)
        (folder / "logs/raylet.out").write_text("")
    latest = ray / "session_latest"
    latest.symlink_to(theirs)
    local_cluster.delete_session(ours)
    assert sorted(ray.iterdir()) == [theirs, latest]
    latest.unlink()
    latest.symlink_to(theirs)
    local_cluster.delete_session(theirs)
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_this_nodes_raylet_is_found():
    context = SimpleNamespace(get_node_id=lambda: "b")
    nodes = [{"NodeID": x, "RayletSocketName": f"/tmp/{x}/sockets/raylet"} for x in "ab"]
    ray = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes)
    assert local_cluster.raylet_socket(ray) == Path("/tmp/b/sockets/raylet")
