"""Following a RayJob with a kubectl that fails now and then; no cluster is needed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.jobs.kubernetes import following

KUBECTL = """#!/bin/sh
# Answers "get rayjob", "delete rayjob" … with the files get-1, get-2 …, the last one for ever;
# one that begins with "error" goes to stderr and is a failure.
cd "$(dirname "$0")"
echo "$*" >> calls
case "$*" in
    *api-resources*) echo rayjobs.ray.io; exit ;;
    *"get pvc"*) echo pvc; exit ;;
    *"get rayjob"*) kind=get ;;
    *"delete rayjob"*) kind=delete ;;
    *"get pods"*) kind=pods ;;
    *logs*) kind=logs ;;
    *) cat > made; [ ! -e refuses ] || { echo "error: no answer" >&2; exit 1; }; exit ;;
esac
count=$(($(cat "$kind.count" 2> /dev/null || echo 0) + 1))
echo $count > "$kind.count"
while [ ! -e "$kind-$count" ]; do
    [ $count -gt 0 ] || exit 0
    count=$((count - 1))
done
if grep -q "^error" "$kind-$count"; then cat "$kind-$count" >&2; exit 1; fi
if [ $kind = pods ]; then exec %s %s "$*" made < "$kind-$count"; fi
cat "$kind-$count"
"""
KUBERAY = Path(__file__).with_name("kuberay.py")
WORDS = ["launch", "k8s", "--namespace", "lab", "--", "train", "appo", "--recipe", "cartpole"]
REFUSED = "error: the server is busy"


def status(stage: str, end: str = "", reason: str = "") -> str:
    known = {"jobDeploymentStatus": stage, "jobStatus": end, "rayClusterName": "x-1"}
    return json.dumps({"status": known | {"reason": reason}})


def pods(*found: dict, kind: str = "head", cluster: str = "x-1") -> str:
    """Return a list of pods of one kind with these states."""
    about = {"name": kind, "of": (kind, cluster)}
    return json.dumps({"items": [{"metadata": about, "status": one} for one in found]})


def can_t_start(part: str = "containerStatuses") -> dict:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    return {part: [{"image": "x", "state": {"waiting": waiting}}]}


def without_node(why: str) -> dict:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"conditions": [scheduled | {"message": why}]}


RUNNING, DONE = status("Running", "RUNNING"), status("Complete", "SUCCEEDED")


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Puts a kubectl with these answers on the path; returns its calls."""
    monkeypatch.setattr(following, "_LOOK_S", 0.05)
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)
    before = signal.getsignal(signal.SIGTERM)

    def put(get: list[str], **others: list[str]):
        program = tmp_path / "kubectl"
        program.write_text(KUBECTL % (sys.executable, KUBERAY))
        program.chmod(0o755)
        for kind, answers in {"get": get, "pods": ["{}"], **others}.items():
            for count, answer in enumerate(answers, 1):
                (tmp_path / f"{kind}-{count}").write_text(answer)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return lambda word: [x for x in calls(tmp_path) if word in x]

    yield put
    signal.signal(signal.SIGTERM, before)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_what_perhaps_was_made_is_deleted(kubectl, tmp_path):
    called = kubectl([RUNNING])
    (tmp_path / "refuses").touch()
    assert main(WORDS) != 0
    assert called("delete rayjob")


def test_a_kubectl_that_fails_for_a_while_ends_no_run(kubectl, capsys):
    called = kubectl([RUNNING, REFUSED, REFUSED, RUNNING, DONE])
    assert main(WORDS) == 0
    told = capsys.readouterr().err
    assert (
        told.count("the server is busy; the run continues, and kubectl is retried for 600 s") == 1
    )
    assert len(called("get rayjob")) == 5
    assert len(called("delete rayjob")) == 1
    assert "delete rayjob" in called("")[-1]


def test_a_cluster_that_stays_silent_is_left_with_its_run(kubectl, capsys, monkeypatch):
    monkeypatch.setattr(following, "_SILENT_S", 0.2)
    called = kubectl([RUNNING, REFUSED])
    assert main(WORDS) == 2
    assert called("delete rayjob") == []
    name = called("get rayjob")[0].split()[4]
    told = capsys.readouterr().err
    assert f"`kubectl --namespace lab delete rayjob {name}` ends it" in told
    assert f"`kubectl --namespace lab get rayjob {name}` shows it" in told


def test_a_pod_list_that_fails_ends_no_run(kubectl):
    called = kubectl([status("Initializing"), status("Initializing"), DONE], pods=[REFUSED, "{}"])
    assert main(WORDS) == 0
    assert len(called("get pods")) == 2


@pytest.mark.parametrize(
    ("kind", "part", "stage"),
    [
        ("head", "containerStatuses", "Initializing"),
        ("worker", "containerStatuses", "Initializing"),
        ("worker", "initContainerStatuses", "Initializing"),
        ("submitter", "containerStatuses", "Running"),
    ],
)
def test_a_pod_that_can_t_start_ends_the_job(kubectl, capsys, kind, part, stage):
    called = kubectl([status(stage)], pods=[pods(can_t_start(part), kind=kind)])
    assert main(WORDS) == 2
    assert f"pod {kind} can't start: ImagePullBackOff (no such image)" in capsys.readouterr().err
    assert len(called("delete rayjob")) == 1


def test_a_pod_of_a_cluster_that_was_lost_ends_nothing(kubectl):
    kubectl([status("Initializing"), DONE], pods=[pods(can_t_start(), cluster="x-0")])
    assert main(WORDS) == 0


def test_pods_that_fit_no_node_are_told_once(kubectl, capsys):
    few, more = (f"0/{count} nodes are available: insufficient nvidia.com/gpu" for count in (3, 4))
    waits, still = (pods(without_node(why), without_node(why)) for why in (few, more))
    kubectl([*[status("Initializing")] * 3, DONE], pods=[waits, waits, still])
    assert main(WORDS) == 0
    told = capsys.readouterr().err
    assert [told.count(f"pod head waits for a node: {why}\n") for why in (few, more)] == [1, 1]


def test_a_command_that_failed_is_not_tried_again_on_another_cluster(kubectl):
    called = kubectl([RUNNING, status("Retrying", "FAILED", "AppFailed"), RUNNING])
    assert main(WORDS) == 1
    assert len(called("get rayjob")) == 2
    assert len(called("delete rayjob")) == 1


def test_a_job_that_kuberay_refuses_has_failed(kubectl):
    kubectl([status("New"), status("ValidationFailed", reason="ValidationFailed")])
    assert main(WORDS) == 1


def test_a_job_that_a_lost_cluster_took_with_it_goes_on_with_the_next(kubectl):
    kubectl([RUNNING, status("Retrying", "RUNNING", "AppFailed"), RUNNING, DONE])
    assert main(WORDS) == 0


def test_a_run_that_somebody_deleted_is_told(kubectl, capsys):
    kubectl([RUNNING, ""])
    assert main(WORDS) == 2
    assert "was deleted" in capsys.readouterr().err


def test_a_delete_is_tried_again_and_told_with_the_command_if_it_fails(kubectl, capsys):
    called = kubectl([DONE], delete=[REFUSED, "deleted"])
    assert main(WORDS) == 0
    assert len(called("delete rayjob")) == 2
    assert "is not deleted" not in capsys.readouterr().err


def test_a_delete_that_never_works_is_told_with_the_command(kubectl, capsys):
    called = kubectl([DONE], delete=[REFUSED])
    assert main(WORDS) == 0
    assert len(called("delete rayjob")) == 5
    told = capsys.readouterr().err
    assert "is not deleted (kubectl failed: error: the server is busy): `kubectl --name" in told


def test_output_that_breaks_off_goes_on_where_it_was(kubectl, capfd):
    running = [RUNNING] * 9
    called = kubectl([*running, DONE], logs=[REFUSED, "all of it\n"])
    assert main(WORDS) == 0
    assert capfd.readouterr().out == "all of it\n"
    assert ["--since" in call for call in called("logs")] == [False, False]


def test_the_output_of_a_second_try_is_shown_too(kubectl, capfd):
    stages = [*[RUNNING] * 4, status("Retrying"), *[RUNNING] * 4, DONE]
    kubectl(stages, logs=["first\n", "second\n"])
    assert main(WORDS) == 0
    assert capfd.readouterr().out == "first\nsecond\n"
