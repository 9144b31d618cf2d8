"""Job scripts for SLURM, and interpretation of its answers; no SLURM is needed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S

import headrace as hr
from headrace.cli import main
from headrace.errors import ConfigError, LaunchFailed
from headrace.jobs.job_spec import JobSpec, steps_saved
from headrace.jobs.slurm import following, request
from headrace.jobs.slurm import job as slurm_job
from headrace.jobs.slurm.allocation import new_spec
from headrace.jobs.slurm.cluster_env import SlurmBackend
from headrace.jobs.slurm.following import JobFollower, LogTail, log_of
from headrace.jobs.slurm.job import Job, script
from headrace.jobs.slurm.node import NodeSpec
from headrace.jobs.slurm.queue import State, _state, check_cluster
from headrace.jobs.slurm.request import requested
from headrace.jobs.versions import difference, versions
from headrace.ray import node as ray_node
from headrace.ray.node import RayNode, new_cluster, own_folder
from headrace.rundir import checksums


def test_the_script_asks_for_what_the_job_says_and_carries_its_orders():
    orders = JobSpec(["a", "it's\nb"], [], [], "runs/x", 60.0, True)
    text = script(
        Job(nodes=2, partition="gpu", gpus_per_node=4, option=("account=x",)), orders, "l"
    )
    asked = {line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert asked >= {"--nodes=2", "--partition=gpu", "--gpus-per-node=4", "--account=x"}
    assert asked >= {"--exclusive", "--mem=0", "--requeue", "--signal=B:USR1@120", "--output=l"}
    told = text.split("<<'SPEC'\n")[1].removesuffix("\nSPEC\n")
    assert JobSpec.read(told) == orders
    subprocess.run(["sh", "-n"], input=text, text=True, check=True, timeout=10)
    part = script(Job(cpus_per_node=3, requeue=False), orders, "l")
    assert "--cpus-per-task=3" in part
    assert "--no-requeue" in part
    assert "--exclusive" not in part


def asked_of(job: Job, log: str = "l") -> list[str]:
    text = script(job, JobSpec([], [], [], ray=False), log)
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


def test_what_sbatch_would_cut_off_or_take_for_a_comment_is_quoted():
    asked = asked_of(Job(option=('comment=a "b" #c \\d', "wait")), "runs/a b#1/x-%j.log")
    assert r'#SBATCH --comment="a \"b\" #c \\d"' in asked
    assert '#SBATCH --output="runs/a b#1/x-%j.log"' in asked
    assert "#SBATCH --wait" in asked


def test_a_time_limit_that_leaves_no_time_to_run_is_refused_before_it_is_submitted():
    job = Job(time_limit="7", stop_before_s=120)
    for_ray, alone = (JobSpec([], [], [], start_timeout_s=300.0, ray=ray) for ray in (True, False))
    says = (
        "time_limit='7', which is 420 s, must be above stop_before_s=120 and start_timeout_s=300 "
        r"together \(nearest: 8 minutes\)"
    )
    with pytest.raises(ConfigError, match=says):
        script(job, for_ray, "l")
    script(job, alone, "l")
    script(Job(time_limit="8"), for_ray, "l")


class TestOrders:
    """Return the command of a job's start, by the files next to and in its run directory."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.run_dir = tmp_path / "run"

    def runs(self, job: str, command: str = "begin", anew: str = "anew") -> str:
        [word] = JobSpec([command], [anew], ["again"]).words(self.run_dir, job)
        return word

    def save(self, step: int = 8) -> None:
        (self.run_dir / f"checkpoints/step_{step}").mkdir(parents=True)

    def test_a_job_begins_and_goes_on_from_what_it_has_saved(self):
        assert self.runs("1") == "begin"
        assert self.runs("1") == "anew"
        self.save()
        assert self.runs("1") == "again"

    def test_another_job_does_not_go_on_from_it_and_is_refused_each_time(self):
        self.runs("1")
        self.save()
        assert self.runs("2") == self.runs("2") == "begin"
        assert self.runs("1") == "again"

    def test_a_job_that_overwrites_goes_on_from_its_own_checkpoints_only(self):
        self.runs("1")
        self.save()
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"  # what is there is older
        self.save(9)
        assert self.runs("2", "overwrite", "overwrite") == "again"

    @pytest.mark.parametrize("anew", ["overwrite", "anew"])
    def test_a_job_that_is_refused_takes_nothing_from_the_one_that_trains(self, anew):
        given = ("begin", anew) if anew == "anew" else (anew, anew)
        self.runs("1", *given)
        self.save()
        lock = os.open(self.run_dir / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"  # which the lock refuses
        os.close(lock)
        assert self.runs("1", *given) == "again"

    @pytest.mark.parametrize("shift_s", [-3600.0, 3600.0])
    def test_clocks_that_were_set_or_differ_change_nothing(self, shift_s):
        self.runs("1")
        self.save()
        for path in (self.run_dir, self.run_dir / "checkpoints/step_8"):
            os.utime(path, (path.stat().st_mtime + shift_s,) * 2)
        assert self.runs("1") == "again"
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"  # it has saved nothing

    def test_a_checkpoint_of_as_many_steps_as_another_job_s_is_known_by_its_content(self):
        self.save()
        sums = self.run_dir / "checkpoints/step_8/SHA256SUMS"
        sums.write_text("of the job before")
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"
        assert self.runs("2", "overwrite", "overwrite") == "overwrite"
        sums.write_text("of this job")
        assert self.runs("2", "overwrite", "overwrite") == "again"

    def test_a_checkpoint_equal_to_another_job_s_is_known_by_the_job_s_id(self, tiny, monkeypatch):
        config = tiny(transport="serial", deterministic=True, total_steps=64, overwrite=True)
        for job in ("1", "2"):
            monkeypatch.setenv(checksums.JOB, job)
            assert self.runs(job, "overwrite", "overwrite") == "overwrite"
            with contextlib.closing(hr.Trainer(config, notify=str)) as trainer:
                assert list(trainer)
            assert self.runs(job, "overwrite", "overwrite") == "again"

    def test_a_restart_never_overwrites_but_moves_files_out_of_the_way(self):
        spec = JobSpec(["train"], ["train", "--overwrite"], ["resume"])
        assert spec.words(self.run_dir, "1") == ["train"]
        self.run_dir.mkdir()
        for n in (1, 2):
            (self.run_dir / "metrics.jsonl").write_text(f"of start {n}")
            assert spec.words(self.run_dir, "1") == ["train"]
            moved = self.run_dir.with_name(f"run.start-{n}")
            assert (moved / "metrics.jsonl").read_text() == f"of start {n}"
            assert not self.run_dir.exists()
            self.run_dir.mkdir()
        assert spec.words(self.run_dir, "1") == ["train"]
        assert not self.run_dir.with_name("run.start-3").exists()  # it was empty

    def test_a_link_to_a_directory_stays_one(self):
        spec, target = JobSpec(["train"], ["train", "--overwrite"], ["resume"]), self.run_dir
        link = target.with_name("link")
        spec.words(link, "1")
        target.mkdir()
        (target / "metrics.jsonl").write_text("of start 1")
        link.symlink_to(target)
        assert spec.words(link, "1") == ["train"]
        assert link.is_symlink()
        assert link.is_dir()
        assert not any(link.iterdir())
        assert target.with_name(f"{target.name}.start-1").is_dir()

    def test_a_directory_in_which_another_process_trains_stays(self):
        spec = JobSpec(["train"], ["train", "--overwrite"], ["resume"])
        spec.words(self.run_dir, "1")
        self.run_dir.mkdir()
        lock = os.open(self.run_dir / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert spec.words(self.run_dir, "1") == ["train"]
        assert self.run_dir.exists()
        os.close(lock)

    def test_a_mark_that_was_cut_off_is_another_job_s(self):
        self.runs("1")
        self.save()
        self.run_dir.with_name("run.job").write_text('{"job": "1"')
        assert self.runs("1") == "begin"

    def test_a_checkpoint_that_was_not_finished_counts_for_nothing(self):
        self.runs("1")
        (self.run_dir / "checkpoints/step_8.tmp").mkdir(parents=True)
        assert self.runs("1") == "anew"
        assert steps_saved(self.run_dir) == 0
        self.save(8)
        self.save(12)
        assert steps_saved(self.run_dir) == 12
        assert steps_saved(None) == 0

    def test_a_folder_that_can_t_be_written_to_is_told(self, tmp_path):
        (tmp_path / "run.job").mkdir()
        with pytest.raises(LaunchFailed, match="can't write next to run_dir="):
            self.runs("1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-1", 176400), ("1-2:3:4", 93784)],
)
def test_time_limits_are_read_as_sbatch_reads_them(text, seconds):
    assert slurm_job._seconds(text) == seconds


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"time_limit": "soon"}, "time_limit='soon' must be minutes"),
        ({"time_limit": "2", "stop_before_s": 120}, r"stop_before_s=120 must be below .* 60\)"),
        ({"array": "a-b"}, "array='a-b' must be numbers and ranges of them"),
        ({"option": ("--account=x",)}, "each is NAME or NAME=VALUE"),
        ({"option": ("comment=a\nrm x",)}, "without line breaks"),
        ({"option": ("signal=B:TERM@9",)}, "not signal, which is stop_before_s"),
        ({"partition": "a\n#SBATCH --wrap=x"}, "must be not empty, and one line"),
        ({"job_name": "a b"}, "job_name='a b' must be letters, digits"),
    ],
)
def test_settings_of_a_job_that_are_wrong_are_told_in_a_sentence(settings, says):
    with pytest.raises(ConfigError, match=says):
        Job(**settings)


def test_states_are_read_from_what_scontrol_shows():
    line = "JobId=9 ArrayJobId=8 ArrayTaskId=3 JobState=RUNNING Reason=None Restarts=2"
    line += " ExitCode=0:0 ReqNodeList=(null) NodeList=node[1-2] TRES=cpu=4,node=2"
    assert _state(line) == State("8_3", "RUNNING", "None", 2, "node[1-2]", 0)
    assert _state("JobId=9 JobState=FAILED ExitCode=7:0").exit_code == 7
    assert _state("JobId=9 JobState=CANCELLED ExitCode=0:15").exit_code == 143
    assert _state("JobId=9 JobState=COMPLETING ExitCode=0:0").ended is False


def test_a_job_waits_for_a_reason_as_soon_as_slurm_has_one():
    waiting = "JobId=9 JobState=PENDING ExitCode=0:0 Reason="
    assert _state(waiting + "None").waits == "waits in the queue"
    assert _state(waiting + "Resources").waits == "waits in the queue (Resources)"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Puts a SLURM on the path that has these partitions and rejects everything else."""

    def put(*lines: str) -> None:
        for name in ("sbatch", "srun", "scontrol", "scancel", "sinfo"):
            program = tmp_path / name
            program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partition": "gpus"}, "partition='gpus' doesn't exist. Did you mean 'gpu'"),
        ({"nodes": 13}, r"nodes=13, but partition main has 12$"),
        ({"gpus_per_node": 1}, r"have at most 0 \(partition gpu has them\)"),
        ({"partition": "gpu", "gpus_per_node": 9}, "nodes of partition gpu have at most 8"),
        ({"cpus_per_node": 65}, "cpus_per_node=65, but nodes of partition main have at most 64"),
        ({"partition": "old"}, "partition old accepts no jobs now"),
    ],
)
def test_what_a_partition_has_not_is_refused(cluster, settings, says):
    cluster(
        "main*|8|32+|(null)|up", "main*|4|64|(null)|up", "gpu|2|64|gpu:a100:8(S:0-1)|up",
        "old|2|64|gpu:2|down",
    )  # fmt: skip
    check_cluster(Job(nodes=12))
    with pytest.raises(ConfigError, match=says):
        check_cluster(Job(**settings))


def test_a_machine_without_slurm_is_told_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"^sbatch, .* not found on the path: run this on a mac"):
        check_cluster(Job())


def test_a_log_gives_whole_lines_that_are_new(tmp_path):
    path = tmp_path / "8.log"
    path.write_text("of a job before\n")
    log = LogTail(path)
    assert log.new() == ""
    with path.open("a") as file:
        file.write("one\ntw")
    assert log.new() == "one\n"
    with path.open("a") as file:
        file.write("o\n")
    assert log.new() == "two\n"
    assert log_of("runs/%A/seed-%a.log", "8_3") == Path("runs/8/seed-3.log")


@pytest.mark.parametrize(
    ("before", "last", "exit_code"),
    [("FAILED", [], 7), ("COMPLETED", [], 0), ("PREEMPTED", ["RUNNING", "COMPLETED"], 0)],
)
def test_seeds_that_slurm_has_forgotten_count(tmp_path, monkeypatch, before, last, exit_code):
    def state(seed: int, name: str) -> State:
        return State(f"8_{seed}", name, "None", 0, "node1", 7 if name == "FAILED" else 0)

    answers = [[state(0, before), state(1, "RUNNING")]]
    answers += [[state(0, name), state(1, "RUNNING")] for name in last]
    answers += [[state(1, "COMPLETED")]] * 2
    monkeypatch.setattr(following, "_LOOK_S", 0.01)
    monkeypatch.setattr(following, "states", lambda job: answers.pop(0))
    logs = {tmp_path / f"{seed}.log": LogTail(tmp_path / f"{seed}.log") for seed in range(2)}
    for path in logs:
        path.write_text("begun\n")
    follower = JobFollower("8", f"{tmp_path}/%a.log", logs, lambda text: None, lambda text: None)
    assert follower.to_the_end() == exit_code
    assert answers == []


def test_an_array_shows_how_many_jobs_have_ended_and_the_time_left(tmp_path, monkeypatch):
    names = [["RUNNING", "RUNNING"], ["COMPLETED", "RUNNING"], *[["COMPLETED", "COMPLETED"]] * 2]
    answers = [
        [State(f"8_{i}", x, "None", 0, "node1", 0) for i, x in enumerate(each)] for each in names
    ]
    monkeypatch.setattr(following, "_LOOK_S", 0.01)
    monkeypatch.setattr(following, "states", lambda job: answers.pop(0))
    for i in range(2):
        (tmp_path / f"{i}.log").write_text("begun\n")
    said = []
    logs = {tmp_path / f"{i}.log": LogTail(tmp_path / f"{i}.log") for i in range(2)}
    for path in logs:
        path.write_text("begun\nmore\n")
    follower = JobFollower("8", f"{tmp_path}/%a.log", logs, lambda text: None, said.append, 2)
    assert follower.to_the_end() == 0
    ended = [line for line in said if "ended" in line]
    assert ended == [
        "[1/2, 0:00:00 left] job 8_0 has ended: completed",
        "[2/2] job 8_1 has ended: completed",
    ]


@pytest.mark.parametrize(
    ("array", "count"), [(None, 1), ("0-3", 4), ("1,5,7", 3), ("0-7%2", 8), ("0-8:4,9", 4)]
)
def test_the_jobs_of_an_array_are_counted(array, count):
    assert Job(array=array).num_jobs == count


def test_another_version_on_a_node_is_told_with_the_remedy():
    assert difference(versions(), "login1") == ""
    assert versions()["Python"] == platform.python_version()  # which Ray compares whole
    words = difference(versions() | {"Python": "3.9"}, "login1")
    assert "Python 3." in words
    assert "not 3.9 as login1 has: install the same there" in words


def test_a_node_that_differs_says_so_and_starts_nothing():
    spec = NodeSpec("t", 0, versions() | {"ray": "1.0"}, "node1", False, "", 5.0)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.jobs.slurm.node"],
        input=spec.write() + "\n",
        env=os.environ | {"SLURMD_NODENAME": "node2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = json.loads(done.stdout)
    assert said["wrong"].startswith("node2 has ray ")
    assert "not 1.0" in said["wrong"]
    assert done.returncode == 1


def test_a_cluster_of_one_node_listens_on_the_loopback_interface():
    ray = new_cluster("", "token")
    assert ray.address.startswith("127.0.0.1:")
    assert ray.environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_each_job_has_its_own_token():
    one, other = (new_spec(0, "node1", False, "", 1.0).token for _ in range(2))
    assert one != other
    assert len(one) == 64


def test_ray_s_folder_is_new_and_its_user_s_alone_and_short(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made = [own_folder("1234567-driver") for _ in range(2)]
    try:
        assert made[0] != made[1]
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in made)
        assert all(str(path).startswith("/tmp/headrace-1234567-driver-") for path in made)
        assert all(len(str(path)) <= 40 for path in made)
    finally:
        for path in made:
            path.rmdir()


def test_a_node_that_can_t_start_ray_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray_node, "_LONGEST", 1000)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError), RayNode(new_cluster("", "token"), True, "n", 1, 0, "x"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """Puts this program into a job of two other nodes."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho node1\necho node2\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": "2", "JOB_ID": "9"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)


def opened(**settings) -> None:
    hr.ClusterEnv({"env_name": "CartPole-v1"}, hr.SlurmConfig(**settings))


@pytest.mark.usefixtures("inside")
def test_a_program_under_salloc_on_a_machine_that_is_no_node_is_told():
    with pytest.raises(ConfigError, match=r"is not a node of job 9 \(node1, node2\): start it"):
        opened(nodes=2)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("told", "there"),
    [({}, 0), ({"PER": "1"}, 1), ({"PER": "a100"}, 1), ({"ON": "2"}, 2), ({"PER": "a100:4"}, 4)],
)
def test_what_the_job_that_a_program_is_in_has_not_is_refused(monkeypatch, told, there):
    for where in ("PER", "ON"):
        monkeypatch.delenv(f"SLURM_GPUS_{where}_NODE", raising=False)
    for where, value in told.items():
        monkeypatch.setenv(f"SLURM_GPUS_{where}_NODE", value)
    says = f"{there + 1}, but this program runs in job 9, which has {there} .nearest: {there}"
    with pytest.raises(ConfigError, match=f"SlurmConfig: gpus_per_node={says}"):
        opened(gpus_per_node=there + 1)
    with pytest.raises(ConfigError, match="nodes=3, but this program runs in job 9, which has 2"):
        opened(nodes=3, gpus_per_node=there)


def test_a_place_without_ray_and_a_second_one_are_refused(monkeypatch):
    monkeypatch.setattr(SlurmBackend, "entered", True)
    with pytest.raises(ConfigError, match="SlurmConfig: only one ClusterEnv with SlurmConfig"):
        opened()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="SlurmConfig needs ray, which isn't installed"):
        opened()


SALLOC = """#!/bin/sh
echo "$@" > {folder}/flags
echo "salloc: {said}"
exec {then}
"""


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Requests nodes from a salloc with this output and action; returns the messages."""
    (tmp_path / "scontrol").write_text(
        "#!/bin/sh\necho JobId=7 JobState=PENDING Reason=Resources ExitCode=0:0\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(request, "cancelled", lambda job, say: say(f"cancelled {job}"))
    passed: list[float] = []
    clock = {"monotonic": lambda: time.monotonic() + sum(passed), "sleep": time.sleep}
    monkeypatch.setattr(request, "time", SimpleNamespace(**clock))

    def run(said: str, then: str, timeout_s: float, **settings) -> list[str]:
        (tmp_path / "salloc").write_text(SALLOC.format(folder=tmp_path, said=said, then=then))
        for name in ("scontrol", "salloc"):
            (tmp_path / name).chmod(0o755)
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            if "waits in the queue" in line:
                passed.append(timeout_s + 1.0)

        with (
            pytest.raises(LaunchFailed) as failed,
            requested(Job(nodes=2, **settings), timeout_s, say),
        ):
            pass
        return [*lines, str(failed.value)]

    return run


def test_a_request_that_slurm_rejects_is_told_in_its_words(refused, tmp_path):
    words = refused("error: Invalid account", "false", 60.0, option=("account=x y",))
    assert words == ["salloc failed: salloc: error: Invalid account"]
    flags = (tmp_path / "flags").read_text()
    assert flags.startswith("--job-name=headrace --nodes=2 --ntasks-per-node=1 --exclusive --mem=0")
    assert "--account=x y srun --nodes=2" in flags


def test_a_request_that_waits_for_too_long_is_withdrawn(refused):
    *said, error = refused("Pending job allocation 7", "sleep 60", PATIENCE_S)
    assert said == ["job 7 waits in the queue (Resources)", "cancelled 7"]
    assert error == f"job 7 waited in the queue for {PATIENCE_S:g} s (queue_timeout_s)"


@pytest.mark.parametrize("command", ["train appo --env-id CartPole-v1 --run-dir", "resume"])
@pytest.mark.parametrize("name", ["runs/a\ntouch pwned\n#", "runs/a\x1b[2J", "runs/a\u2028b"])
def test_a_run_with_a_line_break_in_its_name_has_no_script(command, name, capsys):
    assert main(["launch", "slurm", "--dry-run", "--", *command.split(), name]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "must " in out.err or "does not exist" in out.err
    assert len(out.err.splitlines()) == 1


@pytest.mark.parametrize("values", [{"log": "a\nb"}, {"folder": "/x\ny"}, {"python": "p\r"}])
def test_no_line_break_reaches_a_script(values, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: values.get("folder", "/x"))
    monkeypatch.setattr(sys, "executable", values.get("python", "python"))
    with pytest.raises(ConfigError, match="must not contain line breaks"):
        script(Job(), JobSpec([], [], [], ray=False), values.get("log", "l"))
