"""Shared inference gives the same rollouts and the right versions, and survives a dead server."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
from multiprocessing import Pipe

import cloudpickle
import gymnasium
import numpy as np
import psutil
import pytest
import torch
from patience import PATIENCE_S
from worlds import CountingVectorEnv, FaultyEnv, SpaceIdentityVectorEnv

import headrace as hr
from headrace.actors import inference_server
from headrace.actors.collector import Collector, rollout_spec
from headrace.actors.inference_client import InferenceClient, calls_of
from headrace.actors.inference_server import _serve, without_weights
from headrace.actors.rollout_source import RolloutSource
from headrace.actors.weight_sync import Follower, SyncRule
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.errors import ActorFailed, EnvironmentFault
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.nn.policy import policy_weights
from headrace.ops import tree
from headrace.trainer.batch_collector import BatchCollector
from headrace.transport.request_channel import RequestChannel, RequestServer
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Rollout

NUM_STEPS, NUM_ENVS = 12, 4
KWARGS = {"action_space": "discrete", "mask": "obs"}
SHARED = {"inference": "shared", "num_actors": 3, "envs_per_actor": 2}
STEP_AWAY = 1e-5  # of a log-probability, where other rows were in its batch


def made_policy(network: Network) -> Policy:
    with contextlib.closing(make_vec(SpaceIdentityVectorEnv, 1, "auto", KWARGS)) as envs:
        torch.manual_seed(1)
        spaces = envs.single_observation_space, envs.single_action_space
        policy = Policy(*spaces, network)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return policy


def rollouts(policy: Policy, acting, seed: int) -> list[Rollout]:
    """Return three observations in succession."""
    envs = make_vec(SpaceIdentityVectorEnv, NUM_ENVS, "auto", KWARGS)
    slab = Slab(rollout_spec(policy, NUM_STEPS, NUM_ENVS), 1, 1)
    collector, found = Collector(envs, acting, "TestEnv"), []
    collector.reset(seed)
    for _ in range(3):
        slab.poison(0)
        collector.fill(Rollout(**slab.trees[0]), 0)
        found.append(Rollout(**tree.map_leaves(torch.clone, slab.trees[0])))
    return found


@contextlib.contextmanager
def served(policy: Policy, num_actors: int, max_wait_s: float = PATIENCE_S):
    """Return policies for several actors, all of which use one thread."""
    store = WeightStore(spec_of(policy_weights(policy)))
    store.publish(0, 0, policy_weights(policy))
    calls = RequestChannel(calls_of(policy, num_actors, NUM_ENVS))
    ours, theirs = Pipe()
    forgets = copy.deepcopy(policy)
    with torch.no_grad():
        for p in forgets.parameters():
            p.zero_()  # until it has fetched the weights
    args = forgets, RequestServer(calls.server_end()), store.buffer, max_wait_s, theirs
    thread = threading.Thread(target=_serve, args=args, daemon=True)
    thread.start()
    follower, bare = Follower(SyncRule()), copy.deepcopy(policy).to("meta")
    follower.fetched(0)
    askers = [
        InferenceClient(bare, calls.client_end(a), follower, PATIENCE_S, "Env")
        for a in range(num_actors)
    ]
    for asker in askers:
        asker.store = store
    try:
        yield askers
    finally:
        ours.close()
        calls.wake()
        thread.join(PATIENCE_S)
        calls.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("core", [None, "lstm", "gru"])
def test_an_actor_that_asks_fills_the_rollouts_that_it_would_fill_itself(core):
    policy = made_policy(Network((16,), core=core, core_size=12, previous_action_reward=True))
    alone = [rollouts(policy, policy, seed) for seed in range(3)]
    with served(policy, 1) as [asker]:
        same = rollouts(policy, asker, 0)
    with served(policy, 3) as askers:
        batched: dict[int, list[Rollout]] = {}

        def fill(seed: int) -> None:
            batched[seed] = rollouts(policy, askers[seed], seed)

        threads = [threading.Thread(target=fill, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    for ours, theirs in zip(same, alone[0], strict=True):  # the same rows at a time: each bit
        torch.testing.assert_close(ours.log_prob, theirs.log_prob, atol=STEP_AWAY, rtol=0)
        ours.log_prob.copy_(theirs.log_prob)  # computed by torch instead of compiled functions
        for a, b in zip(tree.leaves(vars(ours)), tree.leaves(vars(theirs)), strict=True):
            torch.testing.assert_close(a, b, atol=0, rtol=0, equal_nan=True)
    for seed in range(3):
        for ours, theirs in zip(batched[seed], alone[seed], strict=True):
            assert torch.equal(ours.action, theirs.action)
            torch.testing.assert_close(ours.log_prob, theirs.log_prob, atol=STEP_AWAY, rtol=0)
            torch.testing.assert_close(ours.core, theirs.core, atol=1e-5, rtol=0)
            batch = gather([ours])
            with torch.no_grad():
                log_prob = policy_outputs(policy, batch).log_prob
            assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= STEP_AWAY


def test_new_weights_act_as_soon_as_a_call_names_them_in_bfloat16_too():
    images = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    policy = Policy(images, gymnasium.spaces.Discrete(3), Network(conv="impala_shallow"))
    policy.compute_in("bfloat16")
    obs = torch.randint(0, 256, (NUM_ENVS, 36, 36, 3), dtype=torch.uint8)
    first = torch.ones(NUM_ENVS, dtype=torch.bool)
    with served(policy, 1) as [asker]:
        for version in range(3):
            asker._follower.fetched(version)
            with torch.no_grad():
                params, _ = policy.act(obs, first, ())
                theirs = asker.act(obs, first, ())[0]  # by other kernels, where it is emulated
                torch.testing.assert_close(theirs, params, atol=0.05, rtol=0.02)
                for p in policy.parameters():
                    p.add_(0.1 * torch.randn_like(p))
            asker.store.publish(version + 1, 0, policy_weights(policy))


def test_a_row_that_the_network_can_not_read_is_the_asker_s_fault():
    grid = gymnasium.spaces.Box(0, 9, (8, 8, 1), np.uint8)
    policy = Policy(grid, gymnasium.spaces.Discrete(3), Network(one_hot=("obs",), num_symbols=5))
    first = torch.ones(NUM_ENVS, dtype=torch.bool)
    obs = torch.full((NUM_ENVS, 8, 8, 1), 4, dtype=torch.uint8)
    with served(policy, 1) as [asker]:
        asker.act(obs, first, ())
        obs[1, 2, 3] = 5
        with pytest.raises(EnvironmentFault, match=r"^Env: one_hot='obs' holds 5, .* 0 to 4"):
            asker.act(obs, first, ())
        asker.act(obs - 1, first, ())  # what acts for all has not heard of it


def test_actors_that_ask_are_sent_no_weights(tiny):
    policy = made_policy(Network((512, 512), core="lstm", core_size=64))
    spec = tiny().actor_spec(None, policy)
    assert len(cloudpickle.dumps(without_weights(spec))) < len(cloudpickle.dumps(spec)) / 20
    assert without_weights(spec).layout() == spec.layout()


# -- versions --------------------------------------------------------------------------------------


class Watch:
    """Compares each step with the versions that may have acted."""

    def __init__(self, monkeypatch, exact: bool) -> None:
        self.policies, self.num_rollouts, self.exact = {}, 0, exact
        publish, fresh = RolloutSource.publish, BatchCollector.fresh

        def publishing(source, policy, version, epoch):
            self.policies[version] = copy.deepcopy(policy)
            publish(source, policy, version, epoch)

        def taking(intake, *args):
            batch = fresh(intake, *args)
            for slot in intake.taken:
                tree_, header = intake._source._slab.trees[slot], intake._source._slots.header(slot)
                self.check(Rollout(**tree.map_leaves(torch.clone, tree_)), header.version)
            return batch

        monkeypatch.setattr(RolloutSource, "publish", publishing)
        monkeypatch.setattr(BatchCollector, "fresh", taking)

    def check(self, rollout: Rollout, version: int) -> None:
        assert set(rollout.version.tolist()) == {version}
        valid, batch = ~rollout.first[1:], gather([rollout])
        newest = version if self.exact else max(self.policies)
        off = []
        for each in range(version, newest + 1):
            with torch.no_grad():
                log_prob = policy_outputs(self.policies[each], batch).log_prob
            off.append((log_prob - rollout.log_prob).abs())
        assert (torch.stack(off).amin(0)[valid] <= 2 * STEP_AWAY).all()
        self.num_rollouts += 1


def test_a_synchronous_algorithm_learns_from_the_weights_that_acted(tiny, finish, monkeypatch):
    watch = Watch(monkeypatch, exact=True)
    network = Network((16,), core="lstm", core_size=8)
    config = tiny(
        algo=hr.PPO(learning_rate=0.01, minibatches=2, epochs=1),
        network=network,
        total_steps=500,
        **SHARED,
    )
    _, results = finish(config)
    assert watch.num_rollouts >= 15
    assert results[-1].sync_pulls >= results[-1].updates
    assert results[-1].sync_bytes == 0  # an actor copies nothing


@pytest.mark.parametrize("weight_sync", ["every", "every-3"])
def test_no_step_is_acted_on_by_older_weights_than_its_rollout_names(
    tiny, finish, monkeypatch, weight_sync
):
    watch = Watch(monkeypatch, exact=False)
    algo = hr.IMPALA(max_lag=2, learning_rate=0.01)
    settings = SHARED | {"algo": algo, "weight_sync": weight_sync, "total_steps": 600}
    trainer, results = finish(tiny(log_interval_s=0.0, batch_size=32, **settings))
    assert watch.num_rollouts > 30
    assert max(r.lag_max or 0 for r in results) <= trainer.config.lag_bound


def test_a_shared_run_is_the_serial_one_to_rounding(tiny, finish, tmp_path):
    weights = []
    for name, settings in (("serial", {"transport": "serial"}), ("shared", SHARED)):
        network = Network((16,), core="lstm", core_size=8)
        settings = SHARED | {"inference": "auto"} | settings
        config = tiny(algo=hr.A2C(), network=network, run_dir=str(tmp_path / name), **settings)
        trainer, results = finish(config, until=lambda result: result.updates == 8)
        assert results[-1].updates == 8
        weights.append(torch.cat([x.reshape(-1) for x in trainer.policy.state_dict().values()]))
    torch.testing.assert_close(*weights, atol=1e-4, rtol=0)


# -- what dies -------------------------------------------------------------------------------------


def test_whoever_is_killed_is_replaced_and_steps_stay_whole(tiny):
    """The inference server dies during rollouts, which lose neither steps nor state."""
    network = Network((16,), core="lstm", core_size=8)
    settings = SHARED | {
        "env": CountingVectorEnv,
        "algo": hr.APPO(minibatches=2),
        "network": network,
    }
    config = tiny(max_restarts=4, **settings)
    envs = make_vec(config.env, 1)
    policy = Policy(envs.single_observation_space, envs.single_action_space, network)
    said: list[str] = []
    source = RolloutSource(config.actor_spec(resolve(config.env), policy), said.append)
    source.publish(policy, 0, 0)
    pids = [*source.pids()]
    try:
        for turn in range(40):
            [(slot, header, rollout)] = source.take(1, lambda: False)
            batch = gather([rollout])
            with torch.no_grad():
                log_prob = policy_outputs(policy, batch).log_prob
            assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= STEP_AWAY
            if header.sequence == 0:
                assert rollout.first[0].all()
            source.release([slot])
            if turn in (10, 30):
                os.kill(source.pids()[-1], signal.SIGKILL)
            if turn == 20:
                os.kill(source.pids()[1], signal.SIGKILL)
            pids += source.pids()
        while source.num_restarts < 3:
            slots = [slot for slot, _, _ in source.take(1, lambda: False)]
            source.release(slots)
        assert [line for line in said if "inference" in line] == [
            f"inference process: exited with code -9 (restart {n}/4)" for n in (1, 3)
        ]
    finally:
        source.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_process_that_hangs_is_killed_and_replaced_and_no_actor_is_blamed(tiny):
    said: list[str] = []

    def be_patient(actor_timeout_s: float) -> None:
        trainer.source._timeout_s = actor_timeout_s
        trainer.source._fleet._inference._timeout_s = actor_timeout_s / 2

    def notify(line: str) -> None:
        said.append(line)
        be_patient(2 * PATIENCE_S)  # its successor starts

    config = tiny(algo=hr.APPO(), total_steps=10**9, **SHARED)
    with contextlib.closing(hr.Trainer(config, notify=notify)) as trainer:
        for result in trainer:
            if result.updates == 2:
                be_patient(8.0)
                os.kill(trainer.source.pids()[-1], signal.SIGSTOP)
            if result.restarts == 1:
                trainer.stop()
    assert any("inference process: killed after doing nothing for 4 s" in s for s in said)
    assert not any(line.startswith("actor") for line in said)


@pytest.mark.parametrize("timeout_s", [0.04, 1.0, 300.0])
def test_it_says_that_it_lives_well_before_it_counts_as_hung(tiny, monkeypatch, timeout_s):
    beats, serving = [], inference_server.RequestServer

    def opened(desk, beat_s):
        beats.append(beat_s)
        return serving(desk, beat_s)

    monkeypatch.setattr(inference_server, "RequestServer", opened)
    monkeypatch.setattr(
        inference_server, "use_batch_scheduling", lambda: None
    )  # this process stays as it is
    policy = made_policy(Network((8,)))
    spec = tiny(actor_timeout_s=timeout_s, **SHARED).actor_spec(None, policy)
    weights = WeightStore(spec_of(policy_weights(policy)))
    made, (ours, theirs) = inference_server.InferenceServer(spec, weights.buffer), Pipe()
    ours.close()  # so it ends at once
    inference_server.run_inference(made._pickled, made._calls.server_end(), weights.buffer, theirs)
    made._calls.close()
    assert beats == [min(0.5, timeout_s / 8)]
    assert made._timeout_s == timeout_s / 2


class BreaksElsewhere(torch.nn.Module):
    """A torso that only learners and the inference server can use."""

    def __init__(self, observation_space) -> None:
        super().__init__()
        self.home = os.getpid()
        self.layer = torch.nn.Linear(observation_space.shape[0], 8)

    def forward(self, obs):
        if os.getpid() != self.home:
            raise RuntimeError("no licence for this torso here")
        return self.layer(obs)


def test_what_raises_there_ends_the_run_with_its_own_traceback(tiny):
    network = Network(torso=BreaksElsewhere)
    config = tiny(network=network, env=FaultyEnv, env_kwargs={"fail_at_step": 10**6}, **SHARED)
    with (
        contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer,
        pytest.raises(ActorFailed) as error,
    ):
        list(trainer)
    assert str(error.value).startswith(
        "inference process: RuntimeError: no licence for this torso here; its predecessor "
        "failed in the same way after 0 answers, so it isn't restarted"
    )
    assert "in forward" in str(error.value)


TRAINER = """
import headrace as hr

hr.train(
    "CartPole-v1", hr.APPO(), num_actors=2, envs_per_actor=2, fragment_length=8,
    inference="shared", total_steps=10**9, run_dir="run", log_interval_s=0.0,
    callbacks=[lambda result: print("UPDATE", flush=True)],
)
"""


def test_nothing_outlives_a_killed_trainer(start, gone):
    script = start("-c", TRAINER)
    script.wait_for("UPDATE")
    family = script.family()
    assert script.named("headrace-infere"), family
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert gone(family) == []


# -- with other settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "threads"},
        pytest.param({"max_rollout_seconds": 0.001}, marks=pytest.mark.slow),
        {"weight_sync": "adaptive"},
    ],
    ids=lambda s: next(iter(s)),
)
def test_it_works_with_own_pace_cuts_and_drift(tiny, finish, monkeypatch, settings):
    drifts = "weight_sync" in settings  # then weights may change within a rollout
    watch = Watch(monkeypatch, exact=not drifts)
    network = Network((16,), core=None if drifts else "gru", core_size=8)
    algo = hr.IMPALA(max_lag=1, learning_rate=0.01) if drifts else hr.A2C()
    config = tiny(algo=algo, network=network, total_steps=300, **SHARED, **settings)
    finish(config)
    assert watch.num_rollouts > 10


@pytest.mark.slow
def test_each_of_several_learners_has_its_own(tmp_path):
    done = hr.train(
        "CartPole-v1", hr.PPO(), num_learners=2, num_actors=4, envs_per_actor=2,
        fragment_length=16, inference="shared", total_steps=2000, eval_episodes=0,
        run_dir=str(tmp_path / "run"), cores_per_learner=1,
    )  # fmt: skip
    assert done is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"transport": "serial"}, "'auto' or 'actor' with transport='serial'"),
        ({"algo": hr.A3C()}, "'auto' or 'actor' with a3c"),
        ({"deterministic": True}, "'auto' or 'actor' with deterministic"),
    ],
)
def test_where_nobody_can_act_for_all_it_is_refused(tiny, settings, words):
    with pytest.raises(hr.ConfigError, match=f"inference='shared' must be {words}"):
        tiny(**SHARED | settings)


def test_more_actors_than_pipes_are_refused(tiny):
    with pytest.raises(hr.ConfigError, match="num_actors=201 must be at most 200 with inference"):
        tiny(inference="shared", num_actors=201)
    tiny(inference="shared", num_actors=200)
