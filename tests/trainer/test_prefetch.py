"""Batches that are gathered early are the same, and keep every bound on their age."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from patience import wait_until

import headrace as hr
from headrace.actors.collector import rollout_spec
from headrace.errors import ActorFailed
from headrace.rundir.episodes import Episodes
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.trainer.batch_collector import BatchCollector
from headrace.trainer.prefetch import BatchPrefetcher
from headrace.transport.queue import Header
from headrace.transport.slab import Slab
from headrace.types import Rollout, SingleLearner


class Source:
    """Rollouts of one step in a queue, with the number of their slot as their reward."""

    def __init__(self, policy: hr.Policy) -> None:
        self.waiting: list[tuple[int, Header, Rollout]] = []
        self.released: list[int] = []
        self._layout = rollout_spec(policy, 1, 2)

    def commit(self, slot: int, version: int) -> None:
        rollout = Rollout(**Slab(self._layout, 1, 0).trees[0])
        rollout.reward.fill_(slot)
        rollout.version.fill_(version)
        self.waiting.append((slot, Header(0, slot, version, 2, 0, 0, 0), rollout))

    @property
    def depth(self) -> int:
        return len(self.waiting)

    num_tasks, num_slots = 1, 4

    def message(self, slot: int) -> bytes:
        return b""

    def has(self, count: int) -> bool:
        return self.depth >= count

    def take(self, count, stopped, task=0):
        assert len(self.waiting) >= count, "this would wait"
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def release(self, slots) -> None:
        self.released += slots


@pytest.fixture
def made(tiny):
    """Return a collector of two rollouts per batch that prefetches, and its source."""
    config = tiny(algo=hr.APPO(max_lag=1), envs_per_actor=2, fragment_length=1, batch_size=4)
    policy = hr.Policy(*(getattr(hr.make_vec("CartPole-v1", 1), f"single_{x}_space") for x in
                         ("observation", "action")))  # fmt: skip
    source, ahead = Source(policy), BatchPrefetcher(torch.device("cpu"))
    learner = SimpleNamespace(device=torch.device("cpu"), group=SingleLearner())
    preemption = SimpleNamespace(collecting=lambda updates: contextlib.nullcontext())
    intake = BatchCollector(config, source, Episodes(), learner, preemption, ahead)
    yield intake, source
    intake.close()


def slots_of(batch) -> list[int]:
    return batch.reward[0, ::2].int().tolist()


def test_what_waits_is_gathered_early_and_given_back_when_it_was_learnt_from(made):
    intake, source = made
    for slot in range(5):
        source.commit(slot, version=slot // 4)
    intake.begin(meter := MetricAccumulator(), 0, lambda: False)
    assert slots_of(intake.fresh()) == [0, 1]
    assert source.depth == 1  # 2 and 3 are being gathered
    assert meter.num_rollouts == 2  # they count when their turn comes
    intake.release()
    assert source.released == [0, 1]
    intake.begin(MetricAccumulator(), 1, lambda: False)
    assert slots_of(intake.fresh()) == [2, 3]
    assert source.depth == 1  # one rollout isn't a batch: nothing was started
    intake.release()
    source.commit(5, version=1)
    intake.begin(MetricAccumulator(), 2, lambda: False)
    assert slots_of(intake.fresh()) == [4, 5]
    assert source.released == [0, 1, 2, 3]


def test_what_is_too_old_when_its_turn_comes_is_dropped_though_it_was_gathered(made):
    intake, source = made
    for slot, version in enumerate((0, 0, 0, 1)):
        source.commit(slot, version)
    intake.begin(MetricAccumulator(), 1, lambda: False)
    assert slots_of(intake.fresh()) == [0, 1]
    intake.release()
    source.commit(4, version=2)
    intake.begin(meter := MetricAccumulator(), 2, lambda: False)
    assert slots_of(intake.fresh()) == [3, 4]  # 2 is two updates old
    assert meter.dropped == 1
    assert source.released == [0, 1, 2]


def fill(trainer: hr.Trainer) -> None:
    """Wait until actors are ahead of the learner as far as the in-flight limit allows."""
    source, config = trainer.source, trainer.config
    ahead = config.algo.max_lag * config.rollouts_per_update

    def full() -> bool:
        source.take(0, lambda: False)  # receives rollouts that have arrived
        return source.depth >= ahead

    wait_until(full, lambda: f"{source.depth} rollouts are waiting", 0.001)


def test_a_run_that_gathers_ahead_keeps_its_bound_on_the_lag(tiny, monkeypatch):
    begun: list[int] = []
    begin = BatchPrefetcher.begin
    monkeypatch.setattr(BatchPrefetcher, "begin", lambda *args: (begun.append(1), begin(*args))[1])
    ahead = BatchPrefetcher(torch.device("cpu"))
    monkeypatch.setattr(
        "headrace.trainer.training_loop.BatchCollector", partial(BatchCollector, ahead=ahead)
    )
    config = tiny(algo=hr.APPO(max_lag=2), num_actors=2, transport="shm", total_steps=2560)
    with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer:
        results = []
        for result in trainer:
            results.append(result)
            fill(trainer)
    assert results[-1].env_steps >= 2560
    assert len(begun) >= trainer.updates - 1  # the first update may find no second batch
    assert max(result.lag_max for result in results) <= config.lag_bound


def test_actors_that_no_longer_fetch_weights_are_named(made):
    intake, source = made

    def take(count, stopped, task=0):
        source.commit(0, version=3)
        return Source.take(source, 1, stopped)

    source.take = take
    intake.begin(meter := MetricAccumulator(), 9, lambda: False)
    says = "12 rollouts in a row were too old. The latest ones are from actors 0, which use weights"
    with pytest.raises(ActorFailed, match=says) as caught:
        intake.fresh()
    assert "The learner is at update 9 and accepts rollouts that are at most" in str(caught.value)
    assert meter.dropped == len(source.released) == 12


def test_rollouts_that_were_in_flight_are_dropped_without_an_error(made):
    intake, source = made
    for slot in range(11):
        source.commit(slot, version=3)
    for slot in (11, 12):
        source.commit(slot, version=9)
    intake.begin(meter := MetricAccumulator(), 9, lambda: False)
    assert slots_of(intake.fresh()) == [11, 12]
    assert meter.dropped == 11
