"""Baseline players of SSAConjunction: random, round-robin and greedy.

A player maps observations ``[B, 8 + 8 n]`` and masks ``[B, n + 3]`` to actions ``[B]``. It reads
probabilities off the observation, which contains the true ones (to float32).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace_ssa import conjunction as game
from headrace_ssa.outlook import FEATURES, GLOBALS

Player = Callable[[np.ndarray, np.ndarray], np.ndarray]


def random_player(seed: int = 0) -> Player:
    """Return a player that samples uniformly from the allowed actions."""
    rng = np.random.default_rng(seed)
    return lambda _, mask: np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def round_robin() -> Player:
    """Return a player that burns like :func:`greedy` and otherwise observes objects in turn.

    The next object is the visible one with the most uncertain position: it was observed longest
    ago, or never.
    """
    return lambda obs, mask: _play(_objects(obs)[..., 5], obs, mask)


def greedy() -> Player:
    """Return a player that maximises the expected reward as if this were the last decision.

    The value of a burn is the change of the expected rewards of all later closest approaches, less
    its costs. This is exact for the first burn of an episode. The observation doesn't show the
    collisions that earlier burns avoided, so the player treats them as if they had never been
    predicted. Without a burn of positive value it observes the visible object of the greatest risk.
    """
    return lambda obs, mask: _play(_risks(obs)[0], obs, mask)


def burn_values(obs: np.ndarray) -> np.ndarray:
    """Return the expected gain ``[B, 2]`` of a last burn forwards, and of one backwards."""
    now, *after = _risks(obs)
    change = now - np.stack(after)
    saved = (game.AVOIDED - game.COLLISION) * np.maximum(change, 0).sum(axis=2)
    saved -= game.COLLISION * np.minimum(change, 0).sum(axis=2)
    costs = game.BURN + game.FALSE_ALARM * (1.0 - now.max(axis=1))
    return (saved + costs).T


def _play(urgency: np.ndarray, obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Burn if the value is positive, else observe the most urgent visible object, else wait."""
    urgency = np.where(mask[:, 1:-2], urgency, -1.0)
    other = np.where(urgency.max(axis=1) >= 0, 1 + urgency.argmax(axis=1), 0)
    values = np.where(mask[:, -2:], burn_values(obs), -np.inf)
    first = mask.shape[1] - 2
    return np.where(values.max(axis=1) > 0, first + values.argmax(axis=1), other)


def _objects(obs: np.ndarray) -> np.ndarray:
    """Return the features of the objects, ``[B, n, 8]``."""
    return obs[:, GLOBALS:].reshape(len(obs), -1, FEATURES)


def _risks(obs: np.ndarray) -> np.ndarray:
    """Return collision probabilities ``[3, B, n]``: now, after a burn forwards, and backwards."""
    shown = np.moveaxis(_objects(obs)[..., 2:5], -1, 0).astype(np.float64)
    return np.where(shown > 0, 10.0 ** (8.0 * (shown - 1.0)), 0.0)
