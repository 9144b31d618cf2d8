"""What runs in an actor's process; the fork server imports this module once for all of them."""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle

from headrace.acting.actor import Actor, ActorSpec, Memory
from headrace.transport.shm import ShmPort


def run_actor(
    pickled: bytes,
    index: int,
    generation: int,
    memory: Memory,
    pipe: Connection,
) -> None:
    """Build the actor and deliver rollouts until the learner closes the pipe or dies.

    An exception ends the process with exit code 1 after its traceback has been sent.
    """
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
