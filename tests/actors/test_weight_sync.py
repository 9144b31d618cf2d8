"""Whole runs whose actors fetch weights at every update, every k updates, or by divergence."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
from dataclasses import replace

import pytest
import torch

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.actors.weight_sync import Follower
from headrace.algos.common import policy_outputs
from headrace.api import resume_config
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.learner.batches import gather
from headrace.ops import tree
from headrace.rundir.files import read_jsonl
from headrace.rundir.run_progress import Progress
from headrace.trainer.batch_collector import BatchCollector
from headrace.transport.queue import NUM_HEADER_FIELDS, Header, PeerDied
from headrace.transport.serial import SerialQueue
from headrace.transport.shm import ShmPort, ShmQueue
from headrace.transport.slab import ArraySpec, Slab
from headrace.transport.slots import Slots
from headrace.transport.weights import WeightStore
from headrace.types import Rollout
from tests.distributed.runs import check_together, train
from tests.tries import few_named

FROZEN = 1e-30  # a learning rate that changes no weight
FAR = 1e6  # nats: no drift is that large
WHOLE = {"epochs": 1, "minibatches": 1, "lr_schedule": "constant"}  # an optimiser step an update


def adaptive(make, threshold: float, **settings) -> hr.Config:
    """Return a network without observation statistics, whose updates also cause divergence."""
    defaults = {"algo": hr.APPO(max_lag=1, **WHOLE), "transport": "serial", "scale_free": False}
    settings = {"weight_sync": "adaptive", "kl_threshold": threshold} | settings
    return make(**(defaults | settings))


# -- the number that goes back ---------------------------------------------------------------------


def literal(policy, rollout) -> float:
    """Return the mean of (r - 1) - log r over the valid steps of a rollout, step by step."""
    with torch.no_grad():
        log_pi = policy_outputs(policy, gather([rollout])).log_prob
    terms = []
    num_steps, num_envs = rollout.log_prob.shape
    for t in range(num_steps):
        for b in range(num_envs):
            if not rollout.first[t + 1, b]:
                log_r = float(log_pi[t, b]) - float(rollout.log_prob[t, b])
                terms.append((torch.tensor(log_r).double().exp() - 1 - log_r).item())
    assert len(terms) < num_steps * num_envs or num_steps < 16  # there are fillers to leave out
    return sum(terms) / len(terms)


class Record:
    """Batches, results and weights that passed between learner and actors."""

    def __init__(self, monkeypatch) -> None:
        self.trainer: hr.Trainer | None = None
        self.expected: list[tuple[int, float]] = []  # version, nats
        self.noted: list[float] = []
        self.told: list[tuple[int, float]] = []
        self.stale = 0  # told of another version than the one that acts
        fresh, note, hear = BatchCollector.fresh, RolloutSource.note, Follower.note

        def taking(intake, *args):
            batch = fresh(intake, *args)
            policy = copy.deepcopy(self.trainer.policy)
            for slot in intake.taken:
                version = intake._source._slots.header(slot).version
                self.expected.append((version, literal(policy, copied(intake, slot))))
            return batch

        def noting(source, slot, nats):
            self.noted.append(nats)
            note(source, slot, nats)

        def hearing(follower, version, nats):
            self.told.append((version, nats))
            self.stale += version != follower.version
            hear(follower, version, nats)

        monkeypatch.setattr(BatchCollector, "fresh", taking)
        monkeypatch.setattr(RolloutSource, "note", noting)
        monkeypatch.setattr(Follower, "note", hearing)

    def run(self, config: hr.Config) -> hr.Trainer:
        with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as self.trainer:
            list(self.trainer)
        return self.trainer


def copied(intake: BatchCollector, slot: int) -> Rollout:
    return Rollout(**tree.map_leaves(torch.clone, intake._source._slab.trees[slot]))


@pytest.fixture
def record(monkeypatch):
    return Record(monkeypatch)


FAST = {"max_lag": 1, "learning_rate": 0.02, "lr_schedule": "constant"}
ALGOS = {
    "impala": hr.IMPALA(**FAST, epochs=1, minibatches=1),
    "impala-replay": hr.IMPALA(
        **FAST, epochs=1, minibatches=1, replay_fraction=0.4, replay_capacity=50
    ),
    "appo": hr.APPO(**FAST, epochs=1, minibatches=1),
    "appo-minibatches": hr.APPO(**FAST, epochs=2, minibatches=3),
    "impact": hr.IMPACT(**FAST, buffer_size=2, passes=2),
    "impact-frequency": hr.IMPACT(**FAST, buffer_size=3, passes=2, t_frequency=4),
}
FEW = [("impala-replay", "lstm"), ("appo-minibatches", None), ("impact-frequency", None)]


@pytest.mark.parametrize(
    ("algo", "core"),
    [
        pytest.param(
            algo, core, id=name if core is None else f"{name}-{core}",
            marks=() if (name, core) in FEW else pytest.mark.full,
        )
        for core in (None, "lstm")
        for name, algo in ALGOS.items()
    ],
)  # fmt: skip
def test_what_actors_are_told_is_the_mean_over_each_fresh_rollout(tiny, record, algo, core):
    network = hr.Network((16,), core=core, core_size=8)
    shape = {"num_actors": 3, "envs_per_actor": 24, "fragment_length": 24, "batch_size": 2 * 576}
    trainer = record.run(
        adaptive(
            tiny,
            0.05,
            algo=algo,
            network=network,
            **shape,
            total_steps=8000,
            learner_threads=4,
            scale_free=True,
        )
    )
    assert (
        trainer.learner._chunks.num_threads == 4
    )  # 21 columns or more: chunks cut rollouts in two
    assert len(record.noted) == len(record.expected) >= 12
    assert record.noted == pytest.approx([x for _, x in record.expected], rel=2e-3, abs=1e-8)
    assert max(record.noted) > 1e-3
    # each in its own slot, one after the other: what came back is what was said, in nano-nats
    assert len(record.told) >= len(record.noted) - 6
    said = {(version, round(x, 6)) for version, x in record.expected}
    near = [min(abs(x - y) for v, y in said if v == version) for version, x in record.told]
    assert max(near) < 1e-5 + 2e-3 * max(record.noted)
    assert trainer.summary()["sync"]["divergence"] == pytest.approx(
        sum(record.noted) / len(record.noted), abs=1e-8
    )


def test_what_comes_back_after_a_fetch_is_of_the_version_that_it_was_measured_of(tiny, record):
    algo = hr.APPO(max_lag=1, learning_rate=0.02, **WHOLE)
    trainer = record.run(adaptive(tiny, 1e-4, algo=algo, batch_size=128, total_steps=2000))
    assert record.stale > 3  # two rollouts of a batch come back in turn, a fetch between them
    versions = (version for version, _ in record.expected)
    said = set(zip(versions, (round(x * 1e9) for x in record.noted), strict=True))
    assert {(version, round(x * 1e9)) for version, x in record.told} <= said
    assert trainer.progress.pulls < trainer.updates


def test_nobody_measures_unless_it_is_asked_for(tiny, record, finish):
    trainer = record.run(tiny(algo=hr.APPO(**WHOLE), transport="serial"))
    assert record.noted == record.told == []
    line = read_jsonl(trainer.run_dir / "metrics.jsonl")[-1]
    assert "sync/divergence" not in line
    assert trainer.summary()["sync"]["divergence"] is None


# -- slots and weights -----------------------------------------------------------------------------


def slab_and_ports(kind: str, poison: bool):
    slab = Slab({"x": ArraySpec((2,), torch.float32)}, 2, NUM_HEADER_FIELDS, shared=kind == "shm")
    kept = Slots(slab, 1, 2, False, poison)
    if kind == "serial":
        queue = SerialQueue(kept)
        queue.attach(0, lambda: None)
        return slab, kept, queue, lambda: queue.port(0)
    queue = ShmQueue(kept)
    return slab, kept, queue, lambda: ShmPort(queue.connect(0))


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("kind", ["serial", "shm"])
def test_a_slot_goes_back_with_what_is_known_of_it_and_a_fresh_one_with_nothing(kind, poison):
    slab, kept, queue, connect = slab_and_ports(kind, poison)
    port = connect()
    slots = [port.acquire(5.0) for _ in range(2)]
    for sequence, slot in enumerate(slots):
        assert kept.header(slot).divergence is None
        slab.headers[slot][:] = Header(0, sequence, 7, 4, 10 + sequence, 0, 0, 1)
        port.commit(slot)
    assert queue.take(2, 5.0) == slots
    assert [kept.header(slot).pulled for slot in slots] == [1, 1]
    assert [kept.header(slot).divergence for slot in slots] == [None, None]
    kept.note(slots[1], 0.125)
    queue.release(slots)
    assert [port.acquire(5.0) for _ in slots] == slots
    told = [kept.header(slot) for slot in slots]
    assert [(h.version, h.divergence) for h in told] == [(7, None), (7, 0.125)]
    queue.close()


@pytest.mark.parametrize("nats", [0.0, 4e-10, 3.25, 1e5, float("inf")])
def test_any_divergence_fits_a_header(nats):
    _, kept, _, _ = slab_and_ports("serial", False)
    kept.note(0, nats)
    assert kept.header(0).divergence == pytest.approx(min(nats, 1e6), abs=1e-9)


def test_a_new_actor_is_not_told_what_a_dead_one_did_in_the_slots_it_left():
    slab, kept, queue, connect = slab_and_ports("shm", False)
    port = connect()
    slot = port.acquire(5.0)
    slab.headers[slot][:] = Header(0, 0, 7, 4, 10, 0, 0)
    kept.note(slot, 0.5)
    port._pipe.close()
    with pytest.raises(PeerDied):
        queue.take(1, 5.0)
    again = connect()
    told = [kept.header(again.acquire(5.0)).divergence for _ in range(2)]
    assert told == [None, None]
    queue.close()


def test_the_newest_version_can_be_seen_without_a_copy():
    store = WeightStore({"w": ArraySpec((2,), torch.float32)})
    assert store.latest() is None
    for version, epoch in ((0, 0), (4, 0), (5, 1)):
        store.publish(version, epoch, {"w": torch.ones(2)})
        assert store.latest() == (version, epoch)


# -- how often -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_with_a_frozen_learner_each_actor_fetches_once(tiny, finish, transport):
    algo = hr.APPO(max_lag=1, learning_rate=FROZEN, **WHOLE)
    shape = {"algo": algo, "num_actors": 2, "batch_size": 64, "total_steps": 10**9}
    pulls = []

    def enough(result) -> bool:  # one actor may begin long before the other
        pulls.append(result.sync_pulls)
        return pulls[-1] > 2 or pulls.count(2) > 25

    trainer, results = finish(adaptive(tiny, 0.0, transport=transport, **shape), enough)
    assert trainer.progress.pulls == results[-1].sync_pulls == 2
    assert results[-1].sync_divergence == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("rule", "k"), [("every", 1), ("every-1", 1), ("every-4", 4)])
def test_every_k_fetches_at_every_kth_version(tiny, finish, rule, k):
    trainer, results = finish(tiny(algo=hr.IMPALA(**WHOLE), transport="serial", weight_sync=rule))
    assert [r.sync_pulls for r in results] == [-(-r.updates // k) for r in results]
    size = sum(x.nbytes for x in trainer.policy.state_dict().values())
    assert results[-1].sync_bytes == results[-1].sync_pulls * size
    assert trainer.summary()["sync"]["pulls"] == results[-1].sync_pulls
    assert trainer.summary()["sync"]["bytes"] == results[-1].sync_bytes
    line = read_jsonl(trainer.run_dir / "metrics.jsonl")[-1]
    assert (line["sync/pulls"], line["sync/bytes"]) == (
        results[-1].sync_pulls,
        results[-1].sync_bytes,
    )


@pytest.mark.parametrize("transport", ["serial", pytest.param("shm", marks=pytest.mark.slow)])
def test_a_greater_threshold_means_fewer_fetches(tiny, finish, tmp_path, transport):
    pulls = []
    for threshold in (1e-4, 0.02, FAR):
        config = adaptive(
            tiny, threshold, algo=hr.APPO(max_lag=1, learning_rate=0.01, **WHOLE),
            transport=transport, total_steps=2500, run_dir=str(tmp_path / str(threshold)),
        )  # fmt: skip
        trainer, results = finish(config)
        pulls.append(trainer.progress.pulls)
        assert results[-1].sync_divergence is not None
    updates = trainer.updates
    assert updates > pulls[0] > pulls[1] > pulls[2] == 1


@pytest.mark.parametrize(
    "algo",
    few_named(
        {
            "appo": hr.APPO(max_lag=2, **WHOLE),
            "impala": hr.IMPALA(max_lag=1, **WHOLE),
            "impact": hr.IMPACT(max_lag=1, buffer_size=2, passes=3),
            "impact-frequency": hr.IMPACT(max_lag=3, buffer_size=2, passes=2, t_frequency=3),
        },
        ["appo", "impact-frequency"],
    ),
)
@pytest.mark.parametrize("transport", [pytest.param("serial", marks=pytest.mark.slow), "shm"])
def test_a_fetch_comes_before_rollouts_are_too_old(tiny, finish, algo, transport):
    limit = algo.max_updates(algo.max_lag) + 2
    config = adaptive(
        tiny, FAR, algo=algo, transport=transport, max_policy_lag=limit, total_steps=2500
    )
    assert config.sync.max_lag == 3
    trainer, results = finish(config)
    assert trainer.progress.dropped == 0
    lags = [r.lag_max for r in results if r.lag_max is not None]  # IMPACT revisits, too
    assert 1 <= max(lags) <= config.lag_bound
    assert 1 + trainer.updates // 10 < trainer.progress.pulls < trainer.updates


def test_a_limit_as_short_as_the_wait_means_every_version(tiny):
    assert adaptive(tiny, 0.1, algo=hr.APPO(max_lag=2), max_policy_lag=0).sync.max_lag == 1
    assert adaptive(tiny, 0.1, algo=hr.APPO(max_lag=2), max_policy_lag=2).sync.max_lag == 1
    assert adaptive(tiny, 0.1, algo=hr.APPO(max_lag=2), max_policy_lag=3).sync.max_lag == 2
    assert adaptive(tiny, 0.1, algo=hr.APPO(max_lag=2)).sync.max_lag is None


def test_the_longest_limit_is_valid_without_a_wait(tiny):
    assert tiny(algo=hr.PPO(), max_policy_lag=2**20).sync.max_lag == 2**20


def test_dropped_rollouts_count_their_fetches(tiny, finish):
    shape = {"num_actors": 2, "batch_size": 64, "total_steps": 1500}
    trainer, _ = finish(tiny(algo=hr.APPO(max_lag=3, **WHOLE), max_policy_lag=0, **shape))
    taken = trainer.updates + trainer.progress.dropped
    assert trainer.progress.dropped > 0
    assert trainer.updates < trainer.progress.pulls <= taken


# -- what happens in between -----------------------------------------------------------------------


def test_what_a_rollout_names_is_the_version_that_acted(tiny, monkeypatch):
    policies, seen = {}, []
    publish, fresh = RolloutSource.publish, BatchCollector.fresh

    def publishing(source, policy, version, epoch):
        policies[version] = copy.deepcopy(policy)
        publish(source, policy, version, epoch)

    def taking(intake, *args):
        batch = fresh(intake, *args)
        for slot in intake.taken:
            rollout = copied(intake, slot)
            header = intake._source._slots.header(slot)
            assert set(rollout.version.tolist()) == {header.version}
            with torch.no_grad():
                log_prob = policy_outputs(policies[header.version], gather([rollout])).log_prob
            valid = ~rollout.first[1:]
            assert (log_prob - rollout.log_prob)[valid].abs().max() < 1e-5
            seen.append((header.version, max(policies)))
        return batch

    monkeypatch.setattr(RolloutSource, "publish", publishing)
    monkeypatch.setattr(BatchCollector, "fresh", taking)
    algo = hr.APPO(max_lag=1, learning_rate=0.01, **WHOLE)
    with contextlib.closing(
        hr.Trainer(adaptive(tiny, 0.01, algo=algo, total_steps=4000))
    ) as trainer:
        list(trainer)
    assert len({version for version, _ in seen}) > 3
    assert max(latest - version for version, latest in seen) > 2


def test_a_serial_run_is_the_same_again(tiny, finish, tmp_path):
    def once(name: str):
        config = adaptive(
            tiny, 0.005, algo=hr.IMPALA(max_lag=1, learning_rate=0.01, **WHOLE), num_actors=2,
            total_steps=5000, run_dir=str(tmp_path / name),
        )  # fmt: skip
        trainer, results = finish(config)
        weights = torch.cat([x.reshape(-1).double() for x in trainer.policy.state_dict().values()])
        return weights, [(r.sync_pulls, r.sync_divergence, r.lag_max) for r in results]

    (ours, results), (theirs, again) = once("a"), once("b")
    assert torch.equal(ours, theirs)
    assert results == again
    assert 3 < results[-1][0] < len(results)


def test_a_restarted_actor_fetches_once_anew(tiny):
    algo = hr.APPO(max_lag=1, learning_rate=FROZEN, **WHOLE)
    config = adaptive(tiny, 0.0, algo=algo, transport="shm", total_steps=10**9)
    pulls = []
    with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer:
        for result in trainer:
            pulls.append(result.sync_pulls)
            if len(pulls) == 5:
                os.kill(trainer.source.pids()[0], signal.SIGKILL)
            if result.restarts and pulls[-20:] == [2] * 20:
                break
            assert len(pulls) < 2000
    assert pulls[:5] == [1] * 5
    assert set(pulls) == {1, 2}


def test_a_checkpoint_that_resets_environments_forces_a_fetch(tiny, finish):
    algo = hr.APPO(max_lag=1, learning_rate=FROZEN, **WHOLE)
    config = adaptive(
        tiny, 0.0, algo=algo, deterministic=True, checkpoint_interval=200, total_steps=1000
    )
    trainer, _ = finish(config)
    assert trainer.progress.epoch >= 4
    assert trainer.progress.pulls in (trainer.progress.epoch, trainer.progress.epoch + 1)


def test_a_resumed_run_counts_on(tiny, finish):
    algo = hr.APPO(max_lag=1, learning_rate=FROZEN, **WHOLE)
    first, _ = finish(adaptive(tiny, 0.0, algo=algo, total_steps=640))
    assert first.progress.pulls == 1
    second, _ = finish(resume_config(first.run_dir, total_steps=1280))
    assert second.progress.pulls == 2
    assert second.config.weight_sync == "adaptive"


def test_what_an_older_checkpoint_did_not_count_starts_at_zero():
    progress = Progress()
    old = {k: v for k, v in Progress(updates=5).state_dict().items() if k != "pulls"}
    progress.load_state_dict(old)
    assert (progress.updates, progress.pulls) == (5, 0)


@pytest.mark.parametrize(
    "algo", [hr.IMPALA(max_lag=1, **WHOLE), hr.APPO(max_lag=1, **WHOLE)], ids=["impala", "appo"]
)
def test_several_learners_count_all_actors_fetches(tiny, tmp_path, algo):
    algo = replace(algo, learning_rate=FROZEN)
    shape = {"num_learners": 2, "num_actors": 4, "envs_per_actor": 6}
    runs = train(adaptive(tiny, 0.0, algo=algo, **shape))
    check_together(runs)
    assert [run.trainer.progress.pulls for run in runs] == [4, 4]
    assert runs[0].results[-1].sync_divergence == pytest.approx(0.0, abs=1e-9)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [hr.PPO(), hr.A2C(), hr.A3C()], ids=["ppo", "a2c", "a3c"])
@pytest.mark.parametrize("rule", ["every-2", "adaptive"])
def test_algorithms_that_act_with_the_newest_weights_refuse_others(tiny, algo, rule):
    with pytest.raises(ConfigError, match=r"^weight_sync='.*' must be 'every' with"):
        tiny(algo=algo, weight_sync=rule)
    assert tiny(algo=algo, weight_sync="every").sync.every == 1


def test_wrong_settings_are_refused_before_anything_starts(tiny):
    with pytest.raises(ConfigError, match="weight_sync='often'"):
        tiny(algo=hr.APPO(), weight_sync="often")
    with pytest.raises(ConfigError, match="kl_threshold=-1"):
        tiny(algo=hr.APPO(), weight_sync="adaptive", kl_threshold=-1)


def test_the_command_line_trains_adaptively_and_shows_what_was_fetched(tmp_path, capsys):
    command = "train appo --env-id CartPole-v1 --weight-sync adaptive --kl-threshold 0.01 "
    command += "--total-steps 3000"
    small = "--envs-per-actor 8 --fragment-length 8 --eval-episodes 0 --transport serial"
    main([*command.split(), *small.split(), "--run-dir", str(tmp_path / "run")])
    shown = capsys.readouterr().out
    assert "weight sync adaptive beyond 0.01 nats" in shown
    assert "weights pulled" in shown
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 1 <= summary["sync"]["pulls"] < summary["updates"]


def test_a_wrong_batch_size_is_named_before_the_rule_is_made(tiny):
    with pytest.raises(ConfigError, match="batch_size=0 must be a multiple of 64"):
        adaptive(tiny, 0.1, batch_size=0, max_policy_lag=4)
