"""What a study starts ends: at its time-out, when it is interrupted, and when the study is gone."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time

import psutil
import pytest

from headrace.studies.children import Processes

SLEEPER = """
    import subprocess, sys, time
    from headrace.studies.children import end_with_starter
    end_with_starter()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    print("started", child.pid, flush=True)
    if len(sys.argv) > 1:
        sys.exit("it broke")
    time.sleep(100)
"""


@pytest.fixture
def sleeper(tmp_path, monkeypatch):
    """A module that sleeps beside a child that sleeps; the file that it writes to."""
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sleeper.txt"


def started(output) -> list[psutil.Process]:
    """The child of the sleeper, and the sleeper if it still runs."""
    deadline = time.monotonic() + 20
    while not (output.exists() and "started" in output.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = psutil.Process(int(output.read_text().split()[1]))
    parent = child.parent()
    return [child] + ([parent] if parent is not None and parent.pid != os.getpid() else [])


def test_a_module_that_ends_well_leaves_its_output_behind(tmp_path, monkeypatch):
    (tmp_path / "greets.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    Processes().run("greets", ["you", "two"], tmp_path / "output.txt", 20)
    assert (tmp_path / "output.txt").read_text() == "hello you two\n"


def test_a_failure_shows_the_end_of_the_output_and_leaves_no_process(sleeper, gone):
    with pytest.raises(RuntimeError, match=r"(?s)sleeper x ended with code 1.*it broke"):
        Processes().run("sleeper", ["x"], sleeper, 20)
    pid = int(sleeper.read_text().split()[1])
    assert not psutil.pid_exists(pid) or gone([psutil.Process(pid)]) == []


def test_after_its_time_a_module_is_killed_with_what_it_started(sleeper, gone):
    found = []
    watcher = threading.Thread(target=lambda: found.extend(started(sleeper)))
    watcher.start()
    with pytest.raises(RuntimeError, match="took longer than 3 s"):
        Processes().run("sleeper", [], sleeper, 3)
    watcher.join()
    assert len(found) == 2
    assert gone(found) == []


def test_ending_kills_what_runs_and_starts_nothing_more(sleeper, gone):
    processes, errors = Processes(), []

    def run():
        try:
            processes.run("sleeper", [], sleeper, 60)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    found = started(sleeper)
    processes.end()
    thread.join(10)
    assert not thread.is_alive()
    assert "code -9" in errors[0]
    assert gone(found) == []
    with pytest.raises(RuntimeError, match="interrupted"):
        processes.run("sleeper", [], sleeper, 60)


STUDY = """
    import sys
    from pathlib import Path
    from headrace.studies.machine import wide_console
    from headrace.studies.children import Processes
    from headrace.studies.table import Study

    processes = Processes()

    def measure(case):
        processes.run("sleeper", [], Path("sleeper.txt"), 60)
        return {"score": 1}

    study = Study(Path("study"), ("seed", "score"))
    study.run([{"seed": 0}, {"seed": 1}], measure, wide_console(), cancel=processes.end)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_does_not_survive_an_interrupted_study(sleeper, start, gone, tmp_path, number):
    (tmp_path / "study.py").write_text(textwrap.dedent(STUDY))
    script = start("study.py")
    found = started(sleeper)
    os.kill(script.process.pid, number)
    assert script.wait(20) != 0
    assert gone(found) == []
