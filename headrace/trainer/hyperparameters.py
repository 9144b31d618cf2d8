"""Resolves a run's current hyperparameters from schedules and changes by callbacks."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from headrace import schedules
from headrace.algos import A3C
from headrace.algos.common import Hyperparameters
from headrace.errors import ConfigError, nearest
from headrace.validation.fields import float_fields
from headrace.validation.type_checks import ScheduleBase

_LEAST, _RECOVERY = 0.01, 1.1  # minimum and growth of the learning rate's factor
_NAMED = {"learning_rate": "lr_schedule", "entropy_coef": "entropy_schedule"}


def limited(factor: float, kl: float, limit: float | None) -> float:
    """Return the learning rate's factor for the next update, given the KL of the last one.

    The KL grows roughly with the square of the step size. Above the limit, the factor is therefore
    multiplied by ``sqrt(limit / kl)``, or 0.5 if that is larger. Below half of the limit, it grows
    by a tenth, up to 1.

    Args:
        factor: factor of the last update, at most 1.
        kl: KL(behaviour || current policy) in nats, mean over the update's batches; NaN: unknown.
        limit: ``kl_limit`` of the algorithm.
    """
    if limit is None:
        return 1.0
    if math.isnan(kl):
        return factor
    if kl > limit:
        return max(_LEAST, factor * max(0.5, math.sqrt(limit / kl)))
    return min(1.0, factor * _RECOVERY) if kl < limit / 2 else factor


def _why_fixed(algo: Hyperparameters, name: str) -> str | None:
    """Return why a hyperparameter can't change during training, or None."""
    if name in algo.FIXED:
        return "it is used at the start"
    if name == "gamma" and algo.normalize_returns:
        return "the statistics of normalize_returns depend on it"
    if name == "kl_coef" and getattr(algo, "kl_target", None) is not None:
        return "kl_target adapts it"
    if algo.learns_in_actors and name not in float_fields(A3C):
        return "actors get no hyperparameters of custom classes during training"
    return None


class CurrentHyperparameters:
    """Current hyperparameters of a run, resolved once per update.

    Args:
        algo: hyperparameters, including schedules.
    """

    def __init__(self, algo: Hyperparameters) -> None:
        self.algo = algo
        self._set: set[str] = set()  # by callbacks; learners were built with other values
        self._changing = self._changing_names()

    def _changing_names(self) -> list[str]:
        """List hyperparameters, except the learning rate, whose values may have changed."""
        names = self._set | schedules.of(self.algo).keys()
        if self.algo.entropy_schedule != "constant":
            names.add("entropy_coef")
        return sorted(names - {"learning_rate"})

    def rates(self, env_steps: int, total_steps: float) -> tuple[float, dict[str, float]]:
        """Return the learning rate, and the other changing hyperparameters by name.

        Args:
            env_steps: environment steps so far.
            total_steps: environment steps at the end of the run.

        Raises:
            ConfigError: a schedule function returned a value out of range.
        """
        changing = self._changing
        values = {name: self._value(name, env_steps, total_steps) for name in changing}
        return self._value("learning_rate", env_steps, total_steps), values

    def all(self, env_steps: int, total_steps: float) -> dict[str, float]:
        """Return every float hyperparameter, by name; see :meth:`rates`."""
        names = float_fields(type(self.algo))
        return {name: self._value(name, env_steps, total_steps) for name in names}

    def _value(self, name: str, env_steps: int, total_steps: float) -> Any:
        setting = getattr(self.algo, name)
        if isinstance(setting, ScheduleBase):
            value = setting.at(env_steps, total_steps)
            if isinstance(setting, schedules.Function):
                schedules.check_now(self.algo, name, value)
            return value
        kind = getattr(self.algo, _NAMED[name]) if name in _NAMED else "constant"
        if kind == "constant":
            return setting
        return setting * schedules.shape(kind, env_steps, total_steps, self.algo.lr_warmup)

    def changed(self, name: str, value: Any) -> Hyperparameters:
        """Return the hyperparameters with a new value or schedule for one of them.

        Raises:
            ConfigError: it isn't a float hyperparameter, or the value is out of range.
        """
        names = float_fields(type(self.algo))
        if name not in names:
            kind = type(self.algo).__name__
            raise ConfigError(
                f"{name!r} can't change during training: it is not a float hyperparameter of "
                f"{kind}.{nearest(name, names)}"
            )
        if why := _why_fixed(self.algo, name):
            raise ConfigError(f"{name!r} can't change during training: {why}")
        change: dict[str, Any] = {name: value}
        if name in _NAMED:
            change[_NAMED[name]] = "constant"
        return dataclasses.replace(self.algo, **change)

    def set(self, name: str, value: Any) -> None:
        """Change a hyperparameter from the next update on; see :meth:`changed`."""
        self.algo = self.changed(name, value)
        self._set.add(name)
        self._changing = self._changing_names()
