"""IMPALA's uniform replay and IMPACT's circular buffer."""

from __future__ import annotations

import dataclasses
import io
from collections import deque
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tries import examples

import headrace as hr
from headrace.algos import impala, replay
from headrace.algos.replay import CircularBuffer, ReplayBuffer, concatenate
from headrace.errors import ConfigError
from headrace.ops import tree
from headrace.types import Batch, SingleLearner
from tests.ops.test_mutants import mutate

T = 3


def marked(first: int, count: int) -> Batch:
    """Return columns ``first`` to ``first + count - 1``."""
    return columns(torch.arange(first, first + count))


def columns(number: Tensor) -> Batch:
    """Return columns with their number in every leaf."""
    number = number.float()
    rows, more = number.expand(T, -1).clone(), number.expand(T + 1, -1).clone()
    return Batch(
        obs={"a": more[..., None].repeat(1, 1, 2), "b": (more.long(), more.double())},
        first=more % 2 == 0,
        action=(rows.long(), {"c": rows[..., None].clone()}),
        log_prob=rows.clone(),
        reward=rows.clone(),
        terminated=rows % 3 == 0,
        valid=rows % 2 == 1,
        core={"h": number[:, None].repeat(1, 5), "c": (number.clone(),)},
        targets={},
        version=number.long(),
    )


def numbers(batch: Batch) -> list[int]:
    """Return the columns' numbers, and check that all leaves agree."""
    found = batch.reward[0]
    wanted = columns(found)
    for field in dataclasses.fields(Batch):
        ours, theirs = (tree.leaves(getattr(one, field.name)) for one in (batch, wanted))
        assert all(x.dtype == y.dtype for x, y in zip(ours, theirs, strict=True))
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    return found.long().tolist()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def held(buffer: ReplayBuffer) -> set[int]:
    return set(numbers(buffer.sample(60 * len(buffer), generator())))


def check_ring(module: ModuleType) -> None:
    buffer, last = module.ReplayBuffer(10), 0
    for count in (4, 4, 4, 1, 7, 10, 3, 25, 2):
        buffer.add(marked(last, count))
        last += count
        assert len(buffer) == min(10, last)
        assert held(buffer) == set(range(max(0, last - 10), last))


def check_uniform(module: ModuleType) -> None:
    buffer = module.ReplayBuffer(8)
    for i in range(4):
        buffer.add(marked(5 * i, 5))
    drawn = numbers(buffer.sample(8000, generator()))
    counts = torch.bincount(torch.tensor(drawn), minlength=20)[12:].double()
    assert counts.sum() == 8000
    assert ((counts - 1000).square() / 1000).sum() < 24.3  # chi-square, 7 degrees, 0.1 %


def check_round_trip(module: ModuleType) -> None:
    for added in (0, 5, 23):
        buffer, other = module.ReplayBuffer(10), module.ReplayBuffer(10)
        other.add(marked(900, 10))
        if added:
            buffer.add(marked(0, added))
            buffer.add(marked(added, 2))
        file = io.BytesIO()
        torch.save(buffer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert len(other) == len(buffer)
        for i in range(6):
            for one in (buffer, other):
                one.add(marked(50 + 3 * i, 3))
            drawn = [numbers(one.sample(40, generator(i))) for one in (buffer, other)]
            assert drawn[0] == drawn[1]


@pytest.mark.parametrize("check", [check_ring, check_uniform, check_round_trip])
def test_the_replay_buffer_holds_the_last_columns_draws_uniformly_and_survives_a_restart(check):
    check(replay)


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_ring, "(index + self._next) % self._capacity", "index % self._capacity"),
        (check_ring, "slice(-self._capacity, None)", "slice(0, self._capacity)"),
        (check_ring, "min(self._size + len(index), self._capacity)", "self._capacity"),
        (check_ring, "torch.randint(self._size,", "torch.randint(max(1, self._size - 1),"),
        (check_uniform, "generator=generator)", "generator=generator) // 2 * 2"),
        (check_round_trip, 'self._next = saved["next"]', "self._next = 0"),
        (check_round_trip, "self._store, self._next, self._size = None, 0, 0", "pass"),
        (check_round_trip, "torch.arange(self._size,", "torch.arange(self._size - 1,"),
    ],
)
def test_a_broken_replay_buffer_is_caught(check, old, new):
    broken = mutate(replay, "ReplayBuffer", old, new)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        check(broken)


@given(
    capacity=st.integers(1, 12),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=8),
)
@examples(60)
def test_the_ring_is_a_queue_of_bounded_length(capacity, counts):
    buffer, model, last = ReplayBuffer(capacity), deque(maxlen=capacity), 0
    for count in counts:
        buffer.add(marked(last, count))
        model.extend(range(last, last + count))
        last += count
    assert len(buffer) == len(model)
    assert set(numbers(Batch(**buffer.state_dict()["columns"]))) == set(model)


@given(size=st.integers(1, 6), passes=st.integers(1, 6))
@examples(36)
def test_each_batch_of_the_circular_buffer_is_visited_passes_times_every_size_visits(size, passes):
    buffer, arrived = CircularBuffer(size, passes), []

    def new() -> Batch:
        arrived.append(marked(len(arrived), 1))
        return arrived[-1]

    visits: dict[int, list[int]] = {}
    for t in range(3 * size * passes):
        visits.setdefault(*numbers(buffer.visit(t, new)), []).append(t)
    assert len(arrived) == 3 * size
    for number, times in visits.items():
        start = number // size * size * passes + number % size
        assert times == list(range(start, start + size * passes, size))
    assert buffer.state_dict()["batches"] == [None] * size  # nothing is kept beyond its last pass


def test_memory_is_allocated_once_and_what_was_added_may_change_afterwards():
    buffer, batch = ReplayBuffer(10), marked(0, 4)
    buffer.add(batch)
    before = [x.data_ptr() for x in tree.leaves(replay.as_dict(buffer._store))]
    assert all(x.shape[1] == 10 for x in tree.leaves(buffer._store.obs))
    batch.reward.fill_(77)
    for i in range(1, 9):
        assert all(number < 4 * i for number in held(buffer))
        buffer.add(marked(4 * i, 4))
    after = [x.data_ptr() for x in tree.leaves(replay.as_dict(buffer._store))]
    assert before == after


def test_a_sample_of_nothing_and_a_batch_of_another_shape_are_errors():
    buffer = ReplayBuffer(4)
    with pytest.raises(ValueError, match="holds nothing"):
        buffer.sample(1, generator())
    buffer.add(marked(0, 2))
    longer = marked(0, 2)
    longer.reward = torch.zeros(T + 1, 2)
    with pytest.raises(RuntimeError):
        buffer.add(longer)
    other = marked(0, 2)
    other.action = other.action[0]
    with pytest.raises(ValueError):
        buffer.add(other)


def test_concatenating_puts_columns_side_by_side_in_their_order():
    joined = concatenate([marked(4, 3), marked(0, 2), marked(9, 1)])
    assert numbers(joined) == [4, 5, 6, 0, 1, 9]
    assert numbers(concatenate([joined])) == [4, 5, 6, 0, 1, 9]


# -- in IMPALA ----------------------------------------------------------------------------------


def updates(algo: hr.IMPALA, columns: int, count: int) -> list[list[int]]:
    """Return the columns' numbers in each batch; update u adds ``columns * u`` and following."""
    state, seen = algo.init(torch.nn.Linear(1, 1)), []
    for u in range(count):
        (batch,) = algo.batches(
            None, lambda u=u: marked(columns * u, columns), state, SingleLearner()
        )
        seen.append(numbers(batch))
    return seen


def check_fraction(module: ModuleType, fraction: float, columns: int, drawn: int) -> None:
    algo = module.IMPALA(epochs=1, minibatches=1, replay_fraction=fraction, replay_capacity=1000)
    for u, found in enumerate(updates(algo, columns, 6)):
        assert found[:columns] == list(range(columns * u, columns * (u + 1)))
        assert len(found) == columns + (drawn if u else 0)
        assert all(number < columns * u for number in found[columns:])


@pytest.mark.parametrize(
    ("fraction", "columns", "drawn"),
    [(0.0, 8, 0), (0.5, 8, 8), (0.5, 1, 1), (0.2, 8, 2), (0.75, 8, 24), (0.9, 2, 18)],
)
def test_a_batch_is_fresh_columns_and_the_fraction_drawn_from_before_it(fraction, columns, drawn):
    check_fraction(impala, fraction, columns, drawn)


@pytest.mark.parametrize(("fraction", "columns"), [(0.1, 1), (0.1, 4), (0.3, 5)])
def test_a_fraction_that_needs_part_of_a_column_is_met_over_several_batches(fraction, columns):
    sizes = [len(found) for found in updates(impala_with(fraction), columns, 200)][1:]
    assert 1 - columns * len(sizes) / sum(sizes) == pytest.approx(fraction, abs=0.01)


def impala_with(fraction: float) -> hr.IMPALA:
    return hr.IMPALA(epochs=1, minibatches=1, replay_fraction=fraction, replay_capacity=1000)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parts = [batch]", "parts = [batch]; replay.add(batch)"),
        ("self.replay_fraction / (1.0 - self.replay_fraction)", "self.replay_fraction"),
        ("return concatenate(parts)", "return concatenate(parts[::-1])"),
    ],
)
def test_broken_replay_in_impala_is_caught(old, new):
    broken = mutate(impala, "IMPALA", old, new)
    with pytest.raises(AssertionError):
        check_fraction(broken, 0.75, 8, 24)


def test_a_full_buffer_replays_the_last_columns_before_the_batch_and_in_the_end_each_of_them():
    algo = hr.IMPALA(epochs=1, minibatches=1, replay_fraction=0.9, replay_capacity=10)
    for u, found in enumerate(updates(algo, 4, 30)):
        if u:
            assert set(found[4:]) <= set(range(max(0, 4 * u - 10), 4 * u))
    ages = [4 * u - number for u, found in enumerate(updates(algo, 4, 30)) for number in found[4:]]
    assert set(ages) == set(range(1, 11))


def test_without_replay_there_is_no_state():
    assert hr.IMPALA(epochs=1, minibatches=1).init(torch.nn.Linear(1, 1)) == {}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"replay_fraction": 1.0}, "replay_fraction=1.0 must be at least 0 and below 1"),
        ({"replay_fraction": -0.1}, "replay_fraction=-0.1"),
        ({"replay_capacity": 0}, r"replay_capacity=0 must be 1 or more \(nearest: 1\)"),
        ({"correction": "onestep"}, "correction='onestep' must be .*nearest: 'one_step'"),
    ],
)
def test_a_wrong_setting_is_an_error_that_teaches(wrong, words):
    with pytest.raises(ConfigError, match=words):
        hr.IMPALA(**wrong)
