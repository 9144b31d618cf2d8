"""Each rule of the doctor: rows that trigger it, and small changes that silence it."""

from __future__ import annotations

import inspect
import math
from types import ModuleType

import hypothesis
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import strategies as st
from tries import examples

from headrace.doctor import doctor as live
from headrace.doctor import learning, returns, rules, work
from headrace.doctor.doctor import FEWEST_ROWS, Doctor, examine
from headrace.doctor.history import History

SETTINGS = {
    "algo": "ppo", "total_steps": 20_000, "clip": 0.2, "learning_rate": 1e-3, "max_grad_norm": 0.5,
    "num_actors": 2, "envs_per_actor": 4, "fragment_length": 16, "normalize_values": True,
    "eval_interval": 2_000, "entropy_coef": 0.01, "epochs": 4, "minibatches": 4,
}  # fmt: skip
HEALTHY = {
    "charts/episodic_return": lambda i: 10.0 + 5 * i, "charts/learning_rate": 1e-3,
    "charts/updates": lambda i: 8 * (i + 1), "charts/episodic_length": 20.0,
    "losses/explained_variance": 0.8, "losses/entropy": lambda i: 0.6 - 0.01 * i,
    "losses/approx_kl": 0.01, "losses/clipfrac": 0.1, "losses/grad_norm": 0.4,
    "losses/value_loss": 0.3, "lag/mean": 1.0, "lag/steps": 20.0, "lag/dropped": 0.0,
    "queue/lost": 0.0, "utilisation/learner": 0.9, "utilisation/actor": 0.6,
    "utilisation/environment": 0.5, "eval/episodic_return": lambda i: 12.0 + 5 * i,
    "time/learn": 0.8, "time/wait": 0.1, "time/sync": 0.1,
}  # fmt: skip

GREEDY = {
    "deterministic": True, "episodes": 20, "mean": -12.0, "std": 120.0, "returns": [-12.0] * 20,
    "lengths": [300] * 20,
    "other_mode": {"episodes": 20, "mean": 203.0, "std": 60.0, "returns": [203.0] * 20,
                   "lengths": [300] * 20},
}  # fmt: skip
UNLEARNT = {"charts/episodic_return": lambda i: 20.0 + i % 3, "eval/episodic_return": None}
LEVEL = UNLEARNT | {"charts/episodes": lambda i: 50 * (i + 1), "charts/episodic_length": 20.0}
CROWDED = {"cores/own": 0.4, "cores/other": 1.6, "cores/idle": 0.0}
SLOW = {"utilisation/environment": 0.95, "utilisation/learner": 0.2}

# Of each rule: what is ill, where it just isn't, and settings that differ.
CASES = {
    "environment-slow": (SLOW | {"charts/SPS": 1000.0}, SLOW | {"charts/SPS": 2000.0}, {}),
    "endless-episodes": ({"charts/episodic_return": None}, {}, {"max_episode_steps": 200}),
    "flat-returns": (
        {"charts/episodic_return": 0.0, "eval/episodic_return": None, "losses/entropy": 0.65},
        {"charts/episodic_return": lambda i: 0.1 * i, "eval/episodic_return": None,
         "losses/entropy": 0.65}, {}),
    "actors-die": ({"queue/lost": 2.0}, {"queue/lost": 1.0}, {}),
    "standstill": (
        {"losses/approx_kl": 1e-7, "losses/entropy": 0.6},
        {"losses/approx_kl": 2e-5, "losses/entropy": 0.6}, {}),
    "kl-high": ({"losses/approx_kl": 0.2}, {"losses/approx_kl": 0.09}, {}),
    "random-policy": (
        UNLEARNT | {"losses/entropy": 0.69}, {"losses/entropy": 0.65}, {"entropy_coef": 0.5}),
    "returns-unnormalised": (
        {"losses/value_loss": 400.0, "charts/episodic_return": lambda i: -900.0 + i,
         "eval/episodic_return": None},
        {"losses/value_loss": 40.0, "charts/episodic_return": lambda i: -900.0 + i,
         "eval/episodic_return": None},
        {"normalize_values": False}),
    "gradient-clipped": ({"losses/grad_norm": 8.0}, {"losses/grad_norm": 7.0}, {}),
    "lag-high": (
        {"lag/mean": 5.0, "losses/clipfrac": 0.35}, {"lag/mean": 3.0, "losses/clipfrac": 0.35},
        {}),
    "clip-fraction": ({"losses/clipfrac": 0.45}, {"losses/clipfrac": 0.35}, {}),
    "value-blind": (
        UNLEARNT | {"losses/explained_variance": 0.01},
        {"losses/explained_variance": 0.03}, {}),
    "means-outside": ({"losses/mean_size": 2.6}, {"losses/mean_size": 2.4}, {}),
    "below-start": (
        {"charts/episodic_return": lambda i: 30.0 - i, "eval/episodic_return": None,
         "charts/episodes": lambda i: 8 * (i + 1)},
        {"charts/episodic_return": lambda i: 30.0 - 0.3 * i, "eval/episodic_return": None,
         "charts/episodes": lambda i: 8 * (i + 1)}, {}),
    "flat": (LEVEL, LEVEL | {"charts/episodic_return": lambda i: 20.0 + i % 3 + 0.2 * i}, {}),
    "entropy-collapsed": (
        {"losses/entropy": 0.01, "charts/episodic_return": lambda i: 20.0 - 0.1 * i,
         "eval/episodic_return": None},
        {"losses/entropy": 0.03, "charts/episodic_return": lambda i: 20.0 - 0.1 * i,
         "eval/episodic_return": None}, {}),
    "return-lost": (
        {"charts/episodic_return": lambda i: 10.0 * i if i < 10 else 12.0,
         "eval/episodic_return": None},
        {"charts/episodic_return": lambda i: 10.0 * i if i < 10 else 60.0,
         "eval/episodic_return": None}, {}),
    "greedy-far": ({}, {"agents/a/episodic_return": 1.0}, {"evaluation": GREEDY}),
    "small-image": (
        {"utilisation/learner": 0.5},
        {"utilisation/learner": 0.35, "utilisation/environment": 0.9}, {"images": [[7, 7]]}),
    "evaluation-far": (
        {"eval/episodic_return": lambda i: -100.0 - i},
        {"eval/episodic_return": lambda i: -70.0 + 5 * i}, {}),
    "rollouts-dropped": ({"lag/dropped": 300.0}, {"lag/dropped": 100.0}, {}),
    "learner-idle": (
        {"utilisation/learner": 0.2, "utilisation/actor": 0.99},
        {"utilisation/learner": 0.35, "utilisation/actor": 0.99}, {}),
    "learner-slow": ({"charts/SPS": 80.0}, {"charts/SPS": 100.0}, {}),
    "actors-idle": (
        {"utilisation/actor": 0.2}, {"utilisation/actor": 0.3}, {"num_actors": 3, "max_lag": 1}),
    "learners-uneven": ({"time/sync": 1.8}, {"time/sync": 1.2}, {}),
}  # fmt: skip

# Healthy runs with unusual metrics: their rows, and settings that differ.
NATURAL = {
    "evaluations so late that each is of a policy before training rose": (
        {"eval/episodic_return": lambda i: None if i < 10 else -100.0}, {}),
    "one evaluation all the while": ({"eval/episodic_return": -100.0}, {}),
    "evaluations above training, which explores": (
        {"eval/episodic_return": lambda i: 500.0 + i}, {}),
    "values that explain little of a solved task, and its gradients": (
        {"charts/episodic_return": lambda i: min(500.0, 20.0 + 120 * i),
         "losses/explained_variance": lambda i: 0.9 if i < 5 else -2.0,
         "losses/grad_norm": lambda i: 0.4 if i < 5 else 40.0, "eval/episodic_return": 500.0}, {}),
    "the same of a run that starts from another run's policy": (
        {"charts/episodic_return": 500.0, "losses/explained_variance": -2.0,
         "losses/grad_norm": 40.0, "eval/episodic_return": 500.0}, {"init_from": "runs/a"}),
    "a policy that became certain in the first two results": (
        {"charts/episodic_return": lambda i: min(500.0, 100.0 + 250 * i),
         "losses/entropy": 0.001, "eval/episodic_return": 500.0}, {}),
    "values that explain little before learning began": (
        UNLEARNT | {"losses/explained_variance": 0.0, "charts/updates": lambda i: i + 1}, {}),
    "values that explain little of returns that rise": ({"losses/explained_variance": 0.01}, {}),
    "a policy that is random in half of its steps, with a small bonus": (
        UNLEARNT | {"losses/entropy": 0.69}, {"entropy_coef": 0.01, "total_steps": 40_000}),
    "a random policy whose returns rise": ({"losses/entropy": 0.69}, {"entropy_coef": 0.5}),
    "actors that wait for a synchronous learner": (
        {"utilisation/actor": 0.1}, {"num_actors": 8}),
    "a learner that waits for a few environments, and often works": (
        {"utilisation/learner": 0.45, "utilisation/actor": 0.99}, {}),
    "a learner that waits for many environments": (
        {"utilisation/learner": 0.1, "utilisation/actor": 0.99}, {"envs_per_actor": 16}),
    "an environment that takes most of the time, but little": (
        SLOW | {"charts/SPS": 20_000.0}, {}),
    "a slow environment that no process waits for": (
        SLOW | {"charts/SPS": 1_000.0, "utilisation/learner": 0.9}, {}),
    "a policy that is sure, and hardly moves": (
        {"losses/approx_kl": 1e-8, "losses/entropy": lambda i: 0.6 / (i + 1)}, {}),
    "returns that are alike in the first few episodes": (
        {"charts/episodic_return": -500.0, "charts/episodes": lambda i: 2.0 * i,
         "losses/entropy": 0.65, "eval/episodic_return": None}, {}),
    "a return that fell for a while": (
        {"charts/episodic_return": lambda i: 10.0 * i if i != 12 else 0.0,
         "eval/episodic_return": None}, {}),
    "a return that rises and falls a little, as by chance": (
        {"charts/episodic_return": lambda i: 20.0 + 8 * (i == 10),
         "eval/episodic_return": None}, {"init_from": "runs/a"}),
    "first episodes that are short and good": (
        {"charts/episodic_return": lambda i: 90.0 if i < 2 else 60.0 + i,
         "charts/episodes": lambda i: 4 * (i + 1), "eval/episodic_return": None}, {}),
    "returns of a few updates, below the first ones": (
        {"charts/episodic_return": lambda i: 30.0 - i, "charts/updates": lambda i: i + 1,
         "charts/episodes": lambda i: 8 * (i + 1), "eval/episodic_return": None}, {}),
    "returns that fall below the first ones and rise again": (
        {"charts/episodic_return": lambda i: 20.0 + 0.2 * (i - 10) ** 2,
         "charts/episodes": lambda i: 50 * (i + 1), "eval/episodic_return": None}, {}),
    "returns that are good soon after the first": (
        {"charts/episodic_return": lambda i: 80.0 if i == 1 else 93.0 + 0.1 * (i % 3),
         "charts/episodes": lambda i: 50 * (i + 1), "eval/episodic_return": None}, {}),
    "an environment that waits for cores that other programs use": (
        SLOW | CROWDED | {"charts/SPS": 1000.0}, {}),
    "a learner that waits for cores that other programs use": (
        CROWDED | {"charts/SPS": 60.0}, {}),
    "a few actors that wait for cores that other programs use": (
        CROWDED | {"utilisation/learner": 0.2, "utilisation/actor": 0.99}, {}),
    "IMPACT's first updates, with data that is not old yet": (
        {"losses/approx_kl": lambda i: 1e-15 if i < 12 else 0.01, "losses/entropy": 0.6,
         "lag/steps": lambda i: 0.0 if i < 12 else 40.0}, {}),
    "the gradients of values in the units of rewards": (
        {"losses/grad_norm": 12.0}, {"normalize_values": False}),
    "returns that rise and fall by chance, which values don't explain": (
        {"charts/episodic_return": lambda i: 5.0 * (5 < i < 12) + 0.1 * (i % 3),
         "losses/explained_variance": 0.05, "eval/episodic_return": None}, {}),
    "a game whose agents' returns add up to 0, while each learns": (
        UNLEARNT | {"charts/episodic_return": 0.0, "agents/a/episodic_return": lambda i: 0.1 * i,
                    "agents/b/episodic_return": lambda i: -0.1 * i, "losses/entropy": 0.69,
                    "losses/explained_variance": 0.0}, {"entropy_coef": 0.2}),
    "a game that is nearly solved": (
        UNLEARNT | {"charts/episodic_return": lambda i: 1e-16 if i < 3 else -1e-16,
                    "losses/entropy": 0.001, "agents/a/episodic_return": lambda i: 0.1 * i}, {}),
    "returns that fall as opponents grow strong": (
        {"charts/episodic_return": lambda i: 10.0 * i if i < 10 else 12.0,
         "eval/episodic_return": None}, {"opponents": "latest:0.5,pfsp:0.5"}),
    "A3C's lag, and its learner, which only counts": (
        {"lag/mean": 15.0, "utilisation/learner": 0.1, "utilisation/actor": 0.99}, {"algo": "a3c"}),
}  # fmt: skip


def rows(count: int = 20, **changed) -> list[dict]:
    """Return a run with a result every 1,000 steps; None: a line lacks it."""
    found = []
    for i in range(count):
        columns = HEALTHY | changed
        row = {name: x(i) if callable(x) else x for name, x in columns.items()}
        known = {"env_steps": 1000 * (i + 1), "seconds": float(i)}
        found.append(known | {name: x for name, x in row.items() if x is not None})
    return found


def names(lines, settings=None, space=None) -> list[str]:
    return [one.name for one in examine(lines, SETTINGS | (settings or {}), space or Discrete(2))]


def test_a_healthy_run_has_nothing():
    assert names(rows()) == []


@pytest.mark.parametrize("name", CASES)
def test_each_rule_speaks_of_its_illness_alone_and_is_silent_short_of_it(name):
    ill, well, settings = CASES[name]
    assert names(rows(**ill), settings) == [name]
    assert names(rows(**well), settings) == []


@pytest.mark.parametrize("what", NATURAL)
def test_what_is_natural_is_no_illness(what):
    changed, settings = NATURAL[what]
    assert names(rows(**changed), settings) == []


def test_values_that_the_loss_ignores_are_blind_though_noise_may_explain_a_little():
    little = rows(**{"losses/explained_variance": 0.15})
    assert names(little) == []
    assert names(little, {"value_coef": 0.0}) == ["value-blind"]


@pytest.mark.parametrize(("change", "found"), [(1e-5, ["standstill"]), (1e-3, [])])
def test_a_policy_that_is_compared_with_itself_stands_still_by_its_entropy(change, found):
    same = {"losses/approx_kl": 0.0, "lag/steps": 0.0}
    assert names(rows(**same, **{"losses/entropy": lambda i: 0.69 - change * i / 19})) == found


def test_a_policy_without_a_difference_in_returns_does_not_stand_still():
    still = {"losses/approx_kl": 1e-7, "losses/entropy": 0.6, "charts/episodic_return": 0.0}
    assert names(rows(8, **still)) == []  # a third of the run
    assert names(rows(**still)) == ["flat-returns"]


@pytest.mark.parametrize(("grows", "found"), [(0.1, ["random-policy"]), (0.01, [])])
def test_a_continuous_policy_becomes_random_by_a_bonus(grows, found):
    wider = UNLEARNT | {"losses/entropy": lambda i: 1.4 + grows * i}
    longer = {"entropy_coef": 1.0, "total_steps": 40_000}
    assert names(rows(**wider), longer, Box(-1, 1, (2,))) == found


@pytest.mark.parametrize(
    ("late", "space", "found"),
    [
        (0.3, Discrete(2), "entropy-collapsed"),
        (0.4, Discrete(2), "flat"),
        (-1.2, Box(-1, 1, (1,)), "entropy-collapsed"),
        (-0.8, Box(-1, 1, (1,)), "flat"),
    ],
)
def test_entropy_collapses_at_chance_where_returns_never_moved(late, space, found):
    falls = LEVEL | {"losses/entropy": lambda i: 0.6 if i < 5 else late}
    (one,) = examine(rows(**falls), SETTINGS, space)
    assert one.name == found
    assert "20.0" in one.text or "21.0" in one.text
    assert names(rows(**falls | {"charts/episodes": 100.0}), space=space) == []


@pytest.mark.parametrize(("last", "found"), [(13.0, ["return-lost"]), (15.0, [])])
def test_a_smaller_gain_is_lost_if_nearly_all_of_it_is(last, found):
    returns = {"charts/episodic_return": lambda i: 12.0 + 0.8 * i if i < 9 else last}
    assert names(rows(**returns | {"eval/episodic_return": None})) == found


def test_a_crowded_machine_does_not_hide_a_slow_environment_or_an_idle_learner():
    assert names(rows(**SLOW | CROWDED | {"charts/SPS": 400.0})) == ["environment-slow"]
    idle = CROWDED | {"cores/other": 1.2, "cores/idle": 0.4}  # so that nothing waits for a core
    assert names(rows(**SLOW | idle | {"charts/SPS": 1000.0})) == ["environment-slow"]
    idle_learner = CROWDED | {"utilisation/learner": 0.2, "utilisation/actor": 0.99}
    alone = {"num_actors": 1, "envs_per_actor": 1}
    assert names(rows(**idle_learner), alone) == ["learner-idle"]
    few = CROWDED | {"cores/own": 1.6, "cores/other": 0.4}
    assert names(rows(**SLOW | few | {"charts/SPS": 1000.0})) == ["environment-slow"]


@pytest.mark.parametrize(
    ("learner", "settings", "found"),
    [(0.05, {}, ["environment-slow"]), (0.2, {}, []), (0.05, {"transport": "serial"}, [])],
    ids=["environment", "learner", "serial"],
)
def test_processor_time_tells_what_is_slow_on_a_crowded_machine(learner, settings, found):
    waits = {"utilisation/environment": 0.95, "utilisation/learner": 0.65, "charts/SPS": 200.0}
    crowded = CROWDED | {"cores/learner": learner}
    assert names(rows(**waits | crowded), settings) == found
    few = {"cores/learner": 0.3, "charts/SPS": 200.0}  # 0.5 ms of the actors for each step
    assert names(rows(**SLOW | CROWDED | few)) == []


@pytest.mark.parametrize(("speed", "found"), [(4000.0, []), (400.0, ["environment-slow"])])
def test_steps_that_wait_for_the_other_actors_of_the_run_are_not_slow(speed, found):
    full = {"cores/own": 2.0, "cores/other": 0.0, "cores/idle": 0.0, "cores/learner": 0.3}
    busy = SLOW | full | {"utilisation/actor": 0.99, "charts/SPS": speed}
    assert names(rows(**busy), {"num_actors": 16}) == found


def test_figures_are_judged_while_the_learning_rate_is_high():
    falls = {"charts/learning_rate": lambda i: 1e-3 * (1 - i / 20)}
    late = falls | {"losses/approx_kl": lambda i: 0.2 if i < 12 else 0.001}
    assert names(rows(**late)) == ["kl-high"]


def test_every_rule_has_its_case_and_its_sentence_a_figure_and_a_setting():
    assert set(CASES) == {rule.name for rule in rules.RULES}
    assert len(CASES) >= 12
    for name, (ill, _, settings) in CASES.items():
        (found,) = examine(rows(**ill), SETTINGS | settings, Discrete(2))
        assert any(letter.isdigit() for letter in found.text), name
        assert found.remedy
        assert "noise_color" not in found.remedy  # without effect on discrete actions
        assert found.line == f"{found.text}; usually fixed by: {found.remedy}"


def test_a_remedy_leaves_out_settings_that_are_set():
    (rule,) = [rule for rule in rules.RULES if rule.name == "value-blind"]
    assert rule.remedy({}) == "a larger value_coef, normalize_values=True, or a smaller gamma"
    assert rule.remedy({"normalize_values": True}) == "a larger value_coef, or a smaller gamma"
    (rule,) = [rule for rule in rules.RULES if rule.name == "rollouts-dropped"]
    assert "max_policy_lag=None" in rule.remedy({})  # whose value isn't known
    assert "max_policy_lag" not in rule.remedy({"max_policy_lag": None})
    (rule,) = [rule for rule in rules.RULES if rule.name == "flat"]
    assert "noise_color=1" in rule.remedy({})
    assert "noise_color" not in rule.remedy({}, continuous=False)
    (rule,) = [rule for rule in rules.RULES if rule.name == "means-outside"]
    assert rule.remedy({"bounds_coef": 0.01}) == "squash_actions=True"
    assert rule.remedy({"bounds_coef": 0.01, "squash_actions": True}) == rule.remedy({})


def test_symptoms_are_left_out_where_their_cause_is_found():
    known = {rule.name for rule in rules.RULES}
    assert all(set(rule.explained_by) <= known for rule in rules.RULES)
    both = {"losses/approx_kl": 0.2, "losses/clipfrac": 0.6}
    assert names(rows(**both)) == ["kl-high"]


def test_algorithms_are_judged_by_what_they_do():
    kl = rows(**{"losses/approx_kl": 0.3})
    assert names(kl) == ["kl-high"]
    assert names(kl, {"clip": None}) == []  # IMPALA has no clip
    old = rows(**{"lag/mean": 40.0, "losses/clipfrac": 0.4})
    assert names(old) == ["lag-high"]
    assert names(old, {"buffer_size": 4}) == []  # IMPACT continues to use its data
    once = {"losses/approx_kl": 0.0, "lag/steps": 0.0, "losses/entropy": lambda i: 0.6 + 0.001 * i}
    assert names(rows(**once)) == []  # A2C's policy is compared with itself


@pytest.mark.parametrize("dims", [1, 2, 17])
def test_continuous_policies_collapse_by_nats_of_each_number_and_not_by_a_share(dims):
    box = Dict({"a": Discrete(2), "b": Box(-1, 1, (dims,))})
    falls = rows(9, **UNLEARNT | {"losses/entropy": lambda i: 2.0 - 0.6 * dims * i})
    assert names(falls, space=box) == ["entropy-collapsed"]
    slower = rows(9, **UNLEARNT | {"losses/entropy": lambda i: 2.0 - 0.4 * dims * i})
    assert names(slower, space=box) == []
    assert names(rows(9, **{"losses/entropy": lambda i: 2.0 - 0.6 * dims * i}), space=box) == []


SURE = {"losses/entropy": 0.001, "eval/episodic_return": None}  # hardly another action is tried
RETURN = "charts/episodic_return"


@pytest.mark.parametrize(
    ("returns", "settings", "found"),
    [
        (lambda i: min(500.0, 50.0 * i), {}, []),  # it has converged, and stays there
        (lambda i: 500.0 + i % 3, {"resume": True}, []),  # it had
        (lambda i: 500.0 + i % 3, {"init_from": "runs/a"}, []),
        (lambda i: 500.0 if i < 3 else 9.4, {"init_from": "runs/a"}, ["entropy-collapsed"]),
        (lambda i: 20.0 + i % 3, {}, ["entropy-collapsed"]),  # it never trained
        (lambda i: 20.0 + 30 * i if i < 4 else 9.4, {}, ["entropy-collapsed"]),  # it lost all
    ],
)
def test_a_policy_that_is_sure_has_collapsed_only_at_a_low_return(returns, settings, found):
    assert names(rows(**SURE | {RETURN: returns}), settings) == found


@pytest.mark.parametrize(
    ("changed", "settings", "found"),
    [
        ({}, {}, ["flat-returns"]),
        ({"losses/entropy": lambda i: 0.69 - 0.02 * i}, {}, ["flat-returns"]),
        ({"losses/entropy": 0.4}, {}, []),  # all 500: it converged before the first result
        ({}, {"resume": True}, []),
        ({}, {"init_from": "runs/a"}, []),
    ],
)
def test_a_return_that_is_always_the_same_may_be_the_best(changed, settings, found):
    flat = {RETURN: 500.0, "eval/episodic_return": None, "losses/entropy": 0.65}
    assert names(rows(**flat | changed), settings) == found


def evaluated(mean, std, other, usual, low=(), length=9):
    """A final evaluation of 20 episodes, some with low returns and this length."""
    sampled = {"episodes": 20, "mean": other, "std": usual, "returns": [other - usual] * 20}
    returns = [*low, *[other] * (20 - len(low))]
    lengths = [length] * len(low) + [9] * (20 - len(low))
    return {"deterministic": True, "episodes": 20, "mean": mean, "std": std, "returns": returns,
            "lengths": lengths, "other_mode": sampled | {"lengths": [9] * 20}}  # fmt: skip


@pytest.mark.parametrize(
    ("played", "found"),
    [
        (evaluated(-12.0, 120.0, 203.0, 60.0), ["greedy-far"]),
        (evaluated(-8.8, 60.0, 7.1, 2.7, [-200.0] * 2), ["greedy-far"]),
        (evaluated(-2.5, 46.0, 7.1, 2.7, [-200.0]), []),
        (evaluated(-2.5, 46.0, 7.1, 2.7, [-200.0], 200), ["greedy-far"]),  # a loop in Taxi
        (evaluated(4.0, 46.0, 7.1, 2.7, [-60.0], 200), []),
        (evaluated(150.0, 120.0, 203.0, 60.0), []),  # chance
        (evaluated(190.0, 1.0, 203.0, 1.0), []),  # little
        (evaluated(203.0, 60.0, -12.0, 60.0), []),  # better
        (GREEDY | {"deterministic": False}, []),
        (GREEDY | {"mean": None}, []),
        (GREEDY | {"other_mode": None}, []),
        (None, []),
    ],
)
def test_likely_actions_are_far_below_sampled_ones_by_more_than_chance(played, found):
    assert names(rows(), {"evaluation": played}) == found


def test_evaluations_in_another_environment_are_far_on_purpose():
    far = rows(**{"eval/episodic_return": lambda i: -100.0 - i})
    assert names(far, {"eval_env_kwargs": {}}) == ["evaluation-far"]
    assert names(far, {"eval_env_kwargs": {"reward_clip": None}}) == []


def test_episodes_are_endless_by_three_times_their_own_limit():
    none = rows(**{RETURN: None, "eval/episodic_return": None})  # 2,500 steps of each environment
    assert names(none, {"max_episode_steps": 800}) == ["endless-episodes"]
    assert names(none, {"max_episode_steps": 900}) == []
    assert names(none) == []  # whose limit is not known
    alone = {"num_actors": 1, "envs_per_actor": 1}
    assert names(rows(4, **{RETURN: None, "eval/episodic_return": None}), alone) != []
    assert names(rows(3, **{RETURN: None, "eval/episodic_return": None}), alone) == []


def test_episodes_that_have_ended_may_be_endless_since_and_are_not_flat():
    last = {RETURN: -1512.0, "eval/episodic_return": None, "losses/entropy": 0.65}
    assert names(rows(**last | {"charts/episodes": lambda i: 30 * i})) == ["flat-returns"]
    since = rows(**last | {"charts/episodes": 240.0})  # 2,375 steps of each environment ago
    assert names(since, {"max_episode_steps": 700}) == ["endless-episodes"]
    assert names(since, {"max_episode_steps": 800}) == []
    long = rows(**last | {"charts/episodes": 240.0, "charts/episodic_length": 800.0})
    assert names(long, {"max_episode_steps": 700}) == []
    older = [{k: x for k, x in row.items() if k != "charts/episodes"} for row in since[:-1]]
    assert names([*older, since[-1]], {"max_episode_steps": 700}) == ["flat-returns"]
    (found,) = examine(since, SETTINGS | {"max_episode_steps": 700}, Discrete(2))
    assert "in 2,375 steps of each environment since the latest one" in found.text


@pytest.mark.parametrize(
    ("space", "nats"),
    [
        (Discrete(5), math.log(5)),
        (MultiDiscrete([2, 3]), math.log(6)),
        (MultiBinary(3), math.log(8)),
        (Dict({"a": Discrete(2), "b": MultiBinary(1)}), math.log(4)),
        (Box(0, 1, (2,)), None),
        (None, None),
    ],
)
def test_the_greatest_entropy_of_a_space(space, nats):
    found = History([], {}, space).max_entropy
    assert found == pytest.approx(nats) if nats is not None else found is None


def test_columns_know_what_lines_lack_and_which_half_is_late():
    history = History([{"env_steps": 10, "a": 1.0}, {"env_steps": 20}, {"env_steps": 30, "a": 3.0}],
                      {"total_steps": 60, "clip": None}, None)  # fmt: skip
    assert history.known("a").tolist() == [1.0, 3.0]
    assert (history.median("a"), history.first("a"), history.last("a")) == (3.0, 1.0, 3.0)
    assert math.isnan(history.median("b"))
    assert history.progress == 0.5
    timed = [{"env_steps": 10, "seconds": 4.0}, {"env_steps": 30, "seconds": 12.0}]
    assert History(timed, {"total_steps": 60, "stop_time_s": 16.0}, None).progress == 0.75
    assert History(timed, {"total_steps": 60, "stop_time_s": None}, None).progress == 0.5
    assert math.isnan(history.setting("clip"))


def test_while_a_run_goes_on_each_finding_is_told_once_and_looked_for_rarely(monkeypatch):
    looks = []
    monkeypatch.setattr(live, "examine", lambda *args: looks.append(len(args[0])) or examine(*args))
    doctor = Doctor(SETTINGS, Discrete(2))
    lines = rows(400, **{"losses/approx_kl": 0.2})
    told = [one.name for row in lines for one in doctor.note(row)]
    assert told == ["kl-high"]
    assert looks[0] == 2 * FEWEST_ROWS
    assert len(looks) < 20
    again = Doctor(SETTINGS, Discrete(2), reported=["kl-high"])
    assert not any(again.note(row) for row in lines)


def test_a_long_history_is_thinned_and_a_short_one_says_nothing(monkeypatch):
    monkeypatch.setattr(live, "_MOST_ROWS", 50)
    doctor = Doctor(SETTINGS, Discrete(2))
    for row in rows(500):
        assert doctor.note(row | {"losses/entropy": 0.6}) == []
    assert len(doctor._rows) <= 50
    assert examine(rows(FEWEST_ROWS - 1, **{"losses/approx_kl": 9.0}), SETTINGS) == []


@pytest.mark.parametrize(
    ("changed", "settings"),
    [
        ({"losses/entropy": None, "losses/approx_kl": 1e-7}, {}),
        ({"losses/grad_norm": 1.0}, {"max_grad_norm": 0.0}),
        ({"charts/SPS": 0.0, "utilisation/environment": 0.99}, {}),
    ],
)
def test_a_figure_that_is_not_there_or_0_is_no_finding(changed, settings):
    assert names(rows(**changed), settings) == []


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True), st.integers(-3, 3))
SOME = st.dictionaries(st.sampled_from([*HEALTHY, "env_steps", "losses/target_kl"]), NUMBERS)
ANY = st.one_of(NUMBERS, st.sampled_from(["auto", "serial", "inf"]), st.booleans())


@examples(60)
@hypothesis.given(
    lines=st.lists(SOME, max_size=30), more=st.dictionaries(st.sampled_from([*SETTINGS]), ANY)
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_figures_and_no_settings_end_the_run_that_is_looked_at(lines, more):
    for i, line in enumerate(lines):
        line["env_steps"] = i + 1
    doctor = Doctor(SETTINGS | more, Discrete(2))
    for line in lines:
        doctor.note(line)
    examine(lines, SETTINGS | more)


MUTANTS = {
    "kl > (0.1 if clips else 1.0)": "kl > (1.0 if clips else 0.1)",
    "share > 0.4:": "share > 0.3:",
    "lag > 3.5 and": "lag > 2.5 and",
    "else 0.3)": "else 0.4)",
    "least > (15 if": "least > (10 if",
    "lost >= 2 else": "lost >= 1 else",
    'lag/steps") > 0.5': 'lag/steps") > -1.0',
    ") > 0.8 and not h": ") > 0.95 and not h",
    "abs(other)), chance)": "abs(other)), 3 * chance)",
    "step_s > 0.7e-3": "step_s > 0.3e-3",
    "dropped > 0.3 *": "dropped > 0.05 *",
    "_FAR_MEANS = 2.5": "_FAR_MEANS = 2.0",
    "first - last > max(0.2 *": "first - last > max(0.05 *",
    "h.episodes < _FEW_EPISODES": "h.episodes < 2000",
}


@pytest.mark.parametrize("old", MUTANTS)
def test_the_cases_above_notice_a_rule_that_is_wrong(old):
    (module,) = [one for one in (learning, returns, work) if old in inspect.getsource(one)]
    source = inspect.getsource(module)
    assert source.count(old) == 1
    broken = ModuleType("broken")
    exec(compile(source.replace(old, MUTANTS[old]), module.__file__, "exec"), vars(broken))
    of = {rule.name: rule.check.__name__ for rule in rules.RULES}
    by_name = {name: vars(broken).get(function) for name, function in of.items()}
    found = []
    for name, (ill, well, settings) in CASES.items():
        for lines, expected in ((rows(**ill), True), (rows(**well), False)):
            if by_name[name] is not None:
                history = History(lines, SETTINGS | settings, Discrete(2))
                found.append((by_name[name](history) is not None) == expected)
    if module is learning:
        moves = {"losses/approx_kl": 0.0, "lag/steps": 0.0,
                 "losses/entropy": lambda i: 0.6 + 5e-4 * i}  # fmt: skip
        once = History(rows(**moves), SETTINGS, Discrete(2))
        free = History(rows(**{"losses/approx_kl": 0.3}), SETTINGS | {"clip": None}, Discrete(2))
        still = History(rows(**moves | {"losses/entropy": 0.6}), SETTINGS, Discrete(2))
        found += [broken.standstill(still) is not None]
        found += [broken.standstill(once) is None, broken.kl_high(free) is None]
    assert not all(found)


BLACKJACK = (
    *(0.04, -0.16, -0.02, -0.16, 0.11, -0.07, -0.01, -0.21, -0.01, -0.07, 0.02, -0.11, 0.03),
    *(0.2, -0.12, -0.11, -0.03, -0.11, 0.03, 0.07, -0.07, -0.01, -0.02, -0.17, -0.04, -0.16),
)
"""Return returns of a PPO run that plays well: means over 100 won or lost games."""


def test_returns_that_rise_and_fall_by_chance_are_not_lost():
    def told(means):
        rows = [
            {"env_steps": 1000 * (i + 1), "charts/episodic_return": value,
             "losses/explained_variance": 0.5}
            for i, value in enumerate(means)
        ]  # fmt: skip
        return returns.return_lost(History(rows, {"total_steps": 26_000}, None))

    assert [told(BLACKJACK[:end]) for end in range(13, 27)] == [None] * 14
    assert told([*np.linspace(0.0, 0.9, 12), *[0.1] * 14]).endswith("fell from 0.74 to 0.10")
