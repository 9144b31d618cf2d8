"""Scheduling policy and niceness of actor processes and their children."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest
from worlds import CountingEnv

import headrace as hr
from headrace.processes import use_batch_scheduling


def _can_choose() -> bool:
    """Return whether threads here may use SCHED_BATCH, and don't."""
    kinds = []

    def work() -> None:
        with contextlib.suppress(AttributeError, OSError):
            kinds.append(os.sched_getscheduler(0) == os.SCHED_OTHER)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            kinds.append(os.sched_getscheduler(0) == os.SCHED_BATCH)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return kinds == [True, True]


pytestmark = pytest.mark.skipif(
    not _can_choose(), reason="of Linux, where processes may choose how they are scheduled"
)


class Scheduled(CountingEnv):
    """Records the scheduling policy of the stepping thread and of a new thread in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def step(self, action):
        thread = threading.Thread(target=self._note, args=("thread",))
        thread.start()
        thread.join()
        self._note("step")
        return super().step(action)

    def _note(self, who: str) -> None:
        (self._folder / f"{who}-{os.getpid()}-{os.sched_getscheduler(0)}").touch()


def test_actors_push_nobody_from_a_core_and_the_learner_is_as_it_was(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    hr.train(
        Scheduled,
        hr.A2C(),
        env_kwargs={"folder": str(notes)},
        engine="sync",
        num_actors=2,
        envs_per_actor=1,
        fragment_length=4,
        total_steps=8,
        eval_episodes=0,
        run_dir=tmp_path / "run",
    )
    found = {tuple(path.name.split("-")) for path in notes.iterdir()}
    actors = {(who, kind) for who, pid, kind in found if pid != str(os.getpid())}
    assert {("thread", str(os.SCHED_BATCH)), ("step", str(os.SCHED_BATCH))} <= actors
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_who_acts_for_all_is_as_important_as_the_learner_but_pushes_nobody_from_a_core(tiny):
    if os.getpriority(os.PRIO_PROCESS, 0) == 19:
        pytest.skip("niceness is at its maximum")
    config = tiny(algo=hr.APPO(), inference="shared", total_steps=10**9)
    with contextlib.closing(hr.Trainer(config, notify=lambda line: None)) as trainer:
        results = iter(trainer)
        next(results)  # it has acted
        *actors, shared = trainer.source.pids()
        own, theirs = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (os.getpid(), shared))
        assert theirs == own
        assert os.sched_getscheduler(shared) == os.SCHED_BATCH
        assert all(os.getpriority(os.PRIO_PROCESS, pid) >= min(own + 10, 19) for pid in actors)


def test_a_policy_that_was_chosen_by_others_stays():
    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread
        use_batch_scheduling()
        kinds.append(os.sched_getscheduler(0))

    kinds: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kinds == [os.SCHED_IDLE]


@pytest.mark.parametrize("name", ["sched_getscheduler", "sched_setscheduler"])
def test_where_it_is_not_allowed_nothing_changes(monkeypatch, name):
    def refuse(*_) -> None:
        asked.append(name)
        raise PermissionError

    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        use_batch_scheduling()
    assert asked
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
