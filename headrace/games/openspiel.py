"""Two-player OpenSpiel games as vector environments, with ids like ``OpenSpiel/kuhn_poker-v0``.

Lanctot et al. (2019), "OpenSpiel: A Framework for Reinforcement Learning in Games". Importing this
registers the games of :data:`GAMES`. Other OpenSpiel games with terminal rewards and tensors are
``OpenSpiel/game-v0`` with ``env_kwargs={"game": "name(parameter=value)"}``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pyspiel
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import ConfigError, nearest, shown
from headrace.spaces.masks import MASK

GAMES = {
    "rock_paper_scissors": "matrix_rps",
    "kuhn_poker": "kuhn_poker",
    "leduc_poker": "leduc_poker",
    "tic_tac_toe": "tic_tac_toe",
    "connect_four": "connect_four",
}
PLAYERS = ("player_0", "player_1")
_KEPT_NODES = 100_000  # cached nodes: all of Leduc poker's, or 50 MB of Connect Four's


def load(game: str) -> Any:
    """Load a game by OpenSpiel's name, with parameters in brackets.

    Raises:
        ConfigError: the name is unknown, or the game lacks two players or observation tensors.
    """
    name = GAMES.get(game, game)
    registered = pyspiel.registered_names()
    if name.partition("(")[0] not in registered:
        raise ConfigError(f"game={shown(game)} is unknown to OpenSpiel.{nearest(name, registered)}")
    try:
        loaded = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        raise ConfigError(f"game={shown(game)} can't be loaded: {error}") from error
    kind = loaded.get_type()
    if loaded.num_players() != len(PLAYERS) or not _tensor(kind):
        raise ConfigError(
            f"game={shown(game)} has {loaded.num_players()} players"
            f"{'' if _tensor(kind) else ' and no tensors'}: a game of 2 players with tensors is "
            "needed (nearest: kuhn_poker)"
        )
    return loaded


def _tensor(kind: Any) -> str:
    """Return the tensor that players observe: the board, or the information state."""
    perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    if perfect and kind.provides_observation_tensor:
        return "observation_tensor"
    return "information_state_tensor" if kind.provides_information_state_tensor else ""


def observation_of(game: Any, state: Any, player: int) -> np.ndarray:
    """Return a player's observation of a decision node: its tensor and a one-hot of its seat.

    Returns:
        ``[n]`` float32.
    """
    tensor = getattr(state, _tensor(game.get_type()))(player)
    return np.array([*tensor, *(float(player == one) for one in range(len(PLAYERS)))], np.float32)


class _Node:
    """Cached node of a game's tree: a state and its observations."""

    def __init__(self, game: Any, state: Any, simultaneous: bool) -> None:
        self.state, self.children = state, dict[Any, _Node]()
        self.over = state.is_terminal()
        self.chance = state.is_chance_node()
        self.simultaneous = simultaneous
        if self.chance:
            self.outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            self.until = np.cumsum(probabilities)
            return
        self.returns = np.array(state.returns())
        self.obs = np.stack([observation_of(game, state, player) for player in range(len(PLAYERS))])
        self.mask = np.zeros((len(PLAYERS), game.num_distinct_actions()), np.int8)
        self.player = -1 if simultaneous or self.over else state.current_player()
        for player, row in enumerate(self.mask):
            moves = not self.over and (simultaneous or player == self.player)
            row[state.legal_actions(player) if moves else 0] = 1

    def move(self, chosen: Any) -> Any:
        """Return the child node of an action or a chance outcome."""
        state = self.state.clone()
        if isinstance(chosen, tuple):
            state.apply_actions(list(chosen))
        else:
            state.apply_action(chosen)
        return state


class SpielGames(VectorEnv):
    """Vectorised two-player games: column ``2 g + i`` is player i of game g.

    The observation is float32: the player's information state, or the board where the game has
    perfect information, and a one-hot of the seat. ``infos["action_mask"]`` ``[B, n]`` holds the
    legal actions; while it is the other player's turn the only one is 0, which is ignored. Rewards
    are the changes of the players' returns. A game ends for both players at once and restarts at
    the next step.

    Args:
        num_envs: number of columns, two per game.
        game: a key of :data:`GAMES`, or a name of OpenSpiel's.

    Raises:
        ConfigError: see :func:`load`; or ``num_envs`` isn't even.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012
    agents = PLAYERS

    def __init__(self, num_envs: int = 2, game: str = "kuhn_poker") -> None:
        if num_envs < 2 or num_envs % 2:
            raise ConfigError(f"num_envs={num_envs} must be even, two players for each game")
        self.game, self.num_envs, self.render_mode = load(game), num_envs, None
        kind = self.game.get_type()
        self._simultaneous = kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        self._kept = 0
        self._root = self._node(self.game.new_initial_state())
        self._rng = np.random.default_rng()
        first = self._begin()
        num_games, (_, size), (_, choices) = num_envs // 2, first.obs.shape, first.mask.shape
        self.single_observation_space = Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = Discrete(choices)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._nodes = [first] * num_games

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin all games; ``seed`` seeds the chance outcomes."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._nodes = [self._begin() for _ in self._nodes]
        return self._observations()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply each player's action ``[B]``; actions out of turn are ignored."""
        chosen = np.asarray(actions).reshape(-1, len(PLAYERS)).tolist()
        before, after = self._nodes, list[_Node]()
        for node, pair in zip(before, chosen, strict=True):
            if node.over:
                after.append(self._begin())
            else:
                move = tuple(pair) if node.simultaneous else pair[node.player]
                after.append(self._dealt(self._child(node, move)))
        self._nodes = after
        pairs = zip(before, after, strict=True)
        reward = np.stack([b.returns * 0.0 if a.over else b.returns - a.returns for a, b in pairs])
        over = np.repeat([node.over for node in after], len(PLAYERS))
        obs, infos = self._observations()
        return obs, reward.ravel(), over, np.zeros(self.num_envs, bool), infos

    def _observations(self) -> tuple[np.ndarray, dict[str, Any]]:
        obs = np.concatenate([node.obs for node in self._nodes])
        return obs, {MASK: np.concatenate([node.mask for node in self._nodes])}

    def _begin(self) -> _Node:
        return self._dealt(self._root)

    def _dealt(self, node: _Node) -> _Node:
        """Follow chance outcomes from a node to the next decision or terminal node."""
        while node.chance:
            at = int(np.searchsorted(node.until, self._rng.random(), "right"))
            node = self._child(node, node.outcomes[min(at, len(node.outcomes) - 1)])
        return node

    def _child(self, node: _Node, chosen: Any) -> _Node:
        child = node.children.get(chosen)
        if child is None:
            child = self._node(node.move(chosen))
            if self._kept < _KEPT_NODES:
                node.children[chosen] = child
                self._kept += 1
        return child

    def _node(self, state: Any) -> _Node:
        return _Node(self.game, state, self._simultaneous and not state.is_chance_node())


for _name, _game in GAMES.items():
    gymnasium.register(
        f"OpenSpiel/{_name}-v0",
        vector_entry_point="headrace.games.openspiel:SpielGames",
        kwargs={"game": _game},
    )
gymnasium.register("OpenSpiel/game-v0", vector_entry_point="headrace.games.openspiel:SpielGames")
