"""Signals of a process that a launcher shields from them, and of what it starts."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from headrace.process.signals import let_children_hear

def work():
    wait_s = 20.0 if "heard" in sys.argv else 0.5
    if "heard" in sys.argv:
        let_children_hear()
    shell = subprocess.Popen(["sleep", "60"])
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    os.kill(os.getpid(), signal.SIGTERM)
    shell.terminate()
    fork.terminate()
    fork.join(wait_s)
    try:
        shell.wait(wait_s)
    except subprocess.TimeoutExpired:
        pass
    print("ended:", shell.poll(), fork.exitcode, flush=True)
    shell.kill()
    fork.kill()

thread = threading.Thread(target=work)  # as an actor of Ray's may be
thread.start()
thread.join()
"""


@pytest.mark.parametrize(("words", "ends"), [([], "None None"), (["heard"], "-15 -15")])
def test_a_shielded_process_outlasts_sigterm_and_can_end_what_it_starts(words, ends):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (done.returncode, done.stdout) == (0, f"ended: {ends}\n"), done.stderr
