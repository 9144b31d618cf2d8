"""Adapts a simultaneous game of several agents to one environment whose rows are its agents.

    PettingZoo's env ──► ParallelGame: rows [n, ...] ──► any engine: [G, n, ...]
                                                             ──► Columns: [G * n, ...]

An agent is a column of a rollout. Gymnasium's engines carry one observation and one info per game,
so both hold all agents: the observation has a row per agent, and ``info[TOLD]`` holds their rewards
and flags. The game itself has reward 0 and never ends, so no engine resets it. It restarts by
itself at the step after its last agent ended.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from headrace.games.agent_rows import GAME, MAX_EMPTY, SEEN, AgentRows, ContractFactory
from headrace.errors import EnvironmentFault, shown

_RETURNED = ("observations", "rewards", "terminated", "truncated", "infos")  # returned by step


def is_game(env: Any) -> bool:
    """Return whether ``env`` has the methods of PettingZoo's ParallelEnv or AECEnv."""
    spaces = (getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
    return not isinstance(env, gymnasium.Env) and all(map(callable, spaces))


class ParallelGame(gymnasium.Env[Any, Any]):
    """A game whose agents all move at once (PettingZoo's ParallelEnv).

    Members of ``possible_agents`` that aren't in ``agents`` are absent. An agent that leaves
    without an end is truncated; one that joins or returns begins an episode. Observations live in
    memory that the next step overwrites.

    Args:
        env, name, checked_steps, contract: see :class:`AgentRows`.
    """

    def __init__(
        self, env: Any, name: str, checked_steps: int, contract: ContractFactory
    ) -> None:
        self._env, self._seats = env, AgentRows(env, name, checked_steps, contract)
        game = self._seats.game
        count = len(game.agents)
        self.observation_space = batch_space(game.observation_space, count)
        self.action_space = batch_space(game.action_space, count)
        own = getattr(env, "metadata", None) or {}
        self.metadata = {**own, GAME: game}
        self.render_mode = getattr(env, "render_mode", None)
        self._gone = np.zeros(count, bool)  # [n] bool, ended or absent
        self._empty = 0  # consecutive games without agents

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        returned = self._env.reset(seed=seed, options=options)
        obs, infos = returned if isinstance(returned, tuple) else (returned, {})
        self._gone[:] = True
        if self._seats.checks:
            self._check_dicts("reset", {"observations": obs, "infos": infos})
            self._seats.check_has_column([*self._env.agents, *obs])
        self._begin_episodes({a: obs[a] for a in self._env.agents if a in obs}, infos)
        self._empty = self._empty + 1 if self._gone.all() else 0
        if self._empty > MAX_EMPTY:
            raise self._seats.empty()
        return self._seats.obs, self._seats.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game; row ``i`` of ``action`` is agent ``i``'s, ignored while it is absent."""
        if self._gone.all():
            obs, info = self.reset()
            return obs, 0.0, False, False, info
        each = list(iterate(self.action_space, action))
        env, seats, ids = self._env, self._seats, self._seats.ids
        present = set(env.agents)
        actions_by_agent = {a: seats.action(i, each[i]) for i, a in enumerate(ids) if a in present}
        returned = env.step(actions_by_agent)
        if seats.checks:
            self._check(returned, [ids[i] for i in np.flatnonzero(~self._gone)])
        obs, rewards, terminated, truncated, infos = returned
        stay, gone = set(env.agents), self._gone.copy()
        for i in np.flatnonzero(~gone).tolist():
            agent = ids[i]
            ends = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if agent not in stay and not any(ends):
                ends = False, True
            last, reward = obs.get(agent, SEEN), rewards.get(agent, 0.0)
            seats.move(i, last, reward, ends, infos.get(agent) or {})
            self._gone[i] = any(ends)
        again = {agent for agent in stay if not (terminated.get(agent) or truncated.get(agent))}
        self._begin_episodes({a: obs[a] for a in ids if a in again and a in obs}, infos, gone)
        seats.count_step()
        return seats.obs, 0.0, False, False, seats.info

    def _check(self, returned: Any, acted: list[Any]) -> None:
        """Raise EnvironmentFault if the return value of step isn't that of a ParallelEnv."""
        name = self._seats.name
        if not isinstance(returned, tuple) or len(returned) != 5:
            received = f"{len(returned)} values" if isinstance(returned, tuple) else shown(returned)
            raise EnvironmentFault(
                f"{name} returned {received} from step, but 5 are required: "
                f"{', '.join(_RETURNED)}, each a dict by agent"
            )
        self._check_dicts("step", dict(zip(_RETURNED, returned, strict=True)))
        there = {*self._env.agents, *returned[0]}
        self._seats.check_has_column(there)
        for agent in acted:
            if agent in there and agent not in returned[1]:
                raise EnvironmentFault(
                    f"{name} returned no reward for {agent}, which acted: give it 0.0 if there is "
                    "none"
                )

    def _check_dicts(self, method: str, returned: dict[str, Any]) -> None:
        for kind, by_agent in returned.items():
            if not isinstance(by_agent, dict):
                raise EnvironmentFault(
                    f"{self._seats.name} returned {shown(by_agent)} as its {kind} from {method}: "
                    "return a dict by agent, {} if empty"
                )

    def _begin_episodes(self, obs: Any, infos: Any, before: np.ndarray | None = None) -> None:
        """Begin episodes of agents ``[n]`` that were absent (None: all) and now have an
        observation.
        """
        away = self._gone.copy() if before is None else before
        for i in np.flatnonzero(away).tolist():
            agent = self._seats.ids[i]
            if agent in obs:
                self._seats.begin(i, obs[agent], infos.get(agent) or {})
                self._gone[i] = False
            else:
                self._seats.leave_out(i)

    def render(self) -> Any:
        """Render the game."""
        return self._env.render()

    def close(self) -> None:
        """Close the game."""
        self._env.close()
