"""Deaths of actors that count towards a run's restarts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.actors.restarts import Restarts, last_words
from headrace.errors import ActorFailed, on_one_line
from headrace.ray.fleet import RayFleet
from headrace.ray.process import Home
from headrace.transport.queue import PeerDied


def death(actor: int, traceback: str = "") -> PeerDied:
    return PeerDied(actor, traceback, "" if traceback else "ActorDiedError: its node has died")


def test_a_lost_node_counts_once_however_many_actors_it_had():
    judged = Restarts(1)
    lines = [judged.judge(death(actor), 0, node="node2") for actor in range(50)]
    assert all(line.endswith("(restart 1/1)") for line in lines)
    assert judged.count == 50  # deaths, as results tell them
    with pytest.raises(ActorFailed, match="max_restarts=1 restarts are used up"):
        judged.judge(death(50), 0, node="node3")


def test_an_actor_that_dies_again_on_a_node_counts_again():
    judged = Restarts(2)
    for actor in (0, 1, 0, 1):
        judged.judge(death(actor), 0, node="node2")
    with pytest.raises(ActorFailed):
        judged.judge(death(0), 0, node="node2")


def test_deaths_on_a_node_that_lie_apart_count_each(monkeypatch):
    monkeypatch.setattr("headrace.processes.restarts._BURST_S", -1.0)
    judged = Restarts(1)
    judged.judge(death(0), 0, node="node2")
    with pytest.raises(ActorFailed):
        judged.judge(death(1), 0, node="node2")


@pytest.mark.parametrize("said", [{"traceback": "ValueError: bad"}, {}])
def test_what_actors_raise_and_what_dies_on_this_machine_counts_each(said):
    judged, node = Restarts(1), {"node": "node2"} if said else {}
    judged.judge(death(0, **said), 0, **node)
    with pytest.raises(ActorFailed):
        judged.judge(death(1, **said), 0, **node)


class Fleet(RayFleet):
    """Fleet of actors that are only recorded, each on a node of the same name."""

    def __init__(self, num_actors: int, min_actors: int, most: int) -> None:
        self._spec, self._least = (
            SimpleNamespace(settings=SimpleNamespace(num_actors=num_actors, min_actors=None)),
            min_actors,
        )
        self.restarts, self._remotes, self._hung = Restarts(most), {}, set()
        self._cluster = SimpleNamespace(check=lambda: False)
        homes = {actor: Home("node2", actor, "log") for actor in range(num_actors)}
        self.slots = SimpleNamespace(present=0, delivered=lambda actor: 0)
        self._queue = SimpleNamespace(
            homes=homes,
            slots=self.slots,
            gaps={},
            check_store=lambda: None,  # no actor delivers again
        )

    def _start_one(self, actor: int) -> None:
        self._remotes[actor] = None

    def _kill(self, remote: object) -> None:
        pass


def test_deaths_on_a_node_that_lives_count_each():
    fleet = Fleet(num_actors=3, min_actors=3, most=1)
    fleet.start()
    for actor in range(2):
        fleet.replace(PeerDied(actor, "", "ActorDiedError: because its node has died."))
    with pytest.raises(ActorFailed, match="max_restarts=1 restarts are used up"):
        fleet.replace(PeerDied(2, "", "ActorDiedError: the worker crashed"))


def test_the_fewest_actors_begin_before_the_others():
    fleet = Fleet(num_actors=4, min_actors=2, most=1)
    fleet.start()
    fleet.slots.present = 1
    fleet.supervise()
    assert [*fleet._remotes] == [0, 1]
    fleet.slots.present = 2
    fleet.supervise()
    assert [*fleet._remotes] == [0, 1, 2, 3]


def test_the_text_of_an_error_can_be_sent_and_is_short():
    name = b"levels/caf\xe9.xml".decode("utf-8", "surrogateescape")
    assert r"caf\udce9.xml" in last_words(FileNotFoundError(name))
    words = last_words(ValueError("first" + "x" * 5_000_000 + "last"))
    assert len(words) < 11_000
    assert words.startswith("ValueError: first")
    assert words.rstrip().endswith("last")
    assert "characters left out" in words
    words.encode()
    assert len(on_one_line(ValueError("x" * 5_000_000))) < 2_100
