"""Signals of a process whose launcher ignores them, and of its children."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from patience import PATIENCE_S

import headrace as hr
from headrace.evaluating import run_end
from headrace.processes import signals, signals_held, stop_signals
from headrace.processes.ctrl_c import ends_in_one_line

PROGRAM = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from headrace.processes.signals import unblock_signals_for_children

def work():
    wait_s = 20.0 if "heard" in sys.argv else 0.5
    if "heard" in sys.argv:
        unblock_signals_for_children()
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_hears_signals_that_were_ignored_when_it_began(number):
    stopped = []
    before = signal.signal(number, signal.SIG_IGN)  # as a shell does in the background
    try:
        with stop_signals(lambda: stopped.append(True)):
            os.kill(os.getpid(), number)
            assert stopped == [True]
            if number == signal.SIGINT:
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    "handled", [contextlib.nullcontext, lambda: stop_signals(bool), signals_held]
)
def test_a_process_that_is_forked_during_a_run_can_be_terminated(handled):
    with handled():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(PATIENCE_S)
        code = child.exitcode
        child.kill()
    assert code == -signal.SIGTERM


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(stop=lambda: None):
    """Return a generator that handles signals until it is closed."""
    with stop_signals(stop):
        yield


@pytest.fixture
def heard():
    """Handles signals by appending their numbers to a list, and checks that this is restored."""
    numbers = []
    note = lambda number, frame: numbers.append(number)  # noqa: E731
    outside = {number: signal.signal(number, note) for number in STOPS}
    try:
        yield numbers
        assert [signal.getsignal(number) for number in STOPS] == [note] * len(STOPS)
        assert signals._blocks() == []
    finally:
        signals._blocks().clear()
        for number, handler in outside.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS)
def test_runs_that_end_in_another_order_leave_no_handler(heard, number):
    first, second, third = (run(lambda i=i: heard.append(i)) for i in range(3))
    for one in (first, second, third):
        next(one)
    first.close()
    os.kill(os.getpid(), number)
    assert heard == [2, 1]
    third.close()
    second.close()
    os.kill(os.getpid(), number)
    assert heard == [2, 1, number]


def test_the_first_signal_stops_all_runs_and_the_second_interrupts(heard):
    stopped = []
    runs = [run(lambda i=i: stopped.append(i)) for i in range(3)]
    for one in runs:
        next(one)
    runs[1].close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == [2, 0]
    runs[2].close()
    os.kill(os.getpid(), signal.SIGTERM)  # schedulers send several
    assert (stopped, heard) == ([2, 0], [])
    runs[0].close()
    assert signals._blocks() == []


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5, 6])
def test_a_block_that_is_interrupted_as_it_begins_or_ends_leaves_no_handler(
    heard, monkeypatch, fails_at
):
    usual, calls = signal.signal, []

    def interrupted(number, handler):
        calls.append(number)
        if len(calls) == fails_at:
            raise KeyboardInterrupt
        return usual(number, handler)

    with stop_signals(bool):
        monkeypatch.setattr(signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt), signals_held():
            pass
        monkeypatch.undo()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_that_another_thread_ends_leaves_no_handler(heard):
    outer, inner = run(), run()
    next(outer), next(inner)

    def close():
        with pytest.raises(ValueError, match="main thread"):
            inner.close()

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    outer.close()


def test_a_handler_that_was_changed_between_two_runs_is_restored(heard):
    first = run()
    next(first)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so that the second run leaves it
    second = run()
    next(second)
    first.close()
    second.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_fork_restores_the_handlers_of_runs_that_end_in_it(heard, order):
    runs = [run(), run()]
    for one in runs:
        next(one)
    note = signals._blocks()[0].handlers[signal.SIGTERM]
    pid = os.fork()
    if pid == 0:
        kept = [signal.getsignal(signal.SIGTERM)]
        for i in order:
            runs[i].close()
            kept.append(signal.getsignal(signal.SIGTERM))
        restored = all(signal.getsignal(number) == note for number in STOPS)
        os._exit(0 if restored and kept == [note] * 3 and signals._blocks() == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for i in order:
        runs[i].close()


def test_a_signal_that_is_pending_when_a_run_begins_stops_it():
    stopped = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # not another thread
        with stop_signals(lambda: stopped.append(1)):
            assert stopped == [1]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_two_signals_that_are_pending_when_a_run_begins_stop_and_interrupt_it(ctrl_c):
    stopped, both = [], {signal.SIGHUP, signal.SIGINT}
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, both)
    try:
        for number in both:
            signal.pthread_kill(threading.get_ident(), number)
        with pytest.raises(KeyboardInterrupt), stop_signals(lambda: stopped.append(1)):
            pass
        assert stopped == [1]
        assert both <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGHUP, hang_up)


def test_a_signal_that_was_blocked_stays_unblocked_until_the_last_run_ends():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        first, second = run(), run()
        next(first), next(second)
        first.close()
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        second.close()
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_a_launcher_has_blocked_stop_a_run(number):
    stopped = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        with stop_signals(lambda: stopped.append(True)):
            os.kill(os.getpid(), number)
        assert stopped == [True]
        assert number in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def ctrl_c():
    """Handle SIGINT as in a terminal; programs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_not_blocked_in_a_command(ctrl_c):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ends_in_one_line(lambda argv: 0)([])
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost(tiny, ctrl_c, monkeypatch):
    """Python ignores exceptions in callbacks of weak references, which matplotlib uses."""

    def plot(runs):
        thing = type("Thing", (), {})()
        watched = weakref.ref(thing, lambda ref: os.kill(os.getpid(), signal.SIGINT))
        del thing
        assert watched() is None

    monkeypatch.setattr(run_end, "plot", plot)
    with pytest.raises(KeyboardInterrupt):
        hr.train(tiny(transport="serial", total_steps=64))


def test_a_run_that_ignored_ctrl_c_at_its_start_ends_in_one_line_too(capfd):
    @ends_in_one_line
    def main(argv):
        raise KeyboardInterrupt  # as a run without a checkpoint does

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main([]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == "headrace: interrupted\n"
