"""Runs one of several learners in its process."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from headrace.distributed.ranks import Ranks, Rendezvous
from headrace.errors import HeadraceError
from headrace.processes.pickling import missing_module_message
from headrace.trainer.trainer import Trainer

_HEARTBEAT_S = 1.0


class LearnerReporter:
    """Sends messages and heartbeats from a learner's process.

    Args:
        send: sends a message to the parent process; raises OSError if the connection is closed.
    """

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send, self._lock = send, threading.Lock()
        self._quiet = threading.Event()
        self.has_updated: Callable[[], bool] = lambda: False
        threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True).start()

    def send(self, kind: str, *content: Any) -> None:
        """Send a message; if the connection is closed, stop sending."""
        with self._lock:
            try:
                self._send((kind, *content))
            except (BrokenPipeError, ConnectionResetError):
                self._quiet.set()

    def _beat(self) -> None:
        while not self._quiet.wait(_HEARTBEAT_S):
            self.send("alive", self.has_updated())


def learn(
    pickled: bytes,
    rendezvous: Rendezvous,
    send: Callable[[tuple[Any, ...]], None],
    receive: Callable[[], tuple[Any, ...]],
) -> bool:
    """Train as one of several learners and report to the parent; return True on success.

    Messages: ``alive`` and True after the first update; ``say`` and text; ``result``, ``done`` and
    summary (from rank 0); ``failed`` and name of the error, message, traceback.

    Args:
        pickled: (registered environments, config, start time of the run), by cloudpickle.
        rendezvous: rendezvous of this learner.
        send: see :class:`LearnerReporter`.
        receive: waits for the next method of the trainer to call, such as ``stop``, and its
            arguments. It raises EOFError or OSError if the connection is closed.
    """
    reporter = LearnerReporter(send)
    try:
        _, config, started = cloudpickle.loads(pickled)
        group = Ranks(rendezvous, config.learner_timeout_s, config.device)
        prefix = f"learner {rendezvous.rank}: " if rendezvous.rank else ""
        notify = lambda text: reporter.send("say", prefix + text)  # noqa: E731
        trainer = Trainer(config, started, notify, group, False, locks=False)
        begun_at = trainer.updates
        reporter.has_updated = lambda: trainer.updates > begun_at
        with contextlib.closing(trainer):  # the parent process finishes the run
            threading.Thread(
                target=_listen, args=(receive, trainer), name="headrace-listen", daemon=True
            ).start()
            for result in trainer:
                reporter.send("result", result)
            reporter.send("done", trainer.summary())
        group.close()
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, HeadraceError) else "LearnerFailed"
        words = (
            missing_module_message(error) if isinstance(error, ModuleNotFoundError) else str(error)
        )
        reporter.send("failed", name, words or name, traceback.format_exc())
        return False
    return True


def _listen(receive: Callable[[], tuple[Any, ...]], trainer: Trainer) -> None:
    calls: dict[str, Callable[..., None]]
    calls = {"stop": trainer.stop, "interrupt": trainer.interrupt, "log": trainer.log}
    calls["change_envs"] = trainer.change_envs
    calls["set_hyperparameter"] = lambda name, value: trainer.set_hyperparameter(
        name, cloudpickle.loads(value)
    )
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        while True:
            command, *arguments = receive()
            calls[command](*arguments)
