"""Random generators, and checks of settings and actions, for vector environments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from headrace.errors import require


def generators(
    previous: Sequence[np.random.Generator],
    seed: int | Sequence[int | None] | None,
    num_envs: int,
) -> list[np.random.Generator]:
    """Return a random generator for each environment, seeded like Gymnasium's vector environments.

    Args:
        previous: generators of the last reset; empty at the first one.
        seed: Seed of environment 0, with ``seed + i`` for environment ``i``; or one seed for each.
            None keeps the previous generator.

    Raises:
        ValueError: the number of seeds differs from the number of environments.
    """
    if seed is None or isinstance(seed, (int, np.integer)):
        seed = [None if seed is None else int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds were given for {num_envs} environments")
    return [
        previous[i] if previous and env_seed is None else seeding.np_random(env_seed)[0]
        for i, env_seed in enumerate(seed)
    ]


def check_counts(**least: tuple[int, int]) -> None:
    """Raise ConfigError unless each value is a whole number and at least its minimum.

    Args:
        least: value and minimum by the name of the setting.
    """
    for name, (value, low) in least.items():
        is_integer = is_whole(value)
        words = f"{'' if is_integer else 'a whole number of '}at least {low} (nearest: "
        require(is_integer and value >= low, name, value, f"{words}{near(value, low)})")


def is_whole(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def near(value: object, low: int) -> int:
    """Return the nearest integer of at least ``low``; ``low`` itself without a finite number."""
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return max(low, round(value))
    return max(low, int(value)) if isinstance(value, int | np.integer) else low


def checked(actions: Any, num_envs: int, num_actions: int) -> np.ndarray:
    """Return ``actions`` ``[num_envs]`` as an array of valid integers.

    Raises:
        ValueError: the shape or dtype is wrong, or an action isn't from 0 to ``num_actions - 1``.
            The message names the environment.
    """
    actions = np.asarray(actions)
    if actions.shape != (num_envs,) or actions.dtype.kind not in "iu":
        raise ValueError(
            f"actions must be {num_envs} whole numbers, not shape {actions.shape} of "
            f"{actions.dtype}"
        )
    if actions.min() < 0 or actions.max() >= num_actions:
        i = int(np.argmax((actions < 0) | (actions >= num_actions)))
        raise ValueError(
            f"action={actions[i]} of environment {i} must be a whole number from 0 to "
            f"{num_actions - 1}"
        )
    return actions
