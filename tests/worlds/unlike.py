"""A game whose agents' spaces differ, parallel and turn-based."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

_NUMBERS = {"scout": 2, "wolf": 3, "pup": 3}  # the number of values that each may observe
_MOVES = 4


class Unlike:
    """Agents observe a number, one-hot, and are rewarded with 1 for naming it.

    A scout observes one of 2 values, a wolf and a pup one of 3; a pup's observation has an extra 1.
    Agents have as many actions as values, except for the wolf, which has one more and starts at 4.
    All agents are truncated at their fourth move, the scout without an observation.

    Args:
        actions: "boxes": an agent names number ``i`` by the corner of its Box of ``n`` fractions
            from 0 to ``n`` that is near ``n`` in ``i`` and 0 elsewhere. The reward is the value
            there, minus the others, over ``n``.
        mask: "obs": observations are Dicts with a mask of all actions except the wolf's last one.

    Attributes:
        given: the latest action of each agent.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    possible_agents = tuple(_NUMBERS)

    def __init__(
        self, actions: str = "choices", mask: str = "none", render_mode: str | None = None
    ) -> None:
        self._boxes, self._mask = actions == "boxes", mask
        self.render_mode, self.agents = render_mode, list[str]()
        self.given: dict[str, Any] = {}

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Return an agent's observation space."""
        seen = Box(0.0, 1.0, (_NUMBERS[agent] + (agent == "pup"),), np.float32)
        if self._mask == "none":
            return seen
        return Dict({"seen": seen, "action_mask": Box(0, 1, (self._choices(agent),), np.int8)})

    @staticmethod
    def _choices(agent: str) -> int:
        return _NUMBERS[agent] + (agent == "wolf")

    def action_space(self, agent: str) -> gymnasium.Space:
        """Return an agent's action space."""
        if self._boxes:
            count = _NUMBERS[agent]
            return Box(0.0, float(count), (count,), np.float32)
        return Discrete(self._choices(agent), start=4 * (agent == "wolf"))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Start a game."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._moves = list(self.possible_agents), 0
        return {agent: self._seen(agent) for agent in self.agents}, {}

    def _seen(self, agent: str) -> Any:
        if not hasattr(self, "_numbers"):
            self._numbers: dict[str, int] = {}
        count = _NUMBERS[agent]
        self._numbers[agent] = number = int(self._rng.integers(count))
        seen = np.append(np.eye(count), np.ones((count, 1)), 1)[number].astype(np.float32)
        seen = seen[: count + (agent == "pup")]
        if self._mask == "none":
            return seen
        mask = np.ones(self._choices(agent), np.int8)
        mask[count:] = 0
        return {"seen": seen, "action_mask": mask}

    def _reward(self, agent: str, action: Any) -> float:
        space = self.action_space(agent)
        assert space.contains(action), (agent, action)
        self.given[agent], number = action, self._numbers[agent]
        if isinstance(space, Box):
            return float((2 * action[number] - action.sum()) / len(action))
        return float(action - space.start == number)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Move all agents."""
        rewards = {agent: self._reward(agent, actions[agent]) for agent in self.agents}
        self._moves += 1
        over = self._moves == _MOVES
        obs = {agent: self._seen(agent) for agent in self.agents if agent != "scout" or not over}
        never, cut = (dict.fromkeys(self.agents, flag) for flag in (False, over))
        if over:
            self.agents = []
        return obs, rewards, never, cut, {}

    def render(self) -> np.ndarray:
        """Return an image that gets brighter with every move."""
        return np.full((32, 48, 3), min(255, 20 * self._moves), np.uint8)

    def close(self) -> None:
        """Do nothing."""


class UnlikeTurns:
    """The turn-based version: the pup moves first, then the wolf, and then the scout."""

    metadata = Unlike.metadata
    possible_agents = ("pup", "wolf", "scout")

    def __init__(self, mask: str = "none", render_mode: str | None = None) -> None:
        self._game, self.render_mode = Unlike(mask=mask), render_mode
        self.observation_space = self._game.observation_space
        self.action_space, self.render = self._game.action_space, self._game.render
        self.given = self._game.given

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start a game."""
        self._seen, _ = self._game.reset(seed)
        self.agents, self._earned = list(self.possible_agents), dict.fromkeys(self._seen, 0.0)
        self.agent_selection = self.agents[0]

    def last(self, observe: bool = True) -> tuple:
        """Return observation, reward, ends and info of the agent to move."""
        agent = self.agent_selection
        return self._seen[agent], self._earned[agent], False, self._over, {}

    @property
    def _over(self) -> bool:
        return self._game._moves == _MOVES * len(self.possible_agents)

    def step(self, action: Any) -> None:
        """Make a move, or remove an agent that has ended."""
        agent, order = self.agent_selection, self.possible_agents
        if self._over:
            self.agents.remove(agent)
        else:
            self._earned[agent] = self._game._reward(agent, action)
            self._seen[agent] = self._game._seen(agent)
            self._game._moves += 1
        self.agent_selection = order[(order.index(agent) + 1) % len(order)]

    def close(self) -> None:
        """Do nothing."""
