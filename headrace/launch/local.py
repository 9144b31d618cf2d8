"""Several learners on this machine: their processes, their deaths, and their fresh starts.

this process ──► learner 0 (rank 0: files, results) ──► its actors
     │     ╲───► learner 1 ──► its actors             all joined by headrace/distributed/ranks.py
     └── a pipe to each: results and heartbeats come, "stop" goes
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle

from headrace import errors
from headrace.acting.fleet import start_fork_server
from headrace.config import Config, default_run_dir
from headrace.envs.names import resolve
from headrace.envs.probe import probe
from headrace.errors import CheckpointError, ConfigError, HeadraceError, LearnerFailed, OthersLost
from headrace.nn.policy import Policy
from headrace.process import main_hidden, process_context, stop_signals
from headrace.records import checkpoint
from headrace.records.result import Result

_GRACE_S = 2.0  # for the others' complaints, after the first sign of a failure
_FATAL = (ConfigError, CheckpointError)  # starting again would end the same way


@dataclasses.dataclass
class _Learner:
    """One learner's process, as its parent sees it."""

    process: BaseProcess
    pipe: connection.Connection
    heard: float  # when it last said something
    done: bool = False
    failure: HeadraceError | None = None
    traceback: str = ""


class LearnerGroup:
    """A run with ``num_learners`` learners: iterate over it, like a Trainer.

    Args:
        config: all settings.
        started, notify: as for a Trainer.

    Raises:
        ConfigError, CheckpointError: as for a Trainer; nothing was started.
    """

    def __init__(
        self,
        config: Config,
        started: float | None = None,
        notify: Callable[[str], None] = print,
    ) -> None:
        resolve(config.env)  # complains before anything is started
        start_fork_server()
        self._started = time.monotonic() if started is None else started
        self.env = probe(config.env, config.engine, config.env_kwargs, config.seed).env
        run_dir = config.run_dir or default_run_dir(config, time.strftime("%Y%m%d-%H%M%S"))
        self.run_dir, self._notify = Path(run_dir), notify
        checkpoint.prepare(self.run_dir, config.resume, config.overwrite)
        self.config = dataclasses.replace(config, run_dir=str(run_dir), overwrite=False)
        self.num_restarts = 0
        self.interrupted = self._stopped = False
        self._learners: list[_Learner] = []
        self._summary: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _kill, self._learners)

    @property
    def policy(self) -> Policy:
        """The policy of the latest checkpoint."""
        return checkpoint.load_policy(checkpoint.find(self.run_dir), self.config.network)

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds, once training has ended."""
        return dict(self._summary)

    def pids(self) -> list[int]:
        """Process ids of the learners, by rank."""
        return [one.process.pid or 0 for one in self._learners]

    def stop(self) -> None:
        """End training after the update in progress; a checkpoint is written."""
        self._stopped = True
        for one in self._learners[:1]:
            with contextlib.suppress(OSError):
                one.pipe.send("stop")

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop()

    def close(self) -> None:
        """End all processes; safe to call twice."""
        _kill(self._learners)

    def __enter__(self) -> LearnerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Result]:
        with stop_signals(self._interrupt):
            while True:
                try:
                    yield from self._generation()
                    return
                except LearnerFailed as failure:
                    if self.num_restarts >= self.config.learner_restarts or self._stopped:
                        raise
                    self.num_restarts += 1
                    self._notify(
                        f"{failure}\nall learners start again (restart {self.num_restarts}/"
                        f"{self.config.learner_restarts})"
                    )
                    saved = (self.run_dir / "checkpoints" / "latest").exists()
                    self.config = dataclasses.replace(
                        self.config, resume=saved, overwrite=not saved
                    )

    def _generation(self) -> Iterator[Result]:
        """One life of the group, from a fresh rendezvous to its end.

        Raises:
            LearnerFailed: one of them failed; all have ended.
        """
        folder = tempfile.mkdtemp(prefix="headrace-")
        try:
            for rank in range(self.config.num_learners):
                self._learners.append(self._start(rank, str(Path(folder) / "rendezvous")))
            if self._stopped:
                self.stop()
            while not all(one.done for one in self._learners):
                yield from self._listen()
                yield from self._check()
            for one in self._learners:
                one.process.join(self.config.learner_timeout_s)
        finally:
            self.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, rank: int, rendezvous: str) -> _Learner:
        from headrace.launch.learner_process import run_learner

        ours, theirs = multiprocessing.Pipe()
        process = process_context().Process(  # type: ignore[attr-defined]
            target=run_learner,
            args=(cloudpickle.dumps((self.config, self._started)), rank, rendezvous, theirs),
            name=f"headrace-learner-{rank}",
            daemon=False,  # it has children of its own
        )
        with main_hidden():
            process.start()
        theirs.close()
        return _Learner(process, ours, heard=time.monotonic())

    def _listen(self, timeout_s: float = 1.0) -> Iterator[Result]:
        """Read what the learners say until nothing comes."""
        open_pipes = {one.pipe: one for one in self._learners if not one.pipe.closed}
        for pipe in connection.wait(list(open_pipes), timeout_s):
            one = open_pipes[pipe]  # type: ignore[index]
            try:
                kind, *content = one.pipe.recv()
            except (EOFError, OSError):
                one.pipe.close()
                continue
            one.heard = time.monotonic()
            if kind == "result":
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
        lost = self._lost()
        while 0 < len(lost) < self._num_at_work() and time.monotonic() < deadline:
            yield from self._listen(0.1)
            lost = self._lost()
        if lost:
            raise self._cause(lost)

    def _num_at_work(self) -> int:
        return sum(not one.done for one in self._learners)

    def _lost(self) -> list[int]:
        """Ranks that have failed, are gone, or have said nothing for too long."""
        now, limit = time.monotonic(), self.config.learner_timeout_s
        found = []
        for rank, one in enumerate(self._learners):
            gone = one.pipe.closed or (now - one.heard > limit and not one.pipe.poll())
            if not one.done and (gone or one.failure is not None):
                found.append(rank)
        return found

    def _cause(self, lost: list[int]) -> HeadraceError:
        """The failure that led to the others, as far as can be told."""
        failures = [one.failure for one in self._learners]
        for failure in failures:
            if isinstance(failure, _FATAL):
                return failure
        for rank, one in enumerate(self._learners):
            if one.failure is not None and not isinstance(one.failure, OthersLost):
                trace = f"\n\nIts traceback:\n{one.traceback.rstrip()}"
                return LearnerFailed(f"learner {rank} failed: {one.failure}{trace}")
        for rank, one in enumerate(self._learners):
            if one.pipe.closed and not one.done and one.failure is None:
                one.process.join(_GRACE_S)
                return LearnerFailed(f"learner {rank} ended with exit code {one.process.exitcode}")
        for rank in lost:
            if failures[rank] is None:
                limit = f"{self.config.learner_timeout_s:g} s (learner_timeout_s)"
                return LearnerFailed(f"learner {rank} was silent for {limit}")
        return next(failure for failure in failures if failure is not None)


def _kill(learners: list[_Learner]) -> None:
    """End the processes whatever they do; their actors end with them."""
    for one in learners:
        if one.process.is_alive():
            one.process.kill()
    for one in learners:
        one.process.join(_GRACE_S)
        one.pipe.close()
    learners.clear()
