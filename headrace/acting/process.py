"""What runs in an actor's process; the fork server imports this module once for all of them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle
import torch

from headrace.acting.actor import Actor, ActorSpec, Memory
from headrace.process import die_with_parent, keep_freed_memory, yield_to_learner
from headrace.transport.shm import ShmPort


def run_actor(
    pickled: bytes,
    index: int,
    generation: int,
    pipe: Connection,
    memory: Memory,
) -> None:
    """Build the actor and deliver rollouts until the learner closes the pipe or dies.

    An exception ends the process with exit code 1 after its traceback has been sent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield_to_learner()
    die_with_parent()
    keep_freed_memory()
    torch.set_num_threads(1)
    port = ShmPort(pipe)
    try:
        spec: ActorSpec = cloudpickle.loads(pickled)
        if spec.processors is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, spec.processors)
        actor = Actor(spec, index, generation, port, memory)
        while actor.run_once():
            pass
    except BaseException:
        port.fail(traceback.format_exc())
        sys.exit(1)
