"""Agents of one game and their latest observations, rewards and flags, as rows for engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector.utils import create_empty_array

from headrace.errors import ConfigError, EnvironmentFault, shown
from headrace.games.infos import AGENT_INFOS, COMPLETE, FLAGS, RETURNS, TERMINATED, TRUNCATED
from headrace.spaces import unified_spaces
from headrace.spaces.agreement import difference
from headrace.spaces.exact_actions import exact
from headrace.spaces.masks import MASK
from headrace.spaces.unified_spaces import Spaces
from headrace.spaces.walk import leaves, map_space, place

REPEAT_LAST: Any = object()  # in place of an observation: repeat the agent's last one
MAX_EMPTY = 100  # limit of consecutive games that end in their reset


@dataclass(frozen=True)
class GameSpec:
    """Agents and spaces of a game."""

    agents: tuple[str, ...]  # names, in column order
    observation_space: gymnasium.Space[Any]  # spaces of each column
    action_space: gymnasium.Space[Any]
    in_turns: bool  # one agent moves at a time (AEC)
    own: tuple[Spaces, ...] = ()  # spaces per agent if they differ and columns have unified spaces


class ResultChecks(Protocol):
    """Checks of what a game returns for one agent."""

    def check_reset(self, returned: Any) -> None:
        """Raise EnvironmentFault if the first observation or info of an episode is invalid."""

    def check_step(self, returned: Any) -> None:
        """Raise EnvironmentFault if the result of a step is invalid."""


ChecksFactory: TypeAlias = Callable[[Any, str], ResultChecks]


class AgentRows:
    """Latest observation, reward and flags of each agent of one game, as rows for engines.

    Args:
        env: has PettingZoo's methods.
        name: name of the game, for messages.
        checked_steps: number of first steps that are compared with the spaces.
        checks: makes the checks of an agent, from an object with its spaces and its name.

    Attributes:
        obs: rows of observations ``[n, ...]``.
        reward: ``[n]`` float64.
        flags: ``[4, n]`` bool, see :data:`headrace.games.infos.FLAGS`.
        returns: ``[n]`` returns of the previous game in the step in which a turn-based game begins.

    Raises:
        ConfigError: agents' spaces can't be unified, or the agents aren't declared.
    """

    def __init__(self, env: Any, name: str, checked_steps: int, checks: ChecksFactory) -> None:
        self.ids = list(getattr(env, "possible_agents", ()))
        if not self.ids:
            raise ConfigError(
                f"{name} has no possible_agents: define it, as each possible agent "
                "becomes a column of the rollouts"
            )
        names = list(map(str, self.ids))
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"{name} has {', '.join(sorted(twice))} twice in possible_agents, each of "
                "which becomes a separate column: list each agent once"
            )
        self.name = name
        self.spec = spec = self._make_spec(env)
        count, space = len(self.ids), spec.observation_space
        self.obs = create_empty_array(space, count, np.zeros)
        map_space(lambda leaf, rows: rows.__setitem__(slice(None), _legal(leaf)), space, self.obs)
        self.reward, self.flags = np.zeros(count), np.zeros((4, count), bool)
        self._terminated, self._truncated = self.flags[TERMINATED], self.flags[TRUNCATED]
        self._complete = self.flags[COMPLETE]
        self.returns: np.ndarray | None = None
        self._masks: np.ndarray | None = None
        self._infos: list[dict[str, Any]] = [{} for _ in self.ids]  # except masks
        self._left = checked_steps
        each = spec.own or [(space, spec.action_space)] * count
        self._checks = [
            checks(SimpleNamespace(observation_space=own), f"{name}'s {agent}")
            for agent, (own, _) in zip(spec.agents, each, strict=True)
        ]
        self._exact = [exact(acted) for _, acted in each]
        self._acts_alike = [acted == spec.action_space for _, acted in each]
        for i in range(len(spec.own)):
            self._mask(i, {})

    def _make_spec(self, env: Any) -> GameSpec:
        """Build the GameSpec with the spaces of every agent, unified if they differ."""
        agents = tuple(map(str, self.ids))
        in_turns = hasattr(env, "agent_iter") or hasattr(env, "last")
        each = tuple((env.observation_space(one), env.action_space(one)) for one in self.ids)
        for agent, spaces in zip(agents, each, strict=True):
            for space in spaces:
                _check_kind(space, f"{self.name}'s {agent}")
        if not any(difference(*each[0], *spaces) for spaces in each):
            return GameSpec(agents, *each[0], in_turns)
        hint = "docs/games.md lists the spaces that can be"
        unified = unified_spaces.joined(agents, each, f"{self.name}'s agents", hint)
        return GameSpec(agents, *unified, in_turns, each)

    def info(self) -> dict[str, Any]:
        """Return the info that engines carry along with the rows of observations."""
        info: dict[str, Any] = {FLAGS: self.flags}
        if self._masks is not None:
            info[MASK] = self._masks
        if self.returns is not None:
            info[RETURNS] = self.returns
        if any(self._infos):
            info[AGENT_INFOS] = list(self._infos)
        return info

    def begin(self, i: int, obs: Any, info: Any) -> None:
        """Record the first observation of an episode of agent ``i``."""
        if self._left > 0:
            self._checks[i].check_reset((obs, info))
        self._show(i, obs, info)
        self.reward[i], self._complete[i] = 0.0, True
        self._terminated[i] = self._truncated[i] = False

    def move(self, i: int, obs: Any, reward: Any, ends: tuple[bool, bool], info: Any) -> None:
        """Record the result of agent ``i``'s action.

        Args:
            obs: the next observation, or ``REPEAT_LAST`` if an agent leaves without a new one.
            ends: terminated, truncated.
        """
        if self._left > 0 and obs is not REPEAT_LAST:
            self._checks[i].check_step((obs, reward, *ends, info))
        self._show(i, obs, info)
        self.reward[i], self._complete[i] = float(np.asarray(reward).item()), True
        self._terminated[i], self._truncated[i] = ends

    def leave_out(self, i: int) -> None:
        """Mark agent ``i`` as absent: a second end right after an end means absence."""
        self.reward[i], self._complete[i] = 0.0, True
        self._terminated[i], self._truncated[i] = True, False

    def begin_step(self) -> None:
        """Mark the steps of all agents of a turn-based game as incomplete."""
        self.returns = None
        self._complete[:] = False

    def action(self, i: int, action: Any) -> Any:
        """Convert the action of column ``i`` to the agent's own action space."""
        if not self._acts_alike[i]:  # comparing Boxes takes 40 µs
            action = unified_spaces.own_action(action, self.spec.own[i][1], self.spec.action_space)
        convert = self._exact[i]
        return action if convert is None else convert(action)

    @property
    def is_checked(self) -> bool:
        """Return whether this step of the game is among the first, which are checked."""
        return self._left > 0

    def count_step(self) -> None:
        """Count a checked step of the game."""
        self._left -= 1

    def check_has_column(self, agents: Any) -> None:
        """Raise EnvironmentFault if an agent in the game has no column."""
        for agent in agents:
            if agent not in self.ids:
                raise EnvironmentFault(
                    f"{self.name} has an agent {shown(agent)} that isn't in "
                    f"possible_agents, so it has no column: add it there"
                )

    def empty(self) -> EnvironmentFault:
        """Return the error for a game that has no agents after repeated resets."""
        return EnvironmentFault(
            f"{self.name} was over after reset {MAX_EMPTY} times in a row, with no turn for "
            "any agent: make reset fill agents with some that have not ended"
        )

    def _show(self, i: int, obs: Any, info: Any) -> None:
        space = self.spec.observation_space
        if obs is not REPEAT_LAST:
            try:
                obs = unified_spaces.fitted(obs, space) if self.spec.own else obs
                map_space(lambda _, rows, value: rows.__setitem__(i, value), space, self.obs, obs)
            except (ValueError, TypeError, KeyError) as error:
                raise EnvironmentFault(
                    f"{self.name}'s {self.spec.agents[i]} returned an observation outside "
                    f"its space: {error}"
                ) from error
        self._mask(i, info)

    def _mask(self, i: int, info: Any) -> None:
        self._infos[i] = {k: v for k, v in info.items() if k != MASK} if info else {}
        own, unified = self.spec.own, self.spec.action_space
        if info and MASK in info:
            self._check_mask(i, info[MASK], own[i][1] if own else unified)
        unified_info = unified_spaces.masked(info, own[i][1], unified) if own else info
        mask = unified_info.get(MASK) if unified_info else None
        if mask is None and self._masks is None:
            return
        if self._masks is None:
            assert isinstance(unified, Discrete)
            self._masks = np.ones((len(self.ids), int(unified.n)), np.int8)
        self._masks[i] = 1 if mask is None else mask

    def _check_mask(self, i: int, mask: Any, space: gymnasium.Space[Any]) -> None:
        prefix = f"{self.name}'s {self.spec.agents[i]} returns an action_mask"
        if not isinstance(space, Discrete):
            raise EnvironmentFault(
                f"{prefix} in its infos, which needs Discrete actions: return it in the "
                "observation, "
                "as the part 'action_mask' of a Dict"
            )
        if np.shape(mask) != (space.n,):
            raise EnvironmentFault(
                f"{prefix} of shape {np.shape(mask)} in its infos, and has {space.n} actions: give "
                "a number for each, 0 for illegal actions"
            )


def _legal(leaf: Any) -> Any:
    """Return any valid value of a leaf space, for rows of agents that have never been present."""
    if isinstance(leaf, Box):
        return np.clip(np.zeros(leaf.shape), leaf.low, leaf.high)
    return leaf.start if isinstance(leaf, (Discrete, MultiDiscrete)) else 0


def _check_kind(space: gymnasium.Space[Any], whose: str) -> None:
    for path, leaf in leaves(space):
        if not isinstance(leaf, (Box, Discrete, MultiBinary, MultiDiscrete)):
            raise ConfigError(
                f"{whose} has a {type(leaf).__name__}{place(path)} in its spaces, which is not "
                "supported for agents of "
                "a game (nearest: Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
                "and Tuple of them)"
            )
