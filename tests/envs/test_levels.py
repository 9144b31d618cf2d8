"""DeepMind Lab's levels with a stand-in for Lab, and ten levels that pip installs."""

from __future__ import annotations

import importlib.util

import gymnasium
import numpy as np
import pytest

from headrace.envs import levels
from headrace.envs.dmlab import ACTIONS, DeepMindLab
from headrace.envs.dmlab_scores import SCORES
from headrace.envs.names import resolve
from headrace.envs.packages import Package
from headrace.envs.suites import SUITES
from headrace.envs.tasks import named_in
from headrace.errors import ConfigError


class StandIn:
    """Stand-in for Lab: rejects observations after an episode's end, and lasts 40 frames."""

    def __init__(self, level, observations, config):
        self.level, self.observed, self.config = level, observations, config
        self.seed, self.frame, self.held = None, None, []
        self.closed = False

    def reset(self, seed):
        self.seed, self.frame = seed, 0

    def is_running(self):
        return self.frame is not None and self.frame < 40

    def step(self, action, num_steps):
        assert self.is_running()
        assert action.dtype == np.intc
        assert action.shape == (7,)
        self.held.append((*action.tolist(), num_steps))
        self.frame += num_steps
        return 0.5

    def observations(self):
        if not self.is_running():
            raise RuntimeError("the episode has ended")
        shape = int(self.config["height"]), int(self.config["width"]), 3
        image = np.full(shape, self.frame, np.uint8)
        return {"RGB_INTERLEAVED": image, "INSTR": f"frame {self.frame}"}

    def close(self):
        self.closed = True


def lab(**settings):
    """Return an environment on a stand-in, and the stand-in."""
    env = DeepMindLab("rooms_watermaze", lab=StandIn, **settings)
    return env, env._lab


def test_an_episode_of_lab_is_as_long_as_it_says_and_shows_its_last_frame_twice():
    env, inside = lab()
    assert inside.level == "contributed/dmlab30/rooms_watermaze"
    obs, _ = env.reset(seed=7)
    assert inside.seed == 7
    assert obs in env.observation_space
    assert obs["image"].shape == (72, 96, 3)
    assert obs["instruction"] == "frame 0"
    seen = []
    for t in range(1, 11):
        obs, reward, terminated, truncated, _ = env.step(6)
        assert reward == 0.5
        assert terminated == (t == 10)
        assert not truncated
        seen.append(obs["instruction"])
    assert seen == [f"frame {4 * t}" for t in range(1, 10)] + ["frame 36"]
    assert inside.held == [(-20, 0, 0, 1, 0, 0, 0, 4)] * 10
    env.close()
    assert inside.closed


def test_seeds_that_are_not_given_are_drawn_from_the_first():
    drawn = []
    for _ in range(2):
        env, inside = lab()
        env.reset(seed=3)
        env.reset()
        drawn.append(inside.seed)
        env.reset()
        drawn.append(inside.seed)
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


def test_actions_are_the_papers_nine():
    look, strafe, forward, fire = ACTIONS[:, 0], ACTIONS[:, 2], ACTIONS[:, 3], ACTIONS[:, 4]
    assert ACTIONS.shape == (9, 7)
    assert not ACTIONS[:, [1, 5, 6]].any()  # no agent looks up, jumps or crouches
    assert len({tuple(row) for row in ACTIONS.tolist()}) == 9
    assert sorted(look[look != 0]) == [-20, -20, 20, 20]
    assert sorted(strafe[strafe != 0]) == [-1, 1]
    assert sorted(forward[forward != 0]) == [-1, 1, 1, 1]
    assert ACTIONS[8].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert fire.sum() == 1


def test_the_suite_trains_on_one_of_a_pair_and_is_scored_on_the_other():
    names = named_in(["dmlab-30"])
    assert len(names) == len(SCORES) == 30
    assert "dmlab/rooms_collect_good_objects_train" in names
    assert not any(name.endswith("_test") for name in names)
    for name in (*names, "dmlab/rooms_collect_good_objects_test"):
        assert resolve(name).kwargs == {"level": name.removeprefix("dmlab/")}


@pytest.mark.skipif(importlib.util.find_spec("deepmind_lab") is not None, reason="Lab is there")
def test_without_lab_its_levels_say_how_to_get_it():
    with pytest.raises(ConfigError, match=r"deepmind_lab.*google-deepmind/lab"):
        DeepMindLab("rooms_watermaze")


def test_ten_levels_are_a_suite():
    names = named_in(["levels-10"])
    assert len(names) == len(set(names)) == 10
    for name in names:
        assert resolve(name).kwargs == {"name": name.removeprefix("levels/")}
    with pytest.raises(ConfigError, match="headrace references measures them"):
        SUITES["levels-10"].task("levels/hallway")


def test_pictures_of_a_grid_and_of_doom_are_those_of_a_maze_in_size():
    rng = np.random.default_rng(0)
    grid = rng.integers(1, 256, (56, 56, 3)).astype(np.uint8)
    framed = levels._framed({"image": grid})
    assert framed.shape == (60, 80, 3)
    assert (framed[2:58, 12:68] == grid).all()
    assert framed.astype(int).sum() == grid.astype(int).sum()  # all else is black
    screen = rng.integers(0, 256, (240, 320, 3)).astype(np.uint8)
    shrunk = levels._shrunk({"screen": screen})
    assert shrunk.shape == (60, 80, 3)
    assert shrunk[7, 11].tolist() == [
        int(screen[28:32, 44:48, colour].mean(dtype=np.float32)) for colour in range(3)
    ]


@pytest.mark.parametrize("name", levels.LEVELS)
def test_a_level_observes_what_all_do(name, tmp_path, monkeypatch):
    for package in ("miniworld", "vizdoom", "minigrid"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install headrace[levels]")
    monkeypatch.chdir(tmp_path)  # Doom makes a folder where it is
    env = levels.make(name)
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    assert first in env.observation_space
    assert set(env.observation_space) == {"image", "instruction"}
    assert (first["image"] == again["image"]).all()
    assert len(first["instruction"].split()) > 2
    assert first["image"].std() > 1
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    obs = first
    for _ in range(30):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert obs in env.observation_space
        if terminated or truncated:
            break
    env.close()


def test_a_level_without_its_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(levels, "package_of", lambda env_id: Package("no_such_module", "maze"))
    words = r"env='levels/hallway' needs maze, .* pip install 'headrace\[levels\]'"
    with pytest.raises(ConfigError, match=words):
        levels.make("hallway")
