"""Asynchronous advantage actor-critic: A2C's loss, learnt from by every actor on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from headrace import schedules
from headrace.algos.a2c import A2C
from headrace.errors import require
from headrace.validation import ranges
from headrace.validation.fields import float_fields, settings


@settings()
@dataclass(frozen=True)
class A3C(A2C):
    """A3C (Mnih et al. 2016, Algorithm S3): actors apply their own gradients to shared weights.

    Each actor copies the shared parameters, plays ``fragment_length`` steps of its environments,
    computes the gradient on its copy and applies it to the shared parameters, with statistics of
    the optimiser that are shared too (section 4, "Shared RMSProp"). Nobody locks and nobody waits.
    An update of the run is ``batch_size`` steps that were learnt from, one gradient per rollout.

    The lag that is reported is the number of gradients that others applied between the copy and
    the actor's own; every rollout is learnt from under the parameters that it was played with.
    """

    max_lag: Annotated[int, ranges.LAG_OF_1] = 2
    """How many updates' rollouts may wait until the run has counted them; gradients never wait."""
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in schedules.of(self).keys() - set(
            float_fields(A3C)
        ):  # actors are sent the others
            valid = "a number: with A3C only hyperparameters of the built-in class can be schedules"
            require(False, name, str(getattr(self, name)), valid)
        valid = "False with A3C: each actor would scale rewards by statistics of its own"
        require(not self.normalize_returns, "normalize_returns", self.normalize_returns, valid)
        valid = "False with A3C, whose actors have no moments of advantages in common"
        require(not self.normalize_advantage, "normalize_advantage", True, valid)

    @property
    def learns_in_actors(self) -> bool:
        """Actors compute and apply the gradients."""
        return True

    @property
    def only(self) -> dict[str, tuple[Any, str]]:
        """What actors that learn leave no choice of."""
        gradients = "whose actors compute the gradients in their processes (nearest: 'cpu')"
        learnt = "whose actors have learnt from a rollout before its lag is known"
        return {
            "device": ("cpu", gradients),
            "max_policy_lag": (None, learnt),
            "weight_sync": ("every", "which acts with the newest weights only"),
            "policies": ("shared", "whose actors learn one policy"),
            "num_learners": (1, "whose actors learn by themselves (use num_actors)"),
        }
