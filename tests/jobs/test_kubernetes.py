"""``headrace launch k8s``: the manifest against schemas, and with a real kubectl."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace.cli import main
from headrace.errors import ConfigError
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.kubernetes.entry import RUNS
from headrace.jobs.kubernetes.manifest import LABEL, KubernetesJob, manifest
from tests.jobs.conftest import await_file

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-clusters/bin"
WORDS = ["--", "train", "appo", "--recipe", "cartpole"]


@pytest.fixture(scope="module")
def tools() -> Path:
    """Returns the folder of kubectl, and a Python with kmock and the schemas of Kubernetes."""
    if not (TOOLS / "kubectl").exists():
        pytest.skip("needs kubectl, kmock and kubernetes-validate (make .venv-clusters/installed)")
    return TOOLS


def made_of(job: KubernetesJob, spec: JobSpec) -> dict:
    """Return the parsed manifest."""
    return yaml.safe_load(manifest(job, spec, "x", "2.60.0"))


def variants() -> list[dict]:
    """Return manifests of every kind."""
    orders = JobSpec(["a"], ["b"], ["c"], "/runs/x")
    kinds = itertools.product((1, 3), (None, 5), (0, 2), (None, "lab"))
    return [
        made_of(KubernetesJob(nodes=n, max_nodes=m, gpus_per_node=g, namespace=s), orders)
        for n, m, g, s in kinds
    ]


def templates(made: dict) -> list[dict]:
    """Return those of the pods in a RayJob."""
    cluster = made["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    return [made["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]


@pytest.mark.cluster
def test_every_pod_of_every_variant_is_valid_to_the_letter(tools):
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **about}}
        for made in variants()
        for template in templates(made)
        for about in [template["metadata"]]
    ]
    misspelt = json.loads(json.dumps(pods[0]))
    misspelt["spec"]["containers"][0]["securityContxt"] = {}
    code = (
        "import json, sys, kubernetes_validate as kv\n"
        "*pods, misspelt = json.load(sys.stdin)\n"
        "for pod in pods: kv.validate(pod, '1.37', strict=True)\n"
        "try: kv.validate(misspelt, '1.37', strict=True)\n"
        "except kv.ValidationError as error: print(len(pods), error.message)\n"
    )
    done = subprocess.run(
        [tools / "python", "-c", code], input=json.dumps([*pods, misspelt]),
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "'securityContxt' was unexpected" in done.stdout, done.stderr
    assert int(done.stdout.split()[0]) == len(pods) >= 40


def test_no_pod_has_rights_that_it_does_not_need():
    for made in variants():
        assert {template["metadata"]["labels"][LABEL] for template in templates(made)} == {"x"}
        scales = made["spec"]["rayClusterSpec"].get("enableInTreeAutoscaling", False)
        for template in templates(made):
            spec = template["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            has_orders = "HEADRACE_JOB_SPEC" in json.dumps(spec)
            assert spec.get("automountServiceAccountToken", True) is (has_orders and scales)
            for container in spec["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert made["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


READ = """
import json, sys
from ray.autoscaler._private.kuberay import autoscaling_config
read = autoscaling_config._derive_autoscaling_config_from_ray_cr(json.load(sys.stdin))
print(json.dumps(read["available_node_types"]["actors"]))
"""


def test_ray_s_own_autoscaler_reads_nodes_and_bounds_from_the_manifest():
    if importlib.util.find_spec("ray") is None:  # to import it here is too early for other tests
        pytest.skip("needs Ray")
    job = KubernetesJob(nodes=3, max_nodes=6, gpus_per_node=2, cpus_per_node=8)
    made = made_of(job, JobSpec([], [], []))
    cluster = {
        "metadata": {"name": "x", "namespace": "lab"},
        "spec": made["spec"]["rayClusterSpec"],
    }
    command, text = [sys.executable, "-c", READ], json.dumps(cluster)
    read = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=True
    )
    workers = json.loads(read.stdout.splitlines()[-1])
    assert (workers["min_workers"], workers["max_workers"]) == (2, 5)
    assert (workers["resources"]["CPU"], workers["resources"]["GPU"]) == (8, 2)


def test_only_the_learner_s_pod_has_the_volume_and_the_orders():
    [made] = [x for x in variants() if "2" in json.dumps(x) and "namespace" not in x["metadata"]][
        :1
    ]
    _, head, *workers = templates(made)
    assert "headrace-runs" in json.dumps(head)
    assert "headrace-runs" not in json.dumps(workers)
    odd = made_of(KubernetesJob(), JobSpec(["$(HOME)"], [], []))
    variables = {e["name"]: e["value"] for e in
                 templates(odd)[1]["spec"]["containers"][0]["env"]}  # fmt: skip
    assert "$$(HOME)" in variables["HEADRACE_JOB_SPEC"]  # as Kubernetes takes it literally


def test_a_dry_run_prints_the_manifest_of_a_run_in_the_volume(capsys):
    assert main(["launch", "k8s", "--nodes", "3", "--dry-run", *WORDS, "--run-dir", "a/b"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["kind"] == "RayJob"
    text = templates(made)[1]["spec"]["containers"][0]["env"][1]["value"]
    orders = JobSpec.read(text)
    assert orders.run_dir == f"{RUNS}/a/b"
    assert orders.command[:5] == ["python", "-m", "headrace", "train", "appo"]
    assert orders.command[-2:] == ["--cluster", "ray:{address}"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-nodes", "1"], r"max_nodes=1 must be nodes=2 or more"),
        (["--max-nodes", "3"], r"max_nodes=3 must be left out with nodes=2, .* --min-actors lets"),
        (["--memory-per-node", "8"], "memory_per_node='8' must be a number and Mi, Gi or Ti"),
        (["--job-name", "A_b"], "job_name='A_b' must be lower-case letters"),
    ],
)
def test_wrong_settings_are_told_in_a_sentence(flags, says, capsys):
    assert main(["launch", "k8s", *flags, *WORDS]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--max-nodes", "2"], 0),
        (["--max-nodes", "3", "--min-actors", "2"], 2),  # as many actors as there are cores
        (["--max-nodes", "3", "--num-actors", "16"], 2),
        (["--max-nodes", "3", "--num-actors", "16", "--min-actors", "2"], 0),
    ],
)
def test_more_nodes_are_for_actors_that_wait_for_them(flags, code):
    words = [*flags[:2], "--dry-run", *WORDS, *flags[2:]]
    assert main(["launch", "k8s", *words]) == code


def test_a_run_in_the_volume_is_not_looked_for_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "k8s", "--dry-run", *WORDS[:3], "--resume", "--run-dir", "a"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    orders = JobSpec.read(templates(made)[1]["spec"]["containers"][0]["env"][1]["value"])
    assert "--resume" in orders.command


def test_a_run_directory_outside_the_volume_is_refused(capsys):
    assert main(["launch", "k8s", "--dry-run", *WORDS, "--run-dir", "/home/x"]) == 2
    assert "run_dir='/home/x' must be in /runs" in capsys.readouterr().err


def test_no_kubectl_is_told_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["launch", "k8s", *WORDS]) == 2
    assert "kubectl not found on the path: install it" in capsys.readouterr().err


def test_settings_check_themselves():
    with pytest.raises(ConfigError, match="nodes=0 must be 1 or more"):
        KubernetesJob(nodes=0)


@pytest.fixture
def server(tools, tmp_path, monkeypatch):
    """Starts the emulated API server for kubectl."""
    started = []

    def run(*flags: str) -> Path:
        words = [tools / "python", Path(__file__).with_name("api_server.py"), tmp_path, *flags]
        with (tmp_path / "server.txt").open("w") as file:
            started.append(subprocess.Popen(words, stdout=file, stderr=file))
        await_file(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        return tmp_path

    yield run
    for one in started:
        one.kill()
        one.wait(10)


@pytest.mark.cluster
@pytest.mark.parametrize(("flags", "code"), [([], 0), (["fails"], 1)])
def test_a_job_is_made_followed_and_deleted_by_a_real_kubectl(server, launch, flags, code):
    folder = server(*flags)
    running = launch("k8s", "--nodes", "3", *WORDS)
    assert running.wait() == code, running.output
    assert "the run says this\n" in running.output
    assert f": {'Failed FAILED' if flags else 'Complete SUCCEEDED'}" in running.output
    await_file(folder / "deleted")
    made = json.loads((folder / "made.json").read_text())
    assert made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 2


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_is_deleted(server, launch, number):
    folder = server("stays")
    running = launch("k8s", *WORDS)
    running.wait_for("Running RUNNING")
    running.process.send_signal(number)
    assert running.wait() == 130
    await_file(folder / "deleted")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["without-kuberay"], "the cluster has no RayJob resource: install KubeRay's operator"),
        (["bad-image"], "pod head can't start: ImagePullBackOff (no such image)"),
    ],
)
def test_what_the_cluster_can_t_do_is_told_in_a_sentence(server, launch, flags, says):
    folder = server(*flags)
    running = launch("k8s", *WORDS)
    assert running.wait() == 2
    assert says in running.output
    assert (folder / "made.json").exists() is ("bad-image" in flags)
    if "bad-image" in flags:
        await_file(folder / "deleted")


@pytest.mark.cluster
def test_a_cluster_that_does_not_answer_is_told(tools, launch, tmp_path, monkeypatch):
    (tmp_path / "kubeconfig").write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    running = launch("k8s", *WORDS)
    assert running.wait() == 2
    assert "headrace: kubectl failed: " in running.output


def test_the_image_runs_as_the_user_of_the_manifest_and_copies_what_is_there():
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^USER (\d+)$", text, re.M) == ["1000"]
    assert templates(variants()[0])[0]["spec"]["securityContext"]["runAsUser"] == 1000
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for word in line.split()]
    shown = (ROOT / ".dockerignore").read_text().split()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in shown, name


def test_the_image_and_the_tools_of_these_tests_have_exact_versions():
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    assert re.search(r"^ARG BASE=python:\d+\.\d+\.\d+-slim-\w+\nFROM \$\{BASE\}$", text, re.M)
    [packages] = re.findall(r'^ARG PACKAGES="(.*)"$', text, re.M)
    assert "--no-install-recommends ${PACKAGES}" in text
    assert all("=" in package for package in packages.split())
    installs = [part for part in text.split("&&") if "pip install" in part]
    assert all("--constraint constraints.txt" in install for install in installs)
    pinned = names((ROOT / "constraints.txt").read_text().splitlines())
    for needed in importlib.metadata.requires("ray") or []:
        extra = re.search(r"extra == ['\"]default['\"]", needed)
        if extra or "extra" not in needed:
            assert names([needed]) <= pinned, needed
    lines = Path(__file__).with_name("requirements.txt").read_text().splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))


def names(lines: list[str]) -> set[str]:
    """Return the names of the packages in requirements."""
    found = (re.match(r"[\w.-]+", line) for line in lines if not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in found if name}
