"""What runs in an actor's process; the fork server imports this module once for all of them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle
import torch
from torch import Tensor

from headrace.acting.actor import Actor, ActorSpec, weight_spec
from headrace.learning.hogwild import learner_maker
from headrace.process import die_with_parent, keep_freed_memory, yield_to_learner
from headrace.transport.queue import NUM_HEADER_FIELDS
from headrace.transport.shm import ShmPort
from headrace.transport.slab import Slab
from headrace.transport.weights import WeightStore


def run_actor(
    pickled: bytes,
    index: int,
    generation: int,
    pipe: Connection,
    slab_buffer: Tensor,
    weight_buffer: Tensor,
    model_buffer: Tensor | None,
) -> None:
    """Build the actor and deliver rollouts until the learner closes the pipe or dies.

    Args:
        model_buffer: of the :class:`~headrace.learning.hogwild.SharedModel`, if actors learn.

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
        if spec.cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, spec.cores)
        layout = spec.spec()
        num_slots = Slab.count(slab_buffer, layout, NUM_HEADER_FIELDS)
        slab = Slab(layout, num_slots, NUM_HEADER_FIELDS, slab_buffer)
        weights = WeightStore(weight_spec(spec.policy), weight_buffer)
        make_learner = learner_maker(spec.algorithm, num_slots, model_buffer)
        actor = Actor(spec, index, generation, port, weights, slab, make_learner)
        while actor.run_once():
            pass
    except BaseException:
        port.fail(traceback.format_exc())
        sys.exit(1)
