"""Fixtures of whole runs: tiny settings, training, and scripts in separate processes."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import os
import signal
import stat
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

# Tests share the cores with their child processes; more threads of torch or BLAS would only spin.
os.environ["OMP_NUM_THREADS"] = "1"
# By default Ray starts a Python process per core of a node, each of which takes a second.
os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112

import cloudpickle
import psutil
import pytest
import torch
from patience import PATIENCE_S, wait_until
from warm import DRAWS, FEW_REPEATS, UNDRAWN, Program, popen

import headrace as hr
from headrace.actors import rollout_source
from headrace.evaluating import run_end
from headrace.ray.connection import RayCluster
from tests import budget

REQUIRED = os.environ.get("HEADRACE_CLUSTER_TESTS") == "required"
"""Run only the tests of clusters, and all of them."""
# Scripts that tests start import the environments of tests/worlds as tests do (see pyproject).
_PATHS = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))


def pytest_configure(config) -> None:
    if not hasattr(config, "workerinput"):  # workers only run what the main process schedules
        config.pluginmanager.register(budget.Seconds(), "seconds-by-file")
    else:
        os.register_at_fork(after_in_child=partial(_close, _pipes()))


def _pipes() -> list[int]:
    """Return the pipes to the main process, which waits for their end if this worker crashes."""
    pipes = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the folder itself
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                pipes.append(int(name))
    return pipes


def _close(descriptors: list[int]) -> None:
    while descriptors:  # the child's children must not close what it opens
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())


def pytest_sessionstart(session) -> None:
    gc.disable()  # imported modules and collected tests are permanent


def pytest_collection_finish(session) -> None:
    """Exclude tests and modules from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items) -> None:
    """With several workers, start with the files that take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -budget.budget_s(item.nodeid.split("::")[0][len("tests/") :]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Fail skipped tests of clusters with their reason if these tests are required."""
    report = (yield).get_result()
    if REQUIRED and report.skipped and any(map(item.get_closest_marker, ("cluster", "ray"))):
        report.outcome = "failed"
        report.longrepr = f"HEADRACE_CLUSTER_TESTS=required, but it was skipped: {report.longrepr}"


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory):
    """Signs runs with a temporary key instead of the user's."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True)
def one_thread():
    """Limits torch to one thread, as tests run next to their actor processes."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def slow_starts(monkeypatch):
    """Leaves out the line about actors that start slowly, as tests count lines."""
    monkeypatch.setattr(rollout_source, "_PATIENT_S", math.inf)


@pytest.fixture(autouse=True)
def nothing_drawn(request, monkeypatch):
    """Disables plots and reports of runs, a second each, except in tests marked ``draws``.

    Plots of studies skip the layout of panels, and their intervals use few bootstraps, as both are
    slow.
    """
    if request.node.get_closest_marker("draws") is None:
        monkeypatch.setenv(UNDRAWN, "1")
        for name in DRAWS:
            monkeypatch.setattr(run_end, name, lambda *_: None)
        if drawing := sys.modules.get("headrace.studies.plotting"):
            monkeypatch.setattr(drawing, "LAYOUT", None)
            monkeypatch.setattr(drawing.statistics, "REPEATS", FEW_REPEATS)


# Tests of other modules look for leftover processes, but not for those of clusters.
@pytest.fixture(scope="session" if REQUIRED else "module")
def ray_cluster():
    """Starts one Ray cluster on this machine for all tests, with room for 6 workers."""
    if importlib.util.find_spec("ray") is None:  # importing it at the top would be too early
        pytest.skip("needs Ray")
    cluster = RayCluster(None, "a test", 6)
    yield cluster
    cluster.close()


@pytest.fixture(autouse=True)
def several_nodes(request, monkeypatch):
    """Removes the environment variables of a one-node cluster from child processes of the test."""
    if request.node.get_closest_marker("cluster"):
        monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)


@pytest.fixture
def only_here(monkeypatch):
    """Pickles what ``build`` makes of a function whose module other processes can't import."""

    def pickled(build) -> bytes:
        module = types.ModuleType("only_here")
        exec("def make():\n    pass", module.__dict__)
        monkeypatch.setitem(sys.modules, "only_here", module)
        found = cloudpickle.dumps(build(module.make))
        monkeypatch.delitem(sys.modules, "only_here")  # as on another machine
        return found

    return pickled


@pytest.fixture
def tiny(tmp_path):
    """Creates the Config of a run that takes a second."""

    def make(**settings) -> hr.Config:
        defaults = {
            "env": "CartPole-v1",
            "algo": hr.PPO(epochs=2, minibatches=2),
            "num_actors": 1,
            "envs_per_actor": 8,
            "fragment_length": 8,
            "learner_threads": 1,
            "total_steps": 640,
            "eval_episodes": 0,
            "log_interval_s": 0.0,  # a result after every update
            "run_dir": str(tmp_path / "run"),
        }
        return hr.Config(**(defaults | settings))

    return make


@pytest.fixture
def finish():
    """Trains to the end, or to the update after which ``until(result)`` is true."""

    def run(config, until=lambda result: False) -> tuple[hr.Trainer, list[hr.Result]]:
        results = []
        trainer = hr.Trainer(config, notify=lambda text: None)
        with contextlib.closing(trainer):  # without plots, which take longer
            for result in trainer:
                results.append(result)
                if until(result):
                    trainer.stop()
        return trainer, results

    return run


class Script:
    """A Python program in a separate session, with its output in a file."""

    def __init__(self, folder: Path, arguments: list[str], **how: bool) -> None:
        self._output = folder / "output.txt"
        with self._output.open("w") as file:
            self.process = Program([sys.executable, *arguments], folder, file.fileno(), **how)

    @property
    def output(self) -> str:
        """Return the output so far."""
        return self._output.read_text()

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``words`` were printed."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            assert words in self.output or not ended, f"it ended early:\n{self.output}"
            return words in self.output

        wait_until(printed, lambda: f"{words!r} never came:\n{self.output}", 0.02, timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the program's end. Return its exit status."""
        return self.process.wait(timeout_s)

    def family(self) -> list[psutil.Process]:
        """Return the process and its descendants."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def named(self, *starts: str) -> list[psutil.Process]:
        """Return its processes whose name or program starts with one of these texts."""
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.Error):  # it has just ended
                program = Path((process.cmdline() or [""])[0]).name
                if process.name().startswith(starts) or program.startswith(starts):
                    found.append(process)
        return found

    def end(self) -> None:
        """Kill what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path):
    """Starts ``python *arguments`` in ``tmp_path``; ``shared``: see `Program`."""
    scripts = []

    def run(*arguments: str, **how: bool) -> Script:
        scripts.append(Script(tmp_path, list(arguments), **how))
        return scripts[-1]

    yield run
    for script in scripts:
        script.end()


@pytest.fixture
def forked_children(monkeypatch):
    """Lets child processes ``python …`` fork from one that has torch; see `tests/warm.py`."""
    monkeypatch.setattr(subprocess, "Popen", popen)


@pytest.fixture
def gone():
    """Waits until processes have ended (or are zombies), and returns whether they have."""

    def check(
        processes: list[psutil.Process], timeout_s: float = PATIENCE_S
    ) -> list[psutil.Process]:
        deadline = time.monotonic() + timeout_s
        while True:
            alive = [p for p in processes if _runs(p)]
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.05)

    return check


@pytest.fixture
def stop():
    """Stops processes (SIGSTOP) and waits until none of them runs."""

    def running(processes: list[psutil.Process]) -> list[psutil.Process]:
        return [p for p in processes if p.status() != psutil.STATUS_STOPPED]

    def act(processes: list[psutil.Process]) -> None:
        for process in processes:
            process.suspend()
        wait_until(
            lambda: not running(processes), lambda: f"not stopped: {running(processes)}", 0.002
        )

    return act


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
