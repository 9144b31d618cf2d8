"""The hosts that tests use leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.hosts import SCRIPT

pytestmark = pytest.mark.cluster
NETWORKS = Path("/run/netns")


def test_hosts_end_with_a_process_that_is_killed():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    name = f"hr{os.getpid()}k"
    code = (
        "import os, subprocess, sys\n"
        "subprocess.run(['bash', *sys.argv[1:]], check=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    words = [sys.executable, "-c", code, SCRIPT, "up", name]
    assert subprocess.run(words, timeout=60).returncode == -9
    deadline = time.monotonic() + 60
    while left := list(NETWORKS.glob(f"{name}-*")):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
