"""Evaluates policies in perfect-information games against minimax and one-ply players."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.games.openspiel import observation_of
from headrace.nn.policy import Policy

Player = Callable[[Any, np.random.Generator], int]  # legal move in an OpenSpiel state


def best_moves(state: Any, solved: dict[str, tuple[float, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return all optimal moves of a state by minimax over the rest of the game.

    Args:
        solved: cache of values for the first player and best moves, by position.
    """
    return _solved(state, solved)[1]


def _solved(
    state: Any, solved: dict[str, tuple[float, tuple[int, ...]]]
) -> tuple[float, tuple[int, ...]]:
    if state.is_terminal():
        return float(state.returns()[0]), ()
    key = f"{state.current_player()}{state}"
    if key not in solved:
        sign = 1.0 if state.current_player() == 0 else -1.0
        moves = state.legal_actions()
        values = [_solved(state.child(move), solved)[0] for move in moves]
        best = max(sign * value for value in values)
        equal = [m for m, value in zip(moves, values, strict=True) if sign * value == best]
        solved[key] = sign * best, tuple(equal)
    return solved[key]


def one_ahead(state: Any, rng: np.random.Generator) -> int:
    """Return a winning move, else one that blocks a win of the opponent, else any move."""
    moves, player = state.legal_actions(), state.current_player()
    for move in moves:
        behind = state.child(move)
        if behind.is_terminal() and behind.returns()[player] > 0:
            return int(move)
    for move in moves:
        elsewhere = state.child(next((m for m in moves if m != move), move))
        if move in elsewhere.legal_actions():
            behind = elsewhere.child(move)
            if behind.is_terminal() and behind.returns()[player] < 0:
                return int(move)
    return int(rng.choice(moves))


def any_move(state: Any, rng: np.random.Generator) -> int:
    """Return a uniformly random move."""
    return int(rng.choice(state.legal_actions()))


def minimax() -> Player:
    """Return a player that samples uniformly from its optimal moves."""
    solved: dict[str, tuple[float, tuple[int, ...]]] = {}
    return lambda state, rng: int(rng.choice(best_moves(state, solved)))


def against(
    policy: Policy, game: Any, seat: int, other: Player, episodes: int, seed: int
) -> Counter[str]:
    """Count the games that a policy's most likely moves win, draw and lose against a player.

    Args:
        game: OpenSpiel game of perfect information.
        seat: seat of the policy; 0 moves first.
    """
    rng = np.random.default_rng(seed)
    chosen: dict[str, int] = {}
    results: Counter[str] = Counter(won=0, drawn=0, lost=0)
    for _ in range(episodes):
        state = game.new_initial_state()
        while not state.is_terminal():
            player, key = state.current_player(), str(state)
            if player != seat:
                state.apply_action(other(state, rng))
                continue
            if key not in chosen:
                chosen[key] = _likeliest(policy, game, state, player)
            state.apply_action(chosen[key])
        value = state.returns()[seat]
        results["won" if value > 0 else "lost" if value < 0 else "drawn"] += 1
    return results


def _likeliest(policy: Policy, game: Any, state: Any, player: int) -> int:
    mask = np.array([state.legal_actions_mask(player)])
    obs = observation_of(game, state, player)[None]
    inputs = policy.inputs.compose(obs, mask, None, None, np.ones(1, bool))
    with torch.inference_mode():
        inputs = {name: torch.as_tensor(x) for name, x in inputs.items()}
        params, _ = policy.act(inputs, torch.ones(1, dtype=torch.bool), policy.initial_core(1))
        return int(policy.distribution.mode(params)[0])
