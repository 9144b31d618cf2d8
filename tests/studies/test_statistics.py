"""Interquartile means, probabilities of improvement and performance profiles match rliable."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from headrace.studies import plotting, statistics


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    monkeypatch.setattr(statistics, "REPEATS", 200)


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(0.6, 0.3, (5, 4)), "b": rng.normal(0.4, 0.3, (5, 4))}


def test_figures_are_the_librarys():
    from rliable import library, metrics  # a second, in one worker instead of all

    scores = drawn()
    iqm = statistics.interquartile(scores)
    assert iqm["a"].value[0] == pytest.approx(metrics.aggregate_iqm(scores["a"]))
    better = statistics.improvement(scores, [("a", "b"), ("b", "a")])
    theirs = metrics.probability_of_improvement(scores["a"], scores["b"])
    assert better["a", "b"].value[0] == pytest.approx(theirs)
    assert better["b", "a"].value[0] == pytest.approx(1.0 - theirs)
    at = np.linspace(-0.5, 1.5, 9)
    profile, _ = library.create_performance_profile(scores, at, reps=20)
    for name, found in statistics.profiles(scores, at).items():
        assert found.value == pytest.approx(profile[name])
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()


def test_intervals_are_stratified_by_task_and_repeat():
    apart = np.tile(np.arange(4.0), (6, 1))  # tasks differ, runs don't
    assert statistics.interquartile({"a": apart})["a"].text() == "1.50 (1.50–1.50)"
    one, two = (statistics.interquartile(drawn())["a"] for _ in range(2))
    assert (one.low, one.high) == (two.low, two.high)
    assert one.low < one.value < one.high


def test_numpys_global_generator_stays_as_it_was():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    statistics.interquartile(drawn())
    assert np.random.random() == expected


def test_a_picture_has_the_middle_of_its_runs_and_their_interval(monkeypatch):
    runs = [([0, 10], [height, height]) for height in (0.0, 1.0, 2.0, 3.0, 50.0)]
    mid, low, high = ends_of(runs)
    assert mid == pytest.approx(2.0)  # of 1, 2 and 3; their mean with the others is 11.2
    assert low < 1.0
    assert high > 25.0  # where 50 is drawn twice
    assert "interval" in plotting.band()
    monkeypatch.setattr(statistics, "are_there", lambda: False)
    assert ends_of(runs) == (2.0, 2.0, 2.0)
    assert "interval" not in plotting.band()


def test_a_single_run_is_drawn_as_it_is():
    assert ends_of([([0, 10], [4.0, 4.0]), ([], [])]) == (4.0, 4.0, 4.0)


def test_steps_are_written_in_thousands_or_millions():
    panel = Figure().subplots()
    plotting.curves(panel, {"name": [([0, 20_000], [1.0, 2.0])]})
    written = panel.xaxis.get_major_formatter()
    assert [written(x) for x in (500, 17_500, 20_000, 3_000_000)] == [
        "500",
        "17.5 k",
        "20 k",
        "3 M",
    ]


def ends_of(runs) -> tuple[float, float, float]:
    """Return the line's height, and the band's ends, of level curves."""
    panel = Figure().subplots()
    plotting.curves(panel, {"name": runs})
    (band,) = panel.collections
    heights = band.get_paths()[0].vertices[:, 1]
    return float(panel.lines[1].get_ydata()[0]), float(heights.min()), float(heights.max())
