"""Ray cluster on the nodes of a SLURM allocation: the current one, or one that is requested."""

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
from typing import Any

from headrace.errors import ConfigError, LaunchFailed
from headrace.jobs.slurm.node import NodeSpec
from headrace.jobs.slurm.queue import hostnames
from headrace.jobs.versions import versions
from headrace.ray.node import Ray

_END_S = 15.0  # for nodes to end by themselves
_REASON_S = 2.0  # grace period for a node's own message after srun reports its end
_LOOK_S = 0.05
_ENDED = re.compile(r"srun: error: (\S+): tasks? \S+: .+")  # its messages about some nodes
_HOW_LINES_COME = "SLURM_UNBUFFEREDIO", "SLURM_LABELIO"  # srun option: whole lines, unmodified


@dataclass
class _NodeReports:
    """Messages received from the nodes."""

    head: dict[str, Any] = field(default_factory=dict)  # address of Ray's head, once it is chosen
    up: set[str] = field(default_factory=set)  # nodes whose Ray runs
    wrong: list[str] = field(default_factory=list)
    terminated: bool = False  # nodes that received SIGTERM from SLURM
    other: list[str] = field(default_factory=list)  # messages of SLURM's own programs
    news: deque[str] = field(default_factory=deque)  # messages of both since Ray was up
    ended: tuple[float, str] = (math.inf, "")  # time and nodes of srun's first message about an end

    def note(self, line: str) -> None:
        """Note a line of a node, or of one of SLURM's programs."""
        try:
            message = dict(json.loads(line))
        except (TypeError, ValueError):
            if line.strip():
                self.other.append(line.strip())
                self.news.append(line.strip())
            match = _ENDED.match(line)
            if match is not None and not self.ended[1]:  # the first one is the cause
                self.ended = time.monotonic(), match[1]
            return
        self.terminated |= "signal" in message
        if "address" in message:
            self.head = {name: message[name] for name in ("address", "alone")}
        if "up" in message:
            self.up.add(message["node"])
        if "wrong" in message:
            self.wrong.append(message["wrong"])
            self.news.append(message["wrong"])


class NodeProcesses:
    """Processes of ``node.py`` that one command starts, with their reports.

    Args:
        command: command that forwards its standard input to all of them.
        spec: specification, sent to each.
        environment: variables, on top of those of this process.
    """

    def __init__(
        self, command: list[str], spec: NodeSpec, environment: dict[str, str] | None = None
    ) -> None:
        self.reports = _NodeReports()
        inherited = {k: v for k, v in os.environ.items() if k not in _HOW_LINES_COME}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env=inherited | (environment or {}),
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            raise LaunchFailed(f"{command[0]} can't be started: {error}") from None
        self.listener = threading.Thread(target=self._listen, name="headrace-srun", daemon=True)
        self.listener.start()
        self.send(spec.write())

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.reports.note(line)

    def send(self, line: str) -> None:
        """Send a line to every node, unless they have ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Close the nodes' standard input, which ends them; terminate the command if it stays."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(5.0)


class Allocation:
    """Runs Ray on all nodes of this allocation inside the block.

    Args:
        gpus_per_node: number of GPUs per node for Ray.
        start_timeout_s: startup timeout of Ray on all nodes, in seconds.
        shared: a folder that must be visible on every node, or None.
        stop: called while waiting; True aborts with LaunchFailed.

    Raises:
        ConfigError: this machine is not in the allocation.
        LaunchFailed: a node can't join, or Ray didn't start in time; nothing is left running.
    """

    def __init__(
        self,
        gpus_per_node: int,
        start_timeout_s: float,
        shared: Path | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stop = stop
        self.hosts = hostnames(os.environ["SLURM_JOB_NODELIST"])
        me = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        if me not in self.hosts:
            raise ConfigError(
                f"this program runs under salloc on {me}, which is not a node of job "
                f"{os.environ.get('SLURM_JOB_ID')} ({', '.join(self.hosts)}): start it there, with "
                "`srun --nodes=1 --ntasks=1 --overlap` before its command, or outside of salloc, "
                "to have a job submitted"
            )
        self._probe = shared and shared / f".headrace-{secrets.token_hex(4)}"
        self._spec = new_spec(gpus_per_node, me, False, str(self._probe or ""), start_timeout_s)
        self._nodes: NodeProcesses | None = None
        self.ray: Ray

    @property
    def _heard(self) -> _NodeReports:
        return _NodeReports() if self._nodes is None else self._nodes.reports

    @property
    def terminated(self) -> bool:
        """Return whether SLURM has sent SIGTERM to the nodes: the grace period before
        preemption.
        """
        return self._heard.terminated

    def news(self) -> list[str]:
        """Return new messages of nodes and srun since Ray was up, or since the last call."""
        news = self._heard.news
        return [news.popleft() for _ in range(len(news))]

    def __enter__(self) -> Allocation:
        if self._probe is not None:
            self._probe.parent.mkdir(parents=True, exist_ok=True)
            self._probe.touch()
        try:
            command = on_each_node(len(self.hosts), "-m", "headrace.jobs.slurm.node")
            self._nodes = NodeProcesses(command, self._spec)
            self.ray = await_ray([self._nodes], self._spec, self.hosts, self._stop)
            self._heard.news.clear()  # srun's messages at the start
        except BaseException:
            self._end()
            raise
        finally:
            if self._probe is not None:
                self._probe.unlink(missing_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._nodes is not None:
            self._nodes.end()


def new_spec(
    gpus: int, driver: str, is_outside: bool, probe: str, start_timeout_s: float
) -> NodeSpec:
    """Return the specification of a new Ray cluster, with its own token."""
    token = secrets.token_hex(32)
    return NodeSpec(token, gpus, versions(), driver, is_outside, probe, start_timeout_s)


def await_ray(
    groups: list[NodeProcesses],
    spec: NodeSpec,
    hosts: list[str],
    stop: Callable[[], bool] = lambda: False,
) -> Ray:
    """Wait until Ray is up on all nodes; the first group has Ray's head.

    Args:
        hosts: names of all nodes, of all groups.
        stop: True aborts with LaunchFailed.

    Raises:
        LaunchFailed: a node can't join, or Ray didn't start in time.
    """
    deadline = time.monotonic() + spec.start_timeout_s
    head: dict[str, Any] = {}
    while missing := sorted(set(hosts).difference(*(one.reports.up for one in groups))):
        if not head and (head := groups[0].reports.head):
            for one in groups:
                one.send(json.dumps(head))
        for one in groups:
            _check(one)
        if stop() or groups[0].reports.terminated:
            raise LaunchFailed(f"stopped before Ray was up on {', '.join(missing)}")
        if time.monotonic() > deadline:
            raise LaunchFailed(
                f"no Ray on {', '.join(missing)} after {spec.start_timeout_s:g} s: raise "
                "start_timeout_s, or check whether ports between nodes are open"
            )
        time.sleep(_LOOK_S)
    return Ray(token=spec.token, **head)


def _check(nodes: NodeProcesses) -> None:
    """Raise LaunchFailed once it is certain that Ray won't start on one of these nodes."""
    reports, (ended_at, where) = nodes.reports, nodes.reports.ended
    if nodes.process.poll() is not None:
        nodes.listener.join(_REASON_S)
        ended_at = -math.inf
    if reports.wrong:
        raise LaunchFailed(reports.wrong[0])
    if time.monotonic() > ended_at + _REASON_S:
        words = "; ".join(reports.other[-3:]) or f"exit code {nodes.process.returncode}"
        hint = f": is {sys.executable} on a file system that all nodes share?"
        raise LaunchFailed(
            f"srun could not start Ray on {where or 'the nodes'} ({words})"
            f"{hint if 'No such file' in words else ''}"
        )


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
    texts = (os.environ.get(f"SLURM_GPUS_{where}_NODE", "0") for where in ("PER", "ON"))
    counts = (text.rpartition(":")[2] for text in texts)
    return max(int(count) if count.isdigit() else 1 for count in counts)
