"""Processes of a study end at a timeout, on an interrupt, and with the study."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from patience import PATIENCE_S, wait_until

from headrace.studies.children import Children, ProcessKilled

SLEEPER = """
    import subprocess, sys, time

    def sleep(request):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        print("started", child.pid, flush=True)
        if "break" in request:
            sys.exit("it broke")
        time.sleep(100)
"""


@pytest.fixture
def later(monkeypatch):
    """Returns a function that makes it 1,000 s later for a study that waits for its process."""
    passed = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed))
    monkeypatch.setattr("headrace.studies.children.time", clock)
    return lambda: passed.append(1000.0)


@pytest.fixture
def sleeper(tmp_path, monkeypatch):
    """Return a file that a sleeping function writes to, next to a sleeping child."""
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "sleeper.txt"


def sleep(output, timeout_s, children=None, **request):
    function = importlib.import_module("sleeper").sleep
    return (children or Children()).call(function, request, timeout_s, output)


def started(output) -> list[psutil.Process]:
    """Return the child of the sleeper, and the sleeper if it still runs."""
    wait_until(lambda: output.exists() and output.read_text().endswith("\n"))
    child = psutil.Process(int(output.read_text().split()[1]))
    parent = child.parent()
    return [child] + ([parent] if parent is not None and parent.pid != os.getpid() else [])


def test_a_function_gives_its_result_and_leaves_its_output_behind(tmp_path, monkeypatch):
    code = "def greet(request):\n    print('hello', *request['names'])\n    return {'count': 2}\n"
    (tmp_path / "greets.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    greet = importlib.import_module("greets").greet
    request = {"names": ["you", "two"]}
    assert Children().call(greet, request, PATIENCE_S, tmp_path / "output.txt") == {"count": 2}
    assert (tmp_path / "output.txt").read_text() == "hello you two\n"
    before = ["bash", "-c", 'echo before; exec "$@"', "before"]
    found = Children().call(greet, request, PATIENCE_S, tmp_path / "output.txt", within=before)
    assert found == {"count": 2}
    assert (tmp_path / "output.txt").read_text() == "before\nhello you two\n"


def test_a_failure_shows_the_end_of_the_output_and_leaves_no_process(sleeper, gone):
    with pytest.raises(RuntimeError, match=r"(?s)sleeper.sleep ended with code 1.*it broke"):
        sleep(sleeper, PATIENCE_S, **{"break": True})
    pid = int(sleeper.read_text().split()[1])
    assert not psutil.pid_exists(pid) or gone([psutil.Process(pid)]) == []


def test_a_command_is_asked_to_stop_before_it_is_killed(tmp_path, later):
    code = "trap 'echo stopping; exit 3' TERM; echo started; while true; do sleep 0.1; done"
    seen, output = [], tmp_path / "output.txt"

    def watch(pid: int) -> None:
        if output.read_text() == "started\n":
            later()
        seen.append(pid)

    limits = {"timeout_s": PATIENCE_S, "grace_s": 10_000.0}  # it may be late again
    ended = Children().run(["bash", "-c", code], output, watch=watch, **limits)
    assert (ended.code, ended.timed_out) == (3, True)
    assert ended.wall_s > 1000.0
    assert output.read_text().split() == ["started", "stopping"]
    assert len(set(seen)) == 1


def test_a_process_that_a_signal_ended_is_told_from_one_that_failed(tmp_path):
    for code, kind in (
        (f"os.kill(os.getpid(), {signal.SIGKILL})", ProcessKilled),
        ("1 / 0", RuntimeError),
    ):
        command = [sys.executable, "-c", f"import os; {code}"]
        ended = Children().run(command, tmp_path / "log", PATIENCE_S)
        assert type(ended.error("it")) is kind


def test_after_its_time_a_module_is_killed_with_what_it_started(sleeper, gone, later):
    found = []

    def watch() -> None:
        found.extend(started(sleeper))
        later()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(RuntimeError, match=r"took longer than 1\d\d\d s"):
        sleep(sleeper, 2 * PATIENCE_S)
    watcher.join()
    assert len(found) == 2
    assert gone(found) == []


def test_ending_kills_what_runs_and_starts_nothing_more(sleeper, gone):
    children, errors = Children(), []

    def run():
        try:
            sleep(sleeper, 60, children)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    found = started(sleeper)
    children.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert "code -9" in errors[0]
    assert gone(found) == []
    with pytest.raises(RuntimeError, match="interrupted"):
        sleep(sleeper, 60, children)


STUDY = """
    import sys
    from pathlib import Path
    import sleeper
    from headrace.studies.machine import wide_console
    from headrace.studies.run_table import Study

    def measure(case, children):
        children.call(sleeper.sleep, case, 60, Path("sleeper.txt"))
        return {"score": 1}

    study = Study(Path("study"), ("seed", "score"))
    study.run([{"seed": 0}, {"seed": 1}], measure, wide_console())
"""


def test_what_cannot_be_watched_is_not_left_running(tmp_path, monkeypatch):
    made, real = [], subprocess.Popen

    def popen(command, **how):
        if command[0] == "/bin/sh":
            raise OSError("no more processes")
        made.append(real(command, **how))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="no more processes"):
        Children().run(["sleep", "100"], tmp_path / "log", 60.0)
    assert made[0].returncode == -signal.SIGKILL


CALL = 'children.call(sleeper.sleep, case, 60, Path("sleeper.txt"))'
COMMAND = """children.run(
            [sys.executable, "-c", "import sleeper; sleeper.sleep({})"], Path("sleeper.txt"), 60
    )"""


@pytest.mark.parametrize("how", [CALL, COMMAND], ids=["function", "command"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_does_not_survive_an_interrupted_study(sleeper, start, gone, tmp_path, number, how):
    assert CALL in STUDY
    (tmp_path / "study.py").write_text(textwrap.dedent(STUDY.replace(CALL, how)))
    script = start("study.py")
    found = started(sleeper)
    os.kill(script.process.pid, number)
    assert script.wait() != 0
    assert gone(found) == []
