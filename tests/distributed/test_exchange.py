"""Metrics that learners exchange after an update, their time, and the logs of it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.errors import LearnerFailed
from headrace.rundir.episodes import Episodes, gather_episodes
from headrace.rundir.files import RunLog, read_jsonl
from headrace.rundir.metric_accumulators import Iteration, MetricAccumulator
from headrace.trainer.metrics_allreduce import (
    GroupState,
    MetricsAllReduce,
    checksum,
    logs_iterations,
)
from headrace.types import SingleLearner
from tests.distributed.data import make_policy
from tests.distributed.threads import Meeting, ThreadGroup, run_learners

QUIET: dict[str, Any] = {"stop": False, "due": False, "restarts": 0, "checksum": None}
TIMES = ("t_rollout", "t_learn", "t_comm", "t_sync")
KEYS = {"update", "env_steps", "seconds", "rank", "steps", "fps", "t_iter", *TIMES}
OWN = {"approx_kl", "clipfrac", "entropy", "value_loss"}


def episodes_of(returns: list[float], window: int = 5) -> Episodes:
    """Return episodes whose length is ten times their return."""
    episodes = Episodes(window)
    values = np.array([returns], np.float32)
    episodes.add(values, 10 * values)
    return episodes


# -- waiting for others and exchanging with them --------------------------------------------------


class Rows(SingleLearner):
    """Rank 0 of three learners with given metrics of the others."""

    size = 3

    def __init__(self, endings: list[list[float]]) -> None:
        super().__init__()
        self.endings = endings  # of ranks 1 and 2

    def gather(self, values: Tensor) -> Tensor:
        self.clock.waits.append(100.0)  # of this exchange, which counts for the next update
        rows = values.repeat(3, 1)
        for row, ending in zip(rows[1:], self.endings, strict=True):
            row[len(row) - len(ending) :] = torch.tensor(ending)
        return rows


def test_the_least_time_of_each_exchange_is_its_own_and_the_rest_was_waiting():
    group = Rows([[0.5, 2.5], [0.25, 3.0]])
    exchange, meter = MetricsAllReduce(group), MetricAccumulator()
    group.clock.waits += [1.0, 2.0]
    agreed = exchange.all_reduce(meter, episodes_of([]), {}, **QUIET)
    meters = [one.meter for one in exchange.iterations()]
    assert [one.comm_s for one in meters] == [0.25 + 2.0] * 3
    assert [one.sync_s for one in meters] == [0.75 + 0.0, 0.25 + 0.5, 0.0 + 1.0]
    assert agreed.meter.comm_s == 3 * 2.25
    assert agreed.meter.sync_s == 2.5
    assert group.clock.waits == [100.0]


class VirtualTime:
    """A clock for each learner, which only sleeping and reading it advance.

    Learners that meet continue at the latest time of all.
    """

    READING_S, MESSAGE_S = 1e-4, 1e-3

    def __init__(self) -> None:
        self._of = threading.local()

    def perf_counter(self) -> float:
        return self.sleep(getattr(self._of, "reading_s", self.READING_S))

    def sleep(self, seconds: float) -> float:
        self._of.now = getattr(self._of, "now", 0.0) + seconds
        return self._of.now

    def meet(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        """Let an exchange of a Meeting end at one time for all."""

        def timed(meeting, rank, kind, value, read):
            self._of.reading_s = (rank + 1) * self.READING_S  # some need longer
            before = self.perf_counter()
            both = exchange(
                meeting, rank, kind, (value, before),
                lambda found: (read([x for x, _ in found]), max(at for _, at in found)),
            )  # fmt: skip
            self._of.now = both[1] + self.MESSAGE_S
            return both[0]

        return timed


@pytest.fixture
def clock(monkeypatch) -> VirtualTime:
    """Measures learners in threads by virtual time, whatever else the machine does."""
    clock = VirtualTime()
    for name in ("headrace.types", "headrace.trainer.metrics_allreduce"):
        monkeypatch.setattr(f"{name}.time", clock)
    monkeypatch.setattr(Meeting, "exchange", clock.meet(Meeting.exchange))
    return clock


def sleepy(
    group: ThreadGroup, clock: VirtualTime, sleeps_s: list[float], num_updates: int = 3
) -> tuple[list[Iteration], GroupState]:
    """Run updates in which learners sleep before a sum; return the last iterations and sums."""
    exchange = MetricsAllReduce(group)
    for _ in range(num_updates):
        with exchange.timed(), group.clock.phase("learn"):
            clock.sleep(sleeps_s[group.rank])
            group.sum(torch.zeros(3))
        agreed = exchange.all_reduce(MetricAccumulator(), episodes_of([]), {}, **QUIET)
    return list(exchange.iterations()), agreed


def test_who_comes_last_waits_for_nobody_and_the_others_for_its_delay(clock):
    found = run_learners(3, lambda group: sleepy(group, clock, [0.0, 0.3, 0.6]))
    for iterations, _ in found[1:]:
        assert [one.line() for one in iterations] == [one.line() for one in found[0][0]]
    times = [one.line() for one in found[0][0]]
    sync = [one["t_sync"] for one in times]
    assert sync[0] > 0.3
    assert sync[0] > sync[1] > 0.15
    assert sync[2] < 0.5 * sync[0]
    assert len({one["t_comm"] for one in times}) > 1  # each one's own publications as well
    assert all(one["t_comm"] < 0.5 * sync[0] for one in times)
    assert times[2]["t_learn"] > 0.6 > times[0]["t_learn"]


def test_each_learners_four_times_add_up_although_one_sleeps(clock):
    iterations, agreed = run_learners(2, lambda group: sleepy(group, clock, [0.0, 0.5]))[0]
    for one in iterations:
        line = one.line()
        assert sum(line[name] for name in TIMES) == pytest.approx(line["t_iter"], rel=0.2)
    parts = [one.meter for one in iterations]
    assert agreed.meter.sync_s == pytest.approx(sum(one.sync_s for one in parts))
    assert agreed.meter.learn_s == pytest.approx(sum(one.learn_s for one in parts))


def test_learners_get_the_mean_kl_of_all_of_them():
    def work(group: ThreadGroup) -> float:
        own = {"approx_kl": [0.25, 0.75][group.rank]}
        exchange = MetricsAllReduce(group)
        return exchange.all_reduce(MetricAccumulator(), episodes_of([]), own, **QUIET).approx_kl

    assert run_learners(2, work) == [0.5, 0.5]


def test_what_is_done_apart_counts_nowhere(clock):
    def work(group: ThreadGroup) -> list[Iteration]:
        exchange = MetricsAllReduce(group)
        for _ in range(2):
            with exchange.timed(), group.clock.phase("learn"):
                group.sum(torch.zeros(3))
            with exchange.untimed():
                with group.clock.phase("publish"):
                    clock.sleep(0.7 * group.rank)
                group.gather(torch.zeros(2))
                group.sum(torch.zeros(2))
            exchange.all_reduce(MetricAccumulator(), episodes_of([]), {}, **QUIET)
        return list(exchange.iterations())

    for one in run_learners(2, work)[0]:
        line = one.line()
        assert line["t_iter"] < 0.6
        assert sum(line[name] for name in TIMES) < 0.6


def test_what_is_done_apart_counts_nowhere_even_if_it_fails():
    group = SingleLearner()
    exchange = MetricsAllReduce(group)
    group.clock.waits.append(1.5)
    with pytest.raises(ZeroDivisionError), exchange.untimed(), group.clock.phase("comm"):
        group.clock.waits.append(2.5)
        raise ZeroDivisionError
    assert group.clock.waits == [1.5]
    assert group.clock.seconds == {}


@pytest.mark.serial
def test_the_four_times_of_a_real_run_add_up_to_its_iterations(tiny, finish, monkeypatch):
    # Other programs take no part of the CPU time of this process, which does all the work.
    for name in ("types", "trainer.metrics_allreduce", "rundir.run_progress"):
        time_s = {"perf_counter": time.process_time, "monotonic": time.process_time}
        monkeypatch.setattr(f"headrace.{name}.time", SimpleNamespace(**time_s))
    # Batches of a usual size: an update takes some ms, in which unmeasured steps don't show.
    algo = hr.PPO(epochs=2, minibatches=4)
    config = tiny(
        algo=algo, transport="serial", log_iterations=True, envs_per_actor=32, fragment_length=32,
        total_steps=40 * 32 * 32, checkpoint_interval=8 * 32 * 32,
    )  # fmt: skip
    trainer, _ = finish(config)
    lines = lines_of(trainer.run_dir, 0)[5:]
    assert len(lines) > 20
    total = sum(line["t_iter"] for line in lines)
    assert sum(line[name] for line in lines for name in TIMES) == pytest.approx(total, rel=0.1)
    assert sum(line["t_sync"] for line in lines) == 0.0
    for name in ("t_rollout", "t_learn", "t_comm"):
        assert 0.0 < sum(line[name] for line in lines) < total
    spent = lines[-1]["seconds"] - lines[0]["seconds"]
    assert 0.1 * spent < total < 1.2 * spent
    for line in lines:
        assert line["fps"] == pytest.approx(line["steps"] / line["t_iter"])


# -- what all know --------------------------------------------------------------------------------


def told(size: int, **by_rank: list[Any]) -> list[GroupState]:
    """Return the result of each learner after an exchange with the arguments ``by_rank``."""

    def work(group: ThreadGroup) -> GroupState:
        known: dict[str, Any] = {
            "meter": MetricAccumulator(),
            "episodes": episodes_of([]),
            "own": {},
            **QUIET,
        }
        known |= {name: values[group.rank] for name, values in by_rank.items()}
        exchange = MetricsAllReduce(group)
        agreed = exchange.all_reduce(
            known.pop("meter"), known.pop("episodes"), known.pop("own"), **known
        )
        assert [one.rank for one in exchange.iterations()] == list(range(size))
        return agreed

    return run_learners(size, work)


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_stop_asked_of_any_learner_is_known_to_all(who):
    assert not any(agreed.stop for agreed in told(3))
    assert all(agreed.stop for agreed in told(3, stop=[rank == who for rank in range(3)]))


@pytest.mark.parametrize("who", [0, 1])
def test_a_report_is_due_when_rank_0_says_so(who):
    found = told(2, due=[rank == who for rank in range(2)])
    assert [agreed.due for agreed in found] == [who == 0] * 2


def test_the_mean_return_is_over_all_episodes_however_they_are_spread():
    lists = [[1.0, 2.0], [], [30.0, 40.0, 50.0]]
    for agreed in told(3, episodes=[episodes_of(values) for values in lists]):
        assert agreed.mean_return == pytest.approx(123 / 5)
        assert not agreed.full
    assert [agreed.mean_return for agreed in told(2)] == [None, None]


def test_the_episodes_are_enough_when_each_learner_has_as_many_as_it_keeps():
    full, almost = episodes_of([1.0] * 7), episodes_of([1.0] * 4)
    assert [agreed.full for agreed in told(2, episodes=[full, full])] == [True] * 2
    assert [agreed.full for agreed in told(2, episodes=[full, almost])] == [False] * 2
    assert [agreed.full for agreed in told(2, episodes=[almost, full])] == [False] * 2


def meter_of(**values: Any) -> MetricAccumulator:
    meter = MetricAccumulator()
    for name, value in values.items():
        setattr(meter, name, value)
    return meter


def test_counts_add_up_and_the_greatest_lag_is_the_greatest_of_all():
    meters = [
        meter_of(env_steps=2**40 + 1, num_rollouts=2, lag_sum=3, lag_max=3, acting_ns=10),
        meter_of(env_steps=5, num_rollouts=0, dropped=4, waiting_ns=7),
        meter_of(env_steps=1, num_rollouts=1, lag_sum=2, lag_max=2, acting_ns=2**50 + 1),
    ]
    for agreed in told(3, meter=meters, restarts=[1, 0, 4]):
        total = agreed.meter
        assert (total.env_steps, total.num_rollouts, total.dropped) == (2**40 + 7, 3, 4)
        assert (total.lag_sum, total.lag_max) == (5, 3)
        assert (total.acting_ns, total.waiting_ns) == (2**50 + 11, 7)
        assert agreed.restarts == 5
        assert isinstance(total.env_steps, int)
    assert told(2)[1].meter.lag_max is None


def test_a_metric_that_one_learner_lacks_is_absent_from_its_line_only():
    def work(group: ThreadGroup) -> list[Iteration]:
        exchange = MetricsAllReduce(group)
        own = [{"entropy": 0.5, "approx_kl": 0.25, "value_loss": 2.0, "grad_norm": 9.0}, {}]
        meter = meter_of(env_steps=64 - group.rank)
        exchange.all_reduce(meter, episodes_of([]), own[group.rank], **QUIET)
        return list(exchange.iterations())

    for iterations in run_learners(2, work):
        assert iterations[0].own == {"entropy": 0.5, "approx_kl": 0.25, "value_loss": 2.0}
        assert iterations[1].own == {}
        assert [one.line()["steps"] for one in iterations] == [64, 63]


# -- checksums ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("odd", "like"), [(0, "1, 2"), (1, "0, 2"), (2, "0, 1")])
def test_the_learner_whose_weights_differ_is_named_everywhere(odd, like):
    words = f"the weights of learner {odd} are no longer those of learners {like}: they took"

    def work(group: ThreadGroup) -> str:
        with group.in_turn():
            policy = make_policy(dtype=torch.float32)
        exchange = MetricsAllReduce(group)
        for _ in range(2):
            known = QUIET | {"checksum": checksum(policy)}
            try:
                exchange.all_reduce(MetricAccumulator(), episodes_of([]), {}, **known)
            except LearnerFailed as error:
                return str(error)
            if group.rank == odd:  # by the last bit of one weight
                weight = policy.value_head.weight.data
                weight[0, 3] = torch.nextafter(weight[0, 3], torch.tensor(math.inf))
        return "nothing"

    assert all(words in said for said in run_learners(3, work))


def test_running_statistics_belong_to_what_is_compared():
    network = hr.Network((8,), normalize_observations=True)
    one, other = make_policy(network), make_policy(network)
    assert checksum(one) == checksum(other)
    assert 0 <= checksum(one) < 2**32
    other.take(other.moments(torch.randn(3, 2, 3)))
    assert checksum(one) != checksum(other)


# -- episodes -------------------------------------------------------------------------------------


def test_all_learners_get_the_latest_episodes_of_all_in_the_order_of_ranks():
    lists = [[1.0, 2.0], [], [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]

    def work(group: ThreadGroup) -> Episodes:
        mine = episodes_of(lists[group.rank])
        everyone = gather_episodes(group, mine)
        assert list(mine.returns) == lists[group.rank][-5:]
        return everyone

    for everyone in run_learners(3, work):
        expected = [1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        assert list(everyone.returns) == expected
        assert list(everyone.lengths) == [10 * x for x in expected]
        assert everyone.count == 9
        assert everyone.window == 15


def test_the_episodes_of_one_learner_are_its_own():
    mine = episodes_of([1.0, 2.0, 3.0])
    same = gather_episodes(SingleLearner(), mine)
    assert (list(same.returns), list(same.lengths), same.count, same.window) == (
        [1.0, 2.0, 3.0],
        [10.0, 20.0, 30.0],
        3,
        5,
    )


# -- lines of iterations --------------------------------------------------------------------------


def lines_of(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    return read_jsonl(Path(run_dir) / "iterations" / f"rank_{rank}.jsonl")


def test_lines_are_written_when_asked_and_cut_to_the_checkpoint_on_resume(tmp_path):
    def note(log: RunLog, update: int) -> None:
        meters = [meter_of(env_steps=4 * update), meter_of(env_steps=6 * update)]
        parts = [Iteration(rank, 0.5, meter, {}) for rank, meter in enumerate(meters)]
        log.iteration(parts, update, 10 * update, 0.5 * update)

    log = RunLog(tmp_path, 2)
    for update in (1, 2, 3):
        note(log, update)
    assert lines_of(tmp_path, 0) == []
    log.flush()
    assert [line["update"] for line in lines_of(tmp_path, 0)] == [1, 2, 3]
    note(log, 4)
    log.close()
    assert [line["steps"] for line in lines_of(tmp_path, 1)] == [6, 12, 18, 24]
    file = tmp_path / "iterations" / "rank_1.jsonl"
    file.write_text(file.read_text() + '{"update": 5, "env')  # cut short by a crash
    RunLog(tmp_path, 0, keep_until=(20, 2)).close()  # continuing, without logging
    log = RunLog(tmp_path, 3)
    note(log, 3)
    log.close()
    for rank, share in ((0, 4), (1, 6)):
        lines = lines_of(tmp_path, rank)
        assert [line["update"] for line in lines] == [1, 2, 3]
        assert [line["fps"] for line in lines] == [2 * share, 4 * share, 6 * share]
    assert lines_of(tmp_path, 2) == []


def test_lines_are_left_out_where_hundreds_would_be_written_each_update(tmp_path):
    sizes = (1, 2, 32, 33)
    assert [size for size in sizes if logs_iterations(size)] == [2, 32]
    log, read = RunLog(tmp_path, 0), []
    log.iteration(map(read.append, range(33)), 1, 1, 0.5)
    log.close()
    assert read == []  # no row is split for it


@pytest.mark.parametrize(
    ("wanted", "written"), [(None, False), (True, True), (False, False)], ids=str
)
def test_one_learner_writes_lines_only_if_asked(tiny, finish, wanted, written):
    trainer, results = finish(tiny(transport="serial", total_steps=128, log_iterations=wanted))
    assert (trainer.run_dir / "iterations").exists() == written
    if written:
        lines = lines_of(trainer.run_dir, 0)
        assert [line["update"] for line in lines] == list(range(1, len(results) + 1))
        assert [line["env_steps"] for line in lines] == [r.env_steps for r in results]
        assert all(set(line) == KEYS | OWN for line in lines)
        assert json.loads(json.dumps(lines)) == lines


def test_saved_episodes_go_back_to_their_learners_or_are_dealt_out_among_others():
    ones, twos = Episodes(4), Episodes(4)
    for episodes, value, count in ((ones, 1.0, 3), (twos, 2.0, 2)):
        episodes.add(np.full((count, 1), value), np.full((count, 1), 10 * value))
    saved = [ones.state_dict(), twos.state_dict()]
    for rank, own in enumerate((ones, twos)):
        again = Episodes(4)
        again.load_share(saved, rank, 2)
        assert list(again.returns) == list(own.returns)
        assert (list(again.lengths), again.count) == (list(own.lengths), own.count)
    parts = [Episodes(4) for _ in range(3)]
    for rank, part in enumerate(parts):
        part.load_share(saved, rank, 3)
    assert sorted(x for part in parts for x in part.returns) == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert sorted(x for part in parts for x in part.lengths) == [10.0] * 3 + [20.0] * 2
    assert [part.count for part in parts] == [5, 0, 0]
    assert {len(part.returns) for part in parts} == {1, 2}
