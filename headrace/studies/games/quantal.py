"""Quantal response equilibrium of a game: the exact limit of self-play with an entropy bonus.

A policy gradient with an entropy bonus in every state has its fixed point where each player's
probabilities are proportional to ``exp(Q / bonus)``. ``Q`` are the returns of its actions against
the other player. Magnetic mirror descent converges to this point in the whole game tree at once
(Sokota et al. 2023, "A Unified Approach to Reinforcement Learning, Quantal Response Equilibria, and
Two-Player Zero-Sum Games").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from open_spiel.python import policy as spiel

from headrace.studies.games.nash import in_turns


def quantal(game: Any, bonus: float, rounds: int = 1000, rate: float = 0.05) -> spiel.TabularPolicy:
    """Compute the equilibrium policy of both players.

    Args:
        game: two-player zero-sum OpenSpiel game; its tree is held in memory.
        bonus: weight of the entropy, in units of returns.
        rate: step size of the descent. Too large a rate cycles, sooner with a smaller bonus.
    """
    table = spiel.TabularPolicy(in_turns(game))
    tree, legal = _Tree(table), np.asarray(table.legal_actions_mask, bool)
    scores = np.zeros(legal.shape)
    for _ in range(rounds):
        scores = (scores + rate * tree.values(_chances(scores, legal))) / (1.0 + rate * bonus)
    table.action_probability_array[:] = _chances(scores, legal)
    return table


def _chances(scores: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Return the softmax over legal actions, ``[S, A]``."""
    powers = np.exp(scores - scores.max(1, keepdims=True, where=legal, initial=-np.inf)) * legal
    return np.asarray(powers / powers.sum(1, keepdims=True))


class _Tree:
    """Game tree as arrays: M terminal histories with at most D moves each.

    Args:
        table: policy table that numbers the states.
    """

    def __init__(self, table: spiel.TabularPolicy) -> None:
        self._table = table
        self._histories: list[tuple[float, float, list[tuple[int, int, int]]]] = []
        self._walk(table.game.new_initial_state(), 1.0, [])
        chances, returns, ways = zip(*self._histories, strict=True)
        self._chance, self._return = np.array(chances), np.array(returns)  # [M], of player 0
        depth = max(map(len, ways))
        padded = [[*way, *[(0, 0, -1)] * (depth - len(way))] for way in ways]
        self._state, self._action, self._player = np.moveaxis(np.array(padded), 2, 0)  # [M, D]

    def _walk(self, state: Any, chance: float, way: list[tuple[int, int, int]]) -> None:
        if state.is_terminal():
            self._histories.append((chance, state.returns()[0], way))
        elif state.is_chance_node():
            for action, share in state.chance_outcomes():
                self._walk(state.child(action), chance * share, way)
        else:
            player = state.current_player()
            at = self._table.state_lookup[state.information_state_string(player)]
            for action in state.legal_actions():
                self._walk(state.child(action), chance, [*way, (at, action, player)])

    def values(self, chances: np.ndarray) -> np.ndarray:
        """Return the values ``[S, A]`` of each action if both players follow ``chances``.

        Each history is weighted by the probability that chance and the other player reach it.
        """
        total, weight = np.zeros(chances.shape), np.zeros(chances.shape)
        of = chances[self._state, self._action]
        for player, sign in enumerate((1.0, -1.0)):
            player_chances = np.where(self._player == player, of, 1.0)
            others = np.where(self._player == 1 - player, of, 1.0).prod(1) * self._chance
            behind = np.ones(len(player_chances))  # its own moves after this one
            for d in reversed(range(player_chances.shape[1])):
                here = self._player[:, d] == player
                at = self._state[here, d], self._action[here, d]
                likely = (others * behind)[here]
                np.add.at(total, at, sign * likely * self._return[here])
                np.add.at(weight, at, likely)
                behind = behind * player_chances[:, d]
        return total / np.maximum(weight, 1e-300)
