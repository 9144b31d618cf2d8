"""Processes that environments start end with their actor, and killed runs leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S, wait_until
from worlds import SlowEnv

import headrace as hr
from headrace.errors import ActorFailed
from headrace.processes import children, process_tree
from headrace.processes.process_tree import MARK, is_ending, is_running, kill_descendants

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


class ServerEnv(SlowEnv):
    """Starts servers as simulators do, and writes their process ids to a folder.

    Args:
        folder: of the ids. fail_at: a step that raises while one of its threads continues.
    """

    def __init__(self, folder: str, fail_at: int = 10**9) -> None:
        super().__init__(0.001)
        self._step_count, self._fail_at = 0, fail_at
        if threading.current_thread() is threading.main_thread() and _is_actor():
            self._start(Path(folder))

    def _start(self, folder: Path) -> None:
        settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        plain = subprocess.Popen(SLEEP, **settings)
        detached = subprocess.Popen(SLEEP, start_new_session=True, **settings)
        (folder / str(plain.pid)).touch()
        (folder / str(detached.pid)).touch()
        if (forked := os.fork()) == 0:  # and holds the actor's pipe
            if os.fork() == 0:
                (folder / str(os.getpid())).touch()
                time.sleep(600)
            os._exit(0)
        os.waitpid(forked, 0)
        if self._fail_at < 10**9:
            threading.Thread(target=time.sleep, args=(600,)).start()  # no daemon
        (folder / "up").touch()

    def step(self, action):
        self._step_count += 1
        if self._step_count >= self._fail_at:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


def _is_actor() -> bool:
    return Path("/proc/self/comm").read_text().startswith("headrace-actor")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Lets killed processes take their time on a busy machine."""
    monkeypatch.setattr(process_tree, "_DEATH_S", PATIENCE_S)


@pytest.fixture
def servers(tmp_path):
    """Return the servers that were started so far."""
    folder = tmp_path / "servers"
    folder.mkdir()

    def names() -> list[str]:
        return [path.name for path in folder.iterdir()]

    def found(count: int = 3) -> list[psutil.Process]:
        wait_until(lambda: "up" in names() and len(names()) > count, names)
        running = []
        for pid in set(names()) - {"up"}:
            with contextlib.suppress(psutil.NoSuchProcess):
                running.append(psutil.Process(int(pid)))
        return running

    found.folder = str(folder)
    yield found
    for path in folder.glob("[0-9]*"):
        if psutil.pid_exists(int(path.name)):
            os.kill(int(path.name), signal.SIGKILL)


@pytest.fixture
def config(tiny, servers):
    """Return the config of a run with one actor that starts servers."""

    def make(**settings) -> hr.Config:
        kwargs = {"folder": servers.folder, **settings.pop("env_kwargs", {})}
        one = {"num_actors": 1, "envs_per_actor": 1, "engine": "sync", "total_steps": 10**6}
        return tiny(env=ServerEnv, env_kwargs=kwargs, batch_size=8, **(one | settings))

    return make


def test_what_environments_start_ends_with_the_run(config, servers, gone):
    with hr.Trainer(config(algo=hr.A2C(), total_steps=16), notify=lambda text: None) as trainer:
        list(trainer)
    assert gone(servers()) == []


def test_what_environments_start_ends_with_a_killed_actor(config, servers, gone):
    said: list[str] = []
    with hr.Trainer(config(algo=hr.A2C()), notify=said.append) as trainer:
        first: list[psutil.Process] = []
        for result in trainer:
            if not first:
                first = servers()
                os.kill(trainer.source.pids()[0], signal.SIGKILL)
            if result.restarts:
                assert gone(first, timeout_s=0.0) == []
                servers(6)  # the second actor has started its own
                trainer.stop()
    assert len(first) == 3
    assert sum("doctor" not in line for line in said) == 1
    assert gone(servers(6), timeout_s=0.0) == []


def test_an_environment_that_raises_while_its_threads_live_is_noticed(config, servers, gone):
    settings = {"env_kwargs": {"fail_at": 12}, "max_restarts": 0, "actor_timeout_s": 1000.0}
    with hr.Trainer(config(algo=hr.A2C(), **settings), notify=lambda text: None) as trainer:
        with pytest.raises(ActorFailed, match="the simulator is gone"):
            list(trainer)
        assert gone(servers(), timeout_s=0.0) == []


SCRIPT = """
import headrace as hr
from tests.actors.test_leftovers import ServerEnv

hr.train(
    ServerEnv, hr.A2C(), num_actors=1, envs_per_actor=1, fragment_length=8, engine="sync",
    env_kwargs={{"folder": {folder!r}}}, total_steps=10**9, run_dir="run",
)
"""


def test_what_environments_start_ends_with_a_killed_trainer(start, servers, gone, monkeypatch):
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ["PYTHONPATH"]]))
    script = start("-c", SCRIPT.format(folder=servers.folder))
    family = script.family() + servers()
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert gone(family) == []


# -- the fork server's socket --------------------------------------------------------------------

STARTING = """
import os, signal, tempfile, threading
from multiprocessing import forkserver
from headrace.processes import Child, start_fork_server

def kill():
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)

os.mkdir("temporary")
tempfile.tempdir = os.path.abspath("temporary")
start_fork_server("headrace.actors.actor")
print("WHILE IT STARTS", os.listdir("temporary"), flush=True)
kill()
threading.Timer(0.2, kill).start()  # while the process waits for the next one
child = Child("headrace-test", print)
print("STARTED", child.exit_code(), os.listdir("temporary"), flush=True)
"""


CHILDLESS = """
import subprocess, sys, time
from headrace.actors.fleet import start_fork_server
from headrace.processes.fork_server import marked

start_fork_server()
with marked():
    one = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("STARTED", one.pid, "", flush=True)
time.sleep(600)
"""


def test_what_is_marked_ends_with_a_killed_process_that_has_no_child(start, gone):
    script = start("-c", CHILDLESS)
    script.wait_for(" \n")
    marked = psutil.Process(int(script.output.split()[1]))
    os.kill(script.process.pid, signal.SIGKILL)
    assert gone([marked]) == []


def test_a_killed_fork_server_leaves_no_socket_at_any_time_and_is_replaced(start):
    script = start("-c", STARTING)
    assert script.wait() == 0, script.output
    assert "WHILE IT STARTS []" in script.output
    assert "STARTED 0 []" in script.output


def test_what_is_stopped_is_killed_before_what_could_kill_it(stop, monkeypatch):
    """If two processes end the same tree at once, one may be killed halfway."""
    order: list[int] = []
    with contextlib.ExitStack() as stack:
        sleepers = []
        for _ in range(6):
            env = os.environ | {MARK: "/order/child"}
            sleepers.append(stack.enter_context(subprocess.Popen(["sleep", "60"], env=env)))
            stack.callback(sleepers[-1].kill)
        stop([psutil.Process(one.pid) for one in sleepers[1::2]])
        kill = os.kill
        monkeypatch.setattr(os, "kill", lambda pid, number: (order.append(pid), kill(pid, number)))
        kill_descendants([os.getpid()], ["/order"])
        monkeypatch.undo()
    assert sorted(order[:3]) == sorted(one.pid for one in sleepers[1::2])
    assert sorted(order) == sorted(one.pid for one in sleepers)


@contextlib.contextmanager
def marked(mark: str, command: list[str] = SLEEP):
    with subprocess.Popen(
        command, env=os.environ | {MARK: mark}, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def test_what_is_killed_has_ended_afterwards(monkeypatch):
    """A successor may need its port, and a signal may take a while."""
    kill = os.kill

    def late(pid: int, number: int) -> None:
        threading.Timer(0.3, kill, (pid, number)).start()

    with marked("/late/child") as one:
        monkeypatch.setattr(os, "kill", late)
        kill_descendants([os.getpid()], ["/late"])
        monkeypatch.undo()
        assert psutil.Process(one.pid).status() == psutil.STATUS_ZOMBIE


def test_what_starts_while_others_end_is_found(monkeypatch):
    kill = os.kill
    with contextlib.ExitStack() as stack:
        second: list[subprocess.Popen] = []

        def late(pid: int, number: int) -> None:
            def answer() -> None:
                if not second:
                    second.append(stack.enter_context(marked("/again/child")))
                kill(pid, number)

            threading.Timer(0.2, answer).start()

        stack.enter_context(marked("/again/child"))
        monkeypatch.setattr(os, "kill", late)
        kill_descendants([os.getpid()], ["/again"])
        monkeypatch.undo()
        assert psutil.Process(second[0].pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_has_ended_when_its_last_thread_has():
    """The first one may end before."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone"
    )
    with marked("", [sys.executable, "-S", "-c", code]) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "\n"
        process = psutil.Process(one.pid)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, process.status, 0.005)
        assert is_running(psutil.Process(one.pid))
        one.kill()
        wait_until(lambda: not is_running(process), pause_s=0.005)


def test_a_process_is_ending_from_when_its_files_are_closed():
    many = "[socket.socketpair() for _ in range(200)]"
    script = f"import os, socket, time\nkept = {many}\nos.write(1, b'up'); own = os.dup(1)\n"
    script += f"more = {many}\nos.close(1)\ntime.sleep(600)"
    command = [sys.executable, "-S", "-c", script]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as one:
            assert one.stdout is not None
            assert one.stdout.read(2) == b"up"
            assert not is_ending(one.pid)
            time.sleep(0.05)
            one.kill()
            assert one.stdout.read() == b""  # while others of its files are yet to be closed
            assert is_ending(one.pid)
    assert is_ending(one.pid)  # and it has ended


def test_a_child_whose_work_ends_for_its_parents_end_ends_the_family(monkeypatch):
    ended, mark = [], "/family/child"
    monkeypatch.setattr(children, "kill_descendants", lambda pids, marks: ended.append(marks))
    with subprocess.Popen(SLEEP) as parent:
        monkeypatch.setattr(children, "parent_process", lambda: parent)
        children.kill_own_descendants(mark)
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        children.kill_own_descendants(mark)
    children.kill_own_descendants(mark)
    assert ended == [[mark], [mark, "/family"], [mark, "/family"]]


def test_an_empty_mark_is_nobodys(monkeypatch):
    with subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: "/other/child"}) as other:
        kill_descendants([os.getpid()], ["", "/"])
        assert other.poll() is None
        other.kill()
