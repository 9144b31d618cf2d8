"""Ray clusters: authentication, clusters that keep running, and rejected settings."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import ipaddress
import os
import subprocess
import sys
from types import SimpleNamespace

import cloudpickle
import numpy as np
import psutil
import pytest
from worlds import CountingEnv

from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env.messages import Agent, Request, WorkerSetup
from headrace.errors import AgentFault, ConfigError, WorkerFailed
from headrace.ray import cluster_env as place
from headrace.ray.cluster_env import RayConfig
from headrace.ray.connection import RayCluster
from headrace.ray.process import headrace_version
from tests.cluster_env.parts import BrokenEnv, CountingAgent, FailsAhead, Returning, Revealing

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.ray,
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
    """Return (process, address, port) of all ports of this process and its descendants."""
    found = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found.add((process.pid, one.laddr.ip, one.laddr.port))
    return found


def is_loopback(address: str) -> bool:
    """Return the address also in IPv6 notation."""
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
    words = f"the cluster at {address!r} rejected this program: set RAY_AUTH_MODE=token and"
    assert words in stranger.stderr
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
    assert done.stdout.startswith("RayConfig: this program has imported ray without"), done.stderr
    assert done.stdout.endswith("False\n")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_faults_of_actors_are_told_as_those_of_processes_are(make):
    import ray

    who = r"(?s)^worker 0 \(Ray actor, start 1, node .*, process \d+, log /tmp/ray/.*\): "
    with pytest.raises(WorkerFailed, match=who + ".*BrokenEnv has no licence"):
        make(BrokenEnv, RayConfig(nodes=1)).launch()
    with pytest.raises(ConfigError, match="connected to another Ray cluster"):
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


TWO = """
import headrace as hr
make = lambda **settings: hr.ClusterEnv(
    {"env_name": "CartPole-v1", "envs_per_node": 2}, hr.RayConfig(nodes=1, **settings)
)
try:
    make(gpus_per_node=64)
except hr.errors.WorkerFailed as error:
    import ray  # not earlier: it reads its token then
    print(error, ray.is_initialized())
training = make()
evaluation = make()
training.close()
print(len(evaluation.reset()[0]), ray.is_initialized())
evaluation.close()
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_two_environments_of_a_program_share_a_cluster_that_ends_with_the_last():
    done = python(TWO)
    refused, *lines = done.stdout.splitlines()
    assert refused.startswith(
        "RayConfig: of nodes=1 workers, with cpus_per_node=1 and gpus_per_node=64, the Ray "
        "cluster has room for 0: its nodes have 1 cores and "
    ), done.stderr
    assert refused.endswith("False")
    assert lines == ["2 True", "False"], done.stderr


@pytest.fixture
def others_cluster(ray_cluster, monkeypatch):
    """Return a cluster that looks as if it was running before."""
    monkeypatch.setattr(RayCluster, "_address", "auto")
    return ray_cluster


@pytest.mark.usefixtures("others_cluster")
def test_workers_that_fit_no_node_are_told_at_once_and_waited_for(make):
    lack = "of nodes=1 workers, with cpus_per_node=7 .* has room for 0: its nodes have 6 cores"
    with (
        pytest.warns(RuntimeWarning, match=lack + r".*\(waiting start_timeout_s=0\.5 s for more"),
        pytest.raises(WorkerFailed, match="^RayConfig: " + lack),
    ):
        make(CountingEnv, RayConfig(nodes=1, cpus_per_node=7, start_timeout_s=0.5))


def test_workers_whose_cores_others_hold_are_told(make, others_cluster):
    ray = others_cluster.api
    holder = ray.remote(num_cpus=6)(type("Holder", (), {"held": lambda self: True})).remote()
    assert ray.get(holder.held.remote(), timeout=60)
    words = (
        r"^worker 0 \(Ray actor, start 1\) didn't start within 2 s .* 6 cores .* 0 are free, and "
    )
    try:
        with pytest.raises(WorkerFailed, match=words):
            make(CountingEnv, RayConfig(nodes=1, start_timeout_s=2.0))
    finally:
        ray.kill(holder)


@pytest.mark.usefixtures("ray_cluster")
def test_another_version_on_a_node_is_told(make, monkeypatch):
    monkeypatch.setattr(place, "headrace_version", lambda: "0.0.1")
    words = r"^worker 0 .*, node .*: headrace is 0\.1\.0 there and 0\.0\.1 where .* everywhere"
    with pytest.raises(WorkerFailed, match=words):
        make(CountingEnv, RayConfig(nodes=1))


def test_what_only_the_head_can_import_is_told(only_here):
    told = "No module named 'only_here' there: install it on every node (objects that your"
    setup = WorkerSetup(None, 1, "sync", {}, None, 0)
    pickled = only_here(lambda make: dataclasses.replace(setup, env=make))
    fault = place.RemoteWorker(headrace_version(), pickled).handle(b"")
    assert fault.reason.startswith(told)
    whole = cloudpickle.dumps(dataclasses.replace(setup, env=CountingEnv))
    agent = Agent(only_here(lambda make: make), SyncRule())
    request = cloudpickle.dumps(Request("act", version=0, agent=agent))
    fault = place.RemoteWorker(headrace_version(), whole).handle(request)
    assert fault.reason.startswith(told)
    assert fault.by_agent


def test_ray_is_left_alone_once_this_nodes_raylet_has_ended():
    def check_here() -> None:
        raise WorkerFailed("Ray: the raylet of this node has ended")

    cluster = SimpleNamespace(check_here=check_here)  # with nothing of Ray's
    whole, node = (
        place.RayBackend.__new__(place.RayBackend),
        place.RayWorker.__new__(place.RayWorker),
    )
    whole._cluster = node._cluster = cluster
    node.ref, node._ray = "an answer", None
    for call in (lambda: whole.wait([node], 1.0), lambda: node.send(Request("act")), node.receive):
        with pytest.raises(WorkerFailed, match="raylet"):
            call()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*died")
def test_a_cluster_whose_raylet_was_killed_is_told(make):
    envs = make(CountingEnv, RayConfig(nodes=1, timeout_s=300, start_timeout_s=300))
    envs.reset(seed=0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "raylet" in process.name():
                process.kill()
    with pytest.raises(WorkerFailed, match=r"the raylet of this node, .* has exited"):
        while True:
            envs.step(np.zeros(envs.num_envs, int))
