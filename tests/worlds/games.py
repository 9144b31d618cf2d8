"""Multi-agent games whose observations identify their agent and step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from worlds.counting import counting_length, counting_truncates

_NO_ACTION, _MAX_ID = -1, 2**23
_LATE, _AWAY = 2, 2  # game steps until a late or returning agent joins


def game_reward(agent: Any, episode: Any, step: Any, action: Any) -> Any:
    """Return the reward of agent ``agent`` for ``action`` in ``step``, exact in float32."""
    return 10_000.0 * agent + 100.0 * episode + step + 0.25 * action


class CountingGame:
    """ParallelEnv whose agents die, come back, join late and are truncated.

    The observation of an agent is float32 ``[game, agent, episode, step, last action]``: ``game``
    is the last reset's seed (0 without), and each agent counts its episodes from 0 after a
    seeded reset and their steps from 0. Lengths and ends are those of ``CountingEnv`` for the
    number ``game + agent``. In every fourth game, different for each agent, an agent joins 2 steps
    late. Agents that end an even episode come back 2 steps later, unless the game has ended, which
    happens when no agent is left.

    Args:
        num_agents: n. episode_length: steps of the shortest episode. mask: "info" or "obs": with a
            mask that allows only the actions ``(episode + step) % 3`` and the next one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        num_agents: int = 3,
        episode_length: int = 3,
        mask: str = "none",
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.render_mode, self._length, self._mask = render_mode, episode_length, mask
        self._seed, self._games, self._episodes = 0, -1, np.full(num_agents, -1)

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Return an agent's observation space."""
        seen = Box(-1.0, 2.0**24, (5,), np.float32)
        if self._mask != "obs":
            return seen
        mask = Box(0, 1, (3,), np.int8)
        return gymnasium.spaces.Dict({"observation": seen, "action_mask": mask})

    def action_space(self, agent: str) -> gymnasium.Space:
        """Return an agent's action space."""
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Start a game, with a seed the first one."""
        if seed is not None:
            self._seed, self._games = seed % _MAX_ID, -1
            self._episodes[:] = -1
        self._games += 1
        self._steps = 0
        count = len(self.possible_agents)
        self._age, self._last = np.zeros(count, int), np.full(count, _NO_ACTION)
        late = [(self._games + i) % 4 == 3 for i in range(count)]
        self._comes = {i: _LATE for i in range(count) if late[i]}  # agent: at which game step
        self._here = [i for i in range(count) if not late[i]]
        self._episodes[self._here] += 1
        return self._shown(self._here)

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        """Count one step of each present agent."""
        acted = [self.possible_agents[i] for i in self._here]
        assert set(actions) == set(acted), (actions, acted)
        self._steps += 1
        before, rewards, ends = self._here, {}, ({}, {})
        for i in before:
            name, episode = self.possible_agents[i], self._episodes[i]
            self._last[i] = actions[name]
            rewards[name] = game_reward(i, episode, self._age[i], actions[name])
            self._age[i] += 1
            number = self._seed + i
            over = self._age[i] >= counting_length(number, episode, self._length)
            cut = counting_truncates(number, episode)
            ends[0][name], ends[1][name] = bool(over and not cut), bool(over and cut)
        gone = [i for i in before if any(flags[self.possible_agents[i]] for flags in ends)]
        self._comes |= {i: self._steps + _AWAY for i in gone if self._episodes[i] % 2 == 0}
        came = [i for i, when in self._comes.items() if when == self._steps]
        obs, infos = self._shown(before)
        self._here = sorted({*before, *came} - set(gone))
        self._age[came], self._last[came] = 0, _NO_ACTION
        self._episodes[came] += 1
        new, more = self._shown(came)
        return obs | new, rewards, *ends, infos | more

    def _shown(self, who: list[int]) -> tuple[dict, dict]:
        self.agents = [self.possible_agents[i] for i in self._here]
        obs, infos = {}, {}
        for i in who:
            name, count = self.possible_agents[i], (self._episodes[i], self._age[i])
            obs[name] = np.array([self._seed, i, *count, self._last[i]], np.float32)
            mask = np.zeros(3, np.int8)
            mask[[sum(count) % 3, (sum(count) + 1) % 3]] = 1
            infos[name] = {"action_mask": mask} if self._mask == "info" else {}
            if self._mask == "obs":
                obs[name] = {"observation": obs[name], "action_mask": mask}
        return obs, infos

    def render(self) -> np.ndarray:
        """Return an image that gets brighter with every step."""
        return np.full((32, 48, 3), min(255, 20 * self._steps), np.uint8)

    def close(self) -> None:
        """Do nothing."""


class CountingTurns:
    """AECEnv whose agents move in irregular order, some twice in a row.

    The observation is float32 ``[game, agent, episode, step, last action, move]``: episodes are
    games here, and ``move`` is the number of moves in this game so far. Move ``k`` rewards every
    agent ``i`` with ``3 * k + i + 1``, and the moving agent with a quarter of its action in
    addition. Agent 0 dies at its ``lives(game)``-th move; all die with move ``moves(game) - 1``.

    Args:
        num_agents: n. mask: "info" or "obs", as in :class:`CountingGame`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self, num_agents: int = 3, mask: str = "none", render_mode: str | None = None
    ) -> None:
        self.possible_agents = list(range(num_agents))
        self.agents: list[int] = []
        self.render_mode, self._mask = render_mode, mask
        self._seed, self._game, self._moves = 0, -1, 0

    @staticmethod
    def lives(game: int) -> int:
        """Return the moves of agent 0 in a game."""
        return 2 + game % 2

    @staticmethod
    def moves(game: int) -> int:
        """Return the moves of a whole game."""
        return 9 + game % 4

    @staticmethod
    def terminates(agent: int, game: int) -> bool:
        """Return whether the agent's episode terminates; otherwise it is truncated."""
        return (agent + game) % 3 > 0

    def observation_space(self, agent: int) -> gymnasium.Space:
        """Return an agent's observation space."""
        seen = Box(-1.0, 2.0**24, (6,), np.float32)
        if self._mask != "obs":
            return seen
        mask = Box(0, 1, (3,), np.int8)
        return gymnasium.spaces.Dict({"observation": seen, "action_mask": mask})

    def action_space(self, agent: int) -> gymnasium.Space:
        """Return an agent's action space."""
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start a game, with a seed the first one."""
        self._game += 1
        if seed is not None:
            self._seed, self._game = seed % _MAX_ID, 0
        self._moves, self.agents = 0, list(self.possible_agents)
        zeros = dict.fromkeys(self.agents, 0)
        self.rewards, self._sums = {**zeros}, {**zeros}
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._age, self._last = {**zeros}, dict.fromkeys(self.agents, _NO_ACTION)
        self._select()

    def _select(self) -> None:
        dead = [i for i in self.agents if self.terminations[i] or self.truncations[i]]
        k, count = self._moves, len(self.agents)
        if dead:
            self.agent_selection = dead[0]
        elif k < len(self.possible_agents) == count:
            self.agent_selection = (k + self._game) % count
        elif self.agents:
            self.agent_selection = self.agents[(k * k + self._game // 2) % count]

    def _mask_of(self, agent: int) -> np.ndarray:
        mask = np.zeros(3, np.int8)
        mask[[(self._game + self._age[agent]) % 3, (self._game + self._age[agent] + 1) % 3]] = 1
        return mask

    def observe(self, agent: int) -> Any:
        """Return an agent's current observation."""
        labels = self._seed, agent, self._game, self._age[agent], self._last[agent], self._moves
        seen = np.array(labels, np.float32)
        return (
            {"observation": seen, "action_mask": self._mask_of(agent)}
            if (self._mask == "obs")
            else seen
        )

    def last(self, observe: bool = True) -> tuple:
        """Return observation, reward, ends and info of the agent to move."""
        i = self.agent_selection
        info = {"action_mask": self._mask_of(i)} if self._mask == "info" else {}
        flags = self.terminations[i], self.truncations[i]
        return self.observe(i), self._sums[i], *flags, info

    def step(self, action: int | None) -> None:
        """Make a move, or remove an agent that has ended."""
        i = self.agent_selection
        if self.terminations[i] or self.truncations[i]:
            assert action is None
            self.agents.remove(i)
        else:
            self._sums[i], self._last[i] = 0, int(action)
            self._age[i] += 1
            for j in self.agents:
                self._sums[j] += 3 * self._moves + j + 1 + 0.25 * action * (i == j)
            self._moves += 1
            over = self._moves == self.moves(self._game)
            dies = i == 0 and self._age[0] == self.lives(self._game)
            for j in self.agents if over else [0] if dies else []:
                flags = self.terminations if self.terminates(j, self._game) else self.truncations
                flags[j] = True
        self._select()

    def render(self) -> np.ndarray:
        """Return an image that gets brighter with every move."""
        return np.full((32, 48, 3), min(255, 20 * self._moves), np.uint8)

    def close(self) -> None:
        """Do nothing."""


class Matching:
    """A game in which both agents observe a number and are rewarded for naming it."""

    possible_agents = ["left", "right"]  # noqa: RUF012
    metadata = {}  # noqa: RUF012

    def __init__(self, length: int = 8) -> None:
        self.agents, self._length = [], length

    def observation_space(self, agent):
        return Box(0, 1, (3,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        return self._shown(), {}

    def _shown(self):
        self._number = {a: int(self._rng.integers(3)) for a in self.possible_agents}
        return {a: np.eye(3, dtype=np.float32)[n] for a, n in self._number.items()}

    def step(self, actions):
        rewards = {a: float(actions[a] == self._number[a]) for a in self.agents}
        self._steps += 1
        over = dict.fromkeys(self.agents, self._steps == self._length)
        never = dict.fromkeys(self.agents, False)
        obs = self._shown()
        if self._steps == self._length:
            self.agents = []
        return obs, rewards, over, never, {}

    def close(self):
        pass


class Apart(Matching):
    """A game in which both observe the same, and are rewarded for different actions."""

    def action_space(self, agent):
        return Discrete(2)

    def _shown(self):
        self._number = dict.fromkeys(self.possible_agents, 0)
        return {a: np.zeros(3, np.float32) for a in self.possible_agents}

    def step(self, actions):
        differ = float(len(set(actions.values())) == 2)
        obs, _, *others = super().step(actions)
        return obs, dict.fromkeys(self.possible_agents, differ), *others
