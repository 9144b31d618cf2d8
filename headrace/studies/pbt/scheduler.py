"""Schedules population members and runs one training turn: train, exploit and explore."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import CheckpointError, HeadraceError
from headrace.rundir.countdown import Countdown
from headrace.rundir.lock import Lock, locked
from headrace.studies.children import Children, ProcessKilled
from headrace.studies.pbt.member import Event, Member
from headrace.studies.pbt.settings import Population
from headrace.studies.scores.runs import score_of

MOST_FAILURES = 3  # consecutive failures of a member in one process that aren't due to training
MOST_KILLS = 10  # the same, if a signal ended the training process
MOST_BREAKDOWNS = 10  # consecutive failures of a member's training
_LOOK_S = 0.1  # polling interval for a member that isn't being trained

Train = Callable[[Population, Member, dict[str, float], int, Children], dict[str, Any]]
"""Train a member's run up to a number of steps; return ``error`` with the reason if training broke
down, else an empty dict. The run's ``summary.json`` has its steps and its evaluation."""


class _FailingMember(NamedTuple):
    """Member whose training failed repeatedly."""

    event: Event  # its latest event at that time
    done: int  # turns of this process at that time
    why: str


@dataclass
class PopulationScheduler:
    """Scheduler of one process that participates in a population.

    Args:
        train: function that trains one turn. say: called with a line per event.
    """

    population: Population
    train: Train
    say: Callable[[str], None] = print
    given_up: set[int] = field(default_factory=set)  # members that this process no longer trains
    _failures: dict[int, tuple[Event, int]] = field(default_factory=dict)  # event and count
    _stuck: dict[int, _FailingMember] = field(default_factory=dict)
    _done: int = 0  # turns of this process
    _blamed: int = -1  # turns when a member was last blamed without other evidence
    _busy: set[int] = field(default_factory=set)  # members that this process trains now
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        count = range(self.population.members)
        self.members = [Member(i, self.population.member_dir(i)) for i in count]
        self._countdown = Countdown(len(count) * self._most_steps, self._steps_done())

    @property
    def _most_steps(self) -> int:
        return self.population.config.total_steps

    def _steps_done(self) -> int:
        """Return the steps of all members, each up to its total."""
        return sum(min(max(0, _steps(one)), self._most_steps) for one in self.members)

    def _where(self) -> str:
        """Format how much of the population's training is done, and the time left."""
        done = self._steps_done()
        share = done / (len(self.members) * self._most_steps)
        return self._countdown.text(done, f"{share:.0%}")

    def turn(self, children: Children) -> bool:
        """Run one turn of the member with fewest steps among those that aren't being trained.

        A member that can't be trained waits until another member has had a turn here.

        Returns:
            whether any member has turns left.

        Raises:
            HeadraceError: training failed repeatedly for all members with turns left.
        """
        with self._choosing:
            any_left, chosen = self._choose()
        if chosen is None:
            time.sleep(_LOOK_S if any_left else 0.0)
            return any_left
        member, lock, steps = chosen
        try:
            if _steps(member) == steps:  # otherwise another process has just trained it
                lock.sign()
                self._take(member, children)
        finally:
            self._busy.discard(member.number)
            lock.release()
        return True

    def _choose(self) -> tuple[bool, tuple[Member, Lock, int] | None]:
        """Choose the next member; return whether any has turns left, its lock and its steps."""
        steps = {one.number: _steps(one) for one in self.members}
        left = [n for n in steps if self._has_turns_left(steps[n]) and n not in self.given_up]
        first = [n for n in left if not self._waits(n)]
        order = sorted(first or left, key=lambda n: (steps[n], n))
        tried = ((n, self._lock(n)) for n in order)
        acquired = next(((n, lock) for n, lock in tried if lock is not None), None)
        if acquired is None:
            return bool(left), None
        number, lock = acquired
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            if not first:
                if any(self._is_locked(n) for n in left if n != number):
                    return True, None  # another process tries one of them
                self._check_hope(left)
            undo.pop_all()
        self._busy.add(number)
        return True, (self.members[number], lock, steps[number])

    def _lock(self, number: int) -> Lock | None:
        return locked(self.members[number].folder, Path(self.population.output))

    def _is_locked(self, number: int) -> bool:
        """Return whether another thread or process holds a member's lock."""
        lock = self._lock(number)
        if lock is not None:
            lock.release()
        return lock is None

    def _has_turns_left(self, steps: int) -> bool:
        """Return whether a member with this number of steps has turns left."""
        return steps < self._most_steps

    def _take(self, member: Member, children: Children) -> None:
        """Train one turn of a locked member and record the result."""
        member.recover()
        event = member.latest()
        if event is None:
            event = Event("born", 0, self.population.drawn(member.number))
            member.note(event)
        if event.kind in ("trained", "failed"):  # the process that trained it stopped before this
            event = self._evolve(member, event)
        until = min(event.steps + self.population.turn_steps, self.population.config.total_steps)
        try:
            result = self.train(self.population, member, event.hyper, until, children)
            if "error" not in result:
                score = score_of(member.run_dir)
                if score.env_steps <= event.steps:
                    where = f"ended at {score.env_steps:,} steps, where it started"
                    raise RuntimeError(f"its training {where}, instead of at {until:,}")
        except (RuntimeError, HeadraceError) as error:
            self._failed(member, event, error)
            return
        self._failures.pop(member.number, None)
        self._stuck.pop(member.number, None)
        if "error" in result:
            event = self._broke_down(member, event, result["error"])
        else:
            event = member.trained(event.hyper, score.env_steps, self.population.fitness(score))
            self._done += 1
            what = f"{event.steps:,} steps, score {event.score:.4g}"
            self.say(f"{self._where()} member {member.number}: {what}")
        if self._has_turns_left(event.steps) and member.number not in self.given_up:
            self._evolve(member, event)

    def _waits(self, number: int) -> bool:
        """Return whether a member failed here, and no other process has trained it since."""
        stuck = self._stuck.get(number)
        if stuck is None or stuck.done != self._done:
            return False
        return stuck.event == self.members[number].latest()

    def _failed(self, member: Member, event: Event, error: Exception) -> None:
        """Record a failure unrelated to training; retry the member later, or replace it.

        If other members can be trained, this one gets another try and is replaced if that fails.

        Raises:
            HeadraceError: several members failed, and none was ever trained here.
        """
        number = member.number
        self.say(f"member {number}: {error}")
        stuck = self._stuck.pop(number, None)
        if stuck is not None and stuck.event == event:  # only this one can't be trained
            self._broke_down(member, event, stuck.why)
            return
        since, count = self._failures.pop(number, (event, 0))
        count = count + 1 if since == event else 1  # another process may have trained it
        most = MOST_KILLS if isinstance(error, ProcessKilled) else MOST_FAILURES
        if count < most:
            self._failures[number] = event, count
            return
        lines = str(error).splitlines() or [type(error).__name__]
        why = f"failed {most} times in a row: {' '.join(dict.fromkeys((lines[0], lines[-1])))}"
        self._stuck[number] = _FailingMember(event, self._done, why)
        untried = self._done == 0 and not self._busy - {number}
        if untried and len(self._stuck) >= MOST_FAILURES:
            self._check_hope(list(self._stuck))

    def _check_hope(self, left: list[int]) -> None:
        """Raise HeadraceError if none of the unfinished members can be trained at present.

        A full disk or a missing package is not a reason to replace members. If the others have
        ended, the last member is blamed itself, but only once until it was trained.
        """
        ended = any(not self._has_turns_left(_steps(one)) for one in self.members)
        if ended and len(left) == 1 and self._blamed != self._done:
            self._blamed = self._done
            return
        number = next((n for n in left if n in self._stuck), None)
        if number is None:  # another thread has trained it meanwhile
            return
        several = len(left) > 1
        who = f"{len(left)} members, none of which got" if several else "1 member, which didn't get"
        raise HeadraceError(
            f"training of {who} any further, {self._stuck[number].why} (its output is in "
            f"{self.members[number].folder / 'output.log'})"
        )

    def _broke_down(self, member: Member, event: Event, why: str) -> Event:
        """Record that training failed with a member's weights and hyperparameters.

        The member is given up after repeated failures with different hyperparameters.

        Raises:
            HeadraceError: the member is given up, and no member was ever trained or all are given
                up.
        """
        event = Event("failed", event.steps, event.hyper, note=why)
        member.note(event)
        self.say(f"member {member.number}: {why}")
        kinds = [one.kind for one in member.history()[-2 * MOST_BREAKDOWNS :]]
        if kinds.count("failed") >= MOST_BREAKDOWNS and "trained" not in kinds:
            self.given_up.add(member.number)
            why = (
                f"training of member {member.number} broke down {MOST_BREAKDOWNS} times in a row, "
                f"with other hyperparameters each time: {why}"
            )
            every = [one.kind for other in self.members for one in other.history()]
            if "trained" not in every or len(self.given_up) == len(self.members):
                raise HeadraceError(why)
            self.say(f"{why}; it stays as it is")
        return event

    def _evolve(self, member: Member, event: Event) -> Event:
        """Exploit, then explore, after a turn; record the event."""
        population, failed = self.population, event.kind == "failed"
        if event.steps < population.burn_in and not failed:
            return event
        rng = population.rng(member.number, event.steps, len(member.history()))
        latest = [(one, one.latest()) for one in self.members if one.number != member.number]
        others = [(one, of) for one, of in latest if of is not None and of.score is not None]
        if failed:
            return self._replace(member, event, others)
        if others:
            rival, theirs = others[int(rng.integers(len(others)))]
            assert theirs.score is not None
            assert event.score is not None
            better = theirs.score > event.score + population.lead
            if better and (copied := self._copied(member, rival, theirs, rng)) is not None:
                return copied
        kept = replace(event, kind="kept", hyper=population.perturbed(event.hyper, rng))
        member.note(kept)
        return kept

    def _replace(self, member: Member, event: Event, others: list[tuple[Member, Event]]) -> Event:
        """Replace a failed member by a copy of the best other one, or by new hyperparameters."""
        rng = self.population.rng(member.number, event.steps, len(member.history()))
        if others and (member.run_dir / "checkpoints").exists():
            rival, theirs = max(others, key=lambda pair: pair[1].score or 0.0)
            if (copied := self._copied(member, rival, theirs, rng, event.note)) is not None:
                return copied
        drawn = self.population.drawn(member.number, len(member.history()))
        kept = replace(event, kind="kept", hyper=drawn)
        member.note(kept)
        return kept

    def _copied(
        self, member: Member, rival: Member, theirs: Event, rng: np.random.Generator, note: str = ""
    ) -> Event | None:
        """Copy another member, whose latest event is ``theirs``; None if it can't be read."""
        try:
            event = member.copy(rival, theirs, note)
        except CheckpointError as error:  # retried after the next turn
            self.say(f"member {member.number} can't copy member {rival.number}: {error}")
            return None
        event = replace(event, hyper=self.population.perturbed(event.hyper, rng))
        member.take_over(event)
        score = "not scored yet" if event.score is None else f"score {event.score:.4g}"
        self.say(
            f"member {member.number}: copies member {event.source} ({score}, "
            f"{event.source_steps:,} steps)"
        )
        return event


def _steps(member: Member) -> int:
    """Return the steps of the latest event; -1 before the first."""
    latest = member.latest()
    return -1 if latest is None else latest.steps
