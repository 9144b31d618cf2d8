"""Python programs that start in milliseconds, forked from a process that has torch imported.

    pytest ──► multiprocessing's fork server (imports what programs import) ──► a program

A program differs from a fresh ``python`` only by the modules that are already imported. It has a
separate session, folder, environment, ``__main__``, output and exit status. It handles Ctrl-C like
a program in a terminal, even if the tests were started with SIGINT ignored.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import current_process, forkserver, get_context, set_start_method
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace.evaluating import run_end
from headrace.processes.fork_server import main_hidden
from headrace.studies import statistics

IMPORTED = (
    *("warm", "headrace.cluster_env.worker", "headrace.cli", "headrace.rundir.plot", "rich.table"),
    *("gymnasium.envs.classic_control", "matplotlib.pyplot", "torch.utils.tensorboard", "tyro"),
    # Modules of tests that children need, for example for an environment.
    *("pytest", "tensorboard.backend.event_processing.event_accumulator", "worlds", "tests.worlds"),
    *("headrace.api", "headrace.cli.training", "headrace.trainer.trainer", "headrace.launch"),
)
"""Modules that take a tenth of a second or more to import."""


UNDRAWN = "HEADRACE_TESTS_UNDRAWN"
"""Environment variable under which programs draw nothing when a run ends."""
DRAWS = ("plot", "_report")
"""Functions that draw, in :mod:`headrace.evaluating.run_end`."""
FEW_REPEATS = 100
"""Bootstraps of intervals that no test checks."""
ALL = """
import json, sys
from headrace.cli import main
for command in json.loads(sys.argv[1]):
    print("$ headrace", *command)
    if status := main(command):
        sys.exit(status)
"""


def share_fork_server() -> None:
    """Let the fork server of the tests import what programs need, and share it with descendants.

    Otherwise each learner would start a fork server for its actors, which imports torch again.
    Programs start one, unless they are ``shared``.
    """
    server, preload = forkserver._forkserver, forkserver.set_forkserver_preload
    forkserver.set_forkserver_preload = lambda modules: preload([*modules, *IMPORTED])
    preload(list(IMPORTED))
    forkserver.ensure_running = server.ensure_running = _ensure_running


def _ensure_running() -> None:
    server = forkserver._forkserver
    in_child = server._forkserver_pid is None and server._forkserver_alive_fd is not None
    if not in_child:
        # Descendants find it by the name of its socket.
        getattr(current_process(), "_config", {}).pop("tempdir", None)
        forkserver.ForkServer.ensure_running(server)


share_fork_server()  # here, and in the fork server, which imports this module
# Data written by a dead process survives; syncing to disk only matters for a dead machine, and
# takes half the time of a short run.
os.fsync = lambda descriptor: None


def _share_no_more() -> None:
    server = forkserver.ForkServer()
    forkserver._forkserver = server
    for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
        setattr(forkserver, name, getattr(server, name))
    forkserver.get_inherited_fds = server.get_inherited_fds


def run(folder: Path, *arguments: str, timeout_s: float = 250.0) -> str:
    """Run ``python *arguments`` in a folder, and check that it succeeds.

    Processes that it starts are forked from the same process.

    Returns:
        its whole output.
    """
    output = folder / "output.txt"
    with output.open("w") as file:
        program = Program([sys.executable, *arguments], folder, file.fileno(), shared=True)
    try:
        status = program.wait(timeout_s)
    finally:
        program.kill()
    text = output.read_text(encoding="utf-8")
    output.unlink()
    assert status == 0, f"{arguments}\n{text}"
    return text


def headrace(folder: Path, *commands: Sequence[str]) -> str:
    """Run commands of headrace in a folder, in turn, in one program; see :func:`run`."""
    return run(folder, "-c", ALL, json.dumps(commands))


STARTED = subprocess.Popen  # as Popen is replaced by this class


def popen(command, *, stdout, stderr=None, stdin=None, start_new_session=True) -> Any:
    """Replace ``subprocess.Popen`` for ``python …``; see the fixture ``forked_children``."""
    if command[0] != sys.executable:
        files = {"stdout": stdout, "stderr": stderr, "stdin": stdin}
        return STARTED(command, **files, start_new_session=start_new_session)
    error = None if stderr == subprocess.STDOUT else stderr
    read, write = os.pipe() if stdin == subprocess.PIPE else (None, None)
    files = [file if file is None else _number(file) for file in (stdout, error)]
    program = Program(command, Path.cwd(), files[0], error=files[1], stdin=read, shared=True)
    if read is not None:
        os.close(read)
        program.stdin = os.fdopen(write, "wb")
    return program


def _number(file) -> int:
    return file if isinstance(file, int) else file.fileno()


class Program:
    """A running program with the methods of ``subprocess.Popen`` that tests call.

    Args:
        command: the interpreter, which is ignored, and its arguments.
        output: a file descriptor for the output; error: one for errors, if separate.
        stdin: a file descriptor of the input.
        shared: use the fork server of the tests instead of starting one.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        output: int,
        *,
        error: int | None = None,
        stdin: int | None = None,
        shared: bool = False,
    ) -> None:
        files = [stdin, output, output if error is None else error]
        passed = [None if file is None else Connection(os.dup(file)) for file in files]
        self._process = get_context("forkserver").Process(
            target=_live,
            args=(list(command[1:]), str(folder), dict(os.environ), passed, shared),
        )
        with main_hidden():
            self._process.start()
        self.stdin = None
        for one in filter(None, passed):
            one.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _live(arguments, folder, variables, files, shared) -> None:
    """Become the requested program."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # the fork server has it blocked
    set_start_method(None, force=True)  # the fork server has set its own
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    for number, file in enumerate(files):
        if file is not None:
            os.dup2(file.fileno(), number)
            file.close()
    if files[0] is not None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if UNDRAWN in variables:
        for name in DRAWS:
            setattr(run_end, name, lambda *_: None)
        statistics.REPEATS = FEW_REPEATS
    if not shared:
        _share_no_more()
    sys.exit(_status_of(lambda: _run(arguments)))


def _run(arguments: list[str]) -> None:
    """Run ``python *arguments``."""
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    what, *rest = arguments
    first = {"-c": "", "-m": os.getcwd()}.get(what, str(Path(what).resolve().parent))
    sys.path[:] = [first, *named, *installed]
    importlib.invalidate_caches()
    if what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = arguments
        runpy.run_path(what, run_name="__main__")


def _status_of(program: Callable[[], None]) -> int:
    """Run the program. Return its exit status, after the interpreter's work at exit."""
    try:
        program()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    return status
