"""What the agents of one game are, and were told last, as rows that engines carry."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector.utils import create_empty_array

from headrace.envs.contract import Contract
from headrace.envs.exact_actions import exact
from headrace.envs.info_metrics import AGENT_INFOS
from headrace.envs.space_agreement import difference
from headrace.errors import ConfigError, EnvironmentFault, shown
from headrace.spaces import unified_spaces
from headrace.spaces.masks import MASK
from headrace.spaces.unified_spaces import Spaces
from headrace.spaces.walk import leaves, map_space, place

GAME = "game"  # in the metadata of such an environment: its Game
TOLD = "told"  # in its infos: [4, n] float64, see Seats.told
REWARD, TERMINATED, TRUNCATED, MOVED = range(4)  # rows of it
OVER = "over"  # in infos of a game in turns: whether nobody is in it any more
RETURNS = "returns"  # in infos of a game in turns as one begins: [n] float64 of the one before
SEEN: Any = object()  # in place of an observation: what the agent was shown last
MAX_EMPTY = 100  # games, one behind the other, that end in their reset


@dataclass(frozen=True)
class Game:
    """What the agents of a game are."""

    agents: tuple[str, ...]  # names, in the order of columns
    observation_space: gymnasium.Space[Any]  # of each column
    action_space: gymnasium.Space[Any]
    in_turns: bool  # one agent moves at a time (AEC)
    own: tuple[Spaces, ...] = ()  # of each agent, where they differ, and columns have joined ones


def is_in_turns(env: Any) -> bool:
    """Whether its agents move one at a time."""
    return hasattr(env, "agent_iter") or hasattr(env, "last")


class AgentRows:
    """What the agents of one game were told last, as rows that engines carry.

    Args:
        env: with PettingZoo's methods. name: for messages.
        checked_steps: how many first steps of the game are compared with the spaces.

    Raises:
        ConfigError: agents' spaces can't be joined, or it isn't said which agents there are.
    """

    def __init__(self, env: Any, name: str, checked_steps: int) -> None:
        self.ids = list(getattr(env, "possible_agents", ()))
        if not self.ids:
            raise ConfigError(
                f"{name} doesn't say which agents there may be: give it possible_agents, each of "
                "which is a column of the rollouts"
            )
        names = list(map(str, self.ids))
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"{name} has {', '.join(sorted(twice))} twice among its possible_agents, each of "
                "which is a column of its own: name each once"
            )
        self.name = name
        self.game = game = self._game(env)
        count, space = len(self.ids), game.observation_space
        self.obs = create_empty_array(space, count, np.zeros)
        map_space(lambda leaf, rows: rows.__setitem__(slice(None), _legal(leaf)), space, self.obs)
        self.told = np.zeros((4, count))  # reward, terminated, truncated, and who has moved
        self._masks: np.ndarray | None = None
        self._infos: list[dict[str, Any]] = [{} for _ in self.ids]  # except masks
        self._left = checked_steps
        spaces = game.own or [(space, game.action_space)] * count
        self._contracts = [
            Contract(SimpleNamespace(observation_space=own), f"{name}'s {agent}")
            for agent, (own, _) in zip(game.agents, spaces, strict=True)
        ]
        self._exact = [exact(acted) for _, acted in spaces]
        self._acts_alike = [acted == game.action_space for _, acted in spaces]
        for i in range(len(game.own)):
            self._mask(i, {})

    def _game(self, env: Any) -> Game:
        """With the spaces of every agent, or joined ones where they differ."""
        agents, in_turns = tuple(map(str, self.ids)), is_in_turns(env)
        each = tuple((env.observation_space(one), env.action_space(one)) for one in self.ids)
        for agent, spaces in zip(agents, each, strict=True):
            for space in spaces:
                _check_kind(space, f"{self.name}'s {agent}")
        if not any(difference(*each[0], *spaces) for spaces in each):
            return Game(agents, *each[0], in_turns)
        hint = "docs/games.md tells which can be"
        whole = unified_spaces.joined(agents, each, f"{self.name}'s agents", hint)
        return Game(agents, *whole, in_turns, each)

    @property
    def info(self) -> dict[str, Any]:
        """What engines carry beside the rows of observations."""
        info: dict[str, Any] = {TOLD: self.told.copy()}
        if self._masks is not None:
            info[MASK] = self._masks.copy()
        if any(self._infos):
            info[AGENT_INFOS] = list(self._infos)
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
            obs: or ``SEEN``, of who leaves with nothing new to see. ends: terminated, truncated.
        """
        if self._left > 0 and obs is not SEEN:
            self._contracts[i].check_step((obs, reward, *ends, info))
        self._show(i, obs, info)
        self.told[:, i] = float(np.asarray(reward).item()), *ends, True

    def leave_out(self, i: int) -> None:
        """Agent ``i`` isn't there: an end once more behind an end is an absence."""
        self.told[:, i] = 0, True, False, True

    def action(self, i: int, action: Any) -> Any:
        """What agent ``i`` does where its column does this."""
        if not self._acts_alike[i]:  # comparing Boxes takes 40 µs
            action = unified_spaces.own_action(action, self.game.own[i][1], self.game.action_space)
        convert = self._exact[i]
        return action if convert is None else convert(action)

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
        if obs is not SEEN:
            try:
                obs = unified_spaces.fitted(obs, space) if self.game.own else obs
                map_space(lambda _, rows, value: rows.__setitem__(i, value), space, self.obs, obs)
            except (ValueError, TypeError, KeyError) as error:
                raise EnvironmentFault(
                    f"{self.name}'s {self.game.agents[i]} returned an observation that isn't of "
                    f"its space: {error}"
                ) from error
        self._mask(i, info)

    def _mask(self, i: int, info: Any) -> None:
        self._infos[i] = {k: v for k, v in info.items() if k != MASK} if info else {}
        own, whole = self.game.own, self.game.action_space
        if info and MASK in info:
            self._check_mask(i, info[MASK], own[i][1] if own else whole)
        shown = unified_spaces.masked(info, own[i][1], whole) if own else info
        mask = shown.get(MASK) if shown else None
        if mask is None and self._masks is None:
            return
        if self._masks is None:
            assert isinstance(whole, Discrete)
            self._masks = np.ones((len(self.ids), int(whole.n)), np.int8)
        self._masks[i] = 1 if mask is None else mask

    def _check_mask(self, i: int, mask: Any, space: gymnasium.Space[Any]) -> None:
        whose = f"{self.name}'s {self.game.agents[i]} shows an action_mask"
        if not isinstance(space, Discrete):
            raise EnvironmentFault(
                f"{whose} in its infos, which is for Discrete actions: show it in the observation, "
                "as the part 'action_mask' of a Dict"
            )
        if np.shape(mask) != (space.n,):
            raise EnvironmentFault(
                f"{whose} of shape {np.shape(mask)} in its infos, and has {space.n} actions: show "
                "a number for each, 0 where it is forbidden"
            )


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
