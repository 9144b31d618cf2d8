"""OrbitalDominance for PettingZoo: one game of the vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from pettingzoo import ParallelEnv

from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv


class OrbitalDominanceParallelEnv(ParallelEnv[str, np.ndarray, int]):
    """:class:`OrbitalDominanceVectorEnv` with one game; rules and arguments as there.

    Both agents move at once and end together. ``infos`` hold each agent's ``action_mask``.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "name": "orbital_dominance_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 5,
        "is_parallelizable": True,
    }

    def __init__(self, render_mode: str | None = None, **rules: Any) -> None:
        self._games = OrbitalDominanceVectorEnv(2, render_mode=render_mode, **rules)
        self.possible_agents = list(self._games.agents)
        self.agents: list[str] = []
        self.render_mode = render_mode

    def observation_space(self, agent: str) -> Space[Any]:
        """The same of both."""
        return self._games.single_observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """The same of both."""
        return self._games.single_action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin a game; observations and infos of both."""
        obs, infos = self._games.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._each(obs), self._infos(infos)

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Raises ValueError for an unknown action, RuntimeError where no game is running."""
        if not self.agents:
            raise RuntimeError("no game is running: call reset() before step()")
        chosen = np.array([int(actions[agent]) for agent in self.possible_agents])
        obs, reward, terminated, truncated, infos = self._games.step(chosen)
        told = (
            self._each(obs),
            self._each(reward.tolist()),
            self._each(terminated.tolist()),
            self._each(truncated.tolist()),
            self._infos(infos),
        )
        if terminated.any():
            self.agents = []
        return told

    def render(self) -> np.ndarray | None:
        """The game, ``[400, 800, 3]`` uint8; None without a render mode."""
        frames = self._games.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """There is nothing to close."""

    def _each(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, infos: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return self._each({key: value[i] for key, value in infos.items()} for i in range(2))
