"""Training speed of Stable-Baselines3."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def rate(model: Any, enough: Callable[[int, float], bool]) -> float:
    """Return steps per second after the first update of a model with rollouts.

    Args:
        enough: called with the number of updates and seconds after the first update; True stops.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    begun: list[float] = []  # times of the rollouts

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            begun.append(time.perf_counter())

        def _on_step(self) -> bool:
            return len(begun) < 3 or not enough(len(begun) - 2, begun[-1] - begun[1])

    model.learn(1 << 40, callback=Clock())
    return model.n_steps * model.n_envs * (len(begun) - 2) / (begun[-1] - begun[1])
