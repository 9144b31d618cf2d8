"""OrbitalDominance for ``gymnasium.make``: one side, against a scripted player."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np

from headrace.errors import require_choice
from headrace_ssa.batch import checked
from headrace_ssa.dominance import rules
from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv
from headrace_ssa.dominance.players import PLAYERS, Player


class OrbitalDominanceEnv(gymnasium.Env):
    """One side of a game of :class:`OrbitalDominanceVectorEnv`; same rules and observations.

    headrace trains both sides with the vector environment, and doesn't use this one.

    Args:
        opponent: name of the scripted player of the other side, see ``players.PLAYERS``: random,
            hold, tracker, pursuit or evader.
        side: side of the agent, blue or red.
        settings: ``n``, ``horizon``, ``seed`` and ``inclination`` of the vector environment.

    Raises:
        ConfigError: the opponent or side is unknown, or a setting is invalid.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        opponent: str = "pursuit",
        side: str = "blue",
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        require_choice("opponent", opponent, PLAYERS)
        require_choice("side", side, rules.AGENTS)
        self._games = OrbitalDominanceVectorEnv(2, render_mode=render_mode, **settings)
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space
        self._num_actions = rules.Actions(self._games.n).count
        self.render_mode, self._opponent, self._settings = render_mode, opponent, settings
        self._own = rules.AGENTS.index(side)
        self._player: Player | None = None  # None before the first reset
        self._runs = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; a seed also seeds the opponent."""
        super().reset(seed=seed)
        obs, infos = self._games.reset(seed=seed)
        self._np_random, self._runs = self._games.rngs[0], True
        if self._player is None or seed is not None:
            self._player = self._scripted(seed)
        return self._seen(obs, infos)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance the game by a step.

        Raises:
            ValueError: the action doesn't exist.
            RuntimeError: no game is running.
        """
        if not self._runs or self._player is None:
            raise RuntimeError("no game is running: call reset() before step()")
        actions = np.empty(2, np.int64)
        actions[1 - self._own] = self._player(*self._others)[0]
        actions[self._own] = checked([action], 1, self._num_actions)[0]
        obs, reward, terminated, _, infos = self._games.step(actions)
        self._runs = not terminated[0]
        obs, info = self._seen(obs, infos)
        return obs, float(reward[self._own]), bool(terminated[0]), False, info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Return an image of the game, ``[400, 800, 3]`` uint8; None without a render mode."""
        frames = self._games.render()
        return None if frames is None else frames[0]

    def _scripted(self, seed: int | None) -> Player:
        """Create the opponent, with the settings that it accepts."""
        make = PLAYERS[self._opponent]
        known = {"inclination": self._settings.get("inclination"), "seed": seed}
        takes = inspect.signature(make).parameters
        return make(**{k: v for k, v in known.items() if k in takes and v is not None})

    def _seen(self, obs: np.ndarray, infos: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """Store the opponent's observation and mask, and return the agent's."""
        other = slice(1 - self._own, 2 - self._own)
        self._others = obs[other], infos["action_mask"][other]
        return obs[self._own], {key: value[self._own] for key, value in infos.items()}
