"""Replay of several learners is redistributed when their number changes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tries import examples

from headrace.algos.replay import CircularBuffer, ReplayBuffer, oldest_first, pick
from headrace.ops import tree
from headrace.types import Batch
from tests.algos.test_replay import columns, generator, held, marked, numbers

State = dict[str, Any]


def rings(num_learners: int, capacity: int, added: list[int]) -> list[State]:
    """Return states of learners that added ``added[u]`` columns each, in order."""
    buffers = [ReplayBuffer(capacity) for _ in range(num_learners)]
    last = 0
    for count in added:
        for buffer in buffers:
            buffer.add(marked(last, count))
            last += count
    return [buffer.state_dict() for buffer in buffers]


def reshard(states: list[State], size: int) -> list[State]:
    """Return all new states, and check that the old ones are unchanged."""
    before = copy.deepcopy(states)
    made = [ReplayBuffer.reshard(states, rank, size) for rank in range(size)]
    assert same(states, before)
    return made


def same(one: Any, other: Any) -> bool:
    """Return whether states are equal bit for bit."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def stored(state: State) -> list[int]:
    """Return the columns' numbers from the oldest to the newest, by order of replacement."""
    if state["columns"] is None:
        return []
    buffer = ReplayBuffer(state["capacity"])
    buffer.load_state_dict(state)
    assert len(buffer) <= state["capacity"]
    assert held(buffer) == set(numbers(Batch(**state["columns"])))
    order, left = [], held(buffer)
    for i in range(state["capacity"]):
        buffer.add(marked(100_000 + i, 1))
        gone = left - held(buffer)
        order += sorted(gone)
        left -= gone
    return order


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def ages(states: list[State]) -> dict[int, int]:
    """Return for each column the number of later columns in its buffer."""
    each = [stored(state) for state in states]
    return {number: len(all_) - 1 - i for all_ in each for i, number in enumerate(all_)}


RINGS = {
    "learners": st.integers(1, 4),
    "new": st.integers(1, 5),
    "share": st.integers(1, 3),
    "added": st.lists(st.integers(1, 6), max_size=5),
}


@given(**RINGS)
@examples(60)
def test_no_column_of_replay_is_lost_or_doubled_and_shares_are_even(learners, new, share, added):
    capacity = share * new  # so that the new capacity is whole
    old = rings(learners, capacity, added)
    made = reshard(old, new)
    assert [s["capacity"] for s in made] == [share * learners] * new
    found = [stored(state) for state in made]
    assert Counter(joined(found)) == Counter(joined(map(stored, old)))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(**RINGS)
@examples(60)
def test_each_new_learner_replaces_old_columns_before_new_ones(learners, new, share, added):
    old = rings(learners, share * new, added)
    age = ages(old)
    for state in reshard(old, new):
        found = [age[number] for number in stored(state)]
        assert found == sorted(found, reverse=True)


@given(**RINGS)
@examples(60)
def test_there_and_back_the_columns_and_their_ages_are_the_same(learners, new, share, added):
    old = rings(learners, share * new, added)
    again = reshard(reshard(old, new), learners)
    assert [s["capacity"] for s in again] == [share * new] * learners
    assert sorted(ages(again).items()) == sorted(ages(old).items())


@given(**RINGS, more=st.integers(1, 4))
@examples(40)
def test_the_newest_columns_are_kept_where_not_all_fit(learners, new, share, added, more):
    capacity = share + more
    if learners == new or capacity * learners < new:
        return
    old = rings(learners, capacity, added)
    made = reshard(old, new)
    assert {s["capacity"] for s in made} == {capacity * learners // new}
    age, kept = ages(old), joined(map(stored, made))
    assert len(kept) == len(set(kept)) == min(len(age), capacity * learners // new * new)
    dropped = [age[number] for number in age.keys() - set(kept)]
    assert not dropped or min(dropped) >= max(age[number] for number in kept)


def test_full_rings_that_stand_anywhere_are_dealt_out_in_turn():
    old = rings(2, 3, [2, 2, 1])  # brought 0 1 and 2 3, 4 5 and 6 7, 8 and 9
    assert [stored(s) for s in old] == [[4, 5, 8], [6, 7, 9]]
    (one,) = reshard(old, 1)
    assert stored(one) == [4, 6, 5, 7, 8, 9]
    assert [stored(s) for s in reshard(old, 3)] == [[4, 7], [6, 8], [5, 9]]
    assert [stored(s) for s in reshard([one], 4)] == [[5], [7], [8], [9]]


def test_rings_of_different_sizes_are_aligned_at_the_newest_column():
    order = oldest_first([2, 4], [0, 1])
    assert order.tolist() == [3, 4, 0, 5, 1, 2]


def test_replay_that_holds_less_than_a_column_for_each_leaves_some_learners_empty():
    made = reshard(rings(1, 8, [2]), 4)
    assert [s["columns"] is None for s in made] == [True, True, False, False]
    assert [s["next"] for s in made] == [0, 0, 1, 1]
    for state in made + reshard(rings(3, 4, []), 2):
        buffer = ReplayBuffer(state["capacity"])
        buffer.load_state_dict(state)
        buffer.add(marked(0, 1))
        assert len(buffer) == (1 if state["columns"] is None else 2)
    back = reshard(made, 1)
    assert stored(back[0]) == [0, 1]


def test_a_resharded_replay_is_drawn_from_by_every_column_of_the_share_only():
    made = reshard(rings(3, 4, [2, 2, 1]), 2)
    drawn = []
    for state in made:
        buffer = ReplayBuffer(6)
        buffer.load_state_dict(state)
        drawn.append(set(numbers(buffer.sample(500, generator()))))
        assert drawn[-1] == set(stored(state))
    assert not drawn[0] & drawn[1]


def test_replay_of_less_capacity_than_learners_is_an_error():
    with pytest.raises(ValueError, match="replay of 2 columns can't be shared out to 3 learners"):
        ReplayBuffer.reshard(rings(1, 2, [2]), 0, 3)


@pytest.mark.parametrize("buffer", [ReplayBuffer, CircularBuffer])
def test_as_many_learners_as_before_get_their_states_back(buffer):
    states = rings(3, 5, [4, 4]) if buffer is ReplayBuffer else slots(3, 5, 2, 3, 2)
    before = copy.deepcopy(states)
    for rank in range(3):
        assert buffer.reshard(states, rank, 3) is states[rank]
    assert same(states, before)


def test_picked_columns_come_in_the_order_asked_and_in_memory_of_their_own():
    batches = [marked(0, 3), marked(3, 1), marked(4, 4)]
    picked = pick(batches, torch.tensor([7, 0, 3, 5, 1, 0]))
    assert numbers(picked) == [7, 0, 3, 5, 1, 0]
    for leaf in tree.leaves(pick(batches, torch.arange(2)).obs):
        assert leaf.untyped_storage().nbytes() == leaf.nbytes  # else a file would hold all of it
    batches[0].reward.fill_(-1)
    assert numbers(picked)[1] == 0


# -- IMPACT's circular buffer -------------------------------------------------------------------


def with_targets(first: int, count: int) -> Batch:
    """Return columns whose targets also contain their numbers."""
    number = torch.arange(first, first + count).float().expand(3, -1)
    params = number[..., None].repeat(1, 1, 2)
    return dataclasses.replace(marked(first, count), targets={"vs": number * 2, "params": params})


def numbers_and_targets(batch: Batch) -> list[int]:
    """Return the columns' numbers, and check that targets agree."""
    found = numbers(dataclasses.replace(batch, targets={}))
    wanted = columns(torch.tensor(found)).reward
    assert torch.equal(batch.targets["vs"], wanted * 2)
    assert torch.equal(batch.targets["params"], wanted[..., None].repeat(1, 1, 2))
    return found


def visit_together(
    buffers: list[CircularBuffer], iteration: int, per_update: int, last: int
) -> tuple[list[int], int]:
    """Return all learners' columns at an iteration, and the number of new columns so far."""
    share, seen, fresh = per_update // len(buffers), [], 0
    for rank, buffer in enumerate(buffers):

        def new(rank: int = rank) -> Batch:
            nonlocal fresh
            fresh += share
            return with_targets(last + rank * share, share)

        seen += numbers_and_targets(buffer.visit(iteration, new))
    assert fresh in (0, per_update)
    return seen, last + fresh


def slots(learners: int, iterations: int, size: int, passes: int, share: int) -> list[State]:
    """Return states of learners after some iterations, with ``share`` columns per batch."""
    buffers, last = [CircularBuffer(size, passes) for _ in range(learners)], 0
    for t in range(iterations):
        _, last = visit_together(buffers, t, share * learners, last)
    return [buffer.state_dict() for buffer in buffers]


@given(
    learners=st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4),
    iterations=st.integers(0, 9),
    size=st.integers(1, 4),
    passes=st.integers(1, 3),
)
@examples(60)
def test_learners_whose_number_changes_traverse_what_a_single_one_does(
    learners, iterations, size, passes
):
    together = [CircularBuffer(size, passes) for _ in range(learners[0])]
    alone, counts, t = [CircularBuffer(size, passes)], [0, 0], 0
    for number in learners:
        states = [buffer.state_dict() for buffer in together]
        before = copy.deepcopy(states)
        together = [CircularBuffer(size, passes) for _ in range(number)]
        for rank, buffer in enumerate(together):
            buffer.load_state_dict(CircularBuffer.reshard(states, rank, number))
        assert same(states, before)
        for _ in range(iterations):
            ours, counts[0] = visit_together(together, t, 12, counts[0])
            theirs, counts[1] = visit_together(alone, t, 12, counts[1])
            assert ours == theirs
            t += 1


def test_a_share_of_a_circular_buffer_is_in_memory_of_its_own():
    states = slots(1, 2, 2, 3, 4)
    part = CircularBuffer.reshard(states, 1, 2)
    for batch in part["batches"]:
        for leaf in tree.leaves(batch):
            assert leaf.untyped_storage().nbytes() == leaf.nbytes


def test_columns_that_the_new_number_of_learners_does_not_divide_are_an_error():
    with pytest.raises(ValueError, match="batch of 8 columns can't be shared out evenly to 3"):
        CircularBuffer.reshard(slots(2, 3, 4, 2, 4), 0, 3)


@pytest.mark.parametrize(
    "other",
    [(1, 3, 2, 3, 2), (1, 1, 2, 3, 2), (1, 2, 2, 2, 2), (1, 2, 3, 3, 2)],
    ids=["later", "earlier", "passes", "size"],
)
def test_circular_buffers_that_do_not_belong_together_are_an_error(other):
    states = slots(1, 2, 2, 3, 2) + slots(*other)
    with pytest.raises(ValueError, match="not saved at the same step"):
        CircularBuffer.reshard(states, 0, 1)
