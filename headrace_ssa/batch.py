"""What vector environments of independent games have in common: generators and actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from headrace.errors import require


def generators(
    before: Sequence[np.random.Generator],
    seed: int | Sequence[int | None] | None,
    num_envs: int,
) -> list[np.random.Generator]:
    """A generator for each environment, seeded as Gymnasium's own vector environments do.

    Args:
        before: those of the last reset, or none.
        seed: of environment 0, and ``seed + i`` of environment ``i``; or one for each. Where it is
            None the generator of before goes on.

    Raises:
        ValueError: there are not as many seeds as environments.
    """
    if seed is None or isinstance(seed, (int, np.integer)):
        seed = [None if seed is None else int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"{len(seed)} seeds were given for {num_envs} environments")
    return [
        before[i] if before and own is None else seeding.np_random(own)[0]
        for i, own in enumerate(seed)
    ]


def check_counts(**least: tuple[int, int]) -> None:
    """Raise ConfigError unless each value is a whole number, and its least, or more.

    Args:
        least: by the name of a setting, its value and its least one.
    """
    for name, (value, low) in least.items():
        whole = is_whole(value)
        words = f"{'' if whole else 'a whole number of '}at least {low} (nearest: "
        require(whole and value >= low, name, value, f"{words}{near(value, low)})")


def is_whole(value: object) -> bool:
    """Whether it is an int, of Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def near(value: object, low: int) -> int:
    """The whole number nearest to a value among those from ``low``; that, if it is no number."""
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return max(low, round(value))
    return max(low, int(value)) if isinstance(value, int | np.integer) else low


def checked(actions: Any, num_envs: int, num_actions: int) -> np.ndarray:
    """``actions`` ``[num_envs]`` as an array.

    Raises:
        ValueError: there are not as many as environments, or one isn't a whole number from 0 to
            ``num_actions - 1``; it is named.
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
