"""A game whose agents move one at a time (PettingZoo's AECEnv), as one environment with rows.

    agent's turn ──► its row is shown ──► it acts ──► others move ──► its next turn
                          │                                               │
                          ╰── one step of its column, with all it is rewarded with meanwhile

Its column's step begins with its action and is done at its next turn, or its end: what it is
rewarded with in between is told there, once, and nobody's row is spent on waiting. Until an agent's
first turn in a game its column is in the filler that follows its last episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import MultiBinary, Tuple
from gymnasium.vector.utils import batch_space

from headrace.envs.agent_rows import GAME, MAX_EMPTY, MOVED, OVER, RETURNS, SEEN, AgentRows
from headrace.errors import EnvironmentFault, shown
from headrace.ops import tree

_MAX_MOVES = 10_000  # of others while an agent that is there has no turn
MAX_GAMES = 1_000
"""The first ones, of a run or of an environment, after which an agent should have had a turn."""


def no_turn(name: str, agent: str, how_long: str) -> EnvironmentFault:
    """What is raised of a game's agent that never moves."""
    return EnvironmentFault(
        f"{name}'s {agent} had no turn in {how_long}, so nothing can be learnt for it: leave it "
        "out of possible_agents"
    )


class TurnBasedGame(gymnasium.Env[Any, Any]):
    """One game; ``info[TOLD]`` says whose steps are done (``MOVED``).

    As a game begins ``info[RETURNS]`` has all that each agent was rewarded with in the one before,
    also before its first move, which is no step's reward.

    An action is (rows of actions, whose steps begin): an agent's step is begun once, and the game
    waits where the turn is one's whose step isn't begun, so that nothing is told too early. It
    begins anew when the step of somebody who has ended is begun. Observations live in memory that
    the next step overwrites.

    Args:
        env: with PettingZoo's methods. name, checked_steps: see :class:`AgentRows`.
    """

    def __init__(self, env: Any, name: str, checked_steps: int) -> None:
        self._env, self._seats = env, AgentRows(env, name, checked_steps)
        game = self._seats.game
        count = len(game.agents)
        self.observation_space = batch_space(game.observation_space, count)
        self.action_space = Tuple((batch_space(game.action_space, count), MultiBinary(count)))
        self.metadata = {**(getattr(env, "metadata", None) or {}), GAME: game}
        self.render_mode = getattr(env, "render_mode", None)
        self._number = {agent: i for i, agent in enumerate(self._seats.ids)}
        self._begun = np.zeros(count, bool)  # [n] steps that are begun and not done
        self._away = np.ones(count, bool)  # [n] who has had no turn in this game, or has ended
        self._waited = np.zeros(count, np.int64)  # [n] moves of others, while one was there
        self._idle = np.ones(count, bool)  # [n] who has never had a turn
        self._games = 0
        self._totals, self._asked = np.zeros(count), np.zeros(count, bool)  # [n] of this game
        self._returns: np.ndarray | None = None  # [n] of the game before, as this one begins
        self._mover: int | None = None  # whose turn it is, and who has been told so

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game; the row of whoever moves first is shown, and nobody's step is begun."""
        self._begun[:] = False
        self._begin(seed, options)
        for i in range(len(self._seats.ids)):
            self._seats.leave_out(i)
        if self._env.agents:
            self._begun[self._selected()] = True
        self._go_on()
        return self._seats.obs, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Begin steps, and play until it is the turn of somebody who has to be asked."""
        rows, given = action
        given = np.asarray(given, bool)
        self._begun |= given
        self._seats.told[MOVED], self._returns = False, None
        mover = self._mover
        if mover is not None and given[mover]:
            row = tree.map_leaves(lambda x: x[mover].copy(), rows)
            self._env.step(self._seats.action(mover, row))
            self._mover = None
            self._wait()
            self._seats.count_step()
        if self._mover is None:
            self._go_on()
        if given.any():
            self._begin_again()
        return self._seats.obs, 0.0, False, False, self._info()

    def _info(self) -> dict[str, Any]:
        info = self._seats.info | {OVER: not self._env.agents}
        return info if self._returns is None else info | {RETURNS: self._returns}

    def _begin(self, seed: int | None, options: Any) -> None:
        left = getattr(self._env, "_cumulative_rewards", {})
        for i in np.flatnonzero(~self._asked).tolist():  # who had no turn to be told
            self._totals[i] += left.get(self._seats.ids[i], 0.0)
        self._returns = self._totals.copy()
        self._totals[:], self._asked[:] = 0.0, False
        self._env.reset(seed=seed, options=options)
        self._away[:], self._mover, self._games = True, None, self._games + 1
        self._waited[:] = 0
        if self._games > MAX_GAMES and self._idle.any():
            self._tell_idle(int(self._idle.argmax()), f"{MAX_GAMES:,} games")

    def _begin_again(self) -> None:
        """Begin games until somebody is told of something, unless one goes on."""
        for _ in range(MAX_EMPTY):
            if self._env.agents or self._seats.told[MOVED].any():
                return
            self._begin(None, None)
            self._go_on()
        raise self._seats.empty()

    def _go_on(self) -> None:
        """Tell whoever's turn it is, and take those who have ended out of the game."""
        env, seats = self._env, self._seats
        for _ in range(2 * len(seats.ids) + 1):
            self._part()
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
                    seats.begin(i, obs, info or {})
                else:
                    seats.move(i, obs, reward, ends, info or {})
                self._begun[i], self._away[i] = False, any(ends)
                self._waited[i], self._idle[i] = 0, False
            self._totals[i] += reward or 0.0
            self._asked[i] = True
            if not any(ends):
                self._mover = i
                return
            env.step(None)
        raise EnvironmentFault(
            f"{seats.name} keeps asking {shown(env.agent_selection)}, which has ended: take an "
            "agent out of agents where it has ended and step(None) is its turn"
        )

    def _part(self) -> None:
        """End those who have left ``agents`` with a move behind them and no turn to be told so."""
        env, seats = self._env, self._seats
        for i in np.flatnonzero(self._begun & ~self._away).tolist():
            agent = seats.ids[i]
            if agent in env.agents:
                continue
            earned = getattr(env, "_cumulative_rewards", None)
            if earned is None:
                raise EnvironmentFault(
                    f"{seats.name} took {seats.game.agents[i]} out of agents before a turn that "
                    "tells its last reward: let it end, and take it out once step(None) is its "
                    "turn, or keep _cumulative_rewards, as PettingZoo's AECEnv does"
                )
            terminated = bool(getattr(env, "terminations", {}).get(agent))
            truncated = bool(getattr(env, "truncations", {}).get(agent)) or not terminated
            reward = earned.get(agent, 0.0)
            seats.move(i, SEEN, reward, (terminated, truncated), {})
            self._totals[i] += reward
            self._begun[i], self._away[i], self._waited[i] = False, True, 0

    def _selected(self) -> int:
        """The column of whose turn it is."""
        agent = self._env.agent_selection
        self._seats.check_known([agent])
        return self._number[agent]

    def _last(self) -> Any:
        found = self._env.last()
        if self._seats.checks and not (isinstance(found, tuple) and len(found) == 5):
            what = f"{len(found)} values" if isinstance(found, tuple) else shown(found)
            raise EnvironmentFault(
                f"{self._seats.name} returned {what} from last, which are to be 5: observation, "
                "reward, terminated, truncated and info"
            )
        return found

    def _wait(self) -> None:
        """Somebody moved, and the others who are there waited."""
        there = [self._number[agent] for agent in self._env.agents if agent in self._number]
        self._waited[there] += 1
        if self._waited.max() > _MAX_MOVES:
            self._tell_idle(int(self._waited.argmax()), f"{_MAX_MOVES:,} moves of others")

    def _tell_idle(self, i: int, how_long: str) -> None:
        raise no_turn(self._seats.name, self._seats.game.agents[i], how_long)

    def render(self) -> Any:
        """What the game shows."""
        return self._env.render()

    def close(self) -> None:
        """Close the game."""
        self._env.close()
