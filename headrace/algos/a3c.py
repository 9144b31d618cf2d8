"""Asynchronous advantage actor-critic: every actor computes and applies A2C's gradients."""

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
    computes the gradient on its copy and applies it to the shared parameters. The statistics of
    the optimiser are shared as well (section 4, "Shared RMSProp"). There are no locks and no
    waits. An update of the run is ``batch_size`` trained steps, with one gradient per rollout.

    The reported lag is the number of gradients that others applied between the copy and the
    actor's own gradient. Every gradient is computed with the parameters that played the rollout.
    """

    max_lag: Annotated[int, ranges.LAG_OF_1] = 2
    """Rollouts that may wait to be counted, in updates; gradients never wait."""
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"

    def __post_init__(self) -> None:
        super().__post_init__()
        built_in = set(float_fields(A3C))  # the fields that actors receive during training
        for name in schedules.of(self).keys() - built_in:
            valid = "a number: with A3C only hyperparameters of the built-in class can be schedules"
            require(False, name, str(getattr(self, name)), valid)
        valid = "False with A3C: each actor would scale rewards by its own statistics"
        require(not self.normalize_returns, "normalize_returns", self.normalize_returns, valid)
        valid = "False with A3C, whose actors share no statistics of advantages"
        require(not self.normalize_advantage, "normalize_advantage", True, valid)

    @property
    def learns_in_actors(self) -> bool:
        """Return True: actors compute and apply the gradients."""
        return True

    @property
    def only(self) -> dict[str, tuple[Any, str]]:
        """Return settings that allow only one value if actors apply gradients."""
        gradients = "whose actors compute the gradients in their processes (nearest: 'cpu')"
        trained = "whose actors train on a rollout before its lag is known"
        return {
            "device": ("cpu", gradients),
            "max_policy_lag": (None, trained),
            "weight_sync": ("every", "which acts with the newest weights only"),
            "policies": ("shared", "whose actors train one policy"),
            "num_learners": (1, "whose actors compute the gradients (use num_actors)"),
        }
