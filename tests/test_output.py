"""Output that can't be written neither stops a run nor shows a traceback."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S
from warm import Program

from headrace.processes.output import (
    GuardedStream,
    ends_with_its_reader,
    flush_output,
    output_best_effort,
    print_line,
)

TRAIN = (
    "train a2c --env-id CartPole-v1 --total-steps 128 --num-actors 1 --envs-per-actor 4 "
    "--fragment-length 8 --eval-episodes 2 --run-dir"
)


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")  # noqa: E731


@pytest.fixture
def full():
    """Returns a file descriptor that can't be written to."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as file:
        yield file.fileno()


def test_a_run_continues_without_its_output(full, tmp_path):
    words = [sys.executable, "-m", "headrace", *TRAIN.split(), "run"]
    assert Program(words, tmp_path, full, shared=True).wait(120) == 0
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.full
def test_a_run_continues_with_a_closed_output(tmp_path):
    command = f"exec {sys.executable} -m headrace {TRAIN} {tmp_path}/run >&-"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


NOISY = """
import sys
import gymnasium
import headrace as hr

class Noisy(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        print("a step", flush=True)
        print("a step", file=sys.stderr, flush=True)
        return self.env.step(action)

if __name__ == "__main__":
    def tell(result):
        print(result, flush=True)

    sizes = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 8, "total_steps": 64}
    sizes |= {"eval_episodes": 2, "transport": sys.argv[1], "max_restarts": 0}
    hr.train(Noisy, hr.A2C(), [tell], run_dir="run", **sizes)
"""


@pytest.mark.parametrize("transport", ["shm", "serial"])
def test_environments_and_callbacks_that_print_do_not_stop_a_run(full, tmp_path, transport):
    (tmp_path / "noisy.py").write_text(NOISY)
    with (tmp_path / "output.txt").open("wb") as file:
        several = transport == "shm"  # whose actors print where their fork server does
        output = full if several else file.fileno()
        words = [sys.executable, "noisy.py", transport]
        Program(words, tmp_path, output, error=full, shared=not several).wait(120)
    assert (tmp_path / "run" / "summary.json").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["evaluation"]["episodes"] == 2


def test_an_error_message_that_can_not_be_written_keeps_the_exit_status():
    command = f"exec {sys.executable} -m headrace trian > /dev/full 2>&1"
    assert subprocess.run(["bash", "-c", command], timeout=PATIENCE_S, check=False).returncode == 2


def test_best_effort_output_ignores_a_full_disk_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Full())
    before = sys.stdout
    with output_best_effort(), output_best_effort():
        assert sys.stdout.write("text") == 4
        print("text", flush=True)
        assert sys.stdout.getvalue() == ""
    assert sys.stdout is before
    print_line("text")

    def closed(text):
        raise BrokenPipeError

    before.write = closed
    with output_best_effort(), pytest.raises(BrokenPipeError):
        print("text")
    with output_best_effort():
        sys.stdout = other = io.StringIO()
    assert sys.stdout is other


def test_a_failing_write_is_that_of_a_closed_pipe():
    output = GuardedStream(Full())
    with pytest.raises(BrokenPipeError, match="No space left"):
        output.write("text")
    with pytest.raises(BrokenPipeError, match="No space left"):
        output.flush()
    assert GuardedStream(None).write("text") == 4
    assert GuardedStream(sys.__stdout__).encoding == sys.__stdout__.encoding


def test_a_command_whose_output_can_not_be_written_says_so(monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", Full())
    assert ends_with_its_reader(lambda argv: print("text") or 0)([]) == 1
    assert capfd.readouterr().err == (
        "headrace: the output can't be written: No space left on device\n"
    )


def test_errors_of_files_are_not_taken_for_the_outputs(monkeypatch):
    def main(argv):
        raise OSError(errno.ENOSPC, "full", "checkpoint")

    with pytest.raises(OSError, match="checkpoint"):
        ends_with_its_reader(main)([])


def test_flushing_survives_streams_that_are_missing_or_full(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(flush=Full().flush))
    flush_output()
