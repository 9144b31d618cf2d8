"""Learners on a Ray cluster train equally, and report their failures."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import gymnasium
import psutil
import pytest
import torch
import torch.distributed as dist

import headrace as hr
from headrace.errors import ConfigError, LearnerFailed
from headrace.launch.learner import learn
from headrace.launch.learners import cause
from headrace.ray import learners as cluster
from headrace.ray.connection import shared
from headrace.ray.store import RayStore, store_class
from headrace.rundir.files import read_jsonl

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environment below
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
pytestmark = [needs_ray, pytest.mark.ray]
FOR_EVER = 10**9


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"cluster": "ray"}, id="learners and actors"),
        pytest.param(
            {"cluster": "ray", "transport": "serial"},
            id="learners that act",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_seed_gives_the_same_weights_wherever_learners_and_actors_are(
    tiny, watch, tmp_path, place
):
    found = []
    for name, where in (("here", {"transport": "serial"}), ("there", place)):
        config = tiny(num_learners=2, num_actors=2, run_dir=str(tmp_path / name), **where)
        _, results, said = watch(config)
        assert said == []
        found.append((hr.load(config.run_dir).state_dict(), [r.episode_return for r in results]))
        lines = read_jsonl(Path(config.run_dir, "iterations", "rank_1.jsonl"))
        assert [line["update"] for line in lines] == list(range(1, results[-1].updates + 1))
    assert found[1][1] == found[0][1]
    for key, value in found[1][0].items():
        assert torch.equal(value, found[0][0][key]), key


@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_learner_is_told_in_a_line_and_all_go_on_from_the_last_checkpoint(
    tiny, watch, gone
):
    killed = []

    def kill(group, result) -> None:
        if result.updates >= 20 and not killed:
            killed.extend(psutil.Process(pid) for pid in group.pids())
            killed[1].kill()
        if result.updates >= 40:
            group.stop()

    settings = {"num_learners": 2, "transport": "serial", "cluster": "ray", "max_restarts": 1}
    settings |= {"checkpoint_interval": 640, "eval_interval": 640, "eval_episodes": 1}
    group, results, said = watch(tiny(**settings, total_steps=FOR_EVER), kill)
    assert group.num_restarts == len(said) == 1
    assert re.match(r"learner 1 \(node .*, process \d+, log /tmp/ray/.*\) has died: .*\n", said[0])
    assert said[0].endswith("\nrestarting all learners (restart 1/1)")
    steps = [result.env_steps for result in results]
    assert min(steps[21:]) > 640  # not from the start
    assert results[-1].updates >= 40
    assert results[-1].eval_return is not None  # by a process on the first learner's node
    assert gone(killed) == []


class Breaks(gymnasium.Wrapper):
    """CartPole that raises in the second learner."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        if dist.is_initialized() and dist.get_rank() == 1:
            raise RuntimeError("the motor is on fire")
        return self.env.step(action)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_what_a_learner_raises_comes_with_its_traceback(tiny, watch):
    config = tiny(env=Breaks, num_learners=2, transport="serial", cluster="ray", engine="sync")
    with pytest.raises(LearnerFailed) as caught:
        watch(config)
    text = str(caught.value)
    assert re.match(r"learner 1 \(node .*\) failed: .*the motor is on fire\n", text)
    assert 'raise RuntimeError("the motor is on fire")' in text


def test_learners_without_room_are_told(tiny, watch, ray_cluster):
    ray = ray_cluster.api
    holder = ray.remote(num_cpus=6)(type("Holder", (), {"held": lambda self: True})).remote()
    assert ray.get(holder.held.remote(), timeout=60)
    settings = {"num_learners": 2, "transport": "serial", "cluster": "ray", "actor_timeout_s": 2.0}
    try:
        words = (
            r"had no resources for 2 learners in 2 s .* 0 of its 6 cores are free; add nodes, or"
        )
        with pytest.raises(LearnerFailed, match=words):
            watch(tiny(**settings))
    finally:
        ray.kill(holder)


def test_a_run_that_is_stopped_waits_no_longer_for_places(tiny, ray_cluster):
    ray = ray_cluster.api
    holder = ray.remote(num_cpus=6)(type("Holder", (), {"held": lambda self: True})).remote()
    assert ray.get(holder.held.remote(), timeout=60)
    config = tiny(num_learners=2, transport="serial", cluster="ray", actor_timeout_s=60.0)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            cluster.ClusterLearners(config, b"", lambda: time.monotonic() > start + 0.5)
    finally:
        ray.kill(holder)
    assert time.monotonic() - start < 30


def test_another_version_on_a_node_is_told():
    said: list[tuple] = []
    assert not cluster.run(said.append, None, "0.0.1", b"", (0, 2, 0, 1), None, "")
    [(kind, name, words, _)] = said
    assert (kind, name) == ("failed", "ConfigError")
    assert words.startswith("headrace is 0.1.0 there and 0.0.1 where the run was started: install")


def test_what_only_the_head_can_import_is_told(only_here):
    said, left = [], []

    def send(message) -> None:
        if left:
            raise BrokenPipeError
        said.append(message)

    assert not learn(only_here(lambda make: (make, None, 0.0)), None, send, None)
    left.append(True)  # it says no more that it is alive
    kind, name, words, _ = said[-1]
    assert (kind, name) == ("failed", "LearnerFailed")
    assert words.startswith("No module named 'only_here' there: install it on every node (objects")


def test_what_ends_a_run_names_who_said_it():
    learners = SimpleNamespace(name=lambda rank: f"learner {rank} (node n{rank})")
    error = ConfigError("headrace is 0.1.0 there and 0.0.1 where the run was started")
    for rank, words in ((0, f"{error}"), (1, f"learner 1 (node n1): {error}")):
        states = [SimpleNamespace(failure=error if r == rank else None) for r in range(2)]
        found = cause(states, learners, [rank], 1.0)
        assert isinstance(found, ConfigError)
        assert str(found) == words


def test_a_learner_meets_the_others_by_the_address_of_its_node(ray_cluster, monkeypatch):
    holder = ray_cluster.api.remote(num_cpus=0)(store_class()).remote()
    for name in ("LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "?")  # and back
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")

    def learn(pickled, met, send, hear) -> tuple:
        store = dist.PrefixStore("a", met.store(5.0))
        store.set("x", "1")
        return store.get("x"), met.rank, met.size, met.local_rank, hr.Config().learners_here

    monkeypatch.setattr(cluster, "learn", learn)
    args = cluster.headrace_version(), b"", (3, 4, 1, 2), holder, "/nowhere"
    assert cluster.run(None, None, *args) == (b"1", 3, 4, 1, 2)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "?"  # a choice of the node's


def test_the_first_learners_paths_begin_where_the_run_was_started(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "?")  # and back
    monkeypatch.setattr(cluster, "learn", lambda *_: os.getcwd())
    monkeypatch.setattr(cluster, "_interface", lambda _: None)
    monkeypatch.setattr(cluster, "node_address", lambda: "")
    monkeypatch.setattr(cluster, "RayStore", lambda _: None)
    for rank, folder in enumerate((str(tmp_path), "/")):
        monkeypatch.chdir("/")
        args = cluster.headrace_version(), b"", (rank, 2, 0, 1), None, str(tmp_path)
        assert cluster.run(None, None, *args) == folder


def test_the_store_holds_what_the_learners_of_a_group_tell_each_other(ray_cluster):
    ray = ray_cluster.api
    holder = ray.remote(num_cpus=0)(store_class()).remote()
    first = RayStore(holder, 5.0)
    store = dist.PrefixStore("a", first)
    store.set("x", "1")
    store.set("y", b"\x00\xff")
    assert (store.get("x"), store.get("y")) == (b"1", b"\x00\xff")
    assert store.multi_get(["y", "x"]) == [b"\x00\xff", b"1"]
    assert [store.check([*keys]) for keys in ("x", "xy", "xz")] == [True, True, False]
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    other = RayStore(holder, 0.2)
    assert [other.delete_key("a/x"), other.delete_key("a/x")] == [True, False]
    other.wait(["a/y"], timedelta(seconds=1))
    start = time.monotonic()
    with pytest.raises(dist.DistStoreError, match=r"\['x'\] were not set within 0\.2 s"):
        other.get("x")
    assert time.monotonic() - start > 0.2
    ray.kill(holder)
    with pytest.raises(dist.DistStoreError, match="the learners' store doesn't answer"):
        for _ in range(100):  # Ray may let it answer once more
            other.set("x", "1")
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("nodes", "count", "share"),
    [
        ([6.0], 6, 1.0), ([6.0], 7, 0.8571), ([1.0, 1.0, 1.0], 4, 0.5), ([2.0, 1.0], 4, 0.6666),
        ([3.5, 2.0], 5, 1.0), ([0.0], 2, 1.0), ([], 3, 1.0), ([64.0] * 8, 500, 1.0),
        ([64.0] * 8, 600, 0.8533),
    ],
)  # fmt: skip
def test_as_many_as_asked_fit_with_their_shares(nodes, count, share):
    assert shared(nodes, count) == share
    if sum(nodes):
        more = share + 1e-4
        assert sum(int(round(n / share, 3)) for n in nodes) >= count
        assert share == 1 or sum(int(n / more) for n in nodes) < count


def test_interfaces_are_known_by_their_addresses():
    assert cluster._interface("127.0.0.1") == "lo"
    assert cluster._interface("192.0.2.1") is None


SCRIPT = """
import headrace as hr
hr.train(
    "CartPole-v1", hr.IMPALA(), num_learners=2, num_actors=2, envs_per_actor=8, fragment_length=16,
    total_steps=10**9, run_dir="run", cluster="ray", eval_episodes=0, log_interval_s=0.0,
    callbacks=[lambda result: print("UPDATE", flush=True)],
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interrupted", "killed"])
def test_however_the_run_ends_its_learners_and_their_actors_end_with_it(start, gone, tmp_path, way):
    script = start("-c", SCRIPT)
    script.wait_for("UPDATE", 90.0)
    family = script.family()
    workers = script.named("ray::HeadraceLearner", "ray::HeadraceActor")
    assert len(workers) == 4
    if way == "killed":
        os.kill(script.process.pid, signal.SIGKILL)
        script.wait(30.0)
        assert gone(workers) == []
    else:
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.wait(60.0) == 0, script.output
        assert gone(family) == []
        assert hr.load(tmp_path / "run") is not None
