"""Environment whose level a callback can change."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from headrace import env_context
from worlds.reporting import ReportingVector


class Levels(gymnasium.Env):
    """Episodes of five steps; reward and info hold the level."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.level, self.told = 0, list[Any]()

    def set_task(self, level: int, bonus: float = 0.0) -> None:
        """Raise the level."""
        if level > 8:
            raise ValueError("there are 8 levels")
        self.told.append(level)
        self.level = level + bonus

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one of five steps."""
        self._t += 1
        info = {"level": float(self.level), "calls": len(self.told)}
        return np.zeros(2, np.float32), float(self.level), self._t == 5, False, info


class NumberedLevels(Levels):
    """Also reports its index in the run."""

    def __init__(self) -> None:
        super().__init__()
        self.index = env_context().index

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one of five steps."""
        *result, info = super().step(action)
        return *result, info | {"index": self.index}  # type: ignore[return-value]


class LevelsVector(ReportingVector):
    """A natively vectorised version; all environments share the level, which is the reward."""

    level = 0

    def set_task(self, level: int) -> None:
        """Raise the level."""
        self.level = level

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step whose reward is multiplied by the level."""
        obs, reward, *rest = super().step(actions)
        return obs, reward * self.level, *rest  # type: ignore[return-value]


class LevelsGame:
    """A game of two (PettingZoo's ParallelEnv) of five steps, whose rewards are the level."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self) -> None:
        self.level = 0

    def observation_space(self, agent: str) -> Any:
        """Return an agent's observation space."""
        return Levels.observation_space

    def action_space(self, agent: str) -> Any:
        """Return an agent's action space."""
        return Levels.action_space

    def set_task(self, level: int) -> None:
        """Raise the level."""
        self.level = level

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin."""
        self.agents, self._t = list(self.possible_agents), 0
        return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: Any) -> Any:
        """Take one of five steps."""
        self._t += 1
        who, over = self.agents, self._t == 5
        self.agents = [] if over else who
        obs = {a: np.zeros(2, np.float32) for a in who}
        ends = dict.fromkeys(who, over)
        return obs, dict.fromkeys(who, float(self.level)), ends, dict.fromkeys(who, False), {}

    def close(self) -> None:
        """Do nothing."""
