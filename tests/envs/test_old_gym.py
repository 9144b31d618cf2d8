from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from headrace.envs.make import make_vec
from headrace.envs.old_gym import GymEnv
from headrace.errors import ConfigError


class OldEnv:
    """Gym's interface before 0.26 with a seed in its constructor; episodes of three steps."""

    metadata = None
    observation_space = SimpleNamespace(
        spaces={
            "picture": SimpleNamespace(low=0, high=255, shape=(8, 8, 3), dtype=np.uint8),
            "rest": SimpleNamespace(
                spaces=(
                    SimpleNamespace(nvec=[2, 3]),
                    SimpleNamespace(n=4),
                    type("MultiBinary", (), {"n": 5})(),
                )
            ),
        }
    )
    action_space = SimpleNamespace(n=2)

    def __init__(self, late: bool = False, seed: int = -1) -> None:
        self._late, self._seed, self._step = late, seed, 0

    def reset(self):
        self._step = 0
        return self._observed()

    def step(self, action):
        self._step += 1
        done = self._step == 3
        info = {"TimeLimit.truncated": True} if done and self._late else {}
        return self._observed(), 0.5, done, info

    def render(self, mode="human"):
        return np.full((4, 4, 3), len(mode), np.uint8)

    def _observed(self):
        picture = np.full((8, 8, 3), self._seed % 256, np.uint8)
        return {"picture": picture, "rest": (np.array([1, 2]), self._step, np.ones(5, np.int8))}


class SeededEnv(OldEnv):
    def __init__(self) -> None:
        super().__init__()

    def seed(self, seed):
        self._seed = seed


class LateGymEnv(OldEnv):
    """Gym 0.26: Gymnasium's methods, but no Gymnasium class."""

    def __init__(self) -> None:
        super().__init__()

    def reset(self, *, seed=None, options=None):
        self._seed = seed
        return super().reset(), {"reset": 1}

    def step(self, action):
        obs, reward, done, info = super().step(action)
        return obs, reward, False, done, info


class Wrapper:
    """A wrapper of Gym, whose ``reset`` passes its arguments on; ``gym.make`` adds three."""

    def __init__(self, env=LateGymEnv) -> None:
        self.env = env()
        self.metadata, self.action_space = None, self.env.action_space
        self.observation_space, self.step = self.env.observation_space, self.env.step

    def reset(self, **kwargs):
        return self.env.reset(**kwargs)


def wrapped_twice():
    return Wrapper(Wrapper)


def play(env, steps, **kwargs):
    with contextlib.closing(make_vec(env, 2, env_kwargs=kwargs)) as envs:
        yield envs
        yield envs.reset(seed=7)
        for _ in range(steps):
            yield envs.step(np.zeros(2, np.int64))


def test_spaces_become_those_of_gymnasium():
    env = GymEnv(OldEnv(), OldEnv)
    rest = Tuple([MultiDiscrete([2, 3]), Discrete(4), MultiBinary(5)])
    assert env.observation_space == Dict(picture=Box(0, 255, (8, 8, 3), np.uint8), rest=rest)
    assert env.action_space == Discrete(2)
    assert (env.render() == len("rgb_array")).all()


@pytest.mark.parametrize("env", [OldEnv, SeededEnv, LateGymEnv, wrapped_twice])
def test_each_environment_gets_its_own_seed(env):
    _, (obs, _), *_ = play(env, 0)
    assert obs["picture"][:, 0, 0, 0].tolist() == [7, 8]


def test_what_only_wraps_takes_no_more_than_the_inner_environment():
    _, (obs, _), *_ = play(lambda: Wrapper(OldEnv), 0)
    assert obs["picture"][:, 0, 0, 0].tolist() == [255, 255]


@pytest.mark.parametrize("late", [False, True])
def test_done_says_whether_time_ran_out(late):
    _, _, *steps = play(OldEnv, 4, late=late)
    _, reward, terminated, truncated, _ = steps[2]
    assert reward.tolist() == [0.5, 0.5]
    assert truncated.tolist() == [late] * 2
    assert terminated.tolist() == [not late] * 2
    assert steps[3][0]["rest"][1].tolist() == [0, 0]  # a filler


def test_gym_0_26_is_taken_as_it_is():
    _, (_, infos), *steps = play(LateGymEnv, 3)
    assert infos["reset"].tolist() == [1, 1]
    assert steps[2][3].all()


def test_what_has_no_such_interface_is_told_of():
    with pytest.raises(ConfigError, match="it returned dict"):
        make_vec(dict, 1)
