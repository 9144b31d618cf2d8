"""Several learners on this machine: their processes, their deaths, and their fresh starts.

this process ──► learner 0 (rank 0: files, results) ──► its actors
     │     ╲───► learner 1 ──► its actors             all joined by headrace/distributed/ranks.py
     └── a pipe to each: results and heartbeats come, "stop" goes
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle

from headrace import errors
from headrace.config import Config
from headrace.distributed.ranks import Ranks, file_rendezvous
from headrace.envs.names import Registry
from headrace.errors import (
    CheckpointError,
    ConfigError,
    HeadraceError,
    LearnerFailed,
    NonFinite,
    OthersLost,
)
from headrace.evaluating.ending import finish
from headrace.evaluating.evaluator import Evaluator
from headrace.nn.policy import Policy
from headrace.process import Child, end_children, memory_file, stop_signals
from headrace.records import checkpoint, rundir
from headrace.records.result import Result
from headrace.training.run import begin
from headrace.training.trainer import Trainer
from headrace.types import Alone
from headrace.valid.fields import checked

_HEARTBEAT_S = 1.0
_GRACE_S = 2.0  # for the others' complaints, after the first sign of a failure
_FATAL = (ConfigError, CheckpointError, NonFinite)  # starting again would end the same way


@dataclasses.dataclass
class _Learner:
    """One learner's process, as its parent sees it."""

    child: Child
    heard: float  # when it last said something
    done: bool = False
    failure: HeadraceError | None = None
    traceback: str = ""


class LearnerGroup:
    """A run with ``num_learners`` learners: iterate over it; its methods are those of a Trainer.

    Args:
        config: all settings.
        started, notify: as for a Trainer.

    Raises:
        ConfigError, CheckpointError: as for a Trainer; nothing was started.
    """

    @checked
    def __init__(
        self, config: Config, started: float | None = None, notify: Callable[[str], None] = print
    ) -> None:
        self._started = time.monotonic() if started is None else started
        config, found, self.run_dir = begin(config, True, Alone(), notify)
        found.check_step()
        self.env = found.env
        self._lock = rundir.prepare(self.run_dir, config.resume, config.overwrite)
        self.config = dataclasses.replace(config, run_dir=str(self.run_dir), overwrite=False)
        self._notify = notify
        self.num_restarts = 0
        self.interrupted = self._stopped = False
        self._begun = False  # this generation has learnt
        self._learners: list[_Learner] = []
        self._summary: dict[str, Any] = {}
        self._evaluator = Evaluator(self.config, self.env, notify)
        self._inside = self._ended = False  # of ``with``, of the loop
        self._finished: dict[str, Any] = {}
        self._loaded: tuple[Path, Policy] | None = None  # a checkpoint, and its policy
        weakref.finalize(self, _kill, self._learners)

    @property
    def policy(self) -> Policy:
        """The policy of the latest checkpoint, which is read once."""
        latest = checkpoint.find(self.run_dir)
        if self._loaded is None or self._loaded[0] != latest:
            self._loaded = latest, checkpoint.load_policy(latest, self.config.network)
        return self._loaded[1]

    def summary(self) -> dict[str, Any]:
        return dict(self._summary)

    def pids(self) -> list[int]:
        """Process ids of the learners, by rank."""
        return [one.child.pid for one in self._learners]

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(OSError, IndexError):
            self._learners[0].child.pipe.send("interrupt" if self.interrupted else "stop")

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop()

    def close(self) -> None:
        self._evaluator.close()
        _kill(self._learners)
        self._lock.release()

    def save(self) -> Path:
        """As for a Trainer of several learners: refused.

        Raises:
            ConfigError: learners save together.
        """
        raise ConfigError(
            f"save() needs num_learners=1, not {self.config.num_learners}: several learners save "
            "together, every checkpoint_interval steps and at the end"
        )

    def finish(self) -> dict[str, Any]:
        """Evaluate, write ``summary.json`` and draw ``curve.png``, once; see the Trainer's."""
        if not self._finished:
            self._finished = finish(self, self._evaluator, self._notify, self._interrupt)
        return self._finished

    def __enter__(self) -> LearnerGroup:
        self._inside = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._ended:
                self.finish()
        finally:
            self.close()

    def __iter__(self) -> Iterator[Result]:
        with stop_signals(self._interrupt), contextlib.ExitStack() as stack:
            if not self._inside:
                stack.callback(self.close)
            while True:
                try:
                    yield from self._generation()
                    self._ended = True
                    return
                except LearnerFailed as failure:
                    if self.num_restarts >= self.config.learner_restarts or self._stopped:
                        raise
                    self.num_restarts += 1
                    self._notify(
                        f"{failure}\nall learners start again (restart {self.num_restarts}/"
                        f"{self.config.learner_restarts})"
                    )
                    self.config = self.config.again(checkpoint.exists(self.run_dir))

    def _generation(self) -> Iterator[Result]:
        """One life of the group, from a fresh rendezvous to its end.

        Raises:
            LearnerFailed: one of them failed; all have ended.
        """
        self._loaded, self._begun = None, False  # it may train the same number of steps anew
        pickled = cloudpickle.dumps((Registry(), self.config, self._started))
        with memory_file() as rendezvous:
            try:
                for rank in range(self.config.num_learners):
                    name, args = f"headrace-learner-{rank}", (pickled, rank, rendezvous)
                    child = Child(name, _run_learner, *args, nice=False, daemon=False)  # has actors
                    self._learners.append(_Learner(child, heard=time.monotonic()))
                if self._stopped:
                    self.stop()
                while not all(one.done for one in self._learners):
                    yield from self._listen()
                    if self.interrupted and not self._begun:
                        raise KeyboardInterrupt  # nothing was learnt that could be saved
                    yield from self._check()
                for one in self._learners:
                    one.child.exit_code(self.config.learner_timeout_s)
            finally:
                _kill(self._learners)

    def _listen(self, timeout_s: float = 1.0) -> Iterator[Result]:
        """Read what the learners say until nothing comes."""
        open_pipes = {one.child.pipe: one for one in self._learners if not one.child.pipe.closed}
        for pipe in connection.wait(list(open_pipes), timeout_s):
            one = open_pipes[pipe]
            try:
                kind, *content = one.child.pipe.recv()
            except (EOFError, OSError):
                one.child.pipe.close()
                continue
            one.heard = time.monotonic()
            if kind == "alive":
                self._begun |= content[0]
            elif kind == "result":
                self._begun = True
                yield content[0]
            elif kind == "say":
                self._notify(content[0])
            elif kind == "done":
                one.done = True
                self._summary = content[0] if one is self._learners[0] else self._summary
            elif kind == "failed":
                name, message, one.traceback = content
                one.failure = getattr(errors, name)(message)

    def _check(self) -> Iterator[Result]:
        """Raise what went wrong, if anything did, after all have had the time to say why."""
        deadline = time.monotonic() + _GRACE_S
        while lost := self._lost():
            num_at_work = sum(not one.done for one in self._learners)
            if len(lost) == num_at_work or time.monotonic() >= deadline:
                raise self._cause(lost)
            yield from self._listen(0.1)

    def _lost(self) -> list[int]:
        """Ranks that have failed, are gone, or have said nothing for too long."""
        now, limit = time.monotonic(), self.config.learner_timeout_s
        found = []
        for rank, one in enumerate(self._learners):
            pipe = one.child.pipe
            gone = pipe.closed or (now - one.heard > limit and not pipe.poll())
            if not one.done and (gone or one.failure is not None):
                found.append(rank)
        return found

    def _cause(self, lost: list[int]) -> HeadraceError:
        """The failure that led to the others, as far as can be told."""
        failures = [one.failure for one in self._learners if one.failure is not None]
        if fatal := [failure for failure in failures if isinstance(failure, _FATAL)]:
            return fatal[0]
        for rank, one in enumerate(self._learners):
            if one.failure is not None and not isinstance(one.failure, OthersLost):
                trace = f"\n\nIts traceback:\n{one.traceback.rstrip()}"
                return LearnerFailed(f"learner {rank} failed: {one.failure}{trace}")
        for rank, one in enumerate(self._learners):
            if one.child.pipe.closed and not one.done and one.failure is None:
                code = one.child.exit_code(_GRACE_S)
                return LearnerFailed(f"learner {rank} ended with exit code {code}")
        for rank in lost:
            if self._learners[rank].failure is None:
                limit = f"{self.config.learner_timeout_s:g} s (learner_timeout_s)"
                return LearnerFailed(f"learner {rank} was silent for {limit}")
        return failures[0]


def _kill(learners: list[_Learner]) -> None:
    """End the processes whatever they do; their actors end with them."""
    end_children((one.child for one in learners), timeout_s=0.0)
    learners.clear()


# -- in a learner's process -----------------------------------------------------------------------


class _Mouth:
    """The process's end of the pipe: says what happens, and that it is alive."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self._quiet = threading.Event()
        self.learnt: Callable[[], bool] = lambda: False
        threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True).start()

    def say(self, kind: str, *content: Any) -> None:
        """Send a message; whoever doesn't listen any more is about to end this process."""
        with self._lock:
            try:
                self._pipe.send((kind, *content))
            except (BrokenPipeError, ConnectionResetError):
                self._quiet.set()

    def _beat(self) -> None:
        while not self._quiet.wait(_HEARTBEAT_S):
            self.say("alive", self.learnt())


def _run_learner(pickled: bytes, rank: int, rendezvous: str, pipe: connection.Connection) -> None:
    """Train as one of the learners, and tell the parent of it.

    Messages: ``alive`` and whether something was learnt; ``say`` text; ``result``, ``done`` summary
    (from rank 0); ``failed`` name of the error, message, traceback.

    Args:
        pickled: (config, when the run started), by cloudpickle.
        rendezvous: path of the file behind the group's store.
        pipe: to the parent, which sends ``stop`` or ``interrupt``.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the parent gets it and decides
    mouth = _Mouth(pipe)
    try:
        _, config, started = cloudpickle.loads(pickled)
        met = file_rendezvous(rendezvous, rank, config.num_learners)
        group = Ranks(met, config.learner_timeout_s, config.device)
        prefix = f"learner {rank}: " if rank else ""
        notify = lambda text: mouth.say("say", prefix + text)  # noqa: E731
        trainer = Trainer(config, started, notify, group, False, locks=False)
        begun_at = trainer.updates
        mouth.learnt = lambda: trainer.updates > begun_at
        with contextlib.closing(trainer):  # the parent finishes the run
            threading.Thread(
                target=_listen, args=(pipe, trainer), name="headrace-listen", daemon=True
            ).start()
            for result in trainer:
                mouth.say("result", result)
            mouth.say("done", trainer.summary())
        group.close()
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, HeadraceError) else "LearnerFailed"
        mouth.say("failed", name, str(error) or name, traceback.format_exc())
        sys.exit(1)


def _listen(pipe: connection.Connection, trainer: Trainer) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent has closed its end
        while True:
            {"stop": trainer.stop, "interrupt": trainer.interrupt}[pipe.recv()]()
