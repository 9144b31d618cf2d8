"""A game of several agents, as one environment whose rows are its agents.

    PettingZoo's env ──► ParallelGame: rows [n, ...] ──► any engine: [G, n, ...]
                                                             ──► Columns: [G * n, ...]

An agent is a column of a rollout. What Gymnasium's engines carry is one observation and one info
of each game, so both hold all agents: the observation's rows are theirs, and ``info[TOLD]`` has
their rewards and flags. The game as such gives reward 0 and never ends, so that no engine resets
it: it begins anew by itself at the step after the one with which its last agent ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from headrace.envs.agreement import difference
from headrace.envs.contract import Contract
from headrace.errors import ConfigError, EnvironmentFault, shown
from headrace.spaces.masks import MASK
from headrace.spaces.walk import leaves, map_space, place

GAME = "game"  # in the metadata of such an environment: its Game
TOLD = "told"  # in its infos: [4, n] float64, see Seats.told
REWARD, TERMINATED, TRUNCATED, MOVED = range(4)  # rows of it
RETURNS = "returns"  # in infos of games in turns: [n] float64 of the game that ended, or NaN
MAX_EMPTY = 100  # games, one behind the other, that end in their reset


@dataclass(frozen=True)
class Game:
    """What the agents of a game are."""

    agents: tuple[str, ...]  # names, in the order of columns
    observation_space: gymnasium.Space[Any]  # of each
    action_space: gymnasium.Space[Any]
    in_turns: bool  # one agent moves at a time (AEC)


def is_game(env: Any) -> bool:
    """Whether it has PettingZoo's methods: those of ParallelEnv or AECEnv."""
    spaces = (getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
    return not isinstance(env, gymnasium.Env) and all(map(callable, spaces))


def is_in_turns(env: Any) -> bool:
    """Whether its agents move one at a time."""
    return hasattr(env, "agent_iter") or hasattr(env, "last")


class Seats:
    """What the agents of one game were told last, as rows that engines carry.

    Args:
        env: with PettingZoo's methods. name: for messages.
        checked_steps: how many first steps of the game are compared with the spaces.

    Raises:
        ConfigError: agents have other spaces than the first, or it isn't said which there are.
    """

    def __init__(self, env: Any, name: str, checked_steps: int) -> None:
        self.ids = list(getattr(env, "possible_agents", ()))
        if not self.ids:
            raise ConfigError(
                f"{name} doesn't say which agents there may be: give it possible_agents, each of "
                "which is a column of the rollouts"
            )
        self.name = name
        self.game = Game(tuple(map(str, self.ids)), *self._spaces(env), is_in_turns(env))
        count = len(self.ids)
        space = self.game.observation_space
        self.obs = create_empty_array(space, count, np.zeros)
        map_space(lambda leaf, rows: rows.__setitem__(slice(None), _legal(leaf)), space, self.obs)
        self.told = np.zeros((4, count))  # reward, terminated, truncated, and who has moved
        self._masks: np.ndarray | None = None
        self._left = checked_steps
        self._contracts = [
            Contract(SimpleNamespace(observation_space=space), f"{name}'s {agent}")
            for agent in self.game.agents
        ]

    def _spaces(self, env: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Those of every agent."""
        each = [(env.observation_space(one), env.action_space(one)) for one in self.ids]
        for agent, spaces in zip(self.ids, each, strict=True):
            for space in spaces:
                _check_kind(space, f"{self.name}'s {agent}")
            whose = f"{self.ids[0]}'s"
            if other := difference(*each[0], *spaces, whose=whose):
                raise ConfigError(
                    f"the agents {self.ids[0]} and {agent} of {self.name} need the same spaces, "
                    f"whoever plays them: of {agent} {other}"
                )
        return each[0]

    @property
    def info(self) -> dict[str, Any]:
        """What engines carry beside the rows of observations."""
        info: dict[str, Any] = {TOLD: self.told.copy()}
        if self._masks is not None:
            info[MASK] = self._masks.copy()
        return info

    def begin(self, i: int, obs: Any, info: Any) -> None:
        """Agent ``i`` is shown the first observation of an episode."""
        if self._left > 0:
            self._contracts[i].check_reset((obs, info))
        self._show(i, obs, info)
        self.told[:, i] = 0, False, False, True

    def move(self, i: int, obs: Any, reward: Any, ends: tuple[bool, bool], info: Any) -> None:
        """Agent ``i`` is told what came of its action, and what it sees next.

        Args:
            ends: terminated, truncated.
        """
        if self._left > 0:
            self._contracts[i].check_step((obs, reward, *ends, info))
        self._show(i, obs, info)
        self.told[:, i] = reward, *ends, True

    def leave_out(self, i: int) -> None:
        """Agent ``i`` isn't there: an end once more behind an end is an absence."""
        self.told[:, i] = 0, True, False, True

    def seen(self, i: int) -> Any:
        """What agent ``i`` was shown last."""
        space = self.game.observation_space
        return map_space(lambda _, rows: rows[i].copy(), space, self.obs)

    @property
    def checks(self) -> bool:
        """Whether this step of the game is among the first, which are checked."""
        return self._left > 0

    def count_step(self) -> None:
        """A step of the game was checked."""
        self._left -= 1

    def check_known(self, agents: Any) -> None:
        """Raise EnvironmentFault where somebody is there for whom there is no column."""
        for agent in agents:
            if agent not in self.ids:
                raise EnvironmentFault(
                    f"{self.name} has an agent {shown(agent)} that isn't among its "
                    f"possible_agents, so that it has no column: name it there"
                )

    def empty(self) -> EnvironmentFault:
        """Of a game that nobody is in, however often it begins."""
        return EnvironmentFault(
            f"{self.name} was over at its reset {MAX_EMPTY} times in a row, with no turn of "
            "anybody: let reset fill agents, none of whom has ended"
        )

    def _show(self, i: int, obs: Any, info: Any) -> None:
        space = self.game.observation_space
        map_space(lambda _, rows, value: rows.__setitem__(i, value), space, self.obs, obs)
        mask = info.get(MASK) if info else None
        if mask is None and self._masks is None:
            return
        if mask is not None and self._masks is None:
            if not isinstance(self.game.action_space, Discrete):
                raise EnvironmentFault(
                    f"{self.name}'s {self.game.agents[i]} shows an action_mask in its infos, "
                    "which is for Discrete actions: show it in the observation, as the part "
                    "'action_mask' of a Dict"
                )
            self._masks = np.ones((len(self.ids), int(self.game.action_space.n)), np.int8)
        assert self._masks is not None
        self._masks[i] = 1 if mask is None else mask


class ParallelGame(gymnasium.Env[Any, Any]):
    """A game whose agents all move at once (PettingZoo's ParallelEnv).

    Whoever of ``possible_agents`` isn't among ``agents`` is absent. One that goes without an end
    was truncated there; one that comes, or comes back, begins an episode. Observations live in
    memory that the next step overwrites.

    Args:
        env, name, checked_steps: see :class:`Seats`.
    """

    def __init__(self, env: Any, name: str, checked_steps: int) -> None:
        self._env, self._seats = env, Seats(env, name, checked_steps)
        game = self._seats.game
        count = len(game.agents)
        self.observation_space = batch_space(game.observation_space, count)
        self.action_space = batch_space(game.action_space, count)
        own = getattr(env, "metadata", None) or {}
        self.metadata = {**own, GAME: game}
        self.render_mode = getattr(env, "render_mode", None)
        self._gone = np.zeros(count, bool)  # [n] whose episode has ended, or who is absent
        self._empty = 0  # games since the last one that somebody was in

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        returned = self._env.reset(seed=seed, options=options)
        obs, infos = returned if isinstance(returned, tuple) else (returned, {})
        self._gone[:] = True
        if self._seats.checks:
            self._seats.check_known([*self._env.agents, *obs])
        self._come(obs, infos)
        self._empty = self._empty + 1 if self._gone.all() else 0
        if self._empty > MAX_EMPTY:
            raise self._seats.empty()
        return self._seats.obs, self._seats.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Each agent's action is row ``i`` of ``action``; that of an absent one is ignored."""
        if self._gone.all():
            obs, info = self.reset()
            return obs, 0.0, False, False, info
        each = list(iterate(self.action_space, action))
        env, seats, ids = self._env, self._seats, self._seats.ids
        present = set(env.agents)
        given = {agent: each[i] for i, agent in enumerate(ids) if agent in present}
        returned = env.step(given)
        if seats.checks:
            self._check(returned, [ids[i] for i in np.flatnonzero(~self._gone)])
        obs, rewards, terminated, truncated, infos = returned
        stay, gone = set(env.agents), self._gone.copy()
        for i in np.flatnonzero(~gone).tolist():
            agent = ids[i]
            ends = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if agent not in stay and not any(ends):
                ends = False, True
            last = obs[agent] if agent in obs else seats.seen(i)
            seats.move(i, last, rewards.get(agent, 0.0), ends, infos.get(agent) or {})
            self._gone[i] = any(ends)
        again = {agent for agent in stay if not (terminated.get(agent) or truncated.get(agent))}
        self._come({a: obs[a] for a in ids if a in again and a in obs}, infos, gone)
        seats.count_step()
        return seats.obs, 0.0, False, False, seats.info

    def _check(self, returned: Any, acted: list[Any]) -> None:
        """Raise EnvironmentFault where a step isn't what ParallelEnv's is."""
        name = self._seats.name
        if not isinstance(returned, tuple) or len(returned) != 5:
            found = f"{len(returned)} values" if isinstance(returned, tuple) else shown(returned)
            raise EnvironmentFault(
                f"{name} returned {found} from step, which are to be 5: observations, rewards, "
                "terminated, truncated and infos, each a dict by agent"
            )
        there = {*self._env.agents, *returned[0]}
        self._seats.check_known(there)
        for agent in acted:
            if agent in there and agent not in returned[1]:
                raise EnvironmentFault(
                    f"{name} returned no reward for {agent}, which acted: give it 0.0 if there is "
                    "none"
                )

    def _come(self, obs: Any, infos: Any, before: np.ndarray | None = None) -> None:
        """Those who were away ``[n]`` (None: all) begin where there is an observation."""
        away = self._gone.copy() if before is None else before
        for i in np.flatnonzero(away).tolist():
            agent = self._seats.ids[i]
            if agent in obs:
                self._seats.begin(i, obs[agent], infos.get(agent) or {})
                self._gone[i] = False
            else:
                self._seats.leave_out(i)

    def render(self) -> Any:
        """What the game shows."""
        return self._env.render()

    def close(self) -> None:
        """Close the game."""
        self._env.close()


def _legal(leaf: Any) -> Any:
    """Some value of a leaf space, for rows of agents that were never there."""
    if isinstance(leaf, Box):
        return np.clip(np.zeros(leaf.shape), leaf.low, leaf.high)
    return leaf.start if isinstance(leaf, (Discrete, MultiDiscrete)) else 0


def _check_kind(space: gymnasium.Space[Any], whose: str) -> None:
    for path, leaf in leaves(space):
        if not isinstance(leaf, (Box, Discrete, MultiBinary, MultiDiscrete)):
            raise ConfigError(
                f"{whose} has a {type(leaf).__name__}{place(path)} in its spaces, which agents of "
                "a game can't have (nearest: Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
                "and Tuple of them)"
            )
