"""Ray cluster on the nodes of the current SLURM allocation."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from headrace.errors import ConfigError, LaunchFailed
from headrace.jobs.programs import called
from headrace.ray.node import new_cluster
from headrace.jobs.slurm.node import NodeSpec
from headrace.jobs.slurm.queue import fields_of
from headrace.jobs.versions import versions

_END_S = 15.0  # for nodes to end by themselves
_REASON_S = 2.0  # grace period for a node's own message after srun reports its end
_ENDED = re.compile(r"srun: error: (\S+): tasks? \S+: .+")  # its messages about some nodes
_HOW_LINES_COME = "SLURM_UNBUFFEREDIO", "SLURM_LABELIO"  # srun option: whole lines, unmodified


@dataclass
class _NodeReports:
    """Messages received from the nodes."""

    wrong: list[str] = field(default_factory=list)
    terminated: bool = False  # nodes that received SIGTERM from SLURM
    other: list[str] = field(default_factory=list)  # srun's own messages
    news: deque[str] = field(default_factory=deque)  # messages of both since Ray was up
    ended: tuple[float, str] = (math.inf, "")  # time and nodes of srun's first message about an end


class Allocation:
    """Runs Ray on all nodes of this allocation inside the block.

    Args:
        gpus_per_node: number of GPUs per node for Ray.
        start_timeout_s: startup timeout of Ray on all nodes, in seconds.
        shared: a folder that must be visible on every node, or None.
        peer: a machine outside the allocation that connects to the cluster, or "".
        stop: called while waiting; True aborts with LaunchFailed.

    Raises:
        ConfigError: this machine is not in the allocation.
        LaunchFailed: a node can't join, or Ray didn't start in time; nothing is left running.
    """

    def __init__(
        self,
        gpus_per_node: int,
        start_timeout_s: float,
        shared: Path | None,
        peer: str = "",
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._gpus, self._timeout_s, self._stop = gpus_per_node, start_timeout_s, stop
        self.hosts = called(
            "scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]
        ).split()
        self._me = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        if self._me not in self.hosts:
            raise ConfigError(
                f"this program runs under salloc on {self._me}, which is not a node of job "
                f"{os.environ.get('SLURM_JOB_ID')} ({', '.join(self.hosts)}): start it there, with "
                "`srun --nodes=1 --ntasks=1 --overlap` before its command, or outside of salloc, "
                "to have a job submitted"
            )
        others = [host for host in self.hosts if host != self._me]
        self.ray = new_cluster(_address(others[0]) if others else peer)
        self._probe = shared and shared / f".headrace-{secrets.token_hex(4)}"
        self._heard = _NodeReports()

    @property
    def terminated(self) -> bool:
        """Return whether SLURM has sent SIGTERM to the nodes: the grace period before
        preemption.
        """
        return self._heard.terminated

    def news(self) -> list[str]:
        """Return new messages of nodes and srun since Ray was up, or since the last call."""
        return [self._heard.news.popleft() for _ in range(len(self._heard.news))]

    def __enter__(self) -> Allocation:
        if self._probe is not None:
            self._probe.parent.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        try:
            self._start()
            self._await_nodes()
            self._heard.news.clear()  # srun's messages at the start
        except BaseException:
            self._end()
            raise
        finally:
            if self._probe is not None:
                self._probe.unlink(missing_ok=True)
        return self

    def _start(self) -> None:
        probe = str(self._probe or "")
        orders = NodeSpec(self.ray, self._me, self._gpus, versions(), probe, self._timeout_s)
        self._srun = subprocess.Popen(
            on_each_node(len(self.hosts), "-m", "headrace.jobs.slurm.node"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={k: v for k, v in os.environ.items() if k not in _HOW_LINES_COME},
            start_new_session=True,  # Ctrl-C is for this process
        )
        assert self._srun.stdin is not None
        self._srun.stdin.write(orders.write() + "\n")
        self._srun.stdin.flush()
        self._listener = threading.Thread(target=self._listen, name="headrace-srun", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._srun.stdout is not None
        for line in self._srun.stdout:
            try:
                said = dict(json.loads(line))
            except (TypeError, ValueError):  # srun's own messages
                if line.strip():
                    self._heard.other.append(line.strip())
                    self._heard.news.append(line.strip())
                found = _ENDED.match(line)
                if found is not None and not self._heard.ended[1]:  # the first one is the cause
                    self._heard.ended = time.monotonic(), found[1]
                continue
            self._heard.terminated |= "signal" in said
            if "wrong" in said:
                self._heard.wrong.append(said["wrong"])
                self._heard.news.append(said["wrong"])

    def _await_nodes(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        up: list[str] = []
        with subprocess.Popen(
            [sys.executable, "-m", "headrace.ray.ready", str(len(self.hosts))],
            env=os.environ | self.ray.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as ready:
            reader = threading.Thread(target=lambda: up.extend(ready.stdout or ()), daemon=True)
            reader.start()
            try:
                while ready.poll() is None:
                    self._check(deadline, up)
                    time.sleep(0.05)
            finally:
                ready.kill()
            if ready.returncode != 0:
                self._check(deadline, up)
                assert ready.stderr is not None
                words = ready.stderr.read().strip().splitlines()
                raise LaunchFailed(f"Ray's head rejects a driver: {(words or ['?'])[-1]}")

    def _check(self, deadline: float, up: list[str]) -> None:
        """Raise LaunchFailed once it is certain that the cluster won't start."""
        if self._heard.wrong:
            raise LaunchFailed(self._heard.wrong[0])
        missing = sorted(set(self.hosts) - set(up[-1].split() if up else []))
        if self._stop() or self.terminated:
            raise LaunchFailed(f"stopped before Ray was up on {', '.join(missing)}")
        ended_at, where = self._heard.ended
        if self._srun.poll() is not None:
            self._listener.join(_REASON_S)
            ended_at = -math.inf
        if time.monotonic() > ended_at + _REASON_S:
            if self._heard.wrong:
                raise LaunchFailed(self._heard.wrong[0])
            words = "; ".join(self._heard.other[-3:]) or f"exit code {self._srun.returncode}"
            hint = f": is {sys.executable} on a file system that all nodes share?"
            raise LaunchFailed(
                f"srun could not start Ray on {where or 'the nodes'} ({words})"
                f"{hint if 'No such file' in words else ''}"
            )
        if time.monotonic() > deadline:
            raise LaunchFailed(
                f"no Ray on {', '.join(missing)} after {self._timeout_s:g} s: raise "
                "start_timeout_s, or check whether ports between nodes are open"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Close the nodes' standard input, which ends them; terminate srun if they don't end."""
        if not hasattr(self, "_srun"):
            return
        assert self._srun.stdin is not None
        with contextlib.suppress(OSError):
            self._srun.stdin.close()
        try:
            self._srun.wait(_END_S)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                self._srun.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._srun.wait(5.0)


def on_each_node(num_nodes: int, *arguments: str) -> list[str]:
    """Return the command that starts a Python process on each node, with intact output lines.

    With ``--unbuffered``, lines of two nodes, or of a node and srun, are sometimes merged.
    """
    return [
        *("srun", f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0"),
        *("--job-name=ray", sys.executable, *arguments),
    ]


def gpus_per_node() -> int:
    """Return GPUs per node of the current job, parsed from SLURM ("2", "a100:2", "a100")."""
    told = (os.environ.get(f"SLURM_GPUS_{where}_NODE", "0") for where in ("PER", "ON"))
    counts = (text.rpartition(":")[2] for text in told)
    return max(int(count) if count.isdigit() else 1 for count in counts)


def _address(host: str) -> str:
    """Return the address by which SLURM reaches a node."""
    return fields_of(called("scontrol", "-o", "show", "node", host)).get("NodeAddr", host)
