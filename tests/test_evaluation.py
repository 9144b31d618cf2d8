"""Evaluation episodes after training: videos and messages."""

from __future__ import annotations

import contextlib
import tracemalloc
from dataclasses import replace

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformObservation

import headrace as hr
from headrace.actors.task_adapter import fitting
from headrace.cli import main, signatures
from headrace.envs import make_vec
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError
from headrace.evaluation import Evaluation
from headrace.processes import torch_threads
from headrace.rundir.video import record_video


class Pictures(gymnasium.Env):
    """Shows the progress of its episode, from black to white."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def __init__(self, render_mode=None, shape=(32, 48, 3), length=5, fps=None):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.render_mode, self.shape, self.length = render_mode, shape, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == self.length, False, {}

    def render(self):
        return np.full(self.shape, 255 * self.time // self.length, np.uint8)


def recorded(folder, **kwargs):
    """Return the images of an episode's video, and the metadata of the file."""
    policy = hr.Policy(Pictures.observation_space, Pictures.action_space)
    path = record_video(policy, Pictures, folder, 0, kwargs)
    assert path == folder / "episode.mp4"
    with imageio.get_reader(path) as video:
        return [np.asarray(picture) for picture in video], video.get_meta_data()


@pytest.mark.parametrize(
    ("shape", "even"),
    [
        ((32, 48, 3), (32, 48)),
        ((97, 33, 3), (98, 34)),
        ((1, 1, 3), (2, 2)),
        ((3, 200, 3), (4, 200)),
        ((20, 30), (20, 30)),
        ((20, 31, 4), (20, 32)),
    ],
)
def test_a_video_shows_every_observation_of_an_episode_whatever_its_size(tmp_path, shape, even):
    pictures, about = recorded(tmp_path / "new" / "folder", shape=shape)
    assert [picture.shape for picture in pictures] == [(*even, 3)] * 6
    assert about["size"] == even[::-1]
    assert about["fps"] == 30
    brightness = [picture.mean() for picture in pictures]
    assert np.allclose(brightness, 255 * np.arange(6) / 5, atol=6)


def test_a_video_has_the_environment_s_own_speed(tmp_path):
    assert recorded(tmp_path, fps=12)[1]["fps"] == 12


def test_a_long_episode_is_written_as_it_is_played(tmp_path):
    policy = hr.Policy(Pictures.observation_space, Pictures.action_space)
    one = 96 * 96 * 3  # bytes of a picture
    record_video(policy, Pictures, tmp_path, 0)  # loads what a video needs
    tracemalloc.start()
    try:
        path = record_video(policy, Pictures, tmp_path, 0, {"shape": (96, 96, 3), "length": 400})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * one
    with imageio.get_reader(path) as video:
        assert sum(1 for _ in video) == 401


def test_the_command_line_writes_a_video_and_prints_where(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run = ["--total-steps", "128", "--transport", "serial", "--num-actors", "1", "--run-dir", "run"]
    run += ["--eval-episodes", "0", "--envs-per-actor", "2", "--fragment-length", "64"]
    assert main(["train", "ppo", "--env-id", "CartPole-v1", "--batch-size", "128", *run]) == 0
    assert main(["evaluate", "run", "--episodes", "1", "--video", "shown"]) == 0
    captured = capsys.readouterr()
    assert "video: shown/episode.mp4" in captured.err
    length = float(captured.out.rsplit("length ", 1)[1])
    with imageio.get_reader(tmp_path / "shown" / "episode.mp4") as video:
        assert sum(1 for _ in video) == length + 1
        assert video.get_meta_data()["size"] == (600, 400)
        assert video.get_meta_data()["fps"] == 50


class Actions(Pictures):
    """Shows the latest action, black or white; episodes have 40 steps."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode, length=40)

    def step(self, action):
        self.action = action
        return super().step(action)

    def render(self):
        return np.full(self.shape, 255 * self.action if self.time else 0, np.uint8)


def test_a_run_s_video_has_the_changes_of_its_evaluations(tmp_path):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 32, "batch_size": 64}
    longer = [lambda result, trainer: trainer.set_env_attr("length", 9, evaluation=True)]
    hr.train(Pictures, hr.A2C(), longer, run_dir=str(tmp_path / "run"), transport="serial",
             eval_episodes=0, total_steps=64, quiet=True, **sizes)  # fmt: skip
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "1", "--trust",
                 "--video", str(tmp_path)]) == 0  # fmt: skip
    with imageio.get_reader(tmp_path / "episode.mp4") as video:
        assert sum(1 for _ in video) == 10


@pytest.mark.parametrize("drawn", [True, False])
def test_a_run_s_video_draws_actions_where_its_evaluations_do(tmp_path, drawn):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 32, "batch_size": 64}
    hr.train(Actions, hr.A2C(), run_dir=str(tmp_path / "run"), transport="serial", seed=3,
             eval_deterministic=not drawn, eval_episodes=0, total_steps=64, **sizes)  # fmt: skip
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "1", "--trust",
                 "--video", str(tmp_path)]) == 0  # fmt: skip
    with imageio.get_reader(tmp_path / "episode.mp4") as video:
        shades = [round(picture.mean() / 255) for picture in video][1:]
    assert len(set(shades)) == (2 if drawn else 1)


class Blind(Pictures):
    def render(self):
        return None


class Speechless(Pictures):
    def __init__(self):
        super().__init__()


class Silent(Pictures):
    def render(self):
        raise NotImplementedError


@pytest.mark.parametrize("env", [Blind, Speechless, Silent, "headrace/SimpleSatellite-v0"])
@pytest.mark.filterwarnings("ignore:.*render_mode:UserWarning")
def test_an_environment_without_pictures_is_one_sentence_that_names_it(env, tmp_path):
    policy = hr.Policy(Pictures.observation_space, Pictures.action_space)
    name = env if isinstance(env, str) else env.__name__
    with pytest.raises(ConfigError, match=f"a video of {name}.*render_mode='rgb_array'") as info:
        record_video(policy, env, tmp_path / "videos", 0)
    assert "\n" not in str(info.value)
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize(("conv", "expected"), [(None, 1), ("nature", 2)])
def test_a_second_thread_is_used_where_there_is_work_for_it(conv, expected):
    image = Box(0, 255, (36, 36, 1), np.uint8)
    space = Pictures.observation_space if conv is None else image
    policy = hr.Policy(space, Discrete(2), hr.Network(conv=conv) if conv else hr.Network())
    make = Pictures if conv is None else lambda: TransformObservation(Pictures(), seen, image)
    used: list[int] = []

    def seen(obs):
        return np.zeros(image.shape, np.uint8)

    with torch_threads(2):
        hr.evaluate(policy, make, 1, on_step=lambda: used.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    assert set(used) == {expected}


def test_bounds_matter_where_tasks_have_columns_of_their_own():
    policy = hr.Policy(Box(0.0, 1.0, (1,)), Discrete(2))
    policy.tasks = ("A", "B")
    wider = [
        Wrap(lambda env: TransformObservation(env, lambda x: x, Box(-2.0, 2.0, (1,))), "wider")
    ]
    with contextlib.closing(make_vec(Pictures, 1, "sync", wrappers=wider)) as envs:
        with pytest.raises(ConfigError, match="can't play"):
            fitting(policy, envs, "Pictures")
        policy.tasks = ()
        fitting(policy, envs, "Pictures")


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ({"a": 3, "b": 3}, "3 episodes of each of 2 agents: return"),
        ({"a": 3, "b": 1}, "4 episodes of 2 agents: return"),
        ({}, "5 episodes: return"),
    ],
)
def test_an_evaluation_in_words_says_whose_episodes_it_counts(ends, says):
    agents = {name: Evaluation.of([1.0] * count, [2] * count) for name, count in ends.items()}
    count = sum(ends.values()) or 5
    whole = Evaluation.of([1.0] * count, [2] * count)
    first, *others = signatures._lines_of(replace(whole, agents=agents or None))
    assert first.startswith(says)
    assert len(others) == len(agents)
