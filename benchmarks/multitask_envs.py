"""Task of multitask.py that Gymnasium lacks: ``multitask_envs:PendulumOfFive-v0``."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.envs.registration import register

TORQUES = (-2.0, -0.7, 0.0, 0.7, 2.0)


def pendulum_of_five() -> gymnasium.Env:
    """Gymnasium's Pendulum-v1 with a choice of five torques."""
    choices = gymnasium.spaces.Discrete(len(TORQUES))
    own = lambda choice: np.array([TORQUES[int(choice)]], np.float32)  # noqa: E731
    return gymnasium.wrappers.TransformAction(gymnasium.make("Pendulum-v1"), own, choices)


register("PendulumOfFive-v0", pendulum_of_five)
