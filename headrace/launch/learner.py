"""What runs in the process of one of several learners, wherever that is."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from headrace.distributed.ranks import Ranks, Rendezvous
from headrace.errors import HeadraceError
from headrace.processes.ray_worker import missing_module_message
from headrace.trainer.trainer import Trainer

_HEARTBEAT_S = 1.0


class LearnerReporter:
    """Says what happens in this process, and that it is alive.

    Args:
        send: a message to who started the learners; raises OSError where nobody listens any more.
    """

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send, self._lock = send, threading.Lock()
        self._quiet = threading.Event()
        self.learnt: Callable[[], bool] = lambda: False
        threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True).start()

    def say(self, kind: str, *content: Any) -> None:
        """Send a message; whoever doesn't listen any more is about to end this process."""
        with self._lock:
            try:
                self._send((kind, *content))
            except (BrokenPipeError, ConnectionResetError):
                self._quiet.set()

    def _beat(self) -> None:
        while not self._quiet.wait(_HEARTBEAT_S):
            self.say("alive", self.learnt())


def learn(
    pickled: bytes,
    met: Rendezvous,
    send: Callable[[tuple[Any, ...]], None],
    hear: Callable[[], tuple[Any, ...]],
) -> bool:
    """Train as one of the learners, and tell who started it; returns whether it came to its end.

    Messages: ``alive`` and whether something was learnt; ``say`` text; ``result``, ``done`` summary
    (from rank 0); ``failed`` name of the error, message, traceback.

    Args:
        pickled: (registered environments, config, when the run started), by cloudpickle.
        send: see :class:`LearnerReporter`.
        hear: waits for the next method of the trainer to call, such as ``stop``, and its arguments.
            It raises EOFError or OSError if the connection is closed.
    """
    mouth = LearnerReporter(send)
    try:
        _, config, started = cloudpickle.loads(pickled)
        group = Ranks(met, config.learner_timeout_s, config.device)
        prefix = f"learner {met.rank}: " if met.rank else ""
        notify = lambda text: mouth.say("say", prefix + text)  # noqa: E731
        trainer = Trainer(config, started, notify, group, False, locks=False)
        begun_at = trainer.updates
        mouth.learnt = lambda: trainer.updates > begun_at
        with contextlib.closing(trainer):  # who started it finishes the run
            threading.Thread(
                target=_listen, args=(hear, trainer), name="headrace-listen", daemon=True
            ).start()
            for result in trainer:
                mouth.say("result", result)
            mouth.say("done", trainer.summary())
        group.close()
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, HeadraceError) else "LearnerFailed"
        words = (
            missing_module_message(error) if isinstance(error, ModuleNotFoundError) else str(error)
        )
        mouth.say("failed", name, words or name, traceback.format_exc())
        return False
    return True


def _listen(hear: Callable[[], tuple[Any, ...]], trainer: Trainer) -> None:
    calls: dict[str, Callable[..., None]]
    calls = {"stop": trainer.stop, "interrupt": trainer.interrupt, "log": trainer.log}
    calls["change_envs"] = trainer.change_envs
    calls["set_hyperparameter"] = lambda name, value: trainer.set_hyperparameter(
        name, cloudpickle.loads(value)
    )
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        while True:
            word, *arguments = hear()
            calls[word](*arguments)
