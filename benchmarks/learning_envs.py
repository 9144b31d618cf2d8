"""Environments that Gymnasium lacks.

learning.py uses ``learning_envs:TMaze-v0``, and four games of MinAtar with a time limit, such as
``learning_envs:Breakout-v1``. precision.py uses ``learning_envs:Catch-v0``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import register
from gymnasium.spaces import Box, Discrete

CORRIDOR = 8
ON, UP, DOWN = range(3)
CELLS, BALLS = 12, 5  # of Catch: cells per side, balls per episode


class TMazeEnv(gymnasium.Env):
    """Walk along a corridor and turn at its end as the sign at its beginning said.

    After Bakker (2001), "Reinforcement learning with long short-term memory". Observation: float32
    ``[4]``: sign up, sign down (both 0 except at the beginning), whether this is the junction, the
    fraction of the corridor behind the agent. Actions: forward, up, down. At the junction the right
    turn earns 1 and the wrong one -1, and the episode ends. Other actions that don't move cost
    0.02. So the best return is 1 with memory and 0 without.
    """

    def __init__(self, corridor: int = CORRIDOR) -> None:
        self.observation_space = Box(0.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(3)
        self._corridor, self._at, self._sign = corridor, 0, UP

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return to the beginning, with a new sign."""
        super().reset(seed=seed)
        self._at, self._sign = 0, int(self.np_random.integers(UP, DOWN + 1))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move."""
        at_junction, action = self._at == self._corridor, int(action)
        if at_junction and action != ON:
            return self._observe(), 1.0 if action == self._sign else -1.0, True, False, {}
        moves = not at_junction and action == ON
        self._at += moves
        return self._observe(), 0.0 if moves else -0.02, False, False, {}

    def _observe(self) -> np.ndarray:
        begins, at_junction = self._at == 0, self._at == self._corridor
        shown = (begins and self._sign == UP, begins and self._sign == DOWN, at_junction)
        return np.array([*shown, self._at / self._corridor], np.float32)


class CatchEnv(gymnasium.Env):
    """Catch falling balls with a paddle, observed as pixels.

    Observation: uint8 ``[84, 84]``, 12 x 12 cells of 49 pixels, black except for the ball and the
    paddle in the last row. A ball falls one row per step, from a random column. The paddle moves by
    at most one cell (0: left, 1: stay, 2: right). A caught ball earns 1 and a missed one -1. The
    episode ends after five balls.

    Args:
        pixels: side of a cell, so that an observation has sides of 12 times this number.
    """

    action_space = Discrete(3)

    def __init__(self, pixels: int = 7) -> None:
        self._pixels = pixels
        self.observation_space = Box(0, 255, (CELLS * pixels,) * 2, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with the first ball, and the paddle in the middle."""
        super().reset(seed=seed)
        self._paddle, self._balls = CELLS // 2, 0
        self._throw()
        return self._observe(), {}

    def _throw(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(CELLS))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle, then the ball."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        self._row += 1
        reward = 0.0
        if self._row == CELLS - 1:
            reward = 1.0 if self._column == self._paddle else -1.0
            self._balls += 1
            self._throw()
        return self._observe(), reward, self._balls == BALLS, False, {}

    def _observe(self) -> np.ndarray:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[self._row, self._column] = cells[CELLS - 1, self._paddle] = 255
        return cells.repeat(self._pixels, 0).repeat(self._pixels, 1)


register("Catch-v0", entry_point="learning_envs:CatchEnv", max_episode_steps=BALLS * CELLS)
register("TMaze-v0", entry_point="learning_envs:TMazeEnv", max_episode_steps=5 * CORRIDOR)
for _name in ("Asterix", "Breakout", "Freeway", "SpaceInvaders"):
    register(
        f"{_name}-v1",
        entry_point="minatar.gym:BaseEnv",
        kwargs={
            "game": {"SpaceInvaders": "space_invaders"}.get(_name, _name.lower()),
            "use_minimal_action_set": True,
        },
        max_episode_steps=5000,
    )
