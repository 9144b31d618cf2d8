"""One suite over every transport: order, back-pressure, deaths, exactly-once delivery."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import ClassVar

import pytest
import torch

from headrace.ray.rollout_queue import ArrivedRollouts, FailedCall, RayQueue
from headrace.transport.queue import NUM_HEADER_FIELDS, Header, PeerDied
from headrace.transport.serial import SerialQueue
from headrace.transport.shm import ShmPort, ShmQueue
from headrace.transport.slab import ArraySpec, Slab
from headrace.transport.slots import Slots

SPEC = {"value": ArraySpec((4,), torch.int64), "noise": ArraySpec((3,), torch.float32)}
NUM_ACTORS, PER_ACTOR = 3, 2
LONG_S = 100.0  # on a busy machine actors of Ray take many seconds to start


def fill(slab: Slab, port, actor: int, sequence: int, timeout_s: float = LONG_S) -> bool:
    """Fill a slot as an actor does; the values identify the actor and the sequence."""
    slot = port.acquire(timeout_s)
    if slot is None:
        return False
    slab.trees[slot]["value"].fill_(1000 * actor + sequence)
    slab.trees[slot]["noise"].fill_(0.5)
    slab.headers[slot][:] = Header(actor, sequence, sequence, 4, time.monotonic_ns(), 0, 0)
    port.commit(slot)
    return True


def shm_actor(queue, buffer, pipe, actor: int, count: int, delay_s: float, fault: str) -> None:
    torch.set_num_threads(1)  # the pool of threads did not survive the fork
    queue.close()  # a forked child must not hold the learner's ends
    slab, port = Slab(SPEC, NUM_ACTORS * PER_ACTOR, NUM_HEADER_FIELDS, buffer), ShmPort(pipe)
    for sequence in range(count):
        time.sleep(delay_s)
        if fault == "kill" and sequence == count - 1:
            port.acquire(LONG_S)
            os.kill(os.getpid(), 9)
        if fault == "raise" and sequence == count - 1:
            port.fail("Traceback: the simulator broke")
            os._exit(1)
        if not fill(slab, port, actor, sequence):
            return
    while fault == "" and port.acquire(60.0) is not None:
        pass  # idle until closed


class Shm:
    """Actors in processes."""

    def __init__(self, ordered: bool) -> None:
        self.slab = Slab(SPEC, NUM_ACTORS * PER_ACTOR, NUM_HEADER_FIELDS, shared=True)
        self.slots = Slots(self.slab, NUM_ACTORS, PER_ACTOR, ordered, poison=True)
        self.queue = ShmQueue(self.slots)
        self.processes: list = []

    def start(self, counts, delays=(0.0,) * NUM_ACTORS, faults=("",) * NUM_ACTORS) -> None:
        for actor in range(NUM_ACTORS):
            self.start_one(actor, counts[actor], delays[actor], faults[actor])

    def start_one(self, actor: int, count: int, delay: float = 0.0, fault: str = "") -> None:
        pipe = self.queue.connect(actor)
        process = multiprocessing.get_context("fork").Process(
            target=shm_actor,
            args=(self.queue, self.slab.buffer, pipe, actor, count, delay, fault),
        )
        process.start()
        pipe.close()
        self.processes.append(process)

    def close(self) -> None:
        self.queue.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


class Serial:
    """Actors as plain calls."""

    def __init__(self, ordered: bool) -> None:
        self.slab = Slab(SPEC, NUM_ACTORS * PER_ACTOR, NUM_HEADER_FIELDS)
        self.slots = Slots(self.slab, NUM_ACTORS, PER_ACTOR, ordered, poison=True)
        self.queue = SerialQueue(self.slots)

    def start(self, counts, delays=None, faults=None) -> None:
        self.sequence = [0] * NUM_ACTORS
        for actor in range(NUM_ACTORS):
            port = self.queue.port(actor)

            def run_once(actor=actor, port=port) -> None:
                fill(self.slab, port, actor, self.sequence[actor])
                self.sequence[actor] += 1

            self.queue.attach(actor, run_once)

    def close(self) -> None:
        self.queue.close()


class RayPort:
    """Process for :func:`fill`, if a call grants the only slot and its result commits it."""

    def acquire(self, timeout_s: float) -> int:
        return 0

    def commit(self, slot: int) -> None:
        pass


def ray_actor_class() -> type:
    class Remote:  # defined here, it travels by value with what it uses
        def __init__(self) -> None:
            self.slab, self.stopped = Slab(SPEC, 1, NUM_HEADER_FIELDS), threading.Event()

        def begin(self, actor: int, count: int, delay_s: float, fault: str) -> None:
            self.known, self.sequence = (actor, count, delay_s, fault), 0
            self.stopped.clear()

        def run(self, header, newest):
            actor, count, delay_s, fault = self.known
            if self.stopped.wait(delay_s if self.sequence < count else 60.0):
                return None
            if fault == "kill" and self.sequence == count - 1:
                time.sleep(1.0)  # until what it returned before has left its process
                os.kill(os.getpid(), 9)
            if fault == "raise" and self.sequence == count - 1:
                return FailedCall("Traceback: the simulator broke")
            fill(self.slab, RayPort(), actor, self.sequence)
            self.sequence += 1
            return self.slab.buffer.numpy()

        def offer(self, newest) -> None:
            if newest is None:
                self.stopped.set()

        def call(self, method: str, *args):
            return getattr(self, method)(*args)

    return Remote


class Ray:
    """Actors on a Ray cluster; live ones are reused by the next test."""

    living: ClassVar[dict] = {}

    def __init__(self, ordered: bool, cluster) -> None:
        self.api = cluster.api
        self.slab = ArrivedRollouts(SPEC, NUM_ACTORS * PER_ACTOR)
        self.slots = Slots(self.slab, NUM_ACTORS, PER_ACTOR, ordered, poison=True)
        self.queue = RayQueue(cluster, self.slots, self.slab, {"w": ArraySpec((1,), torch.float32)})
        groups = {"offers": 1}
        self.kind = self.api.remote(num_cpus=0.1, concurrency_groups=groups)(ray_actor_class())

    def start(self, counts, delays=(0.0,) * NUM_ACTORS, faults=("",) * NUM_ACTORS) -> None:
        for actor in range(NUM_ACTORS):
            self.start_one(actor, counts[actor], delays[actor], faults[actor])

    def start_one(self, actor: int, count: int, delay: float = 0.0, fault: str = "") -> None:
        remote = self.living[actor] = self.living.get(actor) or self.kind.remote()
        self.queue.connect(actor, remote, [remote.begin.remote(actor, count, delay, fault)])
        if fault:
            del self.living[actor]

    def close(self) -> None:
        self.queue.close()
        stops = [x.call.options(concurrency_group="offers") for x in self.living.values()]
        self.api.get([stop.remote("offer", None) for stop in stops], timeout=30)


@pytest.fixture(scope="module", autouse=True)
def none_of_another_cluster():
    yield
    Ray.living.clear()


def opened(kind: str, ordered: bool, request):
    if kind == "ray":
        return Ray(ordered, request.getfixturevalue("ray_cluster"))
    return {"serial": Serial, "shm": Shm}[kind](ordered)


@pytest.fixture(params=["serial", "shm", pytest.param("ray", marks=pytest.mark.ray)])
def transport(request):
    made = []

    def make(ordered: bool):
        made.append(opened(request.param, ordered, request))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["shm", pytest.param("ray", marks=pytest.mark.ray)])
def processes(request):
    """A transport between processes, in any order."""
    made = opened(request.param, False, request)
    yield made
    made.close()


def values(t, slots) -> list[int]:
    return [int(t.slab.trees[slot]["value"][0]) for slot in slots]


def test_every_rollout_arrives_exactly_once_in_its_actors_order(transport):
    t = transport(ordered=False)
    t.start(counts=[20] * NUM_ACTORS, delays=(0.0, 0.002, 0.001))
    seen: dict[int, list[int]] = {a: [] for a in range(NUM_ACTORS)}
    while sum(map(len, seen.values())) < 12 * NUM_ACTORS:
        slots = t.queue.take(2, LONG_S)
        for slot in slots:
            tree, filled = t.slab.trees[slot], t.slots.header(slot)
            assert (tree["value"] == 1000 * filled.actor + filled.sequence).all()
            assert (tree["noise"] == 0.5).all()  # nothing poisoned is ever seen
            seen[filled.actor].append(filled.sequence)
        t.queue.release(slots)
    for sequences in seen.values():
        assert sequences == list(range(len(sequences)))


def test_ordered_take_gives_the_same_number_from_each_actor_by_actor(transport):
    t = transport(ordered=True)
    t.start(counts=[8] * NUM_ACTORS, delays=(0.02, 0.0, 0.01))
    for update in range(4):
        slots = t.queue.take(2 * NUM_ACTORS, LONG_S)
        first, second = 2 * update, 2 * update + 1
        assert values(t, slots) == [
            1000 * a + s for a in range(NUM_ACTORS) for s in (first, second)
        ]
        t.queue.release(slots)


def test_an_actor_never_has_more_rollouts_out_than_it_owns_slots(transport):
    t = transport(ordered=False)
    t.start(counts=[20] * NUM_ACTORS)
    taken = t.queue.take(NUM_ACTORS * PER_ACTOR, LONG_S)
    assert sorted(t.slots.header(s).sequence for s in taken) == sorted(
        list(range(PER_ACTOR)) * NUM_ACTORS
    )
    with pytest.raises(TimeoutError, match="actors"):
        t.queue.take(1, 0.2)  # all slots are held here, so no actor can deliver
    t.queue.release(taken)
    assert len(t.queue.take(1, LONG_S)) == 1


def test_closing_twice_is_harmless_and_wakes_the_actors(transport):
    t = transport(ordered=False)
    t.start(counts=[20] * NUM_ACTORS)
    t.queue.take(1, LONG_S)
    t.queue.close()
    t.queue.close()
    if isinstance(t, Shm):
        for process in t.processes:
            process.join(LONG_S)
            assert process.exitcode == 0
    elif isinstance(t, Serial):
        assert t.queue.port(0).acquire(1.0) is None


@pytest.mark.parametrize(("fault", "words"), [("kill", ""), ("raise", "the simulator broke")])
def test_a_dead_actor_raises_at_once_with_its_own_traceback_and_loses_only_its_open_slot(
    processes, fault, words
):
    t = processes
    t.start(counts=(3, 50, 50), faults=(fault, "", ""))
    seen = []
    with pytest.raises(PeerDied) as death:
        while True:  # without a TimeoutError
            slots = t.queue.take(1, LONG_S)
            seen += values(t, slots)
            t.queue.release(slots)
    assert death.value.actor == 0
    assert words in death.value.traceback
    t.start_one(0, 5)
    again: list[int] = []
    while not again or again[-1] != 4:
        slots = t.queue.take(1, LONG_S)
        again += [v for v in values(t, slots) if v < 1000]
        t.queue.release(slots)
    assert [v for v in seen if v < 1000] + again == [0, 1, 0, 1, 2, 3, 4]


def test_a_slow_actor_delays_nobody_when_order_is_free(processes):
    t = processes
    t.start(counts=(1, 200, 200), delays=(10 * LONG_S, 0.0, 0.0))
    for _ in range(50):
        slots = t.queue.take(2, LONG_S)
        assert all(t.slots.header(s).actor != 0 for s in slots)
        t.queue.release(slots)
    assert t.slots.silent_s(0) > 0
    for process in getattr(t, "processes", ()):
        process.kill()


def test_an_actor_that_reads_nothing_does_not_hold_the_learner_up():
    slots = Slots(
        Slab(SPEC, NUM_ACTORS * PER_ACTOR, NUM_HEADER_FIELDS), NUM_ACTORS, PER_ACTOR, False
    )
    queue = ShmQueue(slots, timeout_s=0.05)
    theirs = [queue.connect(actor) for actor in (0, 1)]
    reading = ShmPort(theirs[1])
    for _ in range(40):
        queue.order(b"x" * 16_000)
        while theirs[1].poll():
            theirs[1].recv_bytes()
    assert queue.unresponsive == {0}
    assert reading.orders() == []
    queue.close()
    for pipe in theirs:
        pipe.close()
