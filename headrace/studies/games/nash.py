"""Exact distance of policies from a Nash equilibrium of an OpenSpiel game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyspiel
import torch
from open_spiel.python import policy as spiel
from open_spiel.python.algorithms import exploitability, policy_aggregator

from headrace.games.openspiel import observation_of
from headrace.nn.policy import Policy


def tabular(policy: Policy, game: Any) -> spiel.TabularPolicy:
    """Tabulate the action probabilities of a memoryless policy in every information state.

    Args:
        policy: policy trained on :class:`headrace.games.openspiel.SpielGames` of this game, whose
            observation contains the complete information state.
        game: OpenSpiel game. A simultaneous game is converted to turns, in which the second player
            doesn't see the first player's move.

    Raises:
        ValueError: the policy is recurrent.
    """
    if policy.core is not None:
        raise ValueError("a recurrent policy's actions depend on more than the information state")
    table = spiel.TabularPolicy(in_turns(game))
    rows = [_observation(game, state) for state in table.states]
    inputs = policy.inputs.compose(
        np.stack(rows), table.legal_actions_mask, None, None, np.ones(len(rows), bool)
    )
    with torch.inference_mode():
        inputs = {name: torch.as_tensor(x) for name, x in inputs.items()}
        params, _ = policy.act(inputs, torch.ones(len(rows), dtype=torch.bool), ())
        chances = torch.softmax(params.double(), -1).numpy()
    chances = np.where(table.legal_actions_mask, chances, 0.0)
    table.action_probability_array[:] = chances / chances.sum(1, keepdims=True)
    return table


def in_turns(game: Any) -> Any:
    """Return the game, or the turn-based form of a simultaneous game."""
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL:
        return game
    return pyspiel.convert_to_turn_based(game)


def _observation(game: Any, state: Any) -> np.ndarray:
    """Return the current player's observation; that of the start in a simultaneous game."""
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL:
        return observation_of(game, state, state.current_player())
    return observation_of(game, game.new_initial_state(), state.current_player())


def average(policies: Sequence[spiel.TabularPolicy], game: Any) -> Any:
    """Return the policy equivalent to sampling one of these for each game.

    In each information state a policy is weighted by the probability that the player's own actions
    reach it (OpenSpiel's PolicyAggregator).
    """
    game = in_turns(game)
    players = range(game.num_players())
    pool = [list(policies) for _ in players]
    weights = [[1.0 / len(policies)] * len(policies) for _ in players]
    return policy_aggregator.PolicyAggregator(game).aggregate(players, pool, weights)


def nash_conv(policy: Any, game: Any) -> float:
    """Return the total gain of both players from best responses; 0 at an equilibrium.

    Lanctot et al. (2017), "A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning",
    section 4.
    """
    return float(exploitability.nash_conv(in_turns(game), policy))
