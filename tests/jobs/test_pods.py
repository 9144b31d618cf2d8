"""A manifest's pods as hosts of a network: the containers' commands, and the job's.

KubeRay writes the command of Ray's containers and some of their variables; here a test does. Image,
volumes and user are this machine's.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

import pytest
import yaml

import headrace as hr
from headrace.cli import main
from tests.launch import hosts as network

LOOP = """
import sys, gymnasium, headrace as hr
from worlds.noting import Noting
FOLDER = sys.argv[1]  # as workers have other arguments
def make():
    return Noting(gymnasium.make("CartPole-v1"), FOLDER)
with hr.ClusterEnv({"type": make, "envs_per_node": 3}, hr.KubernetesConfig(nodes=2)) as envs:
    envs.reset(seed=0)
    for _ in range(20):
        obs, *_ = envs.step(envs.action_space.sample())
    print("stepped", obs.shape, flush=True)
try:
    hr.ClusterEnv({"type": make}, hr.KubernetesConfig(nodes=3, start_timeout_s=0.5))
except hr.errors.WorkerFailed as error:
    print(error, flush=True)
"""
POD = """
mkdir -p /runs && mount --bind "$VOLUME" /runs
/bin/bash -c -- "$KUBERAY" > "$VOLUME/$(hostname).log" 2>&1 &
"""
READY = """
import socket, time
while socket.socket().connect_ex(("127.0.0.1", 6379)):
    time.sleep(0.2)
import ray
ray.init("auto", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
"""
JOB = """
python -c "$READY" > /dev/null  # as KubeRay waits for the pods
/bin/sh -c "$ENTRYPOINT"; echo "the run: $?"
HEADRACE_JOB_SPEC=$LOOP /bin/sh -c "$ENTRYPOINT"; echo "the loop: $?"
"""


@pytest.fixture
def pods(tmp_path):
    """Runs a shell script on a host, with variables."""
    hosts, made_runs = network.made(tmp_path), not Path("/runs").exists()

    def run(host: int, script: str, variables: dict[str, str]) -> network.HostScript:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = [f"{name}={value}" for name, value in ({"PATH": path} | variables).items()]
        return hosts.run(host, "env", *given, "bash", "-c", script)

    yield run
    hosts.end()
    if made_runs:
        Path("/runs").rmdir()


def variables_of(template: dict, start: str, token: str) -> dict[str, str]:
    """Return variables of a pod's Ray container: the manifest's, and those that KubeRay adds."""
    [container] = template["spec"]["containers"]
    given = container["resources"]["limits"]
    # As Kubernetes reads it: $$ is a dollar.
    variables = {one["name"]: one["value"].replace("$$(", "$(") for one in container["env"]}
    command = f"ulimit -n 65536; {start} --block --num-cpus={given['cpu']}"
    return variables | {
        "KUBERAY": f"{command} --metrics-export-port=8080 --dashboard-agent-listen-port=52365",
        "KUBERAY_GEN_RAY_START_CMD": start,
        "RAY_CLUSTER_NAME": "lab",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
    }


def made_by(capsys, *words: str) -> dict:
    """Return the manifest of ``headrace launch k8s``."""
    flags = ["launch", "k8s", "--nodes", "2", "--cpus-per-node", "2", "--dry-run", "--"]
    assert main([*flags, *words]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_manifest_s_containers_train_and_act_on_two_hosts(pods, capsys, tmp_path):
    for name in ("volume", "notes", "others"):
        (tmp_path / name).mkdir()
    noting = "worlds.noting:Noting:" + json.dumps({"folder": str(tmp_path / "notes")})
    words = ["train", "appo", "--recipe", "cartpole", "--num-actors", "2", "--wrapper", noting]
    words += ["--total-steps", "20000", "--target-return", "None", "--eval-episodes", "0"]
    made = made_by(capsys, *words, "--run-dir", "first")
    loop = made_by(capsys, "python", "-c", LOOP, str(tmp_path / "others"))
    cluster, token = made["spec"]["rayClusterSpec"], secrets.token_hex(32)
    head, [workers] = cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"]
    others = loop["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    own = {"READY": READY, "VOLUME": str(tmp_path / "volume")}
    own |= {"ENTRYPOINT": made["spec"]["entrypoint"]}
    own["LOOP"] = variables_of(others, "", token)["HEADRACE_JOB_SPEC"]

    first = variables_of(head, "ray start --head --dashboard-host=0.0.0.0", token)
    job = pods(1, POD + JOB, first | own | {"RAY_ADDRESS": "127.0.0.1:6379"})
    second = variables_of(workers["template"], "ray start --address=host1:6379", token)
    pods(2, POD + "wait", second | own | {"RAY_ADDRESS": "host1:6379"})
    job.process.wait(500)

    said = job.output
    assert "the run: 0\n" in said, said
    assert "the loop: 0\n" in said, said
    assert json.loads((tmp_path / "volume/first/summary.json").read_text())["env_steps"] >= 20000
    assert (tmp_path / "volume/first.job").exists()
    assert "stepped (6, 4)\n" in said
    for folder in ("notes", "others"):
        acted = {path.name.split("-")[0] for path in (tmp_path / folder).iterdir()}
        assert {"host1", "host2"} <= acted
    assert "KubernetesConfig: 2 of nodes=3 pods of the Ray cluster lab are up after 0.5 s" in said


def test_a_program_outside_of_pods_is_told_how_to_get_there():
    with pytest.raises(hr.ConfigError, match=r"a pod of a KubeRay cluster.* k8s --nodes 4 -- pyt"):
        hr.ClusterEnv({"env_name": "CartPole-v1"}, hr.KubernetesConfig(nodes=4))
