"""Rule of weight synchronisation, and an actor's estimate of its policy divergence."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.weight_sync import WINDOW, Follower, SyncRule, divergence, sync_rule
from headrace.errors import ConfigError

ADAPTIVE = sync_rule("adaptive", 0.5)


def follower(rule: SyncRule, version: int = 3) -> Follower:
    one = Follower(rule)
    one.fetched(version)
    return one


@pytest.mark.parametrize(
    ("text", "every"), [("every", 1), ("every-1", 1), ("every-8", 8), ("adaptive", None)]
)
def test_a_setting_describes_a_rule(text, every):
    assert sync_rule(text, 0.25, 7) == SyncRule(every, 0.25, 7)
    assert sync_rule(text, 0.25).on_drift is (text == "adaptive")


@pytest.mark.parametrize(
    "text",
    ["", "each", "every-", "every-0", "every--1", "every-2.5", "every-²", "every8", "Adaptive"],
)
def test_another_setting_is_refused_in_one_sentence(text):
    with pytest.raises(ConfigError, match=r"^weight_sync=.*nearest: every\)$"):
        sync_rule(text, 0.1)


@pytest.mark.parametrize("threshold", [-1e-9, math.inf, math.nan])
def test_a_threshold_that_no_divergence_has_is_refused(threshold):
    with pytest.raises(ConfigError, match=r"^kl_threshold=.* must be .*(0 or more nats|at most)"):
        sync_rule("every", threshold)


def test_a_lag_without_a_version_to_act_with_is_refused():
    with pytest.raises(ConfigError, match=r"^max_policy_lag=0 .*nearest: 1\)$"):
        sync_rule("adaptive", 0.1, 0)


@pytest.mark.parametrize("rule", [SyncRule(), SyncRule(5), ADAPTIVE], ids=str)
def test_the_first_weights_are_fetched_at_once_and_none_twice(rule):
    new = Follower(rule)
    assert new.version == -1
    assert new.wants(0)
    new.fetched(0)
    assert not new.wants(0)


def test_every_k_waits_for_k_versions():
    assert [follower(SyncRule(1)).wants(v) for v in (2, 3, 4, 5)] == [False, False, True, True]
    assert [follower(SyncRule(3)).wants(v) for v in (4, 5, 6, 9)] == [False, False, True, True]


def test_drift_is_strictly_above_the_threshold():
    one = follower(ADAPTIVE)
    assert not one.wants(1000)  # nothing is known
    one.note(3, 0.5)
    assert not one.wants(4)
    one.note(3, math.nextafter(0.5, 1) + 1e-15)
    assert one.wants(4)
    assert not one.wants(3)  # there is nothing newer


def test_drift_is_the_mean_of_the_latest_measurements():
    one = follower(ADAPTIVE)
    for _ in range(WINDOW):
        one.note(3, 0.0)
    one.note(3, 1.9)
    assert one.divergence == pytest.approx(1.9 / WINDOW)
    for _ in range(WINDOW - 1):
        one.note(3, 1.9)
    assert one.divergence == pytest.approx(1.9)


def test_measurements_of_other_versions_are_ignored_and_a_fetch_forgets_them_all():
    one = follower(ADAPTIVE)
    one.note(2, 9.0)
    one.note(4, 9.0)
    assert one.divergence is None
    one.note(3, 9.0)
    one.fetched(5)
    assert (one.version, one.divergence) == (5, None)
    one.note(3, 9.0)
    assert not one.wants(6)


def test_a_fetch_is_forced_at_the_greatest_lag():
    one = follower(sync_rule("adaptive", 0.5, 4))
    assert [one.wants(v) for v in (6, 7, 8)] == [False, True, True]
    two = follower(sync_rule("every-10", 0.5, 4))
    assert [two.wants(v) for v in (6, 7)] == [False, True]


events = st.lists(
    st.tuples(st.sampled_from(["note", "stale", "learn", "ask"]), st.floats(0, 2)), max_size=60
)


@given(events=events, threshold=st.floats(0, 1), max_lag=st.none() | st.integers(1, 6))
def test_an_actor_fetches_exactly_when_the_list_of_all_it_was_told_says_so(
    events, threshold, max_lag
):
    one, latest, told = follower(sync_rule("adaptive", threshold, max_lag), 0), 0, []
    for kind, nats in events:
        if kind == "note":
            one.note(one.version, nats)
            told.append((one.version, nats))
        elif kind == "stale":
            one.note(one.version - 1, nats)
        elif kind == "learn":
            latest += 1
        else:
            recent = [x for version, x in told if version == one.version][-WINDOW:]
            drifted = bool(recent) and sum(recent) / len(recent) > threshold
            late = max_lag is not None and latest - one.version >= max_lag
            assert one.wants(latest) == (latest > one.version and (drifted or late))
            if one.wants(latest):
                one.fetched(latest)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_the_divergence_is_the_mean_of_its_terms_and_never_negative(values):
    found = divergence(torch.tensor(values, dtype=torch.float64))
    terms = [math.exp(x) - 1 - x for x in values]
    assert found >= 0
    assert found == pytest.approx(math.fsum(terms) / len(terms), rel=1e-6, abs=1e-12)


def test_the_divergence_estimates_kl_without_bias():
    mu, pi = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((mu * (mu / pi).log()).sum())
    actions = torch.multinomial(mu, 200_000, True, generator=torch.Generator().manual_seed(0))
    assert divergence((pi / mu).log()[actions]) == pytest.approx(exact, abs=5e-3)
