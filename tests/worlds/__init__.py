"""Environments with predictable numbers, to test algorithms and data flow.

``CountingEnv`` labels every step. ``IdentityEnv`` has a known optimum that trains in seconds, and
``SpaceIdentityEnv`` is the same for every action space, with or without action masks.
``CountingGame`` and ``CountingTurns`` label what agents observe and do. ``Matching`` is a game that
trains in seconds, and so is ``Apart``, which needs separate policies. ``Unlike`` and
``UnlikeTurns`` are games whose agents' spaces differ. ``MemoryEnv`` needs a recurrent policy,
``BrightQuarter`` a convolutional one. ``Stacks`` shows frame stacks. ``FaultyEnv`` fails on purpose
and ``SlowEnv`` sleeps. Environments with ``Vector`` in their name, and ``BrightQuarter``, are
natively vectorised.
"""

from __future__ import annotations

from worlds.counting import (
    CountingEnv,
    CountingVectorEnv,
    counting_length,
    counting_reward,
    counting_truncates,
)
from worlds.faulty import FaultyEnv, SlowEnv
from worlds.games import Apart, CountingGame, CountingTurns, Matching, game_reward
from worlds.identity import IdentityEnv, IdentityVectorEnv
from worlds.images import BrightQuarter
from worlds.memory import MemoryEnv, MemoryVectorEnv
from worlds.space_identity import (
    SpaceIdentityEnv,
    SpaceIdentityVectorEnv,
    named_action_space,
    random_return,
)
from worlds.stacks import Stacks
from worlds.unlike import Unlike, UnlikeTurns

__all__ = [
    "Apart",
    "BrightQuarter",
    "CountingEnv",
    "CountingGame",
    "CountingTurns",
    "CountingVectorEnv",
    "FaultyEnv",
    "IdentityEnv",
    "IdentityVectorEnv",
    "Matching",
    "MemoryEnv",
    "MemoryVectorEnv",
    "SlowEnv",
    "SpaceIdentityEnv",
    "SpaceIdentityVectorEnv",
    "Stacks",
    "Unlike",
    "UnlikeTurns",
    "counting_length",
    "counting_reward",
    "counting_truncates",
    "game_reward",
    "named_action_space",
    "random_return",
]
