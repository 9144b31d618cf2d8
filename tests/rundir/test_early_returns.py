"""Curves of short runs have enough points, each the mean over the latest episodes at its step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.rundir.curves import read_run
from headrace.rundir.early_returns import FEWEST_POINTS, EarlyReturns, num_parts
from headrace.rundir.episodes import Episodes
from headrace.rundir.files import read_jsonl
from headrace.types import SingleLearner

RETURN = "charts/episodic_return"


def rollout(num_steps: int, ends: dict[tuple[int, int], float], columns: int = 2):
    """Return a rollout's returns and valid steps, without reset steps."""
    returns = torch.full((num_steps, columns), torch.nan)
    for at, value in ends.items():
        returns[at] = value
    return returns, torch.ones(num_steps, columns, dtype=torch.bool)


class TwoLearners(SingleLearner):
    """Rank 0 of two learners, the other of which has these episodes."""

    def __init__(self, others) -> None:
        self._others = others

    def gather_objects(self, value):
        return [value, [type(value[0])(*one) for one in self._others]]


def test_each_point_is_the_mean_over_the_latest_episodes_at_its_step():
    early = EarlyReturns()
    early.begin(Episodes(window=2), updates=0, env_steps=0, seconds=0.0)
    early.add(*rollout(30, {(0, 0): 1.0, (9, 1): 3.0}), steps_before=0)
    early.add(*rollout(30, {(0, 0): 8.0, (29, 0): 9.0}), steps_before=60)
    early.end_update(1, 120, 6.0)
    first, second, third = early.points(SingleLearner(), Episodes())  # the fourth is the result
    assert (first.env_steps, first.updates, first.episode_return) == (2, 0, 1.0)
    assert (second.env_steps, second.episode_return) == (20, 2.0)
    assert (third.env_steps, third.episode_return) == (62, 5.5)  # the window holds two
    assert [x.seconds for x in (first, second, third)] == pytest.approx([0.1, 1.0, 3.1])
    assert not early.points(SingleLearner(), Episodes())


def test_reset_steps_are_no_steps_and_earlier_episodes_count():
    early, before = EarlyReturns(), Episodes(window=2)
    before.returns.append(5.0)
    early.begin(before, updates=1, env_steps=1000, seconds=1.0)
    returns, valid = rollout(30, {(9, 0): 7.0})
    valid[:5] = False
    early.add(returns, valid, steps_before=0)
    early.end_update(2, 1050, 2.0)
    (point,) = early.points(SingleLearner(), Episodes())
    assert (point.env_steps, point.episode_return) == (1010, 6.0)


def test_several_updates_may_precede_a_result():
    early = EarlyReturns()
    early.begin(Episodes(), updates=29, env_steps=0, seconds=0.0)
    for update in (30, 31):
        early.add(*rollout(10, {(9, 0): float(update)}, columns=1), steps_before=0)
        early.end_update(update, 10 * (update - 29), 1.0)
    points = early.points(SingleLearner(), Episodes())
    assert [(x.env_steps, x.episode_return) for x in points] == [(10, 30.0)]


def test_learners_episodes_are_ordered_by_their_share_of_the_update():
    early = EarlyReturns()
    early.begin(Episodes(window=4), updates=0, env_steps=0, seconds=0.0)
    early.add(*rollout(60, {(19, 0): 2.0}, columns=1), steps_before=0)
    early.end_update(1, 120, 1.0)
    points = early.points(TwoLearners([(0.25, 4.0, 0)]), Episodes())
    assert [(x.env_steps, x.episode_return) for x in points] == [(30, 4.0), (40, 3.0)]


def test_several_tasks_have_a_mean_once_each_has_an_episode():
    early = EarlyReturns()
    early.begin(Episodes(tasks=("a", "b")), updates=0, env_steps=0, seconds=0.0)
    early.add(*rollout(60, {(0, 0): 2.0, (30, 0): 4.0}, columns=1), steps_before=0)
    early.add(*rollout(60, {(0, 0): 13.0}, columns=1), steps_before=60, task=1)
    early.end_update(1, 120, 1.0)
    points = early.points(SingleLearner(), Episodes(tasks=("a", "b")))
    assert [(x.env_steps, x.episode_return) for x in points] == [(62, 8.0)]


def test_any_number_of_updates_has_at_least_sixty_parts_and_few_more():
    for updates in (1, 2, 5, 34, 59, 60, 1000):
        parts = sum(map(num_parts, range(1, updates + 1)))
        assert parts >= FEWEST_POINTS
        assert parts <= updates + 320


@pytest.mark.parametrize("updates", [1, 3, 34])
def test_the_curve_of_a_short_run_has_sixty_points_and_begins_near_0(tmp_path, updates):
    config = hr.Config(
        "CartPole-v1", hr.PPO(epochs=1, minibatches=1), transport="serial", num_actors=1,
        envs_per_actor=16, fragment_length=128, total_steps=2000 * updates, eval_episodes=0,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    with hr.Trainer(config, notify=str) as trainer:
        results = list(trainer)
    steps, returns = read_run(tmp_path / "run").curve("env_steps", RETURN)
    assert len(steps) >= FEWEST_POINTS * 0.8  # in some parts no episode ends
    assert updates == 1 or len(steps) >= FEWEST_POINTS
    assert (np.diff(steps) > 0).all()
    assert steps[0] <= steps[-1] / 10 or updates > 1
    assert steps[0] <= 2000 / 5
    assert (steps[-1], returns[-1]) == (results[-1].env_steps, results[-1].episode_return)
    seconds = read_run(tmp_path / "run").curve("seconds", RETURN)[0]
    assert (np.diff(seconds) >= 0).all()
    lines = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert len(lines) == len(results)
