"""The comparison with Stable-Baselines3 in equal updates: cases, rates and ratios."""

from __future__ import annotations

import importlib

import pytest

from headrace.studies.machine import wide_console


@pytest.fixture
def peers():
    return importlib.import_module("ppo_peers")


def test_each_is_measured_with_its_fastest_settings_and_within_repeats(peers, monkeypatch):
    asked = []

    def rate(case, who, how, seconds):
        asked.append((who, how, seconds))
        fast = how in ({"num_actors": 1}, {"threads": 2, "processes": True})
        repeat = sum(s == 6.0 for *_, s in asked)
        return (600.0 if who == "headrace" else 100.0) * (1 + fast) * (1 + repeat // 3)

    monkeypatch.setattr(peers, "rate", rate)
    rows = peers.compare("lstm", peers.Args(repeats=3, seconds=6.0), wide_console())
    assert [(who, seconds) for who, _, seconds in asked[-6:]] == [
        ("headrace", 6.0),
        ("peer", 6.0),
    ] * 3
    assert all(how == {"num_actors": 1} for who, how, _ in asked[-6:] if who == "headrace")
    assert [row["program"] for row in rows] == ["headrace PPO", "sb3-contrib RecurrentPPO"]
    assert rows[0]["settings"] == "{'num_actors': 1}"
    assert rows[0]["ratio"] == 6.0
    assert (rows[1]["sps_min"], rows[1]["sps_max"]) == (200.0, 600.0)


@pytest.mark.parametrize("units", [0, 8])
def test_a_run_of_each_has_a_rate(peers, units):
    case = peers.Case("CartPole-v1", 2, 8, 1, 2, units)
    assert peers.headrace_rate(case, 0.0, num_actors=1) > 0
    pytest.importorskip("stable_baselines3")
    if units:
        pytest.importorskip("sb3_contrib")
    assert peers.sb3_rate(case, 0.0, threads=1, processes=False) > 0
