"""headrace pbt: members whose training diverges, fails or is killed."""

from __future__ import annotations

import errno
import time
from dataclasses import replace

import populations as stub
import pytest
from patience import wait_until

from headrace.errors import CheckpointError, HeadraceError
from headrace.rundir.lock import Lock, LockHeld, locked
from headrace.studies.children import ProcessKilled
from headrace.studies.machine import wide_console
from headrace.studies.pbt import scheduler
from headrace.studies.pbt.command import run


def test_a_member_whose_training_breaks_down_is_replaced(tmp_path):
    population = stub.population(str(tmp_path), members=3, burn_in=0, threshold=1e6)

    def train(population, member, hyper, until, children):
        if member.number == 1 and until == 80 and not failed:
            failed.append(hyper)
            return {"error": "the loss is NaN"}
        return stub.train(population, member, hyper, until, children)

    failed: list = []
    run(population, wide_console(), train)
    kinds = [(event.kind, event.steps) for event in stub.histories(population)[1]]
    at = kinds.index(("failed", 40))
    assert kinds[at + 1 :][:2] == [("copied", 40), ("trained", 80)]
    copied = stub.histories(population)[1][at + 1]
    assert copied.note == "the loss is NaN"
    there = {0: stub.score(0, 80), 2: stub.score(2, 40)}  # the others, as they were then
    assert copied.source == max(there, key=lambda number: there[number])


def test_training_that_always_breaks_down_ends_with_its_reason(tmp_path):
    population = stub.population(str(tmp_path), members=2)
    with pytest.raises(HeadraceError, match=r"broke down 10 times in a row.*the loss is NaN"):
        run(population, wide_console(), lambda *_: {"error": "the loss is NaN"})
    drawn = {tuple(event.hyper.values()) for event in stub.histories(population)[0]}
    assert len(drawn) > 3  # it was tried with others


def refuses(number: int, hopeless: bool = False):
    """Training of a turn that fails for a member from 80 steps on, until it copies another."""

    def train(population, member, hyper, until, children):
        bad = hopeless or not any(event.kind == "copied" for event in member.history())
        if member.number == number and until > 80 and bad:
            raise RuntimeError("train ended with code 1; the end of output.log:\n...\nno memory")
        return stub.train(population, member, hyper, until, children)

    return train


def test_a_member_whose_turn_fails_again_and_again_is_replaced(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=3, threshold=1e6)
    assert run(population, wide_console(), refuses(1)) == 0
    assert capsys.readouterr().out.count("member 1: train ended") == scheduler.MOST_FAILURES + 1
    histories = stub.histories(population)
    assert all(history[-1].steps == stub.TOTAL for history in histories)
    kinds = [(event.kind, event.steps) for event in histories[1]]
    at = kinds.index(("failed", 80))
    assert kinds[at + 1 :][:2] == [("copied", 80), ("trained", 120)]
    told = "failed 3 times in a row: train ended with code 1; the end of output.log: no memory"
    assert histories[1][at].note == told


def test_a_member_that_nothing_helps_is_given_up_and_the_others_go_on(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=3, threshold=1e6)
    for failures in (
        scheduler.MOST_BREAKDOWNS,
        scheduler.MOST_BREAKDOWNS + 1,
    ):  # and the command again
        assert run(population, wide_console(), refuses(1, hopeless=True)) == 1
        assert "member 1 broke down 10 times in a row" in capsys.readouterr().out
        histories = stub.histories(population)
        assert [history[-1].steps for history in histories] == [stub.TOTAL, 80, stub.TOTAL]
        assert [event.kind for event in histories[1]].count("failed") == failures
    assert (tmp_path / "population.md").exists()


def test_where_no_member_can_be_trained_all_stay_as_they_are(tmp_path):
    population = stub.population(str(tmp_path), members=3, threshold=1e6)
    tries = []

    def train(population, member, hyper, until, children):
        if until > 80:
            tries.append(member.number)
            raise RuntimeError("the disk is full")
        return stub.train(population, member, hyper, until, children)

    with pytest.raises(HeadraceError, match=r"of 3 members, .* 3 times in a row: the disk is"):
        run(population, wide_console(), train)
    assert tries == [0] * 3 + [1] * 3 + [2] * 3
    assert "failed" not in {e.kind for history in stub.histories(population) for e in history}


def test_threads_replace_nobody_for_a_fault_that_all_share(tmp_path):
    population = stub.population(str(tmp_path), members=3, jobs=2, threshold=1e6)

    def train(population, member, hyper, until, children):
        if until > 80:  # once all are there, so that none gets any further meanwhile
            wait_until(
                lambda: all(one and one[-1].steps >= 80 for one in stub.histories(population))
            )
            raise RuntimeError("the disk is full")
        return stub.train(population, member, hyper, until, children)

    with pytest.raises(HeadraceError, match="none of which got any further"):
        run(population, wide_console(), train)
    for history in stub.histories(population):
        assert [event.kind for event in history].count("failed") <= 1


def test_a_host_on_which_nothing_trains_leaves_members_to_others(tmp_path):
    population = stub.population(str(tmp_path), members=3, threshold=1e6)
    here = scheduler.PopulationScheduler(population, broken)
    population.member_dir(0).mkdir(parents=True)
    elsewhere = Lock(population.member_dir(0))
    for _ in range(2 * scheduler.MOST_FAILURES + 1):  # members 1 and 2, and then it waits for 0
        assert here.turn(None)
    elsewhere.release()
    with pytest.raises(HeadraceError, match="of 3 members"):
        while here.turn(None):
            pass
    assert {e.kind for history in stub.histories(population) for e in history} == {"born"}


def near_the_end(tmp_path, ended: int, members: int, jobs: int = 1):
    """Return a population in which some have finished, and the others have a turn left."""
    population = stub.population(str(tmp_path), members=members, jobs=jobs, threshold=1e6)
    for number in range(members):
        steps = stub.TOTAL if number < ended else stub.TOTAL - stub.TURN
        stub.member_of(population, number, score=float(number), steps=steps)
    return population


def test_a_host_on_which_nothing_trains_replaces_nobody_of_the_last_either(tmp_path):
    population = near_the_end(tmp_path, ended=1, members=4)
    with pytest.raises(HeadraceError, match=r"of 3 members, .* no such package"):
        run(population, wide_console(), broken)
    assert "failed" not in {e.kind for history in stub.histories(population) for e in history}
    assert run(population, wide_console(), stub.train) == 0  # by a host that can


def test_the_last_member_is_replaced_once_and_is_then_the_hosts_fault(tmp_path):
    population = near_the_end(tmp_path / "lost", ended=2, members=3)
    with pytest.raises(HeadraceError, match=r"of 1 member, which .* no such package"):
        run(population, wide_console(), broken)
    assert [e.kind for e in stub.histories(population)[2]].count("failed") == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_last_member_is_replaced_by_any_number_of_processes(tmp_path, jobs):
    population = near_the_end(tmp_path, ended=2, members=3, jobs=jobs)
    train = refuses(2)

    def slowly(*given):
        time.sleep(0.15)  # so that another process looks for its turn meanwhile
        return train(*given)

    assert run(population, wide_console(), slowly) == 0
    assert [e.kind for e in stub.histories(population)[2]][-2:] == ["copied", "trained"]


def test_members_that_another_host_tries_are_waited_for(tmp_path):
    population = near_the_end(tmp_path, ended=1, members=3)
    here = scheduler.PopulationScheduler(population, broken)
    for _ in range(2 * scheduler.MOST_FAILURES):
        assert here.turn(None)
    elsewhere = Lock(population.member_dir(2))
    for _ in range(3):
        assert here.turn(None)
    assert "failed" not in {e.kind for history in stub.histories(population) for e in history}
    elsewhere.release()
    with pytest.raises(HeadraceError) as raised:  # and keep its frame
        here.turn(None)
    assert locked(population.member_dir(1), tmp_path) is not None  # of whom it has let go
    assert "of 2 members" in str(raised.value)


def test_a_member_that_another_host_got_further_waits_for_nobody(tmp_path):
    population = near_the_end(tmp_path, ended=0, members=2)
    tries = []

    def train(population, member, hyper, until, children):
        tries.append(member.number)
        raise RuntimeError("no memory")

    here = scheduler.PopulationScheduler(population, train)
    for _ in range(scheduler.MOST_FAILURES):
        assert here.turn(None)
    assert tries == [0] * scheduler.MOST_FAILURES
    member = here.members[0]
    member.note(replace(member.latest(), kind="kept", note="of another host"))
    assert here.turn(None)
    assert tries[-1] == 0


def test_members_that_a_host_failed_for_a_while_are_tried_once_more(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=3, threshold=1e6)
    tries = []

    def train(population, member, hyper, until, children):
        if until == 120 and member.number < 2:
            tries.append(member.number)
            if len(tries) <= 2 * scheduler.MOST_FAILURES:
                raise RuntimeError("no memory")
        return stub.train(population, member, hyper, until, children)

    assert run(population, wide_console(), train) == 0
    assert sorted(tries) == [0] * (scheduler.MOST_FAILURES + 1) + [1] * (
        scheduler.MOST_FAILURES + 1
    )
    assert "failed" not in {e.kind for history in stub.histories(population) for e in history}


def test_failures_before_somebody_else_trained_a_member_dont_count(tmp_path):
    population = stub.population(str(tmp_path), members=2, threshold=1e6)
    here, elsewhere = (
        scheduler.PopulationScheduler(population, broken),
        scheduler.PopulationScheduler(population, stub.train),
    )
    assert elsewhere.turn(None)  # so that both are born
    assert elsewhere.turn(None)
    for _ in range(4):  # twice each member
        for _ in range(scheduler.MOST_FAILURES - 1):
            assert here.turn(None)
        assert elsewhere.turn(None)
    assert not here._stuck


def test_a_full_disk_is_told_where_a_lock_cant_be_made(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.rundir.lock.os.open", full)
    with pytest.raises(CheckpointError, match=r"lock can't be written \(No space left"):
        Lock(tmp_path)


def test_a_lock_that_cant_be_signed_is_held_all_the_same(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    held = Lock(tmp_path)
    monkeypatch.setattr("headrace.rundir.lock.os.pwrite", full)
    held.sign()
    with pytest.raises(LockHeld):
        Lock(tmp_path)


def broken(*_):
    raise RuntimeError("no such package")


def test_before_any_turn_failures_end_the_command_and_the_next_one_goes_on(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=5)
    with pytest.raises(HeadraceError, match=r"of \d members, .* failed 3 times .*no such package"):
        run(population, wide_console(), broken)
    tries = capsys.readouterr().out.count("no such package")
    assert 3 * scheduler.MOST_FAILURES <= tries <= 5 * scheduler.MOST_FAILURES
    assert run(population, wide_console(), stub.train) == 0
    assert stub.histories(population)[0][0].hyper == population.drawn(0)


def test_a_trainer_that_is_killed_has_more_chances_than_one_that_fails(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=2)
    kills = iter(range(scheduler.MOST_KILLS - 1))

    def train(population, member, hyper, until, children):
        if next(kills, None) is not None:
            raise ProcessKilled("ended with code -9")
        return stub.train(population, member, hyper, until, children)

    run(population, wide_console(), train)
    assert capsys.readouterr().out.count("ended with code -9") == scheduler.MOST_KILLS - 1
    assert all(one[-1].steps == stub.TOTAL for one in stub.histories(population))
    (tmp_path / "more").mkdir()
    kills = iter(range(99))
    with pytest.raises(HeadraceError, match=r"of 2 members, .* 10 times .*ended with code -9"):
        run(stub.population(str(tmp_path / "more"), members=2), wide_console(), train)
    assert scheduler.MOST_KILLS <= next(kills) <= 2 * scheduler.MOST_KILLS


def test_a_turn_without_a_step_is_an_error_and_no_turn(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=2)

    def train(population, member, hyper, until, children):
        return stub.train(population, member, hyper, min(until, 80), children)

    with pytest.raises(
        HeadraceError, match=r"ended at 80 steps, where it started.*instead of at 120"
    ):
        run(population, wide_console(), train)
    assert [e.steps for e in stub.histories(population)[0] if e.kind == "trained"] == [40, 80]
