"""Actors on a Ray cluster train equally, and report each kind of failure."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from patience import wait_until

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.envs.probe import probe
from headrace.errors import ActorFailed, ConfigError, EnvironmentFault, WorkerFailed
from headrace.ray import actor as ray_actor
from headrace.ray import connection as process_ray
from headrace.ray import fleet as ray_fleet
from headrace.trainer.auto_sizes import sized
from tests.actors.test_faults import check_whole

COUNTING = "worlds:CountingVectorEnv"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
pytestmark = [needs_ray, pytest.mark.ray]


def spec_of(config) -> tuple:
    """Return a spec of the config's actors, and their policy."""
    envs = make_vec(config.env, 1, env_kwargs=config.env_kwargs)
    policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
    return config.actor_spec(resolve(config.env), policy), policy


@pytest.fixture
def opened(ray_cluster, tiny):
    """Starts the actors of a config, which act from version 0 on."""
    made = []

    def run(may_be_cut=False, **settings):
        spec, policy = spec_of(
            tiny(**{"env": COUNTING, "cluster": "ray", "algo": hr.APPO()} | settings)
        )
        said: list[str] = []
        source = RolloutSource(replace(spec, may_be_cut=may_be_cut), said.append)
        made.append(source)
        source.publish(policy, 0, 0)
        return source, policy, said

    yield run
    for source in made:
        source.close()


def never() -> bool:
    return False


def one(source):
    [(slot, header, rollout)] = source.take(1, never)
    return slot, header, rollout


@pytest.mark.usefixtures("ray_cluster")
def test_one_seed_gives_the_same_weights_serially_and_on_a_cluster(tiny, finish, tmp_path):
    found = []
    for name, place in (("s", {"transport": "serial"}), ("r", {"cluster": "ray"})):
        network = hr.Network((16,), core="gru", core_size=8)
        settings = {"num_actors": 2, "batch_size": 256, "network": network, "total_steps": 1024}
        trainer, results = finish(tiny(run_dir=str(tmp_path / name), **settings, **place))
        found.append((trainer.policy.state_dict(), [r.episode_return for r in results]))
    assert found[0][1] == found[1][1]
    for key, value in found[0][0].items():
        assert torch.equal(value, found[1][0][key]), key


@pytest.mark.usefixtures("ray_cluster")
def test_metrics_changes_and_indices_of_environments_work_on_a_cluster(tmp_path, capsys):
    seen = []

    def harder(result, trainer):
        seen.append(result.metrics)
        trainer.log("updates", result.updates)
        trainer.call_envs("set_task", min(result.updates, 3))

    sizes = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 12}  # two episodes each
    sizes |= {"total_steps": 240, "eval_episodes": 0, "log_interval_s": 1e-6}
    names = {"level": "last", "index": "last", "calls": "max", "levle": "last"}
    how = {"cluster": "ray", "run_dir": tmp_path, "info_metrics": names}
    hr.train("worlds.levels:NumberedLevels", hr.PPO(), [harder], **sizes, **how)
    assert seen[-1]["env/level"] == 3.0
    assert {metrics["env/index"] for metrics in seen} == {1.5}  # of 0, 1, 2 and 3
    assert seen[-1]["env/calls"] > seen[0]["env/calls"] == 0.0
    assert seen[-1]["custom/updates"] == len(seen) - 1
    assert "no environment has reported 'levle'" in capsys.readouterr().out


@pytest.mark.usefixtures("ray_cluster")
def test_a_method_that_environments_on_a_cluster_lack_fails_the_run_at_once(tmp_path, capsys):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "total_steps": 10**6, "eval_episodes": 0}
    typo = lambda result, trainer: trainer.call_envs("set_tsk", 1)  # noqa: E731
    with pytest.raises(EnvironmentFault, match="Did you mean 'set_task'"):
        hr.train("worlds.levels:Levels", hr.PPO(), [typo], cluster="ray", run_dir=tmp_path, **sizes)
    assert "restart" not in capsys.readouterr().out


def test_a_killed_actor_is_replaced_and_only_its_open_rollout_is_lost(opened):
    source, policy, said = opened(num_actors=2, fragment_length=32)
    seen, version, killed, after = set(), 0, 0, 0
    while after < 12 or not source._queue.gaps:
        slot, header, rollout = one(source)
        check_whole(rollout)
        assert (rollout.version == header.version).all()
        key = (int(rollout.obs[0, 0, 0]), header.actor, header.sequence)
        assert key not in seen, "a rollout was delivered twice"
        seen.add(key)
        source.release([slot])
        version += 1
        source.publish(policy, version, 0)
        if header.sequence == 2 and not killed:
            killed = header.actor + 1
            os.kill(source._queue.homes[header.actor].pid, signal.SIGKILL)
        after += source.num_restarts
    source.kill_hung()  # as at every result
    assert source.num_restarts == source.lost() == len(said) - 1 == 1
    assert source.lost() == 0
    assert f"actor {killed - 1} (node " in said[0]
    assert ", log /tmp/ray/" in said[0]
    assert said[0].endswith("(restart 1/10)")
    again = (
        rf"actor {killed - 1} \(node .*\) delivers again, [0-9.]+ s after its predecessor's last "
    )
    assert re.match(again, said[1])


def test_what_an_actor_reads_is_where_it_arrived_and_is_let_go_of(opened):
    source, _, _ = opened(fragment_length=512, envs_per_actor=16)
    slot, _, rollout = one(source)
    array = source._slab._arrays[slot]
    assert not array.flags.owndata
    start, end = array.ctypes.data, array.ctypes.data + array.nbytes
    assert start <= rollout.obs.data_ptr() < end  # no copy was made
    assert start <= rollout.reward.data_ptr() < end
    source.release([slot])
    assert source._slab.trees[slot] is None


def test_weights_are_fetched_when_the_rule_says_so(opened):
    source, policy, _ = opened(weight_sync="every-3")
    versions = []
    for version in range(1, 10):
        slot, header, _ = one(source)
        versions.append((header.version, header.pulled))
        source.release([slot])
        with torch.no_grad():
            next(policy.parameters()).fill_(version)
        source.publish(policy, version, 0)
    pulled = [version for version, pulled in versions if pulled]
    assert pulled[0] == 0
    assert all(b - a >= 3 for a, b in itertools.pairwise(pulled))
    assert len(pulled) < 5


def test_calls_that_wait_at_the_actor_get_newer_weights_than_they_came_with(opened):
    kwargs = {"step_seconds": 0.01}
    settings = {"envs_per_actor": 1, "batch_size": 32, "env_kwargs": kwargs}
    source, policy, _ = opened(env="worlds:SlowEnv", **settings)  # 8 credits, 80 ms a rollout
    assert one(source)[1].version == 0
    source.publish(policy, 1, 0)
    versions = [one(source)[1].version for _ in range(7)]
    assert versions == sorted(versions)
    assert versions[-1] == 1


def test_rollouts_end_early_where_the_learner_asks_for_it(opened):
    kwargs = {"step_seconds": 0.01}
    settings = {"envs_per_actor": 1, "fragment_length": 400, "env_kwargs": kwargs}
    source, _, _ = opened(True, env="worlds:SlowEnv", algo=hr.A2C(), **settings)
    done = threading.Event()

    def cut() -> None:  # also before it has begun
        while not done.wait(0.2):
            source.cut(0)

    thread = threading.Thread(target=cut)
    thread.start()
    _, header, rollout = one(source)
    done.set()
    thread.join(10)
    assert 80 <= header.valid_steps < 200  # a quarter at least, fillers left out
    assert rollout.first[200:].all()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("mode", "once", "words"),
    [
        ("raise", True, "RuntimeError: FaultyEnv failed at step 20, as asked"),
        ("raise", False, "failed in the same way after 2 rollouts, so it isn't restarted"),
        pytest.param("hang", True, "delivered nothing for", marks=pytest.mark.slow),
    ],
)
def test_environments_that_break_are_told_as_on_one_machine(tiny, tmp_path, mode, once, words):
    kwargs = {"mode": mode, "fail_at_step": 20} | ({"once": str(tmp_path / "x")} if once else {})
    timeout_s = 10.0 if mode == "hang" else 60.0
    config = tiny(
        env="worlds:FaultyEnv", env_kwargs=kwargs, envs_per_actor=2, cluster="ray",
        actor_timeout_s=timeout_s, total_steps=320,
    )  # fmt: skip
    said: list[str] = []
    with contextlib.closing(hr.Trainer(config, notify=said.append)) as trainer:
        if once:
            assert list(trainer)[-1].restarts == 1
        else:
            with pytest.raises(ActorFailed, match=words) as failed:
                list(trainer)
            assert "\nRuntimeError: FaultyEnv failed at step 20" in str(failed.value)
    assert words in said[0] if once else sum("(restart " in line for line in said) == 1


def test_an_environment_that_only_the_head_can_import_is_told(tiny, only_here):
    spec, _ = spec_of(tiny(env=COUNTING, cluster="ray"))
    pickled = only_here(lambda make: replace(spec, env=make))
    failed = ray_actor.RemoteActor(ray_fleet.headrace_version(), pickled, 0, 0).problem
    reason = "No module named 'only_here' there: install it on every node (objects that your "
    assert failed == (reason + "script defines are sent)", False)


def test_another_version_on_a_node_is_told(opened, monkeypatch):
    monkeypatch.setattr(ray_fleet, "headrace_version", lambda: "0.0.1")
    source, _, _ = opened(max_restarts=0)
    with pytest.raises(ActorFailed, match=r"headrace is 0\.1\.0 there and 0\.0\.1 at the learner"):
        one(source)


def test_actors_without_room_are_told(opened, ray_cluster):
    ray = ray_cluster.api
    holder = ray.remote(num_cpus=6)(type("Holder", (), {"held": lambda self: True})).remote()
    assert ray.get(holder.held.remote(), timeout=60)
    try:
        source, _, _ = opened(actor_timeout_s=2.0)
        words = r"actor 0 didn't start within 2 s .* 0 of the 6 cores of the Ray cluster are free"
        with pytest.raises(ActorFailed, match=words):
            one(source)
    finally:
        ray.kill(holder)


def test_an_actor_whose_process_is_slow_to_start_is_no_lack_of_room(opened, monkeypatch):
    source, _, _ = opened(num_actors=2, min_actors=1)
    source._fleet.kill_silent(0.0)
    with monkeypatch.context() as patch:
        patch.setattr(process_ray.RayCluster, "free_cores", 0.0)
        patch.setattr(process_ray.RayCluster, "cores", 1.0)  # the actor's own
        source._fleet.kill_silent(0.0)
        patch.setattr(process_ray.RayCluster, "cores", 1.5)
        with pytest.raises(ActorFailed, match="didn't start within 0 s"):
            source._fleet.kill_silent(0.0)
    assert source._fleet.supervise() is None  # actors that haven't started yet aren't reported
    while source._queue.homes[0] is None:
        source._queue._receive(1.0)
    source._fleet.kill_silent(0.0)  # it has a node, and imports torch there
    assert one(source)[1].actor in (0, 1)
    assert source.num_restarts == 0


def test_actors_join_once_there_is_room_and_nobody_waits_for_them(opened, ray_cluster):
    ray = ray_cluster.api
    holder = ray.remote(num_cpus=5)(type("Holder", (), {"held": lambda self: True})).remote()
    assert ray.get(holder.held.remote(), timeout=60)
    settings = {"num_actors": 2, "min_actors": 1, "actor_timeout_s": 15.0}
    source, _, said = opened(**settings)
    acted, deadline = set(), time.monotonic() + 60
    while len(acted) < 2 or not said:
        assert time.monotonic() < deadline
        slot, header, _ = one(source)
        acted.add(header.actor)
        source.release([slot])
        source.kill_hung()  # as at every result
        if holder is not None and said:
            assert said == ["1 of 2 actors are running"]
            assert len(acted) == 1
            ray.kill(holder)
            holder = said.clear()
    assert said[-1] == "2 of 2 actors are running"
    assert source.num_restarts == 0


@pytest.mark.usefixtures("ray_cluster")
def test_auto_counts_the_cores_of_the_cluster(tiny, tmp_path):
    config = tiny(env=COUNTING, num_actors="auto", cluster="ray")
    chosen, line = sized(config, probe(config.env, "auto", {}, 0), tmp_path)
    assert "6 cores of the cluster)" in line
    assert chosen.is_sized
    assert process_ray.cores_there("ray:auto") == 6  # and it is connected still
    assert process_ray.cores_there("ray") == 6


def test_auto_counts_this_machines_cores_for_a_cluster_that_is_yet_to_be_started(monkeypatch):
    monkeypatch.setattr(process_ray, "_is_connected", lambda: False)
    assert process_ray.cores_there("ray") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": "slurm"}, "cluster='slurm' must be 'ray', or 'ray:' and the address"),
        ({"cluster": "ray:"}, "must be 'ray', or"),
        ({"cluster": "ray:ray://10.0.0.1:1"}, "must be 'ray', or"),
        ({"cluster": "ray", "transport": "serial"}, "must be None with transport='serial'"),
        ({"cluster": "ray", "algo": hr.A3C()}, "must be None with a3c, whose actors share"),
        (
            {"min_actors": 1, "cluster": "ray", "num_learners": 2, "algo": hr.APPO()}
            | {"transport": "serial"},
            "min_actors=1 must be None with transport='serial', where learners act",
        ),
        ({"cluster": "ray", "inference": "shared"}, "must be 'auto' or 'actor' with cluster"),
        ({"min_actors": 1, "algo": hr.APPO()}, "min_actors=1 must be None without cluster"),
        ({"min_actors": 1, "cluster": "ray"}, "must be None with ppo, which waits for every"),
        ({"min_actors": 2, "cluster": "ray", "algo": hr.APPO()}, r"at most 1 \(num_actors\)"),
    ],
)
def test_what_does_not_fit_a_cluster_is_one_sentence(tiny, settings, words):
    with pytest.raises(ConfigError, match=words):
        tiny(**settings)


def test_learners_share_out_places_and_the_fewest_actors(tiny):
    settings = {"num_actors": 4, "num_learners": 2, "cluster": "ray", "algo": hr.APPO()}
    config = tiny(**settings, min_actors=3)
    assert (config.per_learner.num_actors, config.per_learner.min_actors) == (2, 2)
    assert [config.num_places, tiny(**settings, min_actors=1).num_places] == [5, 3]
    assert tiny(**settings, transport="serial").num_places == 1
    assert tiny(num_actors=3, cluster="ray").num_places == 3


def test_a_cluster_that_is_not_there_and_ray_that_is_not_installed_are_told(monkeypatch):
    monkeypatch.setattr(process_ray, "_is_connected", lambda: False)
    for address in ("127.0.0.1:9", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        words = rf"^Ray: nothing answers at '{address}': start it with `ray start --head`, or open"
        with pytest.raises(WorkerFailed, match=words):
            process_ray.RayCluster(address, f"cluster='ray:{address}'", 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^cluster='ray' needs ray.*pip install 'headrace\[ray\]"
    ):
        process_ray.check_installed("cluster='ray'")


SCRIPT = """
import headrace as hr
hr.train(
    "CartPole-v1", num_actors=2, envs_per_actor=8, fragment_length=32, total_steps=10**9,
    run_dir="run", cluster="ray", eval_episodes=0, log_interval_s=0.0, overwrite=True,
    callbacks=[lambda result: print("UPDATE", flush=True)],
)
"""


@pytest.mark.slow
def test_a_run_continues_without_the_agents_of_its_node(start, gone, tmp_path):
    script = start("-c", SCRIPT)
    script.wait_for("UPDATE", 90.0)
    family, agents = script.family(), script.named("ray::DashboardAgent", "ray::RuntimeEnvAgent")
    assert len(agents) == 2
    for one in [*agents, script.named("ray::HeadraceAc")[0]]:
        one.kill()
    script.wait_for("(restart 1/", 90.0)
    earlier = script.output.count("UPDATE")
    wait_until(lambda: script.output.count("UPDATE") > earlier, lambda: script.output)
    os.killpg(script.process.pid, signal.SIGINT)
    assert script.wait(60.0) == 0, script.output
    assert gone(family) == []


@pytest.mark.slow
def test_a_learner_says_that_its_raylet_has_ended_and_its_cluster_ends_with_it(
    start, gone, tmp_path
):
    for _ in range(3):  # Ray ends a process that touches its store at that very moment, silently
        script = start("-c", SCRIPT)
        script.wait_for("UPDATE", 90.0)
        family = script.family()
        script.named("raylet")[0].kill()
        assert script.wait(60.0) == 1
        assert gone(family) == []
        if said := "Ray: the raylet of this node" in script.output:
            break
    assert said
    assert hr.load(tmp_path / "run") is not None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["interrupted", "killed"])
def test_however_the_learner_ends_its_cluster_ends_with_it(start, gone, tmp_path, way):
    script = start("-c", SCRIPT)
    script.wait_for("UPDATE", 90.0)
    family = script.family()
    assert script.named("gcs_server")
    assert script.named("raylet")
    if way == "killed":
        os.kill(script.process.pid, signal.SIGKILL)
        script.wait(30.0)
    else:
        os.killpg(script.process.pid, signal.SIGINT)
        assert script.wait(60.0) == 0
    assert gone(family) == []
    if way != "killed":
        assert hr.load(tmp_path / "run") is not None
        name = f"session_*_{script.process.pid}"
        assert list(Path(tempfile.gettempdir(), "ray").glob(name)) == []


def test_an_actor_waits_for_nothing_longer_than_it_says():
    started = time.monotonic()
    assert process_ray._within(lambda: time.sleep(60), 0.05) is None
    assert process_ray._within(lambda: 1 // 0, 5.0) is None
    assert process_ray._within(lambda: 7, 5.0) == 7
    assert time.monotonic() - started < 30


CLOSED = """
import psutil
from headrace.ray.connection import RayCluster

if __name__ == "__main__":
    cluster = RayCluster(None, "cluster", 1.0)
    cluster.check_here()
    own = psutil.Process().children(recursive=True)
    names = [one.name() for one in own]
    cluster.close()
    left = [one for one in own if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    print("sh" in names, left)
"""


@pytest.mark.slow
def test_a_closed_cluster_leaves_no_process_in_a_program_that_continues(start):
    script = start("-c", CLOSED)
    script.wait_for("True []", 90.0)
    assert script.wait(30.0) == 0
