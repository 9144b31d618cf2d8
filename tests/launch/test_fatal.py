"""Errors that stop a group of learners, and errors that a restart may fix."""

from __future__ import annotations

import functools

import gymnasium
import pytest
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace import errors
from headrace.envs.probe import probe
from headrace.errors import EnvironmentFault, EnvironmentLost, LearnerFailed
from headrace.launch import group as learner_group


class Saying:
    """Run learners of which one reports its fatal error; return the number of restarts."""

    lives = 0

    def __init__(self, said, *_):
        type(self).lives += 1
        self._said = [
            (1, ("failed", *said, "Traceback …")),
            *((rank, ("gone",)) for rank in (0, 1)),
        ]

    def receive(self, timeout_s):
        said, self._said = self._said, []
        return said

    def name(self, rank):
        return f"learner {rank}"

    def close(self):
        pass


class Flaky(gymnasium.Env):
    """Raises in its reset."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        raise ConnectionError("the server is not up yet")


class Empty(Flaky):
    """Returns nothing in its reset."""

    def reset(self, *, seed=None, options=None):
        return None


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_what_an_environment_raises_may_be_over_in_a_fresh_one(engine):
    with pytest.raises(EnvironmentFault) as raised:
        probe(Flaky, engine, {}, 0)
    assert type(raised.value) is EnvironmentLost
    with pytest.raises(EnvironmentFault) as raised:
        probe(Empty, engine, {}, 0)
    assert type(raised.value) is EnvironmentFault


@pytest.mark.parametrize(
    ("kind", "lives"), [("EnvironmentFault", 1), ("NonFinite", 1), ("EnvironmentLost", 3)]
)
def test_what_would_end_the_same_way_is_one_sentence_and_not_tried_again(
    tiny, monkeypatch, kind, lives
):
    monkeypatch.setattr(Saying, "lives", 0)
    said = kind, "Idle's 2 had no turn in 1,000 games"
    monkeypatch.setattr(learner_group, "LocalLearners", functools.partial(Saying, said))
    once = lives == 1
    with pytest.raises(getattr(errors, kind) if once else LearnerFailed) as raised:
        list(hr.LearnerGroup(tiny(num_learners=2, max_restarts=2), notify=str))
    assert Saying.lives == lives
    assert ("\n" in str(raised.value)) != once
    assert "learner 1" in str(raised.value)
    assert "Idle's 2 had no turn in 1,000 games" in str(raised.value)
