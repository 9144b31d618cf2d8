"""Videos of environments that render nothing, or have other spaces than the agent's."""

from __future__ import annotations

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.errors import ConfigError
from headrace.rundir import video
from headrace.rundir.video import record_video

LENGTH = 4
STACK = Box(0, 255, (4, 24, 32), np.uint8)


def shade(time: int) -> int:
    return 50 * time


class Stacked(gymnasium.Env):
    """Observes four images, the newest last; takes no render_mode."""

    observation_space = STACK
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        return self.observe(), 1.0, self.time == LENGTH, False, {}

    def observe(self):
        obs = np.full(STACK.shape, 255, np.uint8)
        obs[-1] = shade(self.time)
        return obs


class StackedVector(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": 12}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.one = num_envs, Stacked()
        self.single_observation_space, self.single_action_space = STACK, Discrete(2)
        self.observation_space = batch_space(STACK, num_envs)
        self.action_space = batch_space(Discrete(2), num_envs)

    def reset(self, *, seed=None, options=None):
        return self.one.reset()[0][None], {}

    def step(self, actions):
        obs, *rest = self.one.step(0)
        return (obs[None], *(np.array([x]) for x in rest[:3]), {})


class Other(gymnasium.Env):
    """Renders, but its observations are unknown to the policy."""

    observation_space = Box(0, 255, (210, 160, 3), np.uint8)
    action_space = Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        raise AssertionError("it must not be shown")


def brightness(path) -> list[float]:
    with imageio.get_reader(path) as film:
        return [np.asarray(picture).mean() for picture in film]


ENVS = {
    "callable": (lambda: Stacked(), "sync"),
    "native class": (StackedVector, "native"),
    "native, of another single one": (
        EnvSpec("S-v0", Other, vector_entry_point=StackedVector),
        "native",
    ),
}


@pytest.mark.parametrize(("env", "engine"), ENVS.values(), ids=ENVS)
def test_the_newest_picture_that_the_agent_sees_is_shown(tmp_path, env, engine):
    policy = hr.Policy(STACK, Discrete(2), hr.Network(hidden=(8,)))
    path = record_video(policy, env, tmp_path, 0, None, engine)
    assert np.allclose(brightness(path), [shade(t) for t in range(LENGTH + 1)], atol=6)
    with imageio.get_reader(path) as film:
        assert film.get_meta_data()["size"] == (96, 72)  # enlarged, as it is small


def test_an_agent_of_envpool_s_atari_meets_its_own_observations(tmp_path, monkeypatch):
    pytest.importorskip("envpool")
    monkeypatch.setattr(video, "_MAX_STEPS", 7)
    stack = Box(0, 255, (4, 84, 84), np.uint8)
    policy = hr.Policy(stack, Discrete(6), hr.Network(hidden=(8,)))
    path = record_video(policy, "Pong-v5", tmp_path, 0, None, "envpool")
    assert len(brightness(path)) == 8


def test_what_renders_by_itself_is_asked_first(tmp_path):
    def make_env():
        return gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=3)

    env = gymnasium.make("CartPole-v1")
    policy = hr.Policy(env.observation_space, env.action_space)
    path = record_video(policy, make_env, tmp_path, 0)
    with imageio.get_reader(path) as film:
        assert film.get_meta_data()["size"] == (600, 400)
        assert film.count_frames() == 4


def test_another_environment_than_the_agent_s_is_refused_with_both_spaces(tmp_path):
    policy = hr.Policy(Box(-1, 1, (3,)), Discrete(2))
    with pytest.raises(ConfigError, match=r"where the policy's is Box\(-1.0, 1.0, \(3,\)") as error:
        record_video(policy, Stacked, tmp_path, 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("space", "obs", "shape", "brightest"),
    [
        (Box(0, 1, (64, 80, 3)), np.ones((64, 80, 3)), (64, 80, 3), 255),
        (Box(0, 255, (80, 64, 1), np.uint8), np.full((80, 64, 1), 9), (80, 64), 9),
        (Box(0, 255, (2, 64, 64, 3), np.uint8), np.full((2, 64, 64, 3), 7), (64, 64, 3), 7),
        (Box(-np.inf, np.inf, (6, 16, 16)), np.eye(16)[None].repeat(6, 0), (64, 64, 3), 255),
    ],
)
def test_pictures_of_any_layout_are_shown(space, obs, shape, brightest):
    inside = Dict(other=Discrete(3), picture=space)
    observed = {"other": np.zeros(1, int), "picture": obs.astype(space.dtype)[None]}
    picture = video._observed(inside, observed)
    assert (picture.shape, picture.max(), picture.dtype) == (shape, brightest, np.uint8)
