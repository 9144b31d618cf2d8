"""A real SLURM of four nodes: jobs that run, end and continue, and their leftovers.

``headrace launch slurm``, and then ClusterEnv, from outside of a job and from inside. All tests are
in one file and so in one worker, because they look for leftovers of any job on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.jobs.slurm.allocation import on_each_node
from tests.jobs.parts import STRANGER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "examples"
DRIVER = """
import os, sys, time, numpy as np, headrace as hr
def make():
    import gymnasium
    from worlds.noting import Noting
    return Noting(gymnasium.make("CartPole-v1"), sys.argv[1])
config = hr.SlurmConfig(nodes=2, start_timeout_s=300)
rays = lambda: {name: x for name, x in os.environ.items() if name.startswith("RAY_")}
before = rays()
with hr.ClusterEnv({"type": make, "envs_per_node": 3}, config) as envs:
    obs, _ = envs.reset(seed=0)
    for _ in range(20):
        obs, reward, *_ = envs.step(envs.action_space.sample())
    print("stepped", obs.shape, reward.sum(), flush=True)
    if sys.argv[2:]:
        time.sleep(100)
print("closed", rays() == before, flush=True)
try:
    hr.ClusterEnv({"type": make}, config)
except hr.ConfigError as error:
    print(error, flush=True)
"""


def noting(folder: Path, pause_s: float = 0.0) -> list[str]:
    """Return flags of a run whose environments record their nodes in a folder."""
    folder.mkdir()
    what = json.dumps({"folder": str(folder), "pause_s": pause_s})
    return ["--wrapper", f"worlds.noting:Noting:{what}"]


def steps(run_dir: Path) -> list[int]:
    """Return the environment steps in each line of the metrics."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["env_steps"] for line in lines]


def test_a_run_on_two_nodes_that_is_preempted_saves_queues_again_and_goes_on_to_its_target(
    slurm, launch, tmp_path
):
    words = ["appo", "--recipe", "cartpole", "--num-actors", "2", "--run-dir", "runs/b"]
    words += ["--log-interval-s", "0.5", *noting(tmp_path / "notes", pause_s=0.03)]
    running = launch("slurm", "--partition", "spot", "--nodes", "2", "--", "train", *words)
    run_dir = tmp_path / "runs/b"
    running.wait_for("Ray is up")
    until(lambda: (run_dir / "metrics.jsonl").exists() and len(steps(run_dir)) >= 2)
    urgent = ["--nodes=4", "--exclusive", "--partition=main", "--output=/dev/null"]
    slurm.ask("sbatch", *urgent, "--wrap=sleep 1")
    running.wait_for("saved; the job is requeued")
    before = max(steps(run_dir))
    running.wait_for("Ray is up", count=2)
    assert running.wait() == 0, running.output
    counted = steps(run_dir)
    assert counted == sorted(counted)
    assert counted[-1] > before > 0
    first_again = next(count for count in counted if count > before)
    assert first_again < 2 * before + 20_000  # it didn't restart from step 0 and overtake
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["evaluation"]["mean"] >= 475, running.output
    assert acted(tmp_path / "notes") >= {"node1", "node2"}
    assert "runs on node[1-2]" in running.output
    assert "waits in the queue" in running.output
    assert "start 2" in running.output
    assert slurm.left() == []


def test_notice_before_the_time_limit_ends_one_node_s_run_which_goes_on_later(
    slurm, launch, tmp_path
):
    words = ["appo", "--recipe", "cartpole", "--num-actors", "1", "--run-dir", "runs/c"]
    words += ["--total-steps", "80_000", "--target-return", "None", "--eval-episodes", "0"]
    words += ["--log-interval-s", "0.2", *noting(tmp_path / "notes", pause_s=0.02)]
    running = launch("slurm", "--", "train", *words)
    run_dir = tmp_path / "runs/c"
    until(lambda: (run_dir / "metrics.jsonl").exists() and len(steps(run_dir)) >= 3)
    slurm.ask("scancel", "--batch", "--signal=USR1", running.job)  # as SLURM itself does
    running.wait_for("saved; the job is requeued")
    before = max(steps(run_dir))
    assert running.wait() == 0, running.output
    assert "Ray is up" not in running.output  # which one node's run does without
    assert steps(run_dir) == sorted(steps(run_dir))
    assert steps(run_dir)[-1] > before
    assert slurm.left() == []


def test_what_is_cancelled_in_mid_run_leaves_nothing(slurm, launch):
    program = "import time, ray; ray.init('auto'); print('begun', flush=True); time.sleep(900)"
    asked = ["--nodes", "2", "--cpus-per-node", "1", "--option", "nodelist=node[1-2]"]
    words = ["slurm", *asked, "--", sys.executable, "-c", program]
    cancelled, killed, interrupted = (launch(*words) for _ in range(3))
    for running in (cancelled, killed, interrupted):
        running.wait_for("begun")
    slurm.ask("scancel", cancelled.job)
    slurm.ask("scancel", "--full", "--signal=KILL", killed.job)
    for process in slurm.processes("node2", "ray.scripts.scripts", interrupted.job):
        process.kill()
    interrupted.wait_for("headrace: Ray ended on node2: ")
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.wait() == 130
    assert cancelled.wait() != 0
    assert killed.wait() != 0
    assert slurm.left() == []


def test_a_job_has_the_nodes_it_asked_for_and_lets_no_stranger_in(slurm, launch):
    asked = ["--nodes", "2", "--cpus-per-node", "2", "--gpus-per-node", "1"]
    running = launch("slurm", *asked, "--", sys.executable, "-c", STRANGER)
    assert running.wait() == 7, running.output  # the program's own exit status
    assert "stranger out\n" in running.output
    assert "wrong out\n" in running.output
    assert "friend IN 2\n" in running.output
    assert "token on a command line: False\n" in running.output
    assert "[('node1', 2.0, 1.0), ('node2', 2.0, 1.0)]" in running.output


def test_an_array_is_a_run_for_each_seed(slurm, launch, tmp_path):
    words = ["a2c", "--env-id", "CartPole-v1", "--total-steps", "2000", "--eval-episodes", "0"]
    words += ["--run-dir", "runs/d #1"]
    running = launch("slurm", "--array", "3-4", "--cpus-per-node", "1", "--", "train", *words)
    assert running.wait() == 0, running.output
    for seed in (3, 4):
        folder = tmp_path / f"runs/d #1/seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["config"]["seed"] == seed
        assert (folder / "summary.json").exists()
    assert slurm.left() == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--partition", "mein"], "partition='mein' doesn't exist. Did you mean 'main'?"),
        (["--nodes", "5"], "nodes=5, but partition main has 4"),
        (["--gpus-per-node", "3"], "gpus_per_node=3, but nodes of partition main have at most 2"),
        (["--option", "licenses=none"], "sbatch failed: "),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_a_job_waits(slurm, launch, flags, words):
    running = launch("slurm", *flags, "--", "python", "x.py")
    assert running.wait() == 2
    assert words in running.output
    assert running.output.count("\n") == 1
    assert slurm.queue() == ""


def test_a_run_directory_that_a_node_does_not_see_is_told(slurm, launch):
    asked = ["--nodes", "2", "--option", "nodelist=node[3-4]", "--start-timeout-s", "120"]
    run_dir = str(slurm.folder / "unshared/run")
    train = ["train", "appo", "--env-id", "CartPole-v1", "--run-dir", run_dir]
    running = launch("slurm", *asked, "--", *train)
    assert running.wait() == 1
    assert f"node4 doesn't see the folder {slurm.folder}/unshared of node3" in running.output
    assert "choose --run-dir on a file system that all nodes share" in running.output
    assert slurm.left() == []


def test_lines_of_nodes_that_speak_at_once_arrive_whole(slurm):
    code = "for i in range(60): print('{' + 'x' * 200 + '}', flush=True)\nraise SystemExit(3)"
    command = on_each_node(4, "-S", "-c", code)
    command.remove("--mem=0")  # which is for what begins in a job
    for _ in range(5):  # less than a pipe holds, or srun would write parts of lines
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        both = {"stdin": nothing, "stdout": pipe, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, **both, text=True, timeout=120)
        lines = done.stdout.splitlines()
        assert lines.count("{" + "x" * 200 + "}") == 240
        assert sum(line.endswith("Exited with exit code 3") for line in lines) >= 1


def test_nodes_that_never_come_up_are_named_within_the_time_out(slurm, launch):
    flags = ["--nodes", "2", "--start-timeout-s", "0.5"]
    running = launch("slurm", *flags, "--", sys.executable, "-c", "0")
    assert running.wait() == 1
    assert "no Ray on node1, node2 after 0.5 s: raise start_timeout_s" in running.output
    assert slurm.left() == []


def acted(folder: Path) -> set[str]:
    """Return the recorded nodes of environments."""
    names = {path.name.split("-")[0] for path in folder.iterdir()}
    return names & {f"node{number}" for number in range(1, 5)}


def until(holds, timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- ClusterEnv ----------------------------------------------------------------------------------


@pytest.fixture
def driver():
    """Starts the driver in a folder, alone or after another command's words."""
    started = []

    def run(folder: Path, *before: str, stays: bool = False) -> subprocess.Popen:
        (folder / "notes").mkdir(parents=True)
        text = DRIVER.replace("sys.argv[1]", repr(str(folder / "notes")))
        (folder / "driver.py").write_text(text)
        words = [*before, sys.executable, "driver.py", "notes", *(["stay"] if stays else [])]
        output = (folder / "output.txt").open("w")
        started.append(subprocess.Popen(words, cwd=folder, stdout=output, stderr=output))
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.wait(10)


def test_workers_run_on_the_nodes_of_two_jobs_and_are_gone_afterwards(slurm, driver, tmp_path):
    before = ["salloc", "--nodes=2", "--exclusive", "--quiet"]
    before += ["srun", "--nodes=1", "--ntasks=1", "--overlap"]
    folders = [tmp_path / "inside", tmp_path / "outside"]
    for folder, process in [(folders[0], driver(folders[0], *before)),
                            (folders[1], driver(folders[1]))]:  # fmt: skip
        code, output = process.wait(400), (folder / "output.txt").read_text()
        assert code == 0, output
        assert "stepped (6, 4) " in output
        assert "closed True" in output
        assert "SlurmConfig: only one ClusterEnv with SlurmConfig is possible per program" in output
        assert len(acted(folder / "notes")) == 2
        assert {path.name for path in folder.iterdir()} == {"driver.py", "notes", "output.txt"}
    assert slurm.left() == []


def test_a_program_in_an_allocation_knows_its_gpus(slurm):
    code = "from headrace.jobs.slurm.allocation import gpus_per_node as n; print(n())"
    step = ["srun", "--nodes=1", "--ntasks=1", "--overlap", sys.executable, "-c", code]
    for asked, found in (([], 0), (["--gres=gpu:2"], 2), (["--gpus-per-node=1"], 1)):
        assert int(slurm.ask("salloc", "--nodes=1", "--quiet", *asked, *step)) == found


def test_the_example_of_ppo_learns_on_the_nodes_of_a_job(slurm, tmp_path):
    words = "--env-id CartPole-v1 --nodes 2 --place slurm --total-steps 4000 --eval-episodes 1"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ppo.py", *words.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "weight syncs [" in done.stdout
    assert slurm.left() == []


@pytest.mark.full
def test_a_job_ends_with_the_driver_that_was_killed(slurm, driver, tmp_path):
    process = driver(tmp_path / "driver", stays=True)
    output = tmp_path / "driver/output.txt"
    deadline = time.monotonic() + 90
    while "stepped" not in output.read_text():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert slurm.left(150) == []


def test_what_slurm_has_not_is_refused_before_a_job_waits(slurm):
    with pytest.raises(ConfigError, match=r"nodes=9, but partition main has 4"):
        hr.ClusterEnv({"env_name": "CartPole-v1"}, hr.SlurmConfig(nodes=9))
    assert slurm.queue() == ""
