"""The fork server as a fork of the command's process is what a program of its own would be."""

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

from headrace.processes.process_tree import MARK

ROOT = Path(__file__).parents[2]
FACTS = """
import json, os, signal, sys

held = open(sys.executable)
signal.signal(signal.SIGTERM, lambda *_: None)
print("ONCE", end=" ")

from multiprocessing import forkserver
from headrace.processes import Child, fork_server_from_here
from tests.actors.test_forked import tell, torch_takes_no_time

def ask():
    child = Child("headrace-test", tell, daemon=False)
    assert child.pipe.poll(60)
    told = child.pipe.recv()
    assert child.exit_code(60) == 0  # or it takes the end of its Child for that of its parent
    return told

fork_server_from_here("torch")
server = forkserver._forkserver._forkserver_pid
facts = {"torch": id(sys.modules["torch"]), "forked": ask()}
with open(f"/proc/{server}/comm") as file:
    facts["server"] = file.read().strip()
numbers = os.listdir(f"/proc/{server}/fd")
facts["files"] = [os.readlink(f"/proc/{server}/fd/{n}") for n in numbers if int(n) > 2]
os.kill(server, signal.SIGTERM)
os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
torch_takes_no_time()
facts["anew"] = ask()
print(json.dumps(facts), flush=True)
"""
LAST = """
import atexit, os

atexit.register(os.write, 1, b"AT EXIT ")
from headrace.processes import fork_server_from_here
fork_server_from_here("headrace.errors")
"""
FAMILY = """
import time
from multiprocessing import forkserver
from headrace.processes import Child, fork_server_from_here
from tests.actors.test_forked import wait

fork_server_from_here("headrace.actors.actor")
children = [Child("headrace-test", wait) for _ in range(2)]
assert all(child.pipe.poll(60) for child in children)
print(forkserver._forkserver._forkserver_pid, *[child.pid for child in children], flush=True)
time.sleep(600)
"""


def tell(pipe) -> None:
    """What a child of the fork server is, and whether it can have one of its own."""
    from headrace.processes import Child

    facts = {"torch": id(sys.modules.get("torch")), "environ": _begun_with("self")}
    torch_takes_no_time()
    own = Child("headrace-own", nothing)
    pipe.send(facts | {"own": own.exit_code(60.0)})


def torch_takes_no_time() -> None:
    """Let fork servers that are yet to be started find another torch, see the fixture ``quick``."""
    if folder := os.environ.get("QUICK"):
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder


def nothing(pipe) -> None:
    """End at once."""


def wait(pipe) -> None:
    """Say so, and stay."""
    pipe.send("up")
    time.sleep(600)


def idle(pipe) -> None:
    """Say so, and wait for the end of the head."""
    pipe.send("up")
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.recv()


def _begun_with(pid: object) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")


def run(script: str, **environ: str) -> dict:
    """What the script found, in a Python of its own that has imported nothing."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ONCE") == 1, done.stdout
    return json.loads(done.stdout[done.stdout.index("{") :].splitlines()[0])


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> str:
    """Where programs find a torch that takes no time to import, for those that need nothing of it.

    The head has the real one, and what is forked from it.
    """
    folder = tmp_path_factory.mktemp("quick")
    (folder / "torch.py").write_text("def set_num_threads(number):\n    pass\n")
    return str(folder)


@pytest.fixture(scope="module")
def facts(quick) -> dict:
    return run(FACTS, HOME="/nowhere", QUICK=quick, FIRST="1", LONG=500 * "x", LAST="2")


def test_the_commands_actors_share_what_it_has_imported(facts):
    assert facts["forked"]["torch"] == facts["torch"]
    assert facts["server"] == "forkserver"


def test_a_forked_server_holds_no_files_of_the_process_that_it_was(facts):
    kinds = {name.partition(":")[0] for name in facts["files"]}
    assert kinds <= {"/dev/null", "anon_inode", "pipe", "socket"}


def test_a_forked_server_does_at_its_end_nothing_that_the_other_process_will_do():
    command = [sys.executable, "-c", LAST]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).stdout == b"AT EXIT "


def test_what_a_forked_server_starts_is_marked_and_can_start_others(facts):
    mark, *others = facts["forked"]["environ"]
    assert mark.startswith(f"{MARK}=/")
    assert {"FIRST=1", "LAST=2", "HOME=/nowhere"} <= set(others)
    assert facts["forked"]["own"] == 0


def test_a_forked_server_that_was_ended_is_replaced_by_one_of_the_standard_library(facts):
    assert facts["anew"]["torch"] != facts["torch"]
    assert facts["anew"]["own"] == 0


@pytest.mark.slow
def test_where_there_is_no_room_for_the_mark_the_server_is_a_program():
    facts = run(FACTS, A="1")
    assert facts["forked"]["torch"] != facts["torch"]
    assert any(one.startswith(f"{MARK}=/") for one in facts["forked"]["environ"])


@pytest.mark.parametrize("ends", ["first", "server"])
def test_of_a_family_that_was_forked_one_process_that_runs_ends_the_others(stop, gone, ends):
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as head:
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


def test_a_child_whose_work_ends_with_the_head_ends_the_others(stop, gone):
    unwatched = "from headrace.processes import children as module\nmodule.die_with_parent = str\n"
    script = unwatched + FAMILY.replace("import wait", "import idle as wait")
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as head:
        family = [psutil.Process(int(pid)) for pid in head.stdout.readline().split()]
        server, _, second = family
        stop([server, second])
        os.kill(head.pid, signal.SIGKILL)
        assert gone(family) == []
