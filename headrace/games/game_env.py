"""Presents one game, simultaneous or turn-based, as an environment with a row per agent.

    PettingZoo's ParallelEnv ──► ParallelGame ──╮
                                                ├─► AgentRows ──► GameEnv: rows [n, ...]
    PettingZoo's AECEnv ───────► TurnBasedGame ─╯                    │
                                                                     ▼
                           GameVector: columns [G * n, ...] ◄── any engine: [G, n, ...]

An agent is a column of a rollout. An engine carries one observation, reward and info per game, so
the observation and the reward have a row per agent, and ``info[FLAGS]`` holds the agents' flags.
For the engine a game never ends. It restarts by itself when a step begins after its last agent's
end.
"""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
from gymnasium.spaces import MultiBinary, Tuple
from gymnasium.vector.utils import batch_space

from headrace.games.agent_rows import AgentRows, ChecksFactory
from headrace.games.infos import GAME
from headrace.games.parallel_game import ParallelGame
from headrace.games.turn_based_game import TurnBasedGame


class Game(Protocol):
    """Interface of one game; its results are in the :class:`AgentRows` that it was made with."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Begin a game."""

    def step(self, action: Any) -> None:
        """Step the game.

        Args:
            action: rows of actions ``[n, ...]``; in turn-based games with a mask ``[n]`` of the
                agents that begin a step.
        """


def is_game(env: Any) -> bool:
    """Return whether ``env`` has the methods of PettingZoo's ParallelEnv or AECEnv."""
    spaces = (getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
    return not isinstance(env, gymnasium.Env) and all(map(callable, spaces))


class GameEnv(gymnasium.Env[Any, Any]):
    """One game as an environment whose observations, rewards and actions have a row per agent.

    Observations and rewards live in memory that the next step overwrites.

    Args:
        env: has PettingZoo's methods.
        name, checked_steps, checks: see :class:`AgentRows`.
    """

    def __init__(self, env: Any, name: str, checked_steps: int, checks: ChecksFactory) -> None:
        self._env, self._rows = env, AgentRows(env, name, checked_steps, checks)
        spec = self._rows.spec
        count = len(spec.agents)
        self.observation_space = batch_space(spec.observation_space, count)
        actions = batch_space(spec.action_space, count)
        self.action_space = Tuple((actions, MultiBinary(count))) if spec.in_turns else actions
        self._game: Game
        if spec.in_turns:
            self._game = TurnBasedGame(env, self._rows)
        else:
            self._game = ParallelGame(env, self._rows)
        self.metadata = {**(getattr(env, "metadata", None) or {}), GAME: spec}
        self.render_mode = getattr(env, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self._game.reset(seed, options)
        return self._rows.obs, self._rows.info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game; the reward is ``[n]`` float64, one of each agent."""
        self._game.step(action)
        rows = self._rows
        return rows.obs, rows.reward, False, False, rows.info()

    def render(self) -> Any:
        """Render the game."""
        return self._env.render()

    def close(self) -> None:
        """Close the game, if it has a method for that."""
        if hasattr(self._env, "close"):
            self._env.close()
