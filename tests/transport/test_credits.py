"""Credits: how many rollouts may be in progress or queued, and who starts the next."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.transport import slots as slots_module
from headrace.transport.queue import NUM_HEADER_FIELDS, Header
from headrace.transport.serial import SerialQueue
from headrace.transport.slab import ArraySpec, Slab
from headrace.transport.slots import Slots
from tests.ops.test_mutants import mutate

SPEC = {"value": ArraySpec((1,), torch.int64)}


def slots_of(num_actors: int, num_credits: int, kind: type[Slots] = Slots) -> tuple[Slab, Slots]:
    per_actor = -(-num_credits // num_actors)
    slab = Slab(SPEC, num_actors * per_actor, NUM_HEADER_FIELDS)
    return slab, kind(slab, num_actors, per_actor, False, num_credits=num_credits)


class Machine:
    """Actors that work, and a learner that takes and releases, in any order of events.

    The time is the number of commits; ``begun[slot]`` is the number of rollouts that were taken
    before the slot was granted.
    """

    def __init__(self, num_actors: int, max_lag: int, wanted: int, kind: type[Slots] = Slots):
        self.slab, self.slots = slots_of(num_actors, (max_lag + 1) * wanted, kind)
        self.num_actors, self.wanted, self.num_credits = num_actors, wanted, (max_lag + 1) * wanted
        self.scarce = self.num_credits % num_actors > 0  # else everybody's slots are granted
        self.time, self.held, self.committed = 0, [], []
        self.granted: list[int] = []  # open slots, in the order of their grants
        self.idle_since = dict.fromkeys(range(num_actors), 0)
        self.grant()

    def outstanding(self) -> int:
        num_open = sum(len(self.slots.open(a)) for a in range(self.num_actors))
        return num_open + len(self.slots) + len(self.held)

    def grant(self) -> None:
        while True:
            idle = {
                a: since
                for a, since in self.idle_since.items()
                if not self.slots.open(a) and self.slots.can_grant(a)
            }
            slot = self.slots.grant()
            if slot is None:
                assert self.outstanding() == self.num_credits
                return
            self.granted.append(slot)
            if idle and self.scarce:  # the turn is its that has had nothing to do for longest
                assert self.slots.owner(slot) in idle
                assert self.idle_since[self.slots.owner(slot)] == min(idle.values())

    def commit(self, actor: int) -> None:
        slot = self.slots.open(actor)[0]
        self.granted.remove(slot)
        self.time += 1
        self.slab.headers[slot][:] = Header(actor, 0, 0, 1, self.time, 0, 0)
        self.slots.commit(slot)
        self.committed.append(slot)
        self.idle_since[actor] = self.time

    def learn(self) -> bool:
        taken = self.slots.take(self.wanted)
        if taken is None:
            return False
        assert taken == self.committed[: self.wanted]  # first committed, first taken
        del self.committed[: self.wanted]
        self.held = taken
        assert self.outstanding() <= self.num_credits
        for slot in taken:
            self.slots.release(slot)
        self.held = []
        self.grant()
        return True

    def able(self) -> list[int]:
        return [a for a in range(self.num_actors) if self.slots.open(a)]


def check_any_order(num_actors: int, max_lag: int, wanted: int, seed: int, kind=Slots) -> None:
    machine, rng = Machine(num_actors, max_lag, wanted, kind), random.Random(seed)
    for _ in range(120):
        assert machine.outstanding() <= machine.num_credits
        able = machine.able()
        if rng.random() < 0.3 or not able:
            assert machine.learn() or able  # no actor waits for ever
        else:
            machine.commit(rng.choice(able))


SHAPES = (st.integers(1, 7), st.integers(0, 3), st.integers(1, 5), st.integers(0, 2**16))


@examples(60)
@given(*SHAPES)
def test_no_more_than_the_credits_are_out_and_the_longest_idle_is_next(actors, lag, wanted, seed):
    check_any_order(actors, lag, wanted, seed)


def test_a_bound_that_is_not_kept_and_a_turn_that_is_unfair_are_seen():
    for old, new in (
        ("self._credits[self.task(actor)] -= 1", "pass"),
        ("return num_open, -last if num_open else last", "return 0, -last"),
        ("min(able, key=self._turn) if self._scarce else able[0]", "able[0]"),
    ):
        broken = mutate(slots_module, "Slots", old, new).Slots
        with pytest.raises((AssertionError, IndexError)):
            for seed in range(40):
                check_any_order(5, 1, 2, seed, broken)


def check_tasks(num_tasks: int, each: int, lag: int, share: int, seed: int, kind=Slots) -> None:
    """Run actors of several tasks, the first much slower; return the rollouts of each."""
    num_actors, credits, rng = num_tasks * each, (lag + 1) * share, random.Random(seed)
    per_actor = -(-credits // each)
    slab = Slab(SPEC, num_actors * per_actor, NUM_HEADER_FIELDS)
    slots = kind(slab, num_actors, per_actor, False, False, credits * num_tasks, num_tasks)
    begun, time = dict.fromkeys(range(num_tasks), 0), 0
    for _ in range(150):
        while (slot := slots.grant()) is not None:
            begun[slots.owner(slot) % num_tasks] += 1
        assert all(count == credits for count in begun.values())  # each has all its credits
        able = [a for a in range(num_actors) if slots.open(a)]
        able = [a for a in able if a % num_tasks or rng.random() < 0.1] or able
        full = [task for task in begun if slots.waiting(task) >= share]
        assert able or len(full) == num_tasks  # no actor waits for ever
        if len(full) == num_tasks and (not able or rng.random() < 0.5):
            for task in begun:
                taken = slots.take(share, task)
                assert [slots.owner(slot) % num_tasks for slot in taken] == [task] * share
                times = [slots.header(slot).committed_ns for slot in taken]
                assert times == sorted(times)
                begun[task] -= share
                for slot in taken:
                    slots.release(slot)
        elif able:
            time += 1
            slot = slots.open(actor := rng.choice(able))[0]
            slab.headers[slot][:] = Header(actor, 0, 0, 1, time, 0, 0)
            slots.commit(slot)


@examples(40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(0))
def test_each_task_has_its_share_of_credits_and_of_what_is_taken(tasks, each, lag, share, seed):
    check_tasks(tasks, each, lag, share, seed)


def test_credits_that_tasks_take_from_each_other_and_batches_of_any_task_are_seen():
    for old, new in (
        ("return actor % self._num_tasks", "return 0"),
        ("self._committed[task :: self._num_tasks]", "self._committed"),
        ("[total // num_tasks] * num_tasks", "[total] * num_tasks"),
    ):
        broken = mutate(slots_module, "Slots", old, new).Slots
        with pytest.raises((AssertionError, IndexError)):
            for seed in range(20):
                check_tasks(2, 3, 1, 2, seed, broken)


def test_the_same_number_is_taken_from_each_actor_of_a_task_where_it_is_ordered():
    slab = Slab(SPEC, 8, NUM_HEADER_FIELDS)
    slots = Slots(slab, 4, 2, True, num_tasks=2)
    while slots.grant() is not None:
        pass
    for actor in (0, 0, 2, 1, 1, 3, 3):
        slab.headers[slots.open(actor)[0]][:] = Header(actor, 0, 0, 1, 1, 0, 0)
        slots.commit(slots.open(actor)[0])
    assert slots.take(4, 0) is None
    assert slots.missing(4, 0) == [2]
    assert [slots.owner(slot) for slot in slots.take(4, 1)] == [1, 1, 3, 3]
    assert [slots.owner(slot) for slot in slots.take(2, 0)] == [0, 2]


@pytest.mark.parametrize(("num_actors", "max_lag", "wanted"), [(4, 2, 1), (5, 1, 2), (3, 2, 2)])
def test_every_actor_works_as_often_as_the_others_where_all_are_equally_fast(
    num_actors, max_lag, wanted
):
    machine, done = Machine(num_actors, max_lag, wanted), [0] * num_actors
    for _ in range(100):
        for slot in list(machine.granted):
            machine.commit(machine.slots.owner(slot))
            done[machine.slots.owner(slot)] += 1
        while machine.learn():
            pass
    assert min(done) >= max(done) - 1


def test_who_leaves_gives_back_its_slots_and_who_joins_is_granted_some():
    slab, slots = slots_of(2, 4)
    granted = [slots.grant() for _ in range(4)]
    assert sorted(granted) == [0, 1, 2, 3]
    slots.leave(0)
    assert (slots.open(0), slots.open(1), slots.present) == ([], [2, 3], 1)
    assert slots.grant() is None  # the other has no slot left
    slab.headers[1][:] = 7
    slots.join(0)
    assert (slab.headers[1] == -1).all()  # messages to its predecessor are dropped
    assert [slots.grant(), slots.grant(), slots.grant()] == [0, 1, None]
    for slot in (2, 3):
        slots.commit(slot)
    slots.leave(1)
    assert slots.take(2) == [2, 3]  # what it committed is whole
    for slot in (2, 3):
        slots.release(slot)
    assert slots.grant() is None


def test_an_actor_that_never_delivers_stops_nobody():
    machine = Machine(4, 2, 1)
    for _ in range(50):
        able = [a for a in machine.able() if a != 0]
        machine.commit(able[0])
        assert machine.learn()


@pytest.mark.parametrize(("num_actors", "max_lag", "wanted"), [(4, 2, 1), (3, 1, 4), (2, 3, 2)])
def test_what_nothing_overtakes_lags_by_no_more_than_max_lag(num_actors, max_lag, wanted):
    machine, begun, lags = Machine(num_actors, max_lag, wanted), {}, []
    for update in range(100):
        while machine.granted:
            slot = machine.granted[0]
            begun[slot] = update
            machine.commit(machine.slots.owner(slot))
        lags += [update - begun[slot] for slot in machine.committed[:wanted]]
        assert machine.learn()
    assert max(lags) == max_lag


def test_the_serial_queue_grants_no_more_than_the_credits():
    _, slots = slots_of(4, 3)
    serial = SerialQueue(slots)
    for actor in range(3):
        assert serial.port(actor).acquire(0.0) is not None
    with pytest.raises(TimeoutError, match="actor 3"):
        serial.port(3).acquire(0.0)
