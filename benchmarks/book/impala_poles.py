"""Related tasks: cart-poles with poles of different lengths, ``book.impala_poles:Pole-long-v0``."""

from __future__ import annotations

import functools

from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import register

LENGTHS = {"short": 0.25, "usual": 0.5, "long": 1.0}  # halves, in metres
POLES = tuple(f"book.impala_poles:Pole-{name}-v0" for name in LENGTHS)


def cart_pole(length: float) -> CartPoleEnv:
    """Return Gymnasium's CartPole with another pole."""
    env = CartPoleEnv()
    env.length, env.polemass_length = length, env.masspole * length
    return env


for _name, _length in LENGTHS.items():
    register(f"Pole-{_name}-v0", functools.partial(cart_pole, _length), max_episode_steps=500)
