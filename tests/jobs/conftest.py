"""SLURM cluster of four nodes on this machine, one per session, and checks of its leftovers."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from warm import Program

SCRIPT = Path(__file__).with_name("slurm.sh")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")


def cannot() -> str:
    """Return why SLURM can't run here; "": it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "needs root, to start SLURM"


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


HEADRACE = """
import ctypes, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it ends with the tests
from headrace.cli import main
from headrace.jobs.kubernetes import following as rayjobs
from headrace.jobs.slurm import following as jobs
jobs._SELDOM_S = 1.0  # these clusters have no other users
rayjobs._LOOK_S = 0.5
sys.exit(main(sys.argv[1:]))"""


class Launch:
    """``headrace launch …`` in a separate process, with its output."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._file = folder / f"launch-{time.monotonic_ns()}.txt"
        words = [sys.executable, "-c", HEADRACE, "launch", *arguments]
        with self._file.open("w") as file:
            self.process = Program(words, folder, file.fileno(), shared=True)

    @property
    def output(self) -> str:
        return self._file.read_text()

    def wait_for(self, words: str, timeout_s: float = 300.0, count: int = 1) -> None:
        """Wait until ``words`` were printed this many times."""
        deadline = time.monotonic() + timeout_s
        while self.output.count(words) < count:
            assert self.process.poll() is None, f"it ended early:\n{self.output}"
            assert time.monotonic() < deadline, f"{words!r} never came:\n{self.output}"
            time.sleep(0.05)

    def wait(self, timeout_s: float = 300.0) -> int:
        """Return the exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it doesn't end:\n{self.output}") from None

    @property
    def job(self) -> str:
        """Return the id of the SLURM job."""
        self.wait_for("is submitted")
        return self.output.split("headrace: job ")[1].split()[0]


class Slurm:
    """The cluster, with helpers to query it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._before = folder, set(ray_folders())  # of runs that were killed

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    def queue(self) -> str:
        return self.ask("squeue", "-h")

    def processes(self, node: str = "", word: str = "", job: str = "") -> list[psutil.Process]:
        """Return processes of a job, on one node or any, with a word in the command line.

        Ray's agents clear most of their environment.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                name = variables.get("SLURMD_NODENAME", "")
                own = variables.get("SLURM_JOB_ID", "")
                there = name == node if node else name or own
                if there and job in ("", own) and (not word or word in process.cmdline()):
                    found.append(process)
        return found

    def left(self, timeout_s: float = 60.0) -> list[str]:
        """Return jobs, their processes and folders, some seconds after the last job."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = [*self.queue().splitlines(), *map(_shown, self.processes())]
            found += map(str, set(ray_folders()) - self._before)
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


def ray_folders() -> Iterator[Path]:
    """Return the states of the nodes."""
    return Path("/tmp").glob("headrace-[0-9]*-[0-9]*")


def _shown(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    return f"{process.pid}, which has ended"


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Slurm]:
    if why := cannot():
        pytest.skip(why)
    before = dict(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    os.environ |= {"PATH": _path(), "SLURM_PORT": str(random.randrange(20000, 30000, 10))}
    os.environ["SLURM_CONF"] = str(folder / "etc/slurm.conf")
    try:
        subprocess.run(["bash", SCRIPT, "up", folder], check=True, timeout=200)
        yield Slurm(folder)
    finally:
        subprocess.run(["bash", SCRIPT, "down", folder], check=False, timeout=200)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def slurm(slurm_cluster) -> Iterator[Slurm]:
    """Yields the cluster, and checks that nothing is left before and after the test."""
    yield slurm_cluster
    subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], check=False, timeout=120)
    subprocess.run(["scancel", "--user=root"], check=False, timeout=120)
    slurm_cluster.left()


@pytest.fixture
def launch(tmp_path) -> Iterator:
    """Starts ``headrace launch …`` in ``tmp_path``."""
    started: list[Launch] = []

    def run(*arguments: str) -> Launch:
        started.append(Launch(tmp_path, list(arguments)))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait(10)


def await_file(path: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
