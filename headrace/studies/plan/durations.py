"""Samples durations of rollouts with random step times, without sampling each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from headrace.errors import require, require_choice

Shape = Literal["constant", "lognormal", "gamma"]
_AT_ONCE = 2**20  # random numbers per block
_DRAWS = 4096  # samples for the mean and deviation of a maximum


@dataclass(frozen=True)
class Duration:
    """Random duration by its mean and its coefficient of variation (deviation / mean).

    Raises:
        ConfigError: the mean is not above 0, the coefficient is below 0, or the shape is unknown.
    """

    mean_s: float
    cv: float = 0.0
    shape: Shape = "constant"

    def __post_init__(self) -> None:
        require(0 < self.mean_s < math.inf, "mean_s", self.mean_s, "above 0")
        require(0 <= self.cv < math.inf, "cv", self.cv, "0 or more (nearest: 0)")
        require_choice("shape", self.shape, get_args(Shape))

    @property
    def is_constant(self) -> bool:
        """Return whether the duration is constant."""
        return self.shape == "constant" or self.cv == 0.0

    def draw(self, rng: np.random.Generator) -> float:
        """Sample one duration, in seconds."""
        return self.mean_s if self.is_constant else float(self.draws(rng, ()))

    def draws(self, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        """Sample durations, float64 of shape ``size``."""
        if self.is_constant:
            return np.full(size, self.mean_s)
        if self.shape == "gamma":
            return np.asarray(rng.gamma(self.cv**-2, self.mean_s * self.cv**2, size))
        variance = math.log1p(self.cv**2)
        mean = math.log(self.mean_s) - variance / 2
        return np.asarray(rng.lognormal(mean, math.sqrt(variance), size))

    def plus(self, seconds: float) -> Duration:
        """Add a constant duration."""
        mean_s = self.mean_s + seconds
        return Duration(mean_s, self.cv * self.mean_s / mean_s, self.shape)

    def repeated(self, count: int) -> Duration:
        """Return the sum of ``count`` independent durations: exact for gamma, else two moments."""
        return Duration(self.mean_s * count, self.cv / math.sqrt(count), self.shape)

    def slowest_of(self, count: int) -> Duration:
        """Return the maximum of ``count`` independent durations, to two moments, by sampling."""
        if self.is_constant or count == 1:
            return self
        rng = np.random.default_rng(0)
        rows = min(256, max(1, _AT_ONCE // count))
        blocks = _DRAWS // 256 if rows == 256 else 64  # fewer for large counts
        drawn = (self.draws(rng, (rows, count)).max(axis=1) for _ in range(blocks))
        greatest = np.concatenate(list(drawn))
        mean = float(greatest.mean())
        return Duration(mean, float(greatest.std()) / mean, self.shape)


def rollout_duration(
    env_step: Duration,
    num_steps: int,
    num_envs: int,
    envs: str = "waiting",
    inference_s: float = 0.0,
) -> Duration:
    """Return the duration of a rollout of ``num_steps`` by ``num_envs``.

    Args:
        env_step: duration of one step of one environment.
        envs: ``"waiting"``: all in parallel, as slow as the slowest; ``"computing"``: one after
            the other.
        inference_s: constant seconds per step of all environments.
    """
    together = env_step.slowest_of(num_envs) if envs == "waiting" else env_step.repeated(num_envs)
    return together.plus(inference_s).repeated(num_steps)
