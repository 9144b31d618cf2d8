"""Games without any pattern: agents join, die, are truncated and vanish at random.

Events depend only on the game's number, and an action only adds to the agent's reward. So a game
can be replayed and compared with the delivered steps (:func:`ledger`). An agent observes float32
``[seed, agent, episode, step, time]``: each agent counts its episodes, from 0 after a seeded
reset, and their steps; ``time`` is the number of steps or moves of the game.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

_MAX_ID = 2**23
_SEEN, _CHOICES = Box(-1.0, 2.0**24, (5,), np.float32), Discrete(3)
NAMES = ("ada", "bob", "cleo", "dan")
_STAYS, _DIES, _IS_CUT, _VANISHES, _LEAVES_UNSEEN = range(5)  # an agent after a step
_CHANCES = (0.78, 0.08, 0.06, 0.04, 0.04)


class Restless:
    """ParallelEnv in which all agents move at once.

    After each step an agent stays, dies, is truncated, vanishes from ``agents`` without a flag, or
    is truncated without a last observation. Absent agents may join. Rewards and flags are also
    given to absent agents, and belong to no step. Some games are over at their reset.
    """

    metadata = {"render_modes": []}  # noqa: RUF012
    possible_agents = list(NAMES)  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._seed, self._games, self._episodes = 0, -1, dict.fromkeys(NAMES, -1)

    def observation_space(self, agent: str) -> Box:
        """Return an agent's observation space."""
        return _SEEN

    def action_space(self, agent: str) -> Discrete:
        """Return an agent's action space."""
        return _CHOICES

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Start a game, with a seed the first one."""
        if seed is not None:
            self._seed, self._games = seed % _MAX_ID, -1
            self._episodes = dict.fromkeys(NAMES, -1)
        self._games += 1
        self._rng = np.random.default_rng((self._seed, self._games))
        self._time, self._steps = 0, dict.fromkeys(NAMES, 0)
        self.agents = []
        empty = self._games % 7 == 3
        self._come([n for n in NAMES if self._rng.random() < 0.7 and not empty])
        return self._shown(self.agents), {}

    def _come(self, who: list[str]) -> None:
        for name in who:
            self._episodes[name] += 1
            self._steps[name] = 0
        self.agents = [name for name in NAMES if name in (*self.agents, *who)]

    def _shown(self, who: list[str]) -> dict[str, np.ndarray]:
        return {name: self._look(name) for name in who}

    def _look(self, name: str) -> np.ndarray:
        number, own = NAMES.index(name), (self._episodes[name], self._steps[name])
        return np.array([self._seed, number, *own, self._time], np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        """Step all present agents."""
        there, rng = list(self.agents), self._rng
        assert sorted(actions) == sorted(there)
        self._time += 1
        rewards = {name: float(rng.integers(1, 1000)) for name in NAMES}
        fates = dict.fromkeys(NAMES, _DIES) | {n: rng.choice(5, p=_CHANCES) for n in there}
        if self._time > 25:
            fates = {n: fates[n] or rng.integers(1, 5) for n in NAMES}  # no agent stays
        for name in there:
            rewards[name] += 0.25 * actions[name]
            self._steps[name] += 1
        obs = self._shown([n for n in there if fates[n] < _VANISHES])
        self.agents = [n for n in there if fates[n] == _STAYS]
        came = [n for n in NAMES if n not in there and self.agents and rng.random() < 0.25]
        self._come(came)
        terminated = {n: bool(fates[n] == _DIES) and n not in came for n in NAMES}
        truncated = {n: bool(fates[n] in (_IS_CUT, _LEAVES_UNSEEN)) for n in NAMES}
        return obs | self._shown(came), rewards, terminated, truncated, {}

    def close(self) -> None:
        """Do nothing."""


class RestlessTurns:
    """AECEnv in which a random agent moves.

    Every move rewards all agents, including those that haven't moved. After it some die or are
    truncated and learn it at their turn. Some are removed from ``agents`` with or without a flag
    and without a turn. Some come back.
    """

    metadata = {"render_modes": []}  # noqa: RUF012
    possible_agents = list(NAMES)  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._seed, self._games, self._episodes = 0, -1, dict.fromkeys(NAMES, -1)

    observation_space, action_space = Restless.observation_space, Restless.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start a game, with a seed the first one."""
        if seed is not None:
            self._seed, self._games = seed % _MAX_ID, -1
            self._episodes = dict.fromkeys(NAMES, -1)
        self._games += 1
        self._rng = np.random.default_rng((self._seed, self._games))
        self._time, self._steps = 0, dict.fromkeys(NAMES, 0)
        self._cumulative_rewards = dict.fromkeys(NAMES, 0.0)
        self.terminations, self.truncations = dict.fromkeys(NAMES, False), {}
        self.agents, self._moved = [], set[str]()
        self._come([name for name in NAMES if self._rng.random() < 0.8 and self._games % 7 != 3])
        self._select()

    def _come(self, who: list[str]) -> None:
        for name in who:
            self._steps[name] = 0
            self._cumulative_rewards[name] = 0.0
            self.terminations[name] = self.truncations[name] = False
            self._moved.discard(name)
        self.agents += who

    def _select(self) -> None:
        dead = [n for n in self.agents if self.terminations[n] or self.truncations[n]]
        if self.agents:
            self.agent_selection = dead[0] if dead else str(self._rng.choice(self.agents))

    def last(self, observe: bool = True) -> Any:
        """Return observation, reward, ends and info of the agent to move."""
        name = self.agent_selection
        episode = self._episodes[name] + (name not in self._moved)
        own = NAMES.index(name), episode, self._steps[name]
        obs = np.array([self._seed, *own, self._time], np.float32)
        flags = self.terminations[name], self.truncations[name]
        return obs, self._cumulative_rewards[name], *flags, {}

    def step(self, action: int | None) -> None:
        """Make a move, or remove an agent that has ended."""
        name, rng = self.agent_selection, self._rng
        if self.terminations[name] or self.truncations[name]:
            assert action is None
            self.agents.remove(name)
        else:
            if name not in self._moved:
                self._episodes[name] += 1
                self._moved.add(name)
            self._cumulative_rewards[name] = 0.25 * int(action)
            self._steps[name] += 1
            self._time += 1
            for one in self.agents:
                self._cumulative_rewards[one] += float(rng.integers(1, 1000))
            away = [one for one in NAMES if one not in self.agents]
            self._end(0.06 if self._time < 25 else 1.0)
            self._come([one for one in away if self.agents and rng.random() < 0.1])
        self._select()

    def _end(self, chance: float) -> None:
        rng = self._rng
        for one in list(self.agents):
            if rng.random() < chance:
                fate = rng.integers(5)
                self.terminations[one] = bool(fate in (0, 2))
                self.truncations[one] = bool(fate in (1, 3))
                if fate >= 2:
                    self.agents.remove(one)

    def close(self) -> None:
        """Do nothing."""


class RestlessVector(VectorEnv):
    """Vector version of :class:`Restless` with custom columns, as docs/games.md describes."""

    agents = NAMES
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self._games = num_envs, [Restless() for _ in range(num_envs // len(NAMES))]
        self.single_observation_space, self.single_action_space = _SEEN, _CHOICES
        self.observation_space = batch_space(_SEEN, num_envs)
        self.action_space = batch_space(_CHOICES, num_envs)
        self._obs = np.zeros((num_envs, 5), np.float32)
        self._gone = np.ones(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start all games."""
        self._gone[:] = True
        for g in range(len(self._games)):
            self._begin(g, None if seed is None else seed + g)
        return self._obs.copy(), {"absent": self._gone.copy()}

    def _begin(self, g: int, seed: int | None) -> None:
        for name, seen in self._games[g].reset(seed)[0].items():
            self._obs[g * len(NAMES) + NAMES.index(name)] = seen
            self._gone[g * len(NAMES) + NAMES.index(name)] = False

    def step(self, actions: Any) -> Any:
        """Step every game; absent agents end at every step."""
        reward, truncated = np.full(self.num_envs, 7.0), np.zeros(self.num_envs, bool)
        for g, game in enumerate(self._games):
            first = g * len(NAMES)
            gone = self._gone[first : first + len(NAMES)]
            if gone.all():
                self._begin(g, None)
                continue
            given = {n: int(actions[first + i]) for i, n in enumerate(NAMES) if not gone[i]}
            obs, paid, terminated, _, _ = game.step(given)
            for i, name in enumerate(NAMES):
                if name in obs:
                    self._obs[first + i] = obs[name]
                if not gone[i]:
                    reward[first + i] = paid[name]
                    gone[i] = name not in game.agents
                    truncated[first + i] = gone[i] and not terminated[name]
                elif name in game.agents:
                    gone[i] = False
        return self._obs.copy(), reward, self._gone & ~truncated, truncated, {}


class Entry(NamedTuple):
    """A step of an agent: observation, reward and next observation."""

    before: tuple
    reward: float
    ends: tuple[bool, bool]
    after: tuple


def ledger(
    turns: bool, seed: int, games: int, action: Callable[[tuple], int]
) -> list[list[list[Entry]]]:
    """Return the steps of each agent in the first games, by a literal loop over PettingZoo's API.

    Args:
        action: returns an agent's action for an observation.
    """
    env, found = (RestlessTurns if turns else Restless)(), list[list[list[Entry]]]()
    for game in range(games):
        shown = env.reset(seed if game == 0 else None)
        found.append([[] for _ in NAMES])
        play = _in_turns if turns else _at_once
        play(env, shown, action, found[-1])
    return found


def _key(obs: np.ndarray) -> tuple:
    return tuple(obs.astype(int).tolist())


def _at_once(env: Any, shown: Any, action: Any, found: list[list[Entry]]) -> None:
    sees = {name: _key(obs) for name, obs in shown[0].items()}
    while env.agents:
        chosen = {name: action(sees[name]) for name in env.agents}
        obs, rewards, terminated, truncated, _ = env.step(chosen)
        for name in chosen:
            after = _key(obs[name]) if name in obs else sees[name]
            ends = terminated[name], truncated[name] or not (terminated[name] or name in env.agents)
            found[NAMES.index(name)].append(Entry(sees[name], rewards[name], ends, after))
        sees = {name: _key(obs[name]) for name in env.agents}


def _in_turns(env: Any, shown: Any, action: Any, found: list[list[Entry]]) -> None:
    sees: dict[str, tuple] = {}  # agents with a previous move
    while env.agents:
        name = env.agent_selection
        obs, reward, *ends, _ = env.last()
        if name in sees:
            entry = Entry(sees.pop(name), reward, tuple(ends), _key(obs))
            found[NAMES.index(name)].append(entry)
        if any(ends):
            env.step(None)
        else:
            sees[name] = _key(obs)
            env.step(action(sees[name]))
        for gone in [one for one in sees if one not in env.agents]:
            flags = env.terminations[gone], not env.terminations[gone]
            entry = Entry(sees[gone], env._cumulative_rewards[gone], flags, sees[gone])
            found[NAMES.index(gone)].append(entry)
            del sees[gone]
