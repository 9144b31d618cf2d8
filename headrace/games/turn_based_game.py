"""Plays a turn-based game (PettingZoo's AECEnv) through its agents' rows.

    agent's turn ──► its row is shown ──► it acts ──► others move ──► its next turn
                          │                                               │
                          ╰── one step of its column, with all it is rewarded with meanwhile

A column's step begins with its agent's action and ends at the agent's next turn, or its end. The
reward in between is summed and reported there, so no row is spent on waiting. Until an agent's
first turn in a game its column is in the filler that follows its last episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.errors import EnvironmentFault, shown
from headrace.games.agent_rows import MAX_EMPTY, REPEAT_LAST, AgentRows
from headrace.games.infos import COMPLETE, OVER
from headrace.ops import tree

_MAX_MOVES = 10_000  # other agents' moves while a present agent has no turn
MAX_GAMES = 1_000
"""Number of first games, of a run or an environment, after which every agent should have moved."""


def no_turn(name: str, agent: str, how_long: str) -> EnvironmentFault:
    """Return the error for an agent that never moves."""
    return EnvironmentFault(
        f"{name}'s {agent} had no turn in {how_long}, so no policy can be trained for it: remove "
        "it from possible_agents"
    )


class TurnBasedGame:
    """A game whose agents move one at a time; its rows flag the agents whose steps are complete.

    As a game begins, ``rows.returns`` holds each agent's return in the previous one, including
    rewards before its first move, which belong to no step.

    An action is (rows of actions, mask of agents that begin a step). An agent begins a step once,
    and the game pauses when it is the turn of an agent that hasn't, so no result is reported too
    early. It restarts when an agent that has ended begins a step.

    Args:
        env: has the methods of PettingZoo's AECEnv.
        rows: receives the results.
    """

    def __init__(self, env: Any, rows: AgentRows) -> None:
        self._env, self._rows = env, rows
        count = len(rows.ids)
        self._number = {agent: i for i, agent in enumerate(rows.ids)}
        self._begun = np.zeros(count, bool)  # [n] steps in progress
        self._away = np.ones(count, bool)  # [n] no turn yet in this game, or ended
        self._waited = np.zeros(count, np.int64)  # [n] moves of others while present
        self._idle = np.ones(count, bool)  # [n] never had a turn
        self._games = 0
        self._totals = np.zeros(count)  # [n] returns of this game
        self._asked = np.zeros(count, bool)  # [n] had a turn in this game
        self._mover: int | None = None  # column of the current turn, if reported

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Begin a game and show the row of the first mover; no agent's step is in progress."""
        self._begun[:] = False
        self._begin(seed, options)
        for i in range(len(self._rows.ids)):
            self._rows.leave_out(i)
        if self._env.agents:
            self._begun[self._selected()] = True
        self._advance()
        self._rows.flags[OVER] = not self._env.agents

    def step(self, action: Any) -> None:
        """Begin steps, and play until the turn of an agent whose action is missing."""
        actions, begins = action
        begins = np.asarray(begins, bool)
        self._begun |= begins
        self._rows.begin_step()
        mover = self._mover
        if mover is not None and begins[mover]:
            row = tree.map_leaves(lambda x: x[mover].copy(), actions)
            self._env.step(self._rows.action(mover, row))
            self._mover = None
            self._wait()
            self._rows.count_step()
        if self._mover is None:
            self._advance()
        if begins.any():
            self._restart()
        self._rows.flags[OVER] = not self._env.agents

    def _begin(self, seed: int | None, options: Any) -> None:
        left = getattr(self._env, "_cumulative_rewards", {})
        for i in np.flatnonzero(~self._asked).tolist():  # it had no turn that reports its end
            self._totals[i] += left.get(self._rows.ids[i], 0.0)
        self._rows.returns = self._totals.copy()
        self._totals[:], self._asked[:] = 0.0, False
        self._env.reset(seed=seed, options=options)
        self._away[:], self._mover, self._games = True, None, self._games + 1
        self._waited[:] = 0
        if self._games > MAX_GAMES and self._idle.any():
            raise self._no_turn(int(self._idle.argmax()), f"{MAX_GAMES:,} games")

    def _restart(self) -> None:
        """Restart games until there is a result to report, unless one is in progress."""
        for _ in range(MAX_EMPTY):
            if self._env.agents or self._rows.flags[COMPLETE].any():
                return
            self._begin(None, None)
            self._advance()
        raise self._rows.empty()

    def _advance(self) -> None:
        """Report the turn of the selected agent, and remove ended agents from the game."""
        env, rows = self._env, self._rows
        for _ in range(2 * len(rows.ids) + 1):
            self._end_departed()
            if not env.agents:
                return
            i = self._selected()
            obs, reward, terminated, truncated, info = self._last()
            ends = bool(terminated), bool(truncated)
            never = self._away[i] and any(ends)  # it ended before its first turn
            if not never:
                if not self._begun[i]:
                    return
                if self._away[i]:
                    rows.begin(i, obs, info or {})
                else:
                    rows.move(i, obs, reward, ends, info or {})
                self._begun[i], self._away[i] = False, any(ends)
                self._waited[i], self._idle[i] = 0, False
            self._totals[i] += reward or 0.0
            self._asked[i] = True
            if not any(ends):
                self._mover = i
                return
            env.step(None)
        raise EnvironmentFault(
            f"{rows.name} keeps selecting {shown(env.agent_selection)}, which has ended: remove an "
            "agent from agents when it has ended and its action is step(None)"
        )

    def _end_departed(self) -> None:
        """End agents that left ``agents`` after a move, without a turn that reports their end."""
        env, rows = self._env, self._rows
        for i in np.flatnonzero(self._begun & ~self._away).tolist():
            agent = rows.ids[i]
            if agent in env.agents:
                continue
            earned = getattr(env, "_cumulative_rewards", None)
            if earned is None:
                raise EnvironmentFault(
                    f"{rows.name} removed {rows.spec.agents[i]} from agents before a turn that "
                    "reports its last reward: let it end, and remove it once step(None) is its "
                    "turn, or keep _cumulative_rewards, as PettingZoo's AECEnv does"
                )
            terminated = bool(getattr(env, "terminations", {}).get(agent))
            truncated = bool(getattr(env, "truncations", {}).get(agent)) or not terminated
            reward = earned.get(agent, 0.0)
            rows.move(i, REPEAT_LAST, reward, (terminated, truncated), {})
            self._totals[i] += reward
            self._begun[i], self._away[i], self._waited[i] = False, True, 0

    def _selected(self) -> int:
        """Return the column of the agent to move."""
        agent = self._env.agent_selection
        self._rows.check_has_column([agent])
        return self._number[agent]

    def _last(self) -> Any:
        returned = self._env.last()
        if self._rows.is_checked and not (isinstance(returned, tuple) and len(returned) == 5):
            received = f"{len(returned)} values" if isinstance(returned, tuple) else shown(returned)
            raise EnvironmentFault(
                f"{self._rows.name} returned {received} from last, but 5 are required: "
                "observation, reward, terminated, truncated and info"
            )
        return returned

    def _wait(self) -> None:
        """Count a move that the other present agents waited for."""
        present = [self._number[agent] for agent in self._env.agents if agent in self._number]
        self._waited[present] += 1
        if self._waited.max() > _MAX_MOVES:
            raise self._no_turn(int(self._waited.argmax()), f"{_MAX_MOVES:,} moves of others")

    def _no_turn(self, i: int, how_long: str) -> EnvironmentFault:
        return no_turn(self._rows.name, self._rows.spec.agents[i], how_long)
