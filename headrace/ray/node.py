"""Starts and stops the Ray processes of one node."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from headrace.errors import LaunchFailed
from headrace.processes.process_tree import MARK, kill_descendants
from headrace.ray.local_cluster import HEALTH

_LATER = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
_LONGEST = 40  # of the folder's name: socket paths in it are limited to 107 letters
_WORDS = 250  # letters of each of Ray's last lines that are reported
_RANDOM = 8  # letters that mkdtemp adds
_STARTED = "Ray runtime started."  # printed when the head knows the node
_LOWEST_PORT = 20_000  # above well-known ports
_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Ray:
    """Address and token of a Ray cluster."""

    address: str  # IP:PORT
    token: str
    alone: bool = False  # single-node cluster on the loopback interface only

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for programs that connect to the cluster, or join it."""
        variables = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if self.alone:  # otherwise Ray uses the external address
            variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        return variables


def new_cluster(towards: str, token: str) -> Ray:
    """Return a cluster whose head is to be on this machine, at a free port.

    Args:
        towards: another machine, on whose network it listens; "": only on the loopback interface.
    """
    own = own_address(towards) if towards else "127.0.0.1"
    if towards and own.startswith("127."):  # nodes of one machine: Ray refuses loopback addresses
        with contextlib.suppress(LaunchFailed):
            own = own_address("203.0.113.1")  # an address for documentation: any other machine
    return Ray(f"{own}:{free_port(own)}", token, not towards)


def free_port(host: str) -> int:
    """Return a port of this machine's address ``host`` on which nothing listens.

    It is below the ephemeral ports, where possible: Ray binds it seconds later, and until then
    any connection could take an ephemeral port.
    """
    ports = range(_LOWEST_PORT, _first_of_connections())
    drawn = [_LOWEST_PORT + secrets.randbelow(len(ports)) for _ in range(100)] if ports else []
    for port in (*drawn, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return probe.getsockname()[1]
    raise LaunchFailed(f"{host} has no free port")


def _first_of_connections() -> int:
    with contextlib.suppress(OSError):
        return int(_OF_CONNECTIONS.read_text().split()[0])
    return 0


def own_address(towards: str) -> str:
    """Return this machine's IP address as a host sees it; no packet is sent.

    Raises:
        LaunchFailed: the host's name can't be resolved here.
    """
    try:
        found = socket.getaddrinfo(towards, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(found)
            return probe.getsockname()[0]
    except OSError as error:
        raise LaunchFailed(f"{socket.gethostname()} doesn't know {towards!r}: {error}") from None


def await_head(address: str, timeout_s: float) -> bool:
    """Wait until something listens at ``address``; return False after ``timeout_s`` seconds."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            return True
        time.sleep(0.1)
    return False


class RayNode:
    """Runs ``ray start`` on this machine; its processes end with the block, or with this process.

    SLURM signals every process of a job at once. Ray has to run until the command has saved, so
    its processes start with those signals blocked, and are killed at the end.

    Args:
        ray: the cluster.
        head: this is its first node.
        name: name of the node in Ray.
        cpus, gpus: resources of the node in Ray.
        label: part of the name of the folder for Ray's files, which is deleted at the end.
    """

    def __init__(self, ray: Ray, head: bool, name: str, cpus: int, gpus: int, label: str) -> None:
        host = ray.address.rpartition(":")[0]
        self._label = label
        self._mark = f"{os.environ.get(MARK, 'headrace')}/{secrets.token_hex(8)}"
        self._command = [
            *(sys.executable, "-u", "-m", "ray.scripts.scripts", "start", "--block"),
            *(f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--node-name={name}"),
            *("--min-worker-port=0", "--max-worker-port=0"),
            f"--node-ip-address={host if head else own_address(host)}",
        ]
        if head:
            port = ray.address.rpartition(":")[2]
            # Ray would take 10001, which another job may have
            self._command += [f"--ray-client-server-port={free_port(host)}"]
            self._command += ["--head", f"--port={port}", "--include-dashboard=false"]
            self._command += [f"--system-config={json.dumps(HEALTH)}"]
        else:
            self._command += [f"--address={ray.address}"]
        self._environment = os.environ | ray.environment | {MARK: self._mark}
        del self._environment["RAY_ADDRESS"]  # `ray start` takes it for another cluster's

    def __enter__(self) -> RayNode:
        self._folder = own_folder(self._label)
        self._log = self._folder / "ray-start.log"
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _LATER)
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*self._command, f"--temp-dir={self._folder}"],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # by which what it started is found
                )
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def is_up(self) -> bool:
        """Return True once Ray runs and the head knows this node."""
        return _STARTED in self._log.read_text(errors="replace")

    def ended(self) -> str:
        """Return the reason why Ray has ended, from its last output; "" while it runs."""
        if self._process.poll() is None:
            return ""
        lines = [x.strip() for x in self._log.read_text(errors="replace").splitlines()]
        words = [line[:_WORDS] for line in lines if line and set(line) - set("-=")]
        return "; ".join(words[-3:]) or f"exit code {self._process.returncode}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait(10.0)
        kill_descendants([self._process.pid], [self._mark])
        shutil.rmtree(self._folder, ignore_errors=True)


def own_folder(label: str) -> Path:
    """Create a private folder with an unpredictable name for Ray's files."""
    prefix, parent = f"headrace-{label}-", tempfile.gettempdir()
    fits = len(os.path.join(parent, prefix)) + _RANDOM <= _LONGEST
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent if fits else "/tmp"))
