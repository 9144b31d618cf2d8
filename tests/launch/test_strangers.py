"""Clients without a token are refused by all ports of a run on Ray, and do no harm."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
]
SCRIPT = """
import headrace as hr

def note(result):
    import ray
    print("GCS", ray.get_runtime_context().gcs_address, "UPDATE", result.updates, flush=True)

hr.train(
    "CartPole-v1", hr.PPO(epochs=1), num_learners=2, num_actors=2, envs_per_actor=8,
    fragment_length=32, total_steps=10**9, run_dir="run", cluster="ray", eval_episodes=0,
    log_interval_s=0.0, callbacks=[note], max_restarts=0,
)
"""
STRANGER = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    print("LET IN", ray.cluster_resources())
except BaseException as error:
    print("REFUSED", type(error).__name__, " ".join(str(error).split())[:300])
"""
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    os.urandom(4096),
    bytes(8),
    b"\xff" * 8,
    b"",
)


def ports_of(processes) -> set[tuple[str, int]]:
    """Return the ports on which processes listen."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.add((one.laddr.ip, one.laddr.port))
    return found


def updates(script) -> int:
    """Return the number of updates of the run."""
    return script.output.count("UPDATE")


def wait_for_more(script, count: int, timeout_s: float = 30.0) -> None:
    """Wait until the run has made this number of further updates."""
    wanted, deadline = updates(script) + count, time.monotonic() + timeout_s
    while updates(script) < wanted:
        assert script.process.poll() is None, script.output
        assert time.monotonic() < deadline, script.output[-2000:]
        time.sleep(0.05)


def test_a_stranger_is_refused_on_every_port_and_the_run_is_unharmed(start, tmp_path):
    script = start("-c", SCRIPT)
    script.wait_for("UPDATE", 90.0)
    ports = ports_of(script.family())
    assert len(ports) > 5
    assert {address for address, _ in ports} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    for address, port in sorted(ports):
        for words in GARBAGE:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((address, port), 2.0) as one,
            ):
                one.settimeout(0.2)
                one.sendall(words)
                one.recv(1000)
    wait_for_more(script, 20)
    gcs = script.output.split("GCS ", 1)[1].split()[0]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    # To look for it where it is, and not for a minute.
    env |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    for token in ({}, wrong):
        ended = subprocess.run(
            [sys.executable, "-c", STRANGER, gcs],
            env=env | token,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert "LET IN" not in ended.stdout
        assert "REFUSED" in ended.stdout, ended.stdout + ended.stderr
        assert "InvalidAuthToken" in ended.stderr
    wait_for_more(script, 20)
    assert "restarting all learners" not in script.output
    assert "Traceback" not in script.output
    assert sorted(ports_of(script.family()) & ports) == sorted(ports)  # nothing of it has ended
