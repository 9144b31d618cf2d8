"""What runs in the process of one of several learners."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from headrace.config import Config
from headrace.distributed.ranks import Ranks, file_rendezvous
from headrace.errors import HeadraceError
from headrace.process import die_with_parent
from headrace.training.trainer import Trainer

HEARTBEAT_S = 1.0


class Mouth:
    """The process's end of the pipe: says what happens, and that it is alive."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self._quiet = threading.Event()
        threading.Thread(target=self._beat, name="headrace-heartbeat", daemon=True).start()

    def say(self, kind: str, *content: Any) -> None:
        """Send a message; whoever doesn't listen any more is about to end this process."""
        with self._lock:
            try:
                self._pipe.send((kind, *content))
            except (BrokenPipeError, ConnectionResetError):
                self._quiet.set()

    def _beat(self) -> None:
        while not self._quiet.wait(HEARTBEAT_S):
            self.say("alive")


def run_learner(pickled: bytes, rank: int, rendezvous: str, pipe: Connection) -> None:
    """Train as one of the learners, and tell the parent of it.

    Messages: ``alive``; ``say`` text; ``result``, ``done`` summary (from rank 0);
    ``failed`` name of the error, message, traceback.

    Args:
        pickled: (config, when the run started), by cloudpickle.
        rendezvous: path of the file behind the group's store.
        pipe: to the parent, which sends ``stop``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets both of these and decides
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # programs started here get theirs
    die_with_parent()
    mouth = Mouth(pipe)
    try:
        config, started = cloudpickle.loads(pickled)
        _train(config, started, rank, rendezvous, pipe, mouth)
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, HeadraceError) else "LearnerFailed"
        mouth.say("failed", name, str(error) or name, traceback.format_exc())
        sys.exit(1)


def _train(
    config: Config, started: float, rank: int, rendezvous: str, pipe: Connection, mouth: Mouth
) -> None:
    place = file_rendezvous(rendezvous, rank, config.num_learners)
    group = Ranks(place, config.learner_timeout_s, config.device)
    prefix = f"learner {rank}: " if rank else ""

    def notify(text: str) -> None:
        mouth.say("say", prefix + text)

    with Trainer(config, started, notify, group, handle_signals=False) as trainer:

        def listen() -> None:
            with contextlib.suppress(EOFError, OSError):  # the parent has closed its end
                while pipe.recv() != "stop":
                    pass
                trainer.stop()

        threading.Thread(target=listen, name="headrace-listen", daemon=True).start()
        for result in trainer:
            mouth.say("result", result)
        mouth.say("done", trainer.summary())
    group.close()
