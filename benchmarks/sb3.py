"""How fast Stable-Baselines3 trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def rate(model: Any, enough: Callable[[int, float], bool]) -> float:
    """Steps per second after the first update of a model with rollouts.

    Args:
        enough: whether so many updates after the first, in so many seconds, are enough.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    begun: list[float] = []  # when each rollout was

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            begun.append(time.perf_counter())

        def _on_step(self) -> bool:
            return len(begun) < 3 or not enough(len(begun) - 2, begun[-1] - begun[1])

    model.learn(1 << 40, callback=Clock())
    return model.n_steps * model.n_envs * (len(begun) - 2) / (begun[-1] - begun[1])
