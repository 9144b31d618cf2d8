"""Limits of evaluations whose episodes don't end."""

from __future__ import annotations

import json

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.actors import episodes
from headrace.actors.episodes import Limits, Patience, VectorStep, limits_of, whole_episodes
from headrace.cli import main
from headrace.errors import ConfigError, EnvironmentFault
from headrace.evaluating.evaluator import Evaluator
from headrace.rundir.files import read_jsonl
from headrace.rundir.video import record_video


class Endless(gymnasium.Env):
    """Pays 1 per step; the environment of index ``ends`` ends after 5 steps, the others never."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, ends=None, render_mode=None):
        self.render_mode, self.length = render_mode, 0
        self.ends = ends is not None and hr.env_context().index == ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.length += 1
        over = self.ends and self.length == 5
        return np.zeros(1, np.float32), 1.0, over, False, {"walked": float(self.length)}

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)


@pytest.fixture
def policy():
    return hr.Policy(Endless.observation_space, Endless.action_space, hr.Network(hidden=(4,)))


def test_episodes_that_do_not_end_count_until_the_limit_and_are_reported(policy):
    said = []
    limits = {"max_steps": 30, "notify": said.append}
    found = hr.evaluate(policy, Endless, 4, env_kwargs={"ends": 1}, **limits)
    assert sorted(found.returns) == [5.0, 30.0, 30.0, 30.0]
    assert sorted(found.lengths) == [5, 30, 30, 30]
    assert (found.episodes, found.unfinished) == (4, 3)
    assert found.metrics == {"walked": 23.75}
    (line,) = said
    assert line.startswith("3 of 4 episodes did not end within 30 steps and count with")
    assert "wrappers=('TimeLimit:{" in line


def test_an_evaluation_ends_by_time_too(policy):
    said = []
    limits = {"timeout_s": 0.05, "max_steps": 10**9, "notify": said.append}
    found = hr.evaluate(policy, Endless, 2, **limits)
    assert found.unfinished == 2
    assert said[0].startswith("2 of 2 episodes did not end within 0.05 s")


def steps(*rows):
    """Yield steps of environments without a reset step, from (reward, begins, ends)."""
    for reward, begins, ends in rows:
        yield VectorStep(
            None, np.array(reward, float), np.array(begins, bool), np.array(ends, bool), {}
        )


def test_an_environment_stops_playing_after_an_episode_that_was_cut():
    rows = [([0, 0], [1, 1], [0, 0]), *[([1, 1], [0, 0], [0, 0])] * 3, ([9, 1], [0, 0], [0, 1])]
    played = whole_episodes(steps(*rows), 2, 4, limits=Limits(max_steps=3), notify=print)
    assert played.agents == [([3.0, 3.0], [3, 3])]
    assert played.unfinished == 2


def test_agents_of_a_game_end_together():
    """The second agent ends after one step and waits; the first one never ends."""
    rows = [([0, 0], [1, 1], [0, 0]), ([1, 2], [0, 0], [0, 1]), *[([1, 0], [0, 1], [0, 1])] * 5]
    limits = Limits(max_steps=4)
    played = whole_episodes(steps(*rows), 1, 3, num_agents=2, limits=limits, notify=print)
    assert played.agents == [([4.0], [4]), ([2.0], [1])]
    assert played.unfinished == 1


def test_agents_that_are_never_present_end_by_time():
    def absent():
        while True:
            yield from steps(([0], [1], [1]))

    played = whole_episodes(absent(), 1, 1, limits=Limits(timeout_s=0.02), notify=print)
    assert played == ([([], [])], 0)


def test_an_evaluation_without_any_step_is_an_error(policy, monkeypatch):
    monkeypatch.setattr(
        "headrace.evaluation.played",
        lambda *_: (s for _ in range(10**9) for s in steps(([0], [1], [1]))),
    )
    with pytest.raises(EnvironmentFault, match=r"no agent of .*Endless had a step within 0\.02 s"):
        hr.evaluate(policy, Endless, 1, timeout_s=0.02)


def test_long_evaluations_report_their_progress_ever_less_often(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(episodes.time, "monotonic", lambda: now[0])
    patience = Patience(100.0, said.append)
    over = []
    for now[0] in range(0, 101, 5):
        over.append(patience.is_over(lambda: "evaluation: 3 of 20 episodes have ended"))
    assert over == [False] * 20 + [True]
    assert [line.split(" after ")[1] for line in said] == [
        f"{s} s (time limit 100 s)" for s in (10, 20, 40, 80)
    ]


def test_limits_are_those_of_the_run_unless_they_are_given():
    config = {"eval_max_steps": 7, "eval_timeout_s": 8.0}
    assert limits_of(config) == Limits(7, 8.0)
    assert limits_of(config, 5, 6.0) == Limits(5, 6.0)
    assert limits_of({}) == Limits()
    with pytest.raises(ConfigError, match="max_steps=0"):
        limits_of(config, 0)


def test_a_video_of_an_episode_that_does_not_end_is_cut(policy, tmp_path, capsys):
    path = record_video(policy, Endless, tmp_path, 0, limits=Limits(max_steps=10))
    with imageio.get_reader(path) as video:
        assert video.count_frames() == 11
    line = capsys.readouterr().err
    assert line.startswith("headrace: the episode did not end within 10 steps, so the video")
    record_video(policy, Endless, tmp_path, 0, limits=Limits(timeout_s=0.01))
    assert "did not end within 0.01 s" in capsys.readouterr().err


@pytest.mark.parametrize("transport", ["shm", "serial"])
def test_an_evaluator_reports_episodes_that_do_not_end(policy, tiny, transport):
    said = []
    config = tiny(
        env=Endless, eval_episodes=2, eval_max_steps=20, eval_timeout_s=50.0, transport=transport
    )
    evaluator = Evaluator(config, Endless, said.append)
    evaluator.begin(policy, 1000, 7.0)
    found = evaluator.wait(lambda: False)
    evaluator.close()
    assert found.evaluation.unfinished == 2
    (line,) = said
    assert line.startswith("at 1,000 steps: 2 of 2 episodes did not end within 20 steps")


def test_commands_end_and_report_episodes_that_do_not(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ["--total-steps", "64", "--transport", "serial", "--num-actors", "1", "--run-dir", "run"]
    run += ["--envs-per-actor", "2", "--fragment-length", "16", "--batch-size", "32"]
    run += ["--eval-interval", "32", "--eval-episodes", "2", "--eval-max-steps", "40"]
    assert main(["train", "ppo", "--env-id", "CliffWalking-v1", *run]) == 0
    out = capsys.readouterr().out
    assert out.count("2 of 2 episodes did not end within 40 steps") == 4  # the last in both modes
    assert "--wrapper 'TimeLimit:{" in out
    assert "2 episodes, 2 of which did not end" in " ".join(out.replace("│", "").split())
    assert json.loads((tmp_path / "run/summary.json").read_text())["evaluation"]["unfinished"] == 2
    assert read_jsonl(tmp_path / "run/evaluations.jsonl")[0]["unfinished"] == 2
    assert main(["evaluate", "run", "--max-steps", "30"]) == 0
    captured = capsys.readouterr()
    assert "2 episodes, 2 of which did not end: return" in captured.out
    assert "length 30.0" in captured.out
    assert "2 of 2 episodes did not end within 30 steps" in captured.err
    assert main(["play", "run", "--episodes", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("after 40 steps") == 2
    assert captured.err.count("the episode did not end within 40 steps") >= 2
