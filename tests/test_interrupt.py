"""Ctrl-C and SIGKILL at any time: one line, no traceback, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

ROOT = str(Path(__file__).parents[1])
SIZES = ("--num-actors", "2", "--envs-per-actor", "2", "--fragment-length", "32")
TRAIN = (
    "-m",
    "headrace",
    "train",
    "ppo",
    "--env-id",
    "CartPole-v1",
    *SIZES,
    "--total-steps",
    "1000000000",
    "--run-dir",
    "run",
)


class Run:
    """Starts a real command with a separate temporary folder."""

    def __init__(self, folder: Path, num_learners: int) -> None:
        self.temporary, self._output = folder / "temporary", folder / "output.txt"
        self.temporary.mkdir(parents=True)
        self._memory = set(os.listdir("/dev/shm"))
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *TRAIN, "--num-learners", str(num_learners)],
                cwd=folder,
                env=os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": ROOT},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def left(self) -> set[str]:
        """Return files in the temporary folder and in shared memory, which others may share."""
        ours = {name for name in set(os.listdir("/dev/shm")) - self._memory if "headrace" in name}
        return ours | set(os.listdir(self.temporary))


@pytest.fixture
def run(tmp_path):
    """Starts a training run with several learners."""
    runs = []

    def start(num_learners: int) -> Run:
        runs.append(Run(tmp_path / str(len(runs)), num_learners))
        return runs[-1]

    yield start
    for one in runs:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(PATIENCE_S)


def interrupt(run: Run, gone, to_all: bool = True) -> None:
    family = run.family()
    (os.killpg if to_all else os.kill)(run.process.pid, signal.SIGINT)
    status = run.process.wait(PATIENCE_S)
    text = run.output
    assert "Traceback" not in text, text
    assert "KeyboardInterrupt" not in text, text
    assert status == 130, text
    if "environment steps" not in text:  # it hasn't trained and saved
        assert text.splitlines()[-1] == "headrace: interrupted"
        assert text.count("interrupted") == 1
    assert gone(family) == []
    assert run.left() == set()


def kill(run: Run, gone) -> None:
    family = run.family()
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait(PATIENCE_S)
    assert gone(family) == []
    assert run.left() == set()


@pytest.mark.parametrize("end", [interrupt, pytest.param(kill, marks=pytest.mark.full)])
def test_a_run_that_is_ended_while_it_imports_leaves_nothing(run, gone, end):
    one = run(1)
    maps = Path(f"/proc/{one.process.pid}/maps")
    while "libtorch" not in maps.read_text():
        assert one.process.poll() is None, one.output
        time.sleep(0.01)
    end(one, gone)


@pytest.mark.full
@pytest.mark.parametrize("end", [interrupt, kill])
def test_several_learners_that_are_ended_while_they_start_leave_nothing(run, gone, end):
    two = run(2)
    two.wait_for("results in")
    end(two, gone)


@pytest.mark.full
@pytest.mark.parametrize("end", [interrupt, kill])
@pytest.mark.parametrize("num_learners", [1, 2])
@pytest.mark.parametrize("part", range(12))
def test_a_run_that_is_ended_at_any_instant_leaves_nothing(run, gone, part, num_learners, end):
    one = run(num_learners)
    time.sleep(0.3 + part * 0.7)
    end(one, gone)


@pytest.mark.full
@pytest.mark.parametrize("num_learners", [1, 2])
def test_a_run_that_is_interrupted_while_it_trains_ends_well(run, gone, num_learners):
    one = run(num_learners)
    one.wait_for("steps/s")
    interrupt(one, gone, to_all=False)
