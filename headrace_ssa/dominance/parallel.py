"""PettingZoo adapter of OrbitalDominance: one game of the vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from pettingzoo import ParallelEnv

from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv


class OrbitalDominanceParallelEnv(ParallelEnv[str, np.ndarray, int]):
    """Single game of :class:`OrbitalDominanceVectorEnv`; same rules and arguments.

    Both agents act simultaneously and end together. ``infos`` contain each agent's ``action_mask``.
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
        """Return the observation space, which is the same for both agents."""
        return self._games.single_observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """Return the action space, which is the same for both agents."""
        return self._games.single_action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin a game; return observations and infos of both agents."""
        obs, infos = self._games.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._by_agent(obs), self._infos(infos)

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, np.ndarray],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Advance the game by a step.

        Raises:
            ValueError: an action doesn't exist.
            RuntimeError: no game is running.
        """
        if not self.agents:
            raise RuntimeError("no game is running: call reset() before step()")
        chosen = np.array([int(actions[agent]) for agent in self.possible_agents])
        obs, reward, terminated, truncated, infos = self._games.step(chosen)
        results = (
            self._by_agent(obs),
            self._by_agent(reward.tolist()),
            self._by_agent(terminated.tolist()),
            self._by_agent(truncated.tolist()),
            self._infos(infos),
        )
        if terminated.any():
            self.agents = []
        return results

    def render(self) -> np.ndarray | None:
        """Return an image of the game, ``[400, 800, 3]`` uint8; None without a render mode."""
        frames = self._games.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Do nothing: the game holds no resources."""

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, infos: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return self._by_agent({key: value[i] for key, value in infos.items()} for i in range(2))
