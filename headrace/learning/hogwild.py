"""A3C: actors that apply gradients of their own to parameters that all of them share.

    actor a                                  trainer
      pull     <--- parameters ------------  (its policy's parameters are the shared ones)
      collect
      learn    ---> parameters, moments      writes the learning rate
      commit   ---> metrics and lag, by slot reads them, counts, observes, publishes, releases

Nobody locks (Recht et al. 2011; Mnih et al. 2016, section 4): an actor may copy parameters while
another changes them, and of two changes to one number one may be lost. Such races are part of the
algorithm. A process killed in the middle of ``learn`` has changed some weights and not the others,
which is one of them, so it harms nobody. With transport=serial there are none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.learning.learner import Learner, flatten_parameters
from headrace.nn.policy import Policy
from headrace.transport.slab import ArraySpec, allocate, num_bytes, spec_of, views
from headrace.types import LOSSES, Algorithm, Rollout, Tree, gather


def _layout(learner: Learner, num_slots: int) -> dict[str, Tree]:
    return {
        "optimizer": spec_of(learner.optimizer.memory),
        "learning_rate": ArraySpec((), torch.float64),
        # By slot, so that each number has one writer: the slot's owner.
        "applied": ArraySpec((num_slots,), torch.int64),  # gradients so far
        "lag": ArraySpec((num_slots,), torch.int64),  # of the rollout in it
        "metrics": ArraySpec((num_slots, len(LOSSES)), torch.float64),  # NaN: it has none
    }


class SharedModel:
    """The trainer's end: parameters, optimiser's state and what actors report, in one buffer.

    Args:
        learner: of the trainer; its parameters and optimiser's state move into the buffer.
        num_slots: of the queue.
        shared: allocate in shared memory.
    """

    def __init__(self, learner: Learner, num_slots: int, shared: bool = False) -> None:
        layout = _layout(learner, num_slots)
        self.buffer = allocate(num_bytes(layout), shared)
        self._views = views(self.buffer, layout)
        memory = self._views["optimizer"]
        for name, value in learner.optimizer.memory.items():
            memory[name].copy_(value)
        flatten_parameters(learner.policy, memory["flat"])
        learner.optimizer.use(memory)

    def set_learning_rate(self, learning_rate: float) -> None:
        """What actors use from their next gradient on."""
        self._views["learning_rate"].fill_(learning_rate)

    def lag(self, slot: int) -> int:
        """Gradients of others between the parameters that filled a taken slot and its own."""
        return int(self._views["lag"][slot])

    def metrics(self, slot: int) -> dict[str, float]:
        """The metrics of a taken slot's gradient, as :meth:`Learner.train` returned them."""
        values = zip(LOSSES, self._views["metrics"][slot].tolist(), strict=True)
        return {name: value for name, value in values if not math.isnan(value)}


class ActorLearner:
    """The actor's end: gradients from its own copy of the parameters, applied to the shared ones.

    Args:
        policy: the actor's; its parameters become views of one flat tensor.
        algorithm: what to learn with.
        num_slots, buffer: of the :class:`SharedModel`.
    """

    def __init__(
        self, policy: Policy, algorithm: Algorithm, num_slots: int, buffer: Tensor
    ) -> None:
        self._learner = Learner(policy, algorithm)
        self._local = self._learner.optimizer.memory["flat"]
        self._shared = views(buffer, _layout(self._learner, num_slots))
        self._learner.optimizer.use(self._shared["optimizer"], racing=True)
        self._applied = 0

    def pull(self) -> None:
        """Copy the shared parameters into the policy."""
        self._applied = int(self._shared["applied"].sum())
        self._local.copy_(self._shared["optimizer"]["flat"])

    def learn(self, rollout: Rollout, slot: int) -> None:
        """One gradient on a rollout of the pulled parameters, applied at the rate set now."""
        shared, rate = self._shared, float(self._shared["learning_rate"])
        metrics = self._learner.train(lambda: gather([rollout]), rate)
        row = [metrics.get(name, math.nan) for name in LOSSES]
        shared["metrics"][slot] = torch.tensor(row, dtype=torch.float64)
        shared["lag"][slot] = int(shared["applied"].sum()) - self._applied
        shared["applied"][slot] += 1

    def close(self) -> None:
        """Stop the learner's threads."""
        self._learner.close()


def learner_maker(
    algorithm: Algorithm, num_slots: int, buffer: Tensor | None
) -> Callable[[Policy], ActorLearner] | None:
    """What gives an actor's policy its :class:`ActorLearner`; None without a buffer."""
    if buffer is None:
        return None
    return functools.partial(ActorLearner, algorithm=algorithm, num_slots=num_slots, buffer=buffer)
