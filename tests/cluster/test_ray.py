"""Clusters of Ray: who can get in, which are left running, and what is refused."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from worlds import CountingEnv

from headrace.cluster import RayConfig
from headrace.errors import AgentFault, ConfigError, WorkerFailed
from tests.cluster.parts import BrokenEnv, CountingAgent, FailsAhead, Returning, Revealing

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:.* has neither log_prob"),
]


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program without this one's token."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def listening() -> set[tuple[int, str, int]]:
    """(process, address, port) of what this process and all below it listen on."""
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found.add((process.pid, one.laddr.ip, one.laddr.port))
    return found


def is_loopback(address: str) -> bool:
    """Also as IPv6 writes it."""
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


@pytest.mark.usefixtures("ray_cluster")
def test_nothing_listens_beyond_this_machine(make):
    envs = make(CountingEnv, RayConfig(nodes=1))
    assert envs.reset(seed=3)[0][0, 0] == 3
    found = listening()
    assert len(found) >= 3  # the control store, the node's manager, the worker
    assert [one for one in found if not is_loopback(one[1])] == []


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_another_program_gets_in_with_the_token_only_and_leaves_the_cluster_running(make):
    import ray

    address = ray.get_runtime_context().gcs_address
    code = (
        "import headrace as hr\n"
        "from worlds import CountingEnv\n"
        f"config = hr.RayConfig(address={address!r}, nodes=1, start_timeout_s=60)\n"
        "settings = {'type': CountingEnv, 'envs_per_node': 2}\n"
        "with hr.ClusterEnv(settings, config) as envs:\n"
        "    print('rows', len(envs.reset()[0]))\n"
    )
    known = {key: value for key, value in os.environ.items() if key.startswith("RAY_")}
    token = {key: known.pop(key) for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    stranger = python(code, **known, RAY_NUM_REDIS_GET_RETRIES="2")  # not 20 tries, of a second
    assert stranger.returncode != 0
    assert "rows" not in stranger.stdout
    assert f"there is no cluster at {address!r}" in stranger.stderr
    friend = python(code, **known, **token)
    assert friend.stdout == "rows 2\n", friend.stderr
    assert make(CountingEnv, RayConfig(nodes=1)).reset(seed=3)[0][0, 0] == 3  # it still runs


def test_ray_that_was_imported_without_a_token_is_refused():
    done = python(
        "import ray, headrace as hr\n"
        "try:\n"
        "    hr.ClusterEnv({'env_name': 'CartPole-v1'}, hr.RayConfig()).launch()\n"
        "except hr.errors.ConfigError as error:\n"
        "    print(error, ray.is_initialized())\n"
    )
    assert done.stdout.startswith("RayConfig: this program imported ray before"), done.stderr
    assert done.stdout.endswith("False\n")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_faults_of_actors_are_told_as_those_of_processes_are(make):
    import ray

    with pytest.raises(WorkerFailed, match=r"(?s)^worker 0 \(Ray actor.*BrokenEnv has no licence"):
        make(BrokenEnv, RayConfig(nodes=1)).launch()
    with pytest.raises(ConfigError, match="connected to a Ray cluster already"):
        make(CountingEnv, RayConfig(address="10.0.0.1:6379")).launch()
    envs = make(CountingEnv, RayConfig(nodes=1), envs_per_node=2)
    envs.reset(seed=0)
    with pytest.raises(AgentFault, match=r"(?s)ZeroDivisionError: .* by zero\n.*Traceback"):
        envs.step(Returning(lambda obs: 1 // 0))
    assert envs.reset(seed=0)[0][:, 0].tolist() == [0, 1]
    assert envs.collect(CountingAgent(), 4).env_id.tolist() == [0, 1]
    envs.close()
    envs.close()
    assert ray.is_initialized()
    with pytest.raises(ConfigError):
        envs.step(np.zeros(2, int))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*died")
def test_a_cluster_whose_raylet_was_killed_is_told(make):
    envs = make(CountingEnv, RayConfig(nodes=1, timeout_s=300, start_timeout_s=300))
    envs.reset(seed=0)
    for process in psutil.Process().children(recursive=True):
        if "raylet" in process.name():
            process.kill()
    with pytest.raises(WorkerFailed, match="every node of the cluster is dead"):
        while True:
            envs.step(np.zeros(envs.num_envs, int))


@pytest.mark.usefixtures("ray_cluster")
def test_actors_run_ahead_and_weights_arrive_a_step_later(make):
    settings = {"weight_sync": "every", "runs_ahead": True}
    envs, agent = make(CountingEnv, RayConfig(nodes=2), **settings), Revealing()
    envs.reset(seed=3)
    seen = []
    for action in (0, 1, 2, 2):
        agent.choice.data.fill_(action)
        seen.append(envs.step(agent)[-1]["action"].tolist())
    assert seen == [[a] * 2 for a in (0, 0, 1, 2)]
    envs.reset()
    assert (envs.sync_info["steps_discarded"] == 1).all()
    agent.choice.data.fill_(0)
    assert envs.step(agent)[-1]["action"].tolist() == [0, 0]
    envs.reset()
    agent = FailsAhead()
    with pytest.raises(AgentFault, match="raised ahead"):
        for _ in range(2):
            envs.step(agent)
