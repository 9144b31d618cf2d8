"""Sampling of settings: text forms, ranges, draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.studies.sample import IMPALA, Parameter, parse


def test_parameters_are_named_as_flags_or_fields():
    found = parse(["--learning-rate=loguniform:5e-6,5e-3", "epochs=choice:1,2,4"], hr.Config())
    assert found == [
        Parameter("learning_rate", "loguniform", (5e-6, 5e-3)),
        Parameter("epochs", "choice", (1, 2, 4)),
    ]
    twice = parse(["gamma=uniform:0.9,0.99", "gamma=uniform:0.5,0.6"], hr.Config())
    assert [one.values for one in twice] == [(0.5, 0.6)]
    (sizes,) = parse(["lr-schedule=choice:linear,constant"], hr.Config())
    assert sizes.values == ("linear", "constant")


def test_choices_may_be_lists_and_dicts_of_several():
    texts = ["hidden=choice:[64,64],[256,256]", 'env_kwargs=choice:{"a":1,"b":2},{}']
    hidden, kwargs = parse(texts, hr.Config())
    assert hidden.values == ([64, 64], [256, 256])
    assert kwargs.values == ({"a": 1, "b": 2}, {})


def test_choices_may_be_none_and_truth_values_as_python_writes_them():
    texts = ["core=choice:lstm,None", "normalize_advantage=choice:True,False"]
    core, normalized = parse(texts, hr.Config())
    assert core.values == ("lstm", None)
    assert normalized.values == (True, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning-rat=uniform:0.1,0.2", "'learning_rat' is unknown.*'learning_rate'"),
        ("epochs=int:1", "two whole numbers"),
        ("epochs=int:1,2.5", "two whole numbers"),
        ("gamma=unform:0,1", "choose uniform.*'uniform'"),
        ("gamma=uniform:0.9,0.1", r"from low to high \(nearest: uniform:0.1,0.9\)"),
        ("gamma=loguniform:0,1", r"above 0 \(nearest: uniform:0,1\)"),
        ("gamma=uniform:0.5,1.5", r"gamma=1.5 must be at most 1 \(nearest: 1.0\)"),
        ("gamma", "must be NAME=KIND:VALUES"),
        ("gamma=uniform:a,b", "two numbers"),
        ("gamma=choice:0.9", "two or more"),
        ("gamma=choice:0.9,0.9", "different"),
        ("seed=int:1,5", "the study sets seed"),
        ("clip=uniform:NaN,1", "two numbers"),
        ("rho_bar=choice:[1],2", "rho_bar"),
        ("max_lag=choice:1,1.5", "max_lag=1.5"),
    ],
)
def test_what_is_wrong_is_told_with_the_nearest(text, words):
    with pytest.raises(ConfigError, match=words):
        parse([text], hr.Config())


def test_a_setting_of_another_algorithm_is_told_with_its_owner():
    with pytest.raises(ConfigError, match="setting of IMPALA"):
        parse(["replay_fraction=uniform:0,0.5"], hr.Config())


@pytest.mark.parametrize("kind", ["uniform", "loguniform", "int", "logint"])
def test_draws_fill_their_range_as_they_should(kind):
    low, high = 2, 32
    one, rng = Parameter("epochs", kind, (low, high)), np.random.default_rng(0)
    drawn = np.array([one.draw(rng) for _ in range(4000)])
    assert low <= drawn.min() < 1.2 * low
    assert 0.9 * high < drawn.max() <= high
    half = math.sqrt(low * (high + one.is_integer)) if one.log else (low + high) / 2
    assert 0.45 < (drawn < half).mean() < 0.55
    assert all(isinstance(one.draw(rng), int if one.is_integer else float) for _ in range(9))


def test_choices_are_equally_likely():
    one, rng = Parameter("epochs", "choice", (1, 2, 4)), np.random.default_rng(0)
    drawn = [one.draw(rng) for _ in range(3000)]
    assert all(900 < drawn.count(value) < 1100 for value in (1, 2, 4))


def test_the_papers_ranges():
    entropy, rate, epsilon = parse(IMPALA, hr.Config(algo=hr.IMPALA()))
    assert (entropy.name, entropy.log, entropy.values) == ("entropy_coef", True, (5e-5, 1e-2))
    assert (rate.name, rate.log, rate.values) == ("learning_rate", True, (5e-6, 5e-3))
    printed = np.array([1e-1, 1e-3, 1e-5, 1e-7])  # under the root, of sums over 32 x 100 steps
    assert epsilon.name == "optimizer_eps"
    np.testing.assert_allclose(epsilon.values, np.sqrt(printed) / 3200, rtol=0.02)


def test_a_value_may_need_another_one_that_is_drawn():
    sizes = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 16, "batch_size": 128}
    config = hr.Config(algo=hr.PPO(), **sizes)
    long = "fragment_length=choice:16,64"
    with pytest.raises(ConfigError, match="batch_size"):
        parse([long], config)
    found = parse([long, "batch_size=choice:128,512"], config)
    assert [one.values for one in found] == [(16, 64), (128, 512)]
