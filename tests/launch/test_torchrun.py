"""Learners under torchrun: on one machine, restarted after a death, and on two hosts."""

from __future__ import annotations

import datetime
import functools
import json
import os
import re
import sys
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S

import headrace as hr
from headrace.errors import CheckpointError, ConfigError, LearnerFailed
from headrace.launch.torchrun import join_torchrun
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.rundir.atomic_files import write_json
from headrace.rundir.files import read_jsonl
from tests.launch.hosts import Hosts, HostScript, made
from tests.launch.ranks import Crew, arrive, be_patient

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # what the ranks do

TORCHRUN = ("-m", "torch.distributed.run")
STATIC = ("--rdzv-backend", "static")
TRAIN = ("-m", "headrace", "train", "ppo", "--env-id", "CartPole-v1")
SMALL = (
    *("--envs-per-actor", "16", "--fragment-length", "16", "--transport", "serial"),
    *("--eval-episodes", "0", "--run-dir", "run", "--log-interval-s", "0"),
)


# -- joining ------------------------------------------------------------------------------------


@pytest.fixture
def store():
    """Create the store of an agent in this process."""
    limit = datetime.timedelta(seconds=PATIENCE_S)
    return dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)


@pytest.fixture
def started(crew, store, tmp_path):
    """Starts processes as torchrun's agent does; each joins and runs ``work(config, group)``."""

    def start(size=2, work=None, absent=(), restarts=0, before=None, **settings) -> Crew:
        agent = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        agent |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": restarts}
        settings = {"run_dir": str(tmp_path / "run"), "envs_per_actor": 12} | settings
        settings.setdefault("learner_timeout_s", PATIENCE_S)
        live = functools.partial(join, agent=agent, settings=settings, work=work, before=before)
        return crew([r for r in range(size) if r not in absent], live)

    return start


def join(rank, say, agent, settings, work, before=None):
    """Join as one of torchrun's processes; return resume or overwrite, and work's result."""
    if before is not None:
        before(rank)
    be_patient()
    variables = {**agent, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in variables.items()})
    config, group = join_torchrun(hr.Config("CartPole-v1", **settings))
    assert group is not None
    assert (group.rank, group.size) == (rank, int(agent["WORLD_SIZE"]))
    assert config.num_learners == group.size
    total = group.sum(torch.tensor([rank + 1.0])).item()
    return total, config.resume, config.overwrite, work and work(config, group)


def leave_checkpoint(run_dir):
    folder = run_dir / "checkpoints" / "latest"
    folder.mkdir(parents=True)
    (folder / "policy.safetensors").touch()
    description = {"format": checkpoint_writer.FORMAT, "config": {"env": "CartPole-v1"}}
    write_json(run_dir / "config.json", description)


def checkpoint_saved(config, group):
    """Let rank 0 leave the files of a run with its first checkpoint."""
    if group.rank == 0:
        leave_checkpoint(Path(config.run_dir))


def config_written(config, group):
    """Let rank 0 leave the files of a run before its first checkpoint."""
    if group.rank == 0:
        (Path(config.run_dir) / "config.json").write_text("{}")


def test_learners_started_again_go_on_from_the_checkpoint_of_their_own_run(started):
    found = started(work=checkpoint_saved).endings()
    assert [ending.error for ending in found.values()] == [None, None]
    assert [ending.value[:3] for ending in found.values()] == [(3.0, False, False)] * 2
    for restarts in (1, 2):
        again = started(restarts=restarts).endings()
        assert [ending.error for ending in again.values()] == [None, None]
        assert [ending.value[:3] for ending in again.values()] == [(3.0, True, False)] * 2


def test_learners_started_again_before_the_first_checkpoint_begin_anew(started):
    started(work=config_written).endings()
    again = started(restarts=1).endings()
    assert [ending.value[:3] for ending in again.values()] == [(3.0, False, True)] * 2


def test_a_run_that_was_there_before_is_neither_continued_nor_deleted(started, tmp_path):
    (tmp_path / "run" / "checkpoints" / "latest").mkdir(parents=True)
    for restarts in (0, 1):
        ending = started(restarts=restarts, learner_timeout_s=2.0).endings([0])[0]
        assert type(ending.error) is CheckpointError
        assert "exists already" in str(ending.error)
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_a_first_start_resumes_or_overwrites_as_it_is_told(started, tmp_path):
    def begin(config, group):
        return sorted(path.name for path in Path(config.run_dir).iterdir())

    leave_checkpoint(tmp_path / "run")
    found = started(resume=True, work=begin).endings()
    assert [e.value for e in found.values()] == [
        (3.0, True, False, ["checkpoints", "config.json", "lock"])
    ] * 2


def test_learners_overwrite_only_once(started, tmp_path):
    leave_checkpoint(tmp_path / "run")
    found = started(overwrite=True, work=checkpoint_saved).endings()
    assert [ending.error for ending in found.values()] == [None, None]
    assert [ending.value[:3] for ending in found.values()] == [(3.0, False, False)] * 2
    again = started(overwrite=True, restarts=1).endings()
    assert [ending.value[:3] for ending in again.values()] == [(3.0, True, False)] * 2


def test_learners_meet_though_one_has_been_started_oftener(started):
    first = started(size=3, absent=[2], learner_timeout_s=1.0).endings()
    assert {type(ending.error) for ending in first.values()} == {LearnerFailed}
    three = [started(size=3, absent=[0, 1], restarts=0), started(size=3, absent=[2], restarts=1)]
    for ending in [ending for crew in three for ending in crew.endings().values()]:
        assert ending.error is None
        assert ending.value[0] == 6.0


def test_a_second_run_of_the_same_processes_does_not_meet_the_first(started, tmp_path):
    def train_again(config, group):
        group.close()
        again, second = join_torchrun(hr.Config("CartPole-v1", run_dir=f"{config.run_dir}2"))
        return again.resume, second.gather(torch.tensor([second.rank])).tolist()

    for ending in started(work=train_again).endings().values():
        assert ending.error is None
        assert ending.value[3] == (False, [[0], [1]])


@pytest.mark.parametrize("absent", [pytest.param([0], marks=pytest.mark.slow), [1, 2]])
def test_who_never_comes_is_named(started, tmp_path, absent):
    names = f"learner{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
    before = functools.partial(arrive, folder=tmp_path, count=3 - len(absent))
    start = time.monotonic()
    crew = started(size=3, absent=absent, before=before, learner_timeout_s=3.0)
    for rank, ending in crew.endings().items():
        assert type(ending.error) is LearnerFailed
        text = f"{names} of 3 never arrived: learner {rank} waited 3 s (learner_timeout_s)"
        assert str(ending.error) == text
        assert ending.at - start > 3.0


def test_another_number_of_learners_is_refused(started):
    for ending in started(num_learners=4).endings().values():
        assert type(ending.error) is ConfigError
        assert re.search(r"num_learners=4 .*torchrun started \(nearest: 2\)", str(ending.error))


def test_a_cluster_is_refused_where_learners_have_their_places(started):
    for ending in started(cluster="ray").endings().values():
        assert type(ending.error) is ConfigError
        words = "cluster='ray' must be None under torchrun, which has placed the learners"
        assert str(ending.error) == words


# -- without an agent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        (0, "learner 1 of 2 never arrived: learner 0 waited 1 s (learner_timeout_s)"),
        (1, "learner 1 of 2 could not reach the rendezvous of learner 0 at 127.0.0.1:PORT within"),
    ],
)
def test_a_learner_left_alone_by_the_other_says_so(crew, free_port, rank, error):
    port = free_port()
    agent = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    live = functools.partial(join, agent=agent, settings={"learner_timeout_s": 1.0}, work=None)
    ending = crew([rank], live).endings()[rank]
    assert type(ending.error) is LearnerFailed
    assert str(ending.error).startswith(error.replace("PORT", str(port)))


# -- torchrun on one machine --------------------------------------------------------------------


def lines_of(rank: int, run_dir: Path) -> list[dict]:
    """Return the log of a rank's updates."""
    return read_jsonl(run_dir / "iterations" / f"rank_{rank}.jsonl")


@pytest.mark.full
def test_torchrun_trains_in_two_processes_and_one_of_them_reports(start, free_port, tmp_path):
    where = ("--nnodes", "1", *STATIC, "--master-port", str(free_port()))
    script = start(
        *(*TORCHRUN, "--nproc-per-node", "2", *where),
        *(*TRAIN, *SMALL, "--total-steps", "3000", "--num-learners", "2"),
    )
    assert script.wait() == 0, script.output
    assert script.output.count("results in run") == 1
    assert script.output.count("environment steps") == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for rank in (0, 1):
        lines = lines_of(rank, tmp_path / "run")
        assert [line["update"] for line in lines] == list(range(1, summary["updates"] + 1))
        assert sum(line["steps"] for line in lines) == pytest.approx(1500, rel=0.2)
    assert isinstance(hr.load(tmp_path / "run"), hr.Policy)


def worker(script, rank: int) -> psutil.Process:
    """Return the process of a rank that torchrun started."""
    children = psutil.Process(script.process.pid).children()
    return next(child for child in children if child.environ().get("RANK") == str(rank))


@pytest.mark.parametrize(
    ("rank", "where"),
    [
        pytest.param(0, ("--standalone",), id="standalone", marks=pytest.mark.slow),
        pytest.param(1, ("--nnodes", "1", *STATIC), id="static", marks=pytest.mark.full),
    ],
)
def test_torchrun_starts_learners_again_that_go_on(start, gone, free_port, tmp_path, rank, where):
    where += () if "--standalone" in where else ("--master-port", str(free_port()))
    script = start(
        *(*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", *where),
        *(*TRAIN, *SMALL, "--total-steps", "10000", "--checkpoint-interval", "2000"),
        *("--keep-checkpoints", "100"),
    )
    latest = tmp_path / "run" / "checkpoints" / "latest"
    wait_until(latest.exists, script)
    family = script.family()
    worker(script, rank).kill()
    saved = checkpoint.find(tmp_path / "run")
    assert script.wait() == 0, script.output
    other = 1 - rank
    assert f"headrace: learner {other} waited for learner {rank}: has died" in script.output
    assert script.output.count("results in run") == 2  # from rank 0, at each start
    assert script.output.count("environment steps") == 1
    assert saved.exists()  # a run from step 0 would have deleted it
    assert len(list((tmp_path / "run").glob("events.*"))) == 2
    lines = lines_of(1, tmp_path / "run")
    assert lines[-1]["env_steps"] >= 10_000
    updates = [line["update"] for line in lines]
    assert updates == sorted(set(updates))
    assert gone(family) == []


def wait_until(condition, *scripts, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition while all scripts run."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for script in scripts:
            assert script.process.poll() is None, f"it ended early:\n{script.output}"
        assert time.monotonic() < deadline, "\n".join(script.output for script in scripts)
        time.sleep(0.02)


# -- two hosts ----------------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path):
    """Yields two hosts if this machine can create them."""
    two = made(tmp_path)
    yield two
    two.end()


def torchrun_on(hosts: Hosts, port: int, *arguments: str) -> list[HostScript]:
    """Run one process on each host, with the rendezvous at host 1."""
    where = ("--nnodes", "2", "--nproc-per-node", "1", *STATIC)
    where += ("--master-addr", "10.99.0.1", "--master-port", str(port))
    return [
        hosts.start(host, *TORCHRUN, *where, "--node-rank", str(host - 1), *TRAIN, *arguments)
        for host in (1, 2)
    ]


@pytest.mark.slow
def test_two_hosts_learn_cartpole_over_the_network(hosts, free_port, tmp_path):
    before = hosts.num_received(2)
    settings = ("--recipe", "cartpole", "--transport", "serial", "--run-dir", "run")
    scripts = torchrun_on(hosts, free_port(), *settings)
    for script in scripts:
        assert script.process.wait(60) == 0, script.output
    assert "results in run" in scripts[0].output
    assert "headrace" not in scripts[1].output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["episodic_return"] >= 475
    for rank in (0, 1):
        lines = lines_of(rank, tmp_path / "run")
        assert len(lines) == summary["updates"]
        assert sum(line["steps"] for line in lines) == pytest.approx(
            summary["env_steps"] / 2, rel=0.1
        )
    policy = hr.load(tmp_path / "run")
    gradient_bytes = 4 * sum(parameter.numel() for parameter in policy.parameters())
    steps_per_update = 4 * 4  # epochs, minibatches
    expected = summary["updates"] * steps_per_update * gradient_bytes
    assert hosts.num_received(2) - before > 0.9 * expected  # not through shared memory


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((), id="plain"),
        pytest.param(("--preempt-fraction", "0.6"), id="preempting", marks=pytest.mark.full),
    ],
)
def test_both_hosts_end_when_the_link_between_them_is_cut(hosts, free_port, tmp_path, settings):
    settings += ("--num-learners", "2", "--total-steps", "1_000_000_000")
    limit = ("--learner-timeout-s", "2")
    scripts = torchrun_on(hosts, free_port(), *SMALL, *settings, *limit)
    lines = tmp_path / "run" / "iterations" / "rank_1.jsonl"
    wait_until(lambda: lines.exists() and lines.stat().st_size > 0, *scripts)
    hosts.cut(2)
    cut = time.monotonic()
    for rank, script in enumerate(scripts):
        wait_until(lambda other=1 - rank, text=script: f"lost learner {other}: " in text.output)
        assert 1.5 < time.monotonic() - cut < 25
        assert script.process.wait(20) == 1
