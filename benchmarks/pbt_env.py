"""Task of pbt.py, whose best learning rate and entropy bonus fall during training."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

CONTEXTS, LENGTH = 8, 16
NARROW = 0.15


class Aim(gymnasium.Env):
    """Contexts in random order, each with a target on a line, at which actions aim.

    Half of the reward is a broad hill around the target, and half is a narrow one, with added
    noise. Far from the targets, large steps and broad exploration find the hills. On the narrow
    hill, both lose it again.

    Args:
        noise: standard deviation of the noise; a hit earns 1.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CONTEXTS,), np.float32)
    action_space = gymnasium.spaces.Box(-5.0, 5.0, (1,), np.float32)

    def __init__(self, noise: float = 1.0) -> None:
        rng = np.random.default_rng(7)  # the same task for all
        self.targets = 2.0 * rng.choice([-1, 1], CONTEXTS) * rng.uniform(0.5, 1.0, CONTEXTS)
        self.noise = noise

    def _seen(self) -> np.ndarray:
        self.context = int(self.np_random.integers(CONTEXTS))
        seen = np.zeros(CONTEXTS, np.float32)
        seen[self.context] = 1.0
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        miss = float(np.ravel(action)[0]) - self.targets[self.context]
        hills = [np.exp(-0.5 * (miss / width) ** 2) for width in (1.0, NARROW)]
        reward = float(np.mean(hills)) + self.noise * float(self.np_random.normal())
        self.time += 1
        return self._seen(), reward, False, self.time == LENGTH, {}
