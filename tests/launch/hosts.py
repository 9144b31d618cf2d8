"""Hosts of a network on this machine (``hosts.sh``), for tests."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("hosts.sh"))


class Hosts:
    """Hosts 1, 2 … on a separate network, which end with this process at the latest."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self._name, self._folder = f"hr{os.getpid()}", folder
        self._do("up", str(count))

    def _do(self, action: str, *arguments: str) -> str:
        command = ["bash", SCRIPT, action, self._name, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if result.returncode:
            raise OSError(result.stderr)
        return result.stdout

    def start(self, host: int, *arguments: str) -> HostScript:
        """Start ``python *arguments`` on a host."""
        return self.run(host, sys.executable, *arguments)

    def run(self, host: int, *words: str) -> HostScript:
        """Start a command on a host."""
        output = self._folder / f"host{host}.txt"
        command = ["bash", SCRIPT, "run", self._name, str(host), *words]
        with output.open("w") as file:
            process = subprocess.Popen(
                command, cwd=self._folder, stdout=file, stderr=file, start_new_session=True
            )
        return HostScript(process, output)

    def num_received(self, host: int) -> int:
        """Return the bytes received over the host's cable."""
        path = "/sys/class/net/eth0/statistics/rx_bytes"
        return int(self._do("run", str(host), "cat", path))

    def cut(self, host: int) -> None:
        """Disconnect the host's cable."""
        self._do("cut", str(host))

    def kill(self, host: int) -> None:
        """Kill all processes of the host."""
        self._do("kill", str(host))

    def end(self) -> None:
        """Kill all processes of the hosts, and remove them."""
        self._do("down")


@dataclasses.dataclass(frozen=True)
class HostScript:
    """A process on a host."""

    process: subprocess.Popen
    output_file: Path

    @property
    def output(self) -> str:
        """Return its output so far."""
        return self.output_file.read_text()


def made(folder: Path, count: int = 2) -> Hosts:
    """Yield such hosts; skip the test if this machine can't create them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    try:
        return Hosts(folder, count)
    except OSError as error:
        pytest.skip(f"can't make network namespaces: {error}")
