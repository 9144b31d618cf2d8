"""Hosts of a network on this machine (network namespaces), with a Ray node on each."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.ray.connection import RayCluster
from headrace.ray.local_cluster import HEALTH

SCRIPT = str(Path(__file__).parents[1] / "tests" / "launch" / "hosts.sh")
HEAD = "10.99.0.1:6379"
MOST = 9  # maximum number of hosts of the script
# Each run of the script has a separate /tmp/ray. So programs that use a node run with its command.
BOTH = 'n=$1; first=("${@:2:n}"); shift $((n + 1)); "${first[@]}" < /dev/null && exec "$@"'
AFTER_HEAD = 'until (: < "/dev/tcp/${1/://}") 2> /dev/null; do sleep 0.2; done; shift; exec "$@"'


def check_possible(asker: str) -> None:
    """Raise ConfigError if this machine can't create hosts, or has no Ray for them."""
    needs = {
        "Linux": sys.platform == "linux",
        "root": hasattr(os, "geteuid") and os.geteuid() == 0,
        "the command ip (Debian's iproute2)": shutil.which("ip") is not None,
        "Ray (pip install 'headrace[ray]')": importlib.util.find_spec("ray") is not None,
    }
    if missing := [what for what, there in needs.items() if not there]:
        raise ConfigError(f"{asker} creates hosts of a network here, which needs "
                          f"{' and '.join(missing)}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), {}).up(1):
        pass


@dataclass
class Network:
    """Hosts and their Ray nodes.

    Args:
        output: folder for the output of each host, such as ``host2.txt``.
        env: environment variables of the hosts, with the token of Ray's cluster.
        store: bytes of each node's object store.
    """

    output: Path
    env: Mapping[str, str]
    store: int = 150_000_000
    name: str = field(default_factory=lambda: f"hc{os.getpid()}")

    @contextlib.contextmanager
    def up(self, count: int) -> Iterator[Network]:
        """Create hosts. Their programs end with them.

        Raises:
            ConfigError: this machine doesn't allow it.
        """
        try:
            self.do("up", str(count))
            yield self
        finally:
            self.do("down")

    def do(self, action: str, *words: str) -> None:
        """Run a command of the script, for example to kill everything on a host."""
        command = ["bash", SCRIPT, action, self.name, *words]
        # Its output isn't captured, as the process that watches the hosts would keep the pipe open.
        with (self.output / "network.txt").open("a+") as log:
            done = subprocess.run(command, stdout=log, stderr=log, timeout=30, check=False)
        if done.returncode:
            said = (self.output / "network.txt").read_text().strip()
            raise ConfigError(f"this machine can't create hosts of a network: {said}")

    def on(self, host: int, *words: str) -> list[str]:
        """Return the command that runs a command on a host."""
        return ["bash", SCRIPT, "run", self.name, str(host), *words]

    def run(self, host: int, *words: str) -> subprocess.Popen:
        """Start a command on a host."""
        with (self.output / f"host{host}.txt").open("a") as log:
            return subprocess.Popen(self.on(host, *words), env=self.env, stdout=log, stderr=log)

    def _ray(self, host: int, *flags: str) -> list[str]:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"]
        ray += [f"--object-store-memory={self.store}", f"--node-ip-address=10.99.0.{host}"]
        return [*ray, *flags]

    def with_head(self, num_cpus: int) -> list[str]:
        """Return the prefix of the first host's command that starts Ray's head node first."""
        flags = ["--head", f"--port={HEAD.partition(':')[2]}", f"--num-cpus={num_cpus}"]
        flags += ["--include-dashboard=false", f"--system-config={json.dumps(HEALTH)}"]
        ray = self._ray(1, *flags)
        return ["bash", "-c", BOTH, "both", str(len(ray)), *ray]

    def join(self, host: int, num_cpus: int) -> subprocess.Popen:
        """Let a host join the cluster as soon as it is up."""
        flags = [f"--address={HEAD}", f"--num-cpus={num_cpus}", "--block"]
        return self.run(host, "bash", "-c", AFTER_HEAD, "join", HEAD, *self._ray(host, *flags))


@contextlib.contextmanager
def joined(cores: float) -> Iterator[None]:
    """Connect to the cluster once its nodes have this number of cores in total."""
    with contextlib.closing(RayCluster(HEAD, "this benchmark", 1)) as cluster:
        while cluster.cores < cores:
            time.sleep(0.1)
        yield


def check_spread(trainer: Any, hosts: int) -> None:
    """Raise RuntimeError unless each host has the same number of actors."""
    nodes = Counter(home.node for home in trainer.source._queue.homes.values())
    if len(nodes) != hosts or len(set(nodes.values())) != 1:
        raise RuntimeError(f"actors are not spread evenly over {hosts} hosts: {dict(nodes)}")


def variables() -> dict[str, str]:
    """Return environment variables for programs that use a new private cluster and modules."""
    paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "SPT_NOENV": "1",  # processes are recognised by their environment variables
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
