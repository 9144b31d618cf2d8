"""A3C: actors compute gradients and apply them to shared parameters without locks.

    actor a                                  trainer
      pull     <--- parameters ------------  (its policy's parameters are the shared ones)
      collect
      learn    ---> parameters, moments      writes the learning rate
      commit   ---> rollout, metrics, lag    counts, observes, publishes, releases

There are no locks (Recht et al. 2011; Mnih et al. 2016, section 4). An actor may copy parameters
while another changes them, and one of two simultaneous changes to a number may be lost. Such races
are part of the algorithm. A process killed in the middle of ``learn`` has changed only some of the
weights, which is one more such race. With transport=serial there are no races.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.errors import NonFinite
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.learner.optimizer import flatten_parameters
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.transport.slab import ArraySpec, allocate, num_bytes, spec_of, views
from headrace.types import METRICS_BYTES, Fresh, Rollout, Tree
from headrace.validation.fields import float_fields


def _rates(algorithm: Hyperparameters) -> list[str]:
    """Return the names of hyperparameters sent to actors: the floats of the built-in class.

    A custom subclass may be unknown to an actor's process, so its fields are left out.
    """
    built_in = next(k for k in type(algorithm).__mro__ if k.__module__.startswith("headrace."))
    names = ["learning_rate", *float_fields(built_in)]
    return [name for name in dict.fromkeys(names) if getattr(algorithm, name) is not None]


def _layout(learner: Learner, num_actors: int) -> dict[str, Tree]:
    return {
        "optimizer": spec_of(learner.optimizer.memory),
        "rates": ArraySpec((len(_rates(learner.algorithm)),), torch.float64),
        "applied": ArraySpec((num_actors,), torch.int64),  # gradients so far, by actor
    }


class SharedModel:
    """The trainer's side of A3C: parameters and optimiser state in one shared buffer.

    Args:
        learner: the trainer's learner, whose parameters and optimiser state move into the buffer.
        num_actors: number of actors that apply gradients.
        steps_per_update: gradients that count as one update.
        shared: allocate in shared memory.
    """

    def __init__(
        self, learner: Learner, num_actors: int, steps_per_update: int, shared: bool = False
    ) -> None:
        self._learner, self._steps_per_update = learner, steps_per_update
        layout = _layout(learner, num_actors)
        self._buffer = allocate(num_bytes(layout), shared)
        self._views = views(self._buffer, layout)
        memory = self._views["optimizer"]
        for name, value in learner.optimizer.memory.items():
            memory[name].copy_(value)
        flatten_parameters(learner.policy, memory["flat"])
        learner.optimizer.use(memory)

    def opened(self, learning_rate: float, values: Mapping[str, float]) -> Tensor:
        """Set the rates for the actors, and return the buffer that they attach to."""
        algorithm = self._learner.algorithm
        known = {**values, "learning_rate": learning_rate}
        rates = [known.get(name, getattr(algorithm, name)) for name in _rates(algorithm)]
        self._views["rates"].copy_(torch.tensor(rates, dtype=torch.float64))
        return self._buffer

    def update(
        self, fresh: Fresh, learning_rate: float, values: Mapping[str, float]
    ) -> dict[str, float]:
        """Count an update whose optimiser steps the actors have done, one per rollout.

        Metrics are in the rollouts.
        """
        self.opened(learning_rate, values)
        self._learner.watch(fresh, self._steps_per_update)
        return {}


def own_metrics(rollout: Rollout) -> list[dict[str, float]]:
    """Return the metrics of the actor's gradients on a rollout; none if it computed none."""
    parts = (json.loads(bytes(text.numpy())) for text in tree.leaves(rollout.metrics))
    return [{k: v for k, v in one.items() if not math.isnan(v)} for one in parts]


class ActorLearner:
    """The actor's side of A3C: gradients at its own copy of the parameters, applied to the shared.

    Args:
        policy: the actor's policy; its parameters become views of one flat tensor.
        algorithm: the algorithm.
        actor: index of the actor, below ``num_actors``.
        buffer: buffer of the :class:`SharedModel`.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Hyperparameters,
        actor: int,
        num_actors: int,
        buffer: Tensor,
    ) -> None:
        self._learner, self._actor = Learner(policy, algorithm), actor
        self._local = self._learner.optimizer.memory["flat"]
        self._shared = views(buffer, _layout(self._learner, num_actors))
        self._learner.optimizer.use(self._shared["optimizer"], racing=True)
        self._applied = 0
        self._names, self._latest = _rates(self._learner.algorithm)[1:], list[float]()

    def pull(self) -> None:
        """Copy the shared parameters into the policy."""
        self._applied = int(self._shared["applied"].sum())
        self._local.copy_(self._shared["optimizer"]["flat"])

    def learn(self, rollout: Rollout) -> int:
        """Compute one gradient on a rollout of the pulled parameters, and apply it.

        The metrics are written into the rollout.

        Raises:
            NonFinite: a loss or gradient is not finite; it was not applied.

        Returns:
            number of gradients that others have applied since the pull.
        """
        shared = self._shared
        rate, *others = shared["rates"].tolist()
        changed = dict(zip(self._names, others, strict=True)) if others != self._latest else {}
        self._latest = others
        try:
            metrics = self._learner.train(lambda: gather([rollout]), rate, changed)
        except NonFinite as error:
            version = int(rollout.version.max())
            message = f"actor {self._actor}, after update {version}, its {error}"
            raise NonFinite(message) from None
        text = json.dumps(metrics).encode().ljust(METRICS_BYTES)
        rollout.metrics.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        lag = int(shared["applied"].sum()) - self._applied
        shared["applied"][self._actor] += 1
        return lag

    def close(self) -> None:
        """Stop the learner's threads."""
        self._learner.close()
