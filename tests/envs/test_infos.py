"""Infos that don't fit one array of Gymnasium's."""

from __future__ import annotations

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from headrace.envs.make import make_vec

INFOS = {  # what the first environment gives, and what the second
    "lengths": (np.zeros(3), np.zeros(2)),
    "none": (1, None),
    "word": (2.0, "late"),
    "dict after number": (1, {"a": 1}),
    "large": (0, 10**30),
    "nested": ({"a": np.zeros(3)}, {"a": np.zeros(2)}),
}


class InfoEnv(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def __init__(self, pair):
        self._infos = INFOS[pair]

    def reset(self, *, seed=None, options=None):
        self._rank = self._rank if seed is None else seed
        return np.zeros(2, np.float32), {"kept": self._rank, "odd": self._infos[self._rank]}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, self.reset()[1]


@pytest.mark.parametrize("pair", INFOS)
@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_what_differs_is_kept_as_objects(pair, engine):
    with contextlib.closing(make_vec(InfoEnv, 2, engine, {"pair": pair})) as envs:
        for infos in (envs.reset(seed=0)[1], envs.step(np.zeros(2, int))[-1]):
            assert infos["kept"].tolist() == [0, 1]
            assert infos["_odd"].tolist() == [True, True]
            nested = pair == "nested"
            odd = infos["odd"]["a"] if nested else infos["odd"]
            wanted = [x["a"] if nested else x for x in INFOS[pair]]
            assert all(np.array_equal(x, y) for x, y in zip(odd, wanted, strict=True))
