"""Output that can't be written neither stops a run nor shows a traceback."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from headrace.processes.output import GuardedStream, ends_with_its_reader, flush_output

TRAIN = (
    "train a2c --env-id CartPole-v1 --total-steps 128 --num-actors 1 --envs-per-actor 4 "
    "--fragment-length 8 --eval-episodes 2 --run-dir"
)


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")  # noqa: E731


@pytest.mark.parametrize("where", [">&-", "> /dev/full 2>&1"])
def test_a_run_continues_without_its_output(where, tmp_path):
    if "full" in where and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    command = f"exec {sys.executable} -m headrace {TRAIN} {tmp_path}/run {where}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


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
