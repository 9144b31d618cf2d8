"""Players of SSAConjunction to compare with: random, round-robin and greedy.

Each is called with observations ``[B, 8 + 8 n]`` and masks ``[B, n + 3]`` and returns actions
``[B]``. Probabilities are read off the observation, which shows the true ones (to float32).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace_ssa import conjunction as game
from headrace_ssa.outlook import FEATURES, GLOBALS

Player = Callable[[np.ndarray, np.ndarray], np.ndarray]


def random_player(seed: int = 0) -> Player:
    """Any allowed action, all alike."""
    rng = np.random.default_rng(seed)
    return lambda _, mask: np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def round_robin() -> Player:
    """Burns as :func:`greedy` does, and else looks at visible objects in turn.

    Its turn is that of the visible object whose position is known worst: it was looked at longest
    ago, or never.
    """
    return lambda obs, mask: _play(_objects(obs)[..., 5], obs, mask)


def greedy() -> Player:
    """Maximises the expected reward as if nothing could be done after this step.

    A burn is worth what it changes in the expected rewards of all later closest approaches, less
    its costs. Exact for the first burn of an episode: what an earlier one has already saved isn't
    shown, and is taken as if it had never been a danger. No other action is worth anything by
    itself; among them it looks at the visible object of the greatest risk.
    """
    return lambda obs, mask: _play(_risks(obs)[0], obs, mask)


def burn_values(obs: np.ndarray) -> np.ndarray:
    """Expected reward ``[B, 2]`` that a burn forwards, or backwards, adds if it is the last."""
    now, *after = _risks(obs)
    change = now - np.stack(after)
    saved = (game.AVOIDED - game.COLLISION) * np.maximum(change, 0).sum(axis=2)
    saved -= game.COLLISION * np.minimum(change, 0).sum(axis=2)
    costs = game.BURN + game.FALSE_ALARM * (1.0 - now.max(axis=1))
    return (saved + costs).T


def _play(urgency: np.ndarray, obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Burn if it is worth anything, else look at the most urgent visible object, else wait."""
    urgency = np.where(mask[:, 1:-2], urgency, -1.0)
    other = np.where(urgency.max(axis=1) >= 0, 1 + urgency.argmax(axis=1), 0)
    values = np.where(mask[:, -2:], burn_values(obs), -np.inf)
    first = mask.shape[1] - 2
    return np.where(values.max(axis=1) > 0, first + values.argmax(axis=1), other)


def _objects(obs: np.ndarray) -> np.ndarray:
    """The numbers of the objects, ``[B, n, 8]``."""
    return obs[:, GLOBALS:].reshape(len(obs), -1, FEATURES)


def _risks(obs: np.ndarray) -> np.ndarray:
    """Probabilities of collision ``[3, B, n]``: now, after a burn forwards, and backwards."""
    shown = np.moveaxis(_objects(obs)[..., 2:5], -1, 0).astype(np.float64)
    return np.where(shown > 0, 10.0 ** (8.0 * (shown - 1.0)), 0.0)
