"""``headrace launch slurm`` on a real SLURM of four nodes: what runs, ends, goes on and is left."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.provision.parts import STRANGER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


def noting(folder: Path, pause_s: float = 0.0) -> list[str]:
    """Flags of a run whose environments note their nodes in a folder."""
    folder.mkdir()
    what = json.dumps({"folder": str(folder), "pause_s": pause_s})
    return ["--wrapper", f"worlds.noting:Noting:{what}"]


def steps(run_dir: Path) -> list[int]:
    """The counter of environment steps in each line of the metrics."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["env_steps"] for line in lines]


def test_a_run_on_two_nodes_acts_on_both_reaches_its_target_and_leaves_nothing(
    slurm, launch, tmp_path
):
    notes = tmp_path / "notes"
    words = ["appo", "--recipe", "cartpole", "--num-actors", "2", *noting(notes)]
    running = launch("slurm", "--nodes", "2", "--", "train", *words, "--run-dir", "runs/a")
    assert running.wait(150) == 0, running.output
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert summary["evaluation"]["mean"] >= 475, running.output
    assert {path.name.split("-")[0] for path in notes.iterdir()} >= {"node1", "node2"}
    assert "runs on node[1-2]" in running.output
    assert slurm.left() == []


def test_a_preempted_run_saves_queues_again_and_goes_on_from_its_counters(slurm, launch, tmp_path):
    words = ["appo", "--recipe", "cartpole", "--num-actors", "2", "--run-dir", "runs/b"]
    words += ["--log-interval-s", "0.5", *noting(tmp_path / "notes", pause_s=0.002)]
    running = launch("slurm", "--partition", "spot", "--nodes", "2", "--", "train", *words)
    run_dir = tmp_path / "runs/b"
    running.wait_for("Ray is up")
    until(lambda: (run_dir / "metrics.jsonl").exists() and len(steps(run_dir)) >= 4)
    urgent = ["--nodes=4", "--exclusive", "--partition=main", "--output=/dev/null"]
    slurm.ask("sbatch", *urgent, "--wrap=sleep 1")
    running.wait_for("saved; the job queues again")
    before = max(steps(run_dir))
    running.wait_for("Ray is up", count=2)
    assert running.wait(120) == 0, running.output
    counted = steps(run_dir)
    assert counted == sorted(counted)
    assert counted[-1] > before > 0
    first_again = next(count for count in counted if count > before)
    assert first_again < 2 * before + 20_000  # it didn't begin anew and overtake
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["evaluation"]["mean"] >= 475, running.output
    assert "waits in the queue" in running.output
    assert "start 2" in running.output
    assert slurm.left() == []


def test_notice_before_the_time_limit_ends_one_node_s_run_which_goes_on_later(
    slurm, launch, tmp_path
):
    words = ["appo", "--recipe", "cartpole", "--num-actors", "1", "--run-dir", "runs/c"]
    words += ["--log-interval-s", "0.2", *noting(tmp_path / "notes", pause_s=0.002)]
    running = launch("slurm", "--", "train", *words)
    run_dir = tmp_path / "runs/c"
    until(lambda: (run_dir / "metrics.jsonl").exists() and len(steps(run_dir)) >= 3)
    slurm.ask("scancel", "--batch", "--signal=USR1", running.job)  # as SLURM itself does
    running.wait_for("saved; the job queues again")
    before = max(steps(run_dir))
    assert running.wait() == 0, running.output
    assert "Ray is up" not in running.output  # which one node's run does without
    assert steps(run_dir) == sorted(steps(run_dir))
    assert steps(run_dir)[-1] > before
    assert slurm.left() == []


@pytest.mark.parametrize("how", ["scancel", "ctrl-c", "kill"])
def test_what_is_cancelled_in_mid_run_leaves_nothing(slurm, launch, tmp_path, how):
    program = "import time, ray; ray.init('auto'); print('begun', flush=True); time.sleep(300)"
    running = launch("slurm", "--nodes", "2", "--", sys.executable, "-c", program)
    running.wait_for("begun")
    if how == "ctrl-c":
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130
    else:
        slurm.ask("scancel", *(["--full", "--signal=KILL"] if how == "kill" else []), running.job)
        assert running.wait() != 0
    assert slurm.left(30.0) == []


def test_a_job_has_the_nodes_it_asked_for_and_lets_no_stranger_in(slurm, launch):
    asked = ["--nodes", "2", "--cpus-per-node", "2", "--gpus-per-node", "1"]
    running = launch("slurm", *asked, "--", sys.executable, "-c", STRANGER)
    assert running.wait(120) == 7, running.output  # the program's own exit status
    assert "nobody out\n" in running.output
    assert "wrong out\n" in running.output
    assert "friend IN 2\n" in running.output
    assert "token on a command line: False\n" in running.output
    assert "[('node1', 2.0, 1.0), ('node2', 2.0, 1.0)]" in running.output


def test_an_array_is_a_run_for_each_seed(slurm, launch, tmp_path):
    words = ["a2c", "--total-steps", "2000", "--eval-episodes", "0", "--run-dir", "runs/d"]
    running = launch("slurm", "--array", "3-4", "--cpus-per-node", "1", "--", "train", *words)
    assert running.wait() == 0, running.output
    for seed in (3, 4):
        folder = tmp_path / f"runs/d/seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["config"]["seed"] == seed
        assert (folder / "summary.json").exists()
    assert slurm.left() == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--partition", "mein"], "partition='mein' doesn't exist. Did you mean 'main'?"),
        (["--nodes", "5"], "nodes=5, but partition main has 4"),
        (["--gpus-per-node", "3"], "gpus_per_node=3, but nodes of partition main have at most 2"),
        (["--option", "licenses=none"], "sbatch refused: "),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_a_job_waits(slurm, launch, flags, words):
    running = launch("slurm", *flags, "--", "python", "x.py")
    assert running.wait() == 2
    assert words in running.output
    assert running.output.count("\n") == 1
    assert slurm.queue() == ""


def test_a_run_directory_that_a_node_does_not_see_is_told(slurm, launch):
    asked = ["--nodes", "2", "--option", "nodelist=node[3-4]"]
    run_dir = str(slurm.folder / "unshared/run")
    running = launch("slurm", *asked, "--", "train", "appo", "--run-dir", run_dir)
    assert running.wait() == 1
    assert f"node4 doesn't see the folder {slurm.folder}/unshared of node3" in running.output
    assert "choose --run-dir on a file system that all nodes share" in running.output
    assert slurm.left() == []


def test_nodes_that_never_come_up_are_named_within_the_time_out(slurm, launch):
    flags = ["--nodes", "2", "--start-timeout-s", "0.5"]
    running = launch("slurm", *flags, "--", sys.executable, "-c", "0")
    assert running.wait() == 1
    assert "no Ray on node1, node2 after 0.5 s: raise start_timeout_s" in running.output
    assert slurm.left() == []


def until(holds, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
