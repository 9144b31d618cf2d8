"""Command, processes, disk and faults of a chaos run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from chaos_env import FOLDER, counted

MARK = "HEADRACE_CHAOS_RUN"  # environment variable of all its processes
_START_S = 20.0  # seconds at the start of a life, with less memory
KINDS = {"actor": 5, "learner": 2, "evaluator": 2, "fork server": 2}


@dataclass
class Life:
    """One life of the command, from start to end."""

    began_at: int  # env_steps
    before: int = 0  # env_steps of the last result of the previous life
    trained: int = 0  # steps in updates, including those undone by a restart of the learners
    seen: int = 0  # env_steps of the last result
    group_restarts: int = 0
    counted: int = 0  # steps of environments
    while_full: int = 0  # steps while the disk was full and no result could be written
    end: str = ""

    def note(self, now: int) -> None:
        """Record the last result of the run, at this number of env_steps."""
        if not self.trained and now in range(self.began_at + 1):
            self.seen, self.before = self.began_at, 0  # undo the rest of the previous life
        elif now != self.before:
            if now < self.seen:  # the learners restarted from a checkpoint
                self.group_restarts += 1
                self.seen = now
            self.trained += now - max(self.seen, self.began_at)
            self.seen, self.before = now, 0


@dataclass
class Chaos:
    """The command, its disk and its faults."""

    output: Path
    disk: Path
    temporary: Path
    counts: Path
    rng: random.Random
    events: list[dict[str, Any]] = field(default_factory=list)
    memory: list[tuple[int, float, float]] = field(default_factory=list)  # life, seconds, MiB
    begun: float = field(default_factory=time.monotonic)
    command: subprocess.Popen | None = None

    @property
    def run_dir(self) -> Path:
        return self.disk / "run"

    def say(self, what: str, **more: Any) -> None:
        """Print and record an event."""
        at = round(time.monotonic() - self.begun, 1)
        self.events.append({"at": at, "what": what, **more})
        print(f"{at:7.1f} s  {what}", flush=True)

    def start(self, number: int, *arguments: str) -> None:
        """Start the command. Its environments count in a folder of this life."""
        folder = self.counts / str(number)
        folder.mkdir()
        here = str(Path(__file__).parent)
        paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        env = os.environ | {
            FOLDER: str(folder),
            MARK: str(os.getpid()),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": paths,
        }
        log = (self.output / "output.txt").open("a")
        command = [f"{sysconfig.get_path('scripts')}/headrace", *arguments]
        self.command = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        log.close()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the command's child processes by kind."""
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                name = one.name()
                if name.startswith("headrace-"):
                    for kind in (k for k in KINDS if f"headrace-{k}".startswith(name[:13])):
                        found[kind].append(one)
                elif any("forkserver" in word for word in (name, *one.cmdline())):
                    found["fork server"].append(one)
        return found

    def family(self) -> list[psutil.Process]:
        """Return all live processes of this run by environment variable, including orphans."""
        mark = f"{MARK}={os.getpid()}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, psutil.Error):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(folder.name)))
        return found

    def harm(self) -> None:
        """Kill or stop one process of an available kind."""
        found = {kind: those for kind, those in self.processes().items() if those}
        if not found:
            return
        kind = self.rng.choices(list(found), [KINDS[k] for k in found])[0]
        one = self.rng.choice(found[kind])
        number = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        with contextlib.suppress(psutil.Error):
            one.send_signal(number)
            self.say(f"{'killed' if number == signal.SIGKILL else 'stopped'} {kind} {one.pid}")

    def look(self, life: int) -> None:
        """Record the memory of all processes."""
        pss = 0
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                pss += one.memory_full_info().pss
        self.memory.append((life, time.monotonic() - self.begun, pss / 2**20))

    def left(self) -> list[str]:
        """Return live processes of the run and its files in the temporary directory."""
        found = []
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                found.append(f"process {one.pid}: {one.name()}")
        return found + [f"file {path}" for path in self.temporary.iterdir()]

    def wait_until_gone(self, limit_s: float = 15.0) -> list[str]:
        """Return what a finished command left behind, once nothing is left or time is up."""
        end = time.monotonic() + limit_s
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.2)
        return left


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[Path]:
    """Mount a separate disk in memory."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def fill(disk: Path) -> Path:
    """Fill a disk. Return the file that occupies it."""
    path = disk / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return path


def live(
    chaos: Chaos, number: int, end: float, every: float, fulls: list[float], kill: bool
) -> Life:
    """Run one life with faults until ``end``, then kill the command or let it finish."""
    life = Life(env_steps(chaos.run_dir), last_result(chaos.run_dir))
    next_harm, next_look, filler = time.monotonic() + every, time.monotonic() + _START_S, None
    assert chaos.command is not None
    while chaos.command.poll() is None and (time.monotonic() < end or not kill):
        time.sleep(0.05)
        now = time.monotonic()
        life.note(last_result(chaos.run_dir))
        if kill and now >= next_harm:
            next_harm = now + every
            chaos.harm()
        if now >= next_look:
            next_look = now + 10.0
            chaos.look(number)
        if fulls and now >= fulls[0]:
            if filler is None:
                filler = fill(chaos.disk)
                chaos.say("filled the disk")
                fulls[0] = now + 20.0
                life.while_full -= counted(chaos.counts / str(number))
            else:
                filler.unlink()
                filler = None
                chaos.say("made room on the disk")
                fulls.pop(0)
                life.while_full += counted(chaos.counts / str(number))
    if filler is not None:
        filler.unlink()
        fulls.pop(0)
    if chaos.command.poll() is None:
        chaos.command.kill()
        chaos.say("killed the command")
    life.end = f"exit code {chaos.command.wait()}"
    life.note(last_result(chaos.run_dir))
    left = chaos.wait_until_gone()
    life.end += f"; left behind: {', '.join(left)}" if left else ""
    life.counted = counted(chaos.counts / str(number))
    return life


def last_result(run_dir: Path) -> int:
    """Return env_steps of the run's last result."""
    with contextlib.suppress(OSError):
        with (run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
        for text in reversed(lines):
            with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
                return int(json.loads(text)["env_steps"])
    return 0


def env_steps(run_dir: Path) -> int:
    steps = [path.name[5:].partition("_")[0] for path in run_dir.glob("checkpoints/step_*")]
    return max((int(n) for n in steps if n.isdecimal()), default=0)
