"""Plays a simultaneous game (PettingZoo's ParallelEnv) through its agents' rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from headrace.errors import EnvironmentFault, shown
from headrace.games.agent_rows import MAX_EMPTY, REPEAT_LAST, AgentRows

_RETURNED = ("observations", "rewards", "terminated", "truncated", "infos")  # returned by step


class ParallelGame:
    """A game whose agents all move at once.

    Members of ``possible_agents`` that aren't in ``agents`` are absent. An agent that leaves
    without an end is truncated; one that joins or returns begins an episode. The game restarts at
    the step after its last agent's end.

    Args:
        env: has the methods of PettingZoo's ParallelEnv.
        rows: receives the results.
    """

    def __init__(self, env: Any, rows: AgentRows) -> None:
        self._env, self._rows = env, rows
        count = len(rows.ids)
        self._actions = batch_space(rows.spec.action_space, count)
        self._gone = np.ones(count, bool)  # [n] ended or absent
        self._empty = 0  # consecutive games without agents

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Begin a game."""
        rows = self._rows
        returned = self._env.reset(seed=seed, options=options)
        obs, infos = returned if isinstance(returned, tuple) else (returned, {})
        self._gone[:] = True
        if rows.is_checked:
            self._check_dicts("reset", {"observations": obs, "infos": infos})
            rows.check_has_column([*self._env.agents, *obs])
        self._begin_episodes({a: obs[a] for a in self._env.agents if a in obs}, infos)
        self._empty = self._empty + 1 if self._gone.all() else 0
        if self._empty > MAX_EMPTY:
            raise rows.empty()

    def step(self, action: Any) -> None:
        """Step the game; row ``i`` of ``action`` is agent ``i``'s, ignored while it is absent."""
        if self._gone.all():
            self.reset()
            return
        each = list(iterate(self._actions, action))
        env, rows, ids = self._env, self._rows, self._rows.ids
        present = set(env.agents)
        actions_by_agent = {a: rows.action(i, each[i]) for i, a in enumerate(ids) if a in present}
        returned = env.step(actions_by_agent)
        if rows.is_checked:
            self._check(returned, [ids[i] for i in np.flatnonzero(~self._gone)])
        obs, rewards, terminated, truncated, infos = returned
        stay, gone = set(env.agents), self._gone.copy()
        for i in np.flatnonzero(~gone).tolist():
            agent = ids[i]
            ends = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if agent not in stay and not any(ends):
                ends = False, True
            last, reward = obs.get(agent, REPEAT_LAST), rewards.get(agent, 0.0)
            rows.move(i, last, reward, ends, infos.get(agent) or {})
            self._gone[i] = any(ends)
        again = {agent for agent in stay if not (terminated.get(agent) or truncated.get(agent))}
        self._begin_episodes({a: obs[a] for a in ids if a in again and a in obs}, infos, gone)
        rows.count_step()

    def _check(self, returned: Any, acted: list[Any]) -> None:
        """Raise EnvironmentFault if the return value of step isn't that of a ParallelEnv."""
        name = self._rows.name
        if not isinstance(returned, tuple) or len(returned) != 5:
            received = f"{len(returned)} values" if isinstance(returned, tuple) else shown(returned)
            raise EnvironmentFault(
                f"{name} returned {received} from step, but 5 are required: "
                f"{', '.join(_RETURNED)}, each a dict by agent"
            )
        self._check_dicts("step", dict(zip(_RETURNED, returned, strict=True)))
        present = {*self._env.agents, *returned[0]}
        self._rows.check_has_column(present)
        for agent in acted:
            if agent in present and agent not in returned[1]:
                raise EnvironmentFault(
                    f"{name} returned no reward for {agent}, which acted: give it 0.0 if there is "
                    "none"
                )

    def _check_dicts(self, method: str, returned: dict[str, Any]) -> None:
        for kind, by_agent in returned.items():
            if not isinstance(by_agent, dict):
                raise EnvironmentFault(
                    f"{self._rows.name} returned {shown(by_agent)} as its {kind} from {method}: "
                    "return a dict by agent, {} if empty"
                )

    def _begin_episodes(self, obs: Any, infos: Any, before: np.ndarray | None = None) -> None:
        """Begin episodes of agents that were absent and now have an observation.

        Args:
            before: ``[n]`` bool, absent before the step; None: all agents.
        """
        away = self._gone.copy() if before is None else before
        for i in np.flatnonzero(away).tolist():
            agent = self._rows.ids[i]
            if agent in obs:
                self._rows.begin(i, obs[agent], infos.get(agent) or {})
                self._gone[i] = False
            else:
                self._rows.leave_out(i)
