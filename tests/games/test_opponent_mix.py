"""Sampling of opponents, and records of games against them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.games.opponent_mix import OpponentMix, probabilities
from headrace.games.win_rates import DECAY, Record, WinRates


def test_hard_opponents_are_drawn_as_alphastar_says() -> None:
    """f_hard(p) = (1 - p)^2, f_var(p) = p (1 - p), normalised over all candidates."""
    rates = np.array([0.0, 0.25, 0.5, 1.0])
    hard = [(1 - p) ** 2 for p in rates]
    even = [p * (1 - p) for p in rates]
    assert probabilities("pfsp", rates) == pytest.approx([w / sum(hard) for w in hard])
    assert probabilities("pfsp-var", rates) == pytest.approx([w / sum(even) for w in even])
    assert probabilities("uniform", rates) == pytest.approx([0.25] * 4)


def test_who_always_wins_draws_any_opponent() -> None:
    assert probabilities("pfsp", np.ones(5)) == pytest.approx([0.2] * 5)
    assert probabilities("pfsp-var", np.array([0.0, 1.0])) == pytest.approx([0.5, 0.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_probabilities_add_up_to_one(rates: list[float]) -> None:
    for kind in ("pfsp", "pfsp-var", "uniform"):
        found = probabilities(kind, np.array(rates))
        assert found.sum() == pytest.approx(1.0)
        assert (found >= 0).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pfpp:0.5,latest:0.5", ["'pfpp'", "pfsp"]),
        ("latest:0.5,pfsp:0.4", ["0.9", "nearest", "latest:0.556,pfsp:0.444"]),
        ("latest:half,pfsp:0.5", ["latest", "share"]),
        ("latest:0.5,latest:0.5", ["once"]),
        ("latest:0,pfsp:1", ["above 0"]),
        ("", ["choose"]),
        ("latest:nan", ["above 0"]),
    ],
)
def test_a_wrong_mixture_is_one_sentence(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        OpponentMix.of(text)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_one_kind_needs_no_share() -> None:
    assert OpponentMix.of("pfsp").shares == (("pfsp", 1.0),)
    assert OpponentMix.of("latest").latest == 1.0
    assert OpponentMix.of("latest:0.5,pfsp:0.3,uniform:0.2").frozen == (
        ("pfsp", pytest.approx(0.6)),
        ("uniform", pytest.approx(0.4)),
    )


@given(st.integers(1, 300), st.integers(2, 5), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_columns_are_shared_out_in_whole_games(columns: int, agents: int, share: float) -> None:
    rest = 1.0 - share
    text = f"latest:{share},pfsp:{rest}" if share else "pfsp"
    if share and columns <= agents:  # no room for a game of each kind
        with pytest.raises(ConfigError, match=f"nearest: {agents + 1}"):
            OpponentMix.of(text).games(columns, agents)
        return
    both, alone = OpponentMix.of(text).games(columns, agents)
    assert both * agents + alone == columns
    assert alone > 0
    assert (both > 0) == (share > 0)
    bound = agents if columns > 2 * agents else columns
    assert abs(both * agents - share * columns) <= bound


def test_every_seat_is_trained_on_in_whole_games_only() -> None:
    assert OpponentMix.of("latest").games(8, 2) == (4, 0)
    with pytest.raises(ConfigError, match=r"multiple of 2.*nearest: 6"):
        OpponentMix.of("latest").games(7, 2)


def test_old_games_fade_as_if_each_were_taken_in_alone() -> None:
    weight = score = 0.0
    for one in [1.0] * 30 + [0.25] * 50:
        weight, score = DECAY * weight + 1.0, DECAY * score + one
    record = Record().after(30, 30.0).after(50, 12.5)
    assert record.win_rate == pytest.approx(score / weight)
    assert record.games == 80
    assert record.weight == pytest.approx(weight)


def test_an_unknown_opponent_counts_as_an_equal() -> None:
    standings = WinRates()
    assert standings.win_rate("x-0") == 0.5
    assert standings.add({"x-0": (4, 3.0), "y-0": (2, 0.0)}) == 6
    assert standings.win_rate("x-0") == pytest.approx(0.75)
    again = WinRates(standings.to_json())
    assert again.records == standings.records
