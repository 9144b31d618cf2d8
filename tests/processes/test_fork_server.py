"""Children of the fork server: what they inherit, and what happens when a process is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.processes import Child, end_children
from headrace.processes.process_tree import MARK
from tests.patience import PATIENCE_S, wait_until  # programs below import this module

ROOT = Path(__file__).parents[2]
FACTS = """
import json, os, signal, sys
from multiprocessing import forkserver
from headrace.processes import Child, start_fork_server
from tests.processes.test_fork_server import tell

def ask():
    child = Child("headrace-test", tell, daemon=False)
    assert child.pipe.poll(60)
    told = child.pipe.recv()
    assert child.exit_code(60) == 0  # or it takes the end of its Child for that of its parent
    return told

start_fork_server("torch")
server = forkserver._forkserver._forkserver_pid
facts = {"first": ask()}
os.kill(server, signal.SIGTERM)
os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
os.environ["SET_LATER"] = "2"
facts["second"] = ask()
print(json.dumps(facts), flush=True)
"""
FAMILY = """
import time
from multiprocessing import forkserver
from headrace.processes import Child, start_fork_server
from tests.processes.test_fork_server import wait

start_fork_server("torch")
children = [Child("headrace-test", wait) for _ in range(2)]
assert all(child.pipe.poll(60) for child in children)
print(forkserver._forkserver._forkserver_pid, *[child.pid for child in children], flush=True)
time.sleep(600)
"""


def tell(pipe) -> None:
    """Report this child's variables, and whether it can have a child."""
    own = Child("headrace-own", nothing)
    begun_with = Path("/proc/self/environ").read_text().rstrip("\0").split("\0")
    pipe.send({"own": own.exit_code(60.0), "begun_with": begun_with, "variables": {**os.environ}})


def nothing(pipe) -> None:
    """Exit at once."""


def wait(pipe) -> None:
    """Report the start, and sleep."""
    pipe.send("up")
    time.sleep(600)


def idle(pipe) -> None:
    """Report the start, and wait for the end of the head."""
    pipe.send("up")
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.recv()


def send_variable(name: str, pipe) -> None:
    """Send an environment variable."""
    pipe.send(os.environ.get(name))


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> dict[str, str]:
    """Return variables of programs that replace torch by a module that imports at once."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "torch.py").write_text("def set_num_threads(number):\n    pass\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.fixture(scope="module")
def facts(quick) -> dict:
    """Return the reports of two children of a program; the second has a new fork server."""
    command = [sys.executable, "-c", FACTS]
    environ = quick | {"FIRST": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_children_are_marked_for_everybody_and_can_start_others(facts):
    for told in facts.values():
        assert any(one.startswith(f"{MARK}=/") for one in told["begun_with"])
        assert told["variables"]["FIRST"] == "1"
        assert told["own"] == 0


def test_a_fork_server_that_was_ended_is_replaced(facts):
    assert "SET_LATER" not in facts["first"]["variables"]
    assert facts["second"]["variables"]["SET_LATER"] == "2"


@pytest.mark.parametrize("value", ["1", None])
def test_a_child_has_the_variables_of_its_parent_at_that_time(value, monkeypatch):
    before = Child("headrace-test", nothing)  # so that the fork server runs
    monkeypatch.setenv("HEADRACE_TEST_OF_VARIABLES", "0")
    if value is None:
        monkeypatch.delenv("HEADRACE_TEST_OF_VARIABLES")
    else:
        monkeypatch.setenv("HEADRACE_TEST_OF_VARIABLES", value)
    child = Child("headrace-test", send_variable, "HEADRACE_TEST_OF_VARIABLES")
    assert child.pipe.poll(PATIENCE_S)
    assert child.pipe.recv() == value
    end_children([before, child])


def test_a_child_of_a_killed_fork_server_is_known_to_run_and_can_be_killed():
    child = Child("headrace-test", wait)
    assert child.pipe.poll(PATIENCE_S)
    os.kill(psutil.Process(child.pid).ppid(), signal.SIGKILL)
    child.process.join(PATIENCE_S)  # multiprocessing takes it for ended
    assert child.process.exitcode == 255
    assert child.is_running
    assert child.exit_code(0.0) is None
    child.kill()
    assert not child.is_running
    assert child.exit_code(0.0) == 255
    again = Child("headrace-test", nothing)
    assert again.exit_code(PATIENCE_S) == 0


@pytest.mark.parametrize("ends", ["first", "server"])
def test_of_a_family_one_process_that_runs_ends_the_others(quick, stop, gone, ends):
    command = [sys.executable, "-c", FAMILY]
    how = {"cwd": ROOT, "env": quick, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **how) as head:
        names = ("server", "first", "second")
        pids = map(int, head.stdout.readline().split())
        family = dict(zip(names, map(psutil.Process, pids), strict=True))
        if ends == "server":  # which is the only one that sees the head's end
            stop([family["first"], family["second"]])
        else:
            stop([family["second"]])
            family["server"].kill()
        os.kill(head.pid, signal.SIGKILL)
        assert gone([*family.values()]) == []


def test_a_child_whose_work_ends_with_the_head_ends_the_others(quick, stop, gone):
    unwatched = "from headrace.processes import children as module\nmodule.die_with_parent = str\n"
    script = unwatched + FAMILY.replace("import wait", "import idle as wait")
    command = [sys.executable, "-c", script]
    how = {"cwd": ROOT, "env": quick, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **how) as head:
        family = [psutil.Process(int(pid)) for pid in head.stdout.readline().split()]
        server, _, second = family
        stop([server, second])
        os.kill(head.pid, signal.SIGKILL)
        assert gone(family) == []


FORK = """
import os
os.environ["HEADRACE_HEAD"] = str(os.getppid())
import gc
import sys
from headrace.processes import orphan_guard
assert not gc.isenabled()
if child := os.fork():
    _, status = os.waitpid(child, 0)
    print("status", os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit(3 if gc.isenabled() else 4)
"""


def test_forks_of_a_fork_server_collect_garbage_and_keep_their_exit_status():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "status 3\n", done.stderr


@pytest.mark.parametrize(
    "pid",
    ["forkserver._forkserver._forkserver_pid", "resource_tracker._resource_tracker._pid"],
    ids=["fork-server", "resource-tracker"],
)
def test_a_stopped_server_ends_with_its_parent(pid):
    """A stopped process can't notice that its parent has ended."""
    script = (
        "import os, signal; from multiprocessing import forkserver, resource_tracker; "
        "from headrace.processes import start_fork_server; start_fork_server('json'); "
        f"pid = {pid}; os.kill(pid, signal.SIGSTOP); print(pid)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(int(ran.stdout))
        wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE, server.status)
