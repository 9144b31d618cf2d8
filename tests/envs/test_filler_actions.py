"""Vector environments in other autoreset modes receive no action that their masks forbid."""

from __future__ import annotations

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.envs.make import make_vec

ACTIONS = {
    "one": Discrete(3, start=5),
    "two": MultiDiscrete([2, 3]),
    "nested": Tuple((Discrete(3), Box(-1.0, 1.0, (1,)))),
}


class Strict(gymnasium.Env):
    """Allows one choice in each state, another one after each step, and raises on the others."""

    episodes = -1

    def __init__(self, source, kind):
        self._source, self.action_space = source, ACTIONS[kind]
        seen = Box(0, 99, (2,), np.float32)
        mask = Box(0, 1, self.allowed().shape, np.int8)
        self.observation_space = Dict(seen=seen, action_mask=mask) if source == "obs" else seen
        if source == "method":
            self.action_masks = self.allowed

    def allowed(self):
        sizes = {"one": [3], "two": [2, 3], "nested": [3]}
        kind = next(kind for kind, space in ACTIONS.items() if space is self.action_space)
        turn = self.episodes + getattr(self, "steps", 0)
        return np.concatenate([np.arange(size) == turn % size for size in sizes[kind]]).astype(
            np.int8
        )

    def _results(self):
        seen, mask = np.array([self.episodes, self.steps], np.float32), self.allowed()
        obs = {"seen": seen, "action_mask": mask} if self._source == "obs" else seen
        return obs, {"action_mask": mask} if self._source == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.steps = self.episodes + 1, 0
        return self._results()

    def step(self, action):
        choices = (
            action[0]
            if isinstance(action, tuple)
            else action - getattr(self.action_space, "start", 0)
        )
        starts = np.cumsum([0, *getattr(self.action_space, "nvec", [0])[:-1]])
        assert self.allowed()[starts + choices].all(), "illegal move"
        self.steps += 1
        obs, info = self._results()
        return obs, 1.0, self.steps == 3 + self.episodes % 2, False, info


def chosen(space, mask):
    """Return the only actions ``[B]`` that masks ``[B, n]`` allow."""
    mask = np.stack([np.asarray(row) for row in mask])
    if isinstance(space, MultiDiscrete):
        return np.stack([mask[:, :2].argmax(1), mask[:, 2:].argmax(1)], 1)
    if isinstance(space, Tuple):
        return mask.argmax(1), np.zeros((len(mask), 1), np.float32)
    return mask.argmax(1) + space.start


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("source", ["obs", "info", "method"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_no_forbidden_action_is_played_after_an_end(mode, source, kind):
    def create(num_envs):
        each = [lambda: Strict(source, kind)] * num_envs
        return SyncVectorEnv(each, autoreset_mode=mode)

    with contextlib.closing(make_vec(create, 2, "native")) as envs:
        obs, infos = envs.reset(seed=0)
        ends = 0
        for _ in range(20):
            mask = obs["action_mask"] if source == "obs" else infos["action_mask"]
            obs, _, terminated, _, infos = envs.step(chosen(envs.single_action_space, mask))
            ends += int(terminated[0])
        assert ends >= 4
