"""Pages of several runs: a title that says what is compared, and a table of the groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reporting.runs import Page, write_run

from headrace.cli import main
from headrace.reporting import panels
from headrace.reporting.comparison import compare, title_of
from headrace.reporting.page import write
from headrace.rundir.curves import RunCurves, by_settings


@pytest.fixture(autouse=True)
def one_panel(monkeypatch):
    monkeypatch.setattr(panels, "KINDS", panels.KINDS[:1])


def run_of(path: Path, algo: str, seed: int, slope: float, **settings) -> RunCurves:
    """Return a run whose return after n steps, and n seconds, is n times the slope."""
    path.mkdir(parents=True)
    lines = [
        {"env_steps": n, "seconds": float(n), "charts/episodic_return": slope * n,
         "charts/SPS": 100.0 * slope} for n in range(101)
    ]  # fmt: skip
    settings = {"algo": algo, "env": "CartPole-v1", **settings}
    return RunCurves(path, settings, seed, lines, [])


def spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.median(values, 0), values.min(0), values.max(0)


def test_the_table_has_returns_speed_and_seconds_of_each_group(tmp_path):
    runs = [run_of(tmp_path / f"a{i}", "a2c", i, slope) for i, slope in enumerate([1.0, 2.0, 3.0])]
    runs += [run_of(tmp_path / "p", "ppo", 0, 1.0), run_of(tmp_path / "q", "ppo", 1, 4.0)]
    table = compare(by_settings(runs), spread)
    # The best group ends at 250, and all begin at 0: 90% of the way is 225.
    assert table.columns == ["runs", "training return", "steps/s", "seconds to 225"]
    assert table.rows == [
        ("a2c", ["3 seeds", "200.0 (100.0 to 300.0)", "200", "75.0 s (1 of 3 runs)"]),
        ("ppo", ["2 seeds", "250.0 (100.0 to 400.0)", "250", "57.0 s (1 of 2 runs)"]),
    ]
    assert "Interquartile mean and 95% bootstrap interval" in table.about
    assert compare(by_settings(runs), None).rows[0][1][1] == "200.0"


def test_the_target_return_is_the_threshold_and_evaluations_come_first(tmp_path):
    runs = [run_of(tmp_path / "a", "a2c", 0, 1.0, target_return=50.0),
            run_of(tmp_path / "p", "ppo", 0, 0.1, target_return=50.0)]  # fmt: skip
    assert compare(by_settings(runs), None).columns[1] == "training return"
    for run, mean in zip(runs, (90.0, 9.0), strict=True):
        (run.path / "summary.json").write_text(json.dumps({"evaluation": {"mean": mean}, "sps": 7}))
    table = compare(by_settings(runs), None)
    assert table.columns == ["runs", "evaluated return", "steps/s", "seconds to 50"]
    assert table.rows == [
        ("a2c", ["1 seed", "90.0", "7", "50.0 s"]),
        ("ppo", ["1 seed", "9.0", "7", "not reached"]),
    ]


def test_a_target_return_of_0_is_the_threshold(tmp_path):
    run = run_of(tmp_path / "a", "a2c", 0, 1.0, target_return=0.0, stop_return=50.0)
    for line in run.results:
        line["charts/episodic_return"] -= 20.0
    other = run_of(tmp_path / "p", "ppo", 0, 1.0, stop_return=0.0)
    table = compare(by_settings([run, other]), None)
    assert table.columns[-1] == "seconds to 0"
    assert [cells[-1] for _, cells in table.rows] == ["20.0 s", "0.0 s"]


def test_runs_without_an_episode_have_a_row(tmp_path):
    first, second = (run_of(tmp_path / x, x, 0, 1.0) for x in ("a2c", "ppo"))
    for run in (first, second):
        run.results[:] = [{"env_steps": 5}]
    table = compare(by_settings([first, second]), None)
    assert table.rows[0] == ("a2c", ["1 seed", "–", "0"])


def test_titles_say_what_is_compared(tmp_path):
    a, b = (run_of(tmp_path / x, "ppo", 0, 1.0) for x in ("old", "new"))
    c = run_of(tmp_path / "c", "a2c", 0, 1.0)
    d = run_of(tmp_path / "d", "ppo", 1, 1.0)
    e = run_of(tmp_path / "e", "ppo", 0, 1.0, clip=0.1)
    f = run_of(tmp_path / "f", "ppo", 0, 1.0, clip=0.3)
    g = run_of(tmp_path / "g", "ppo", 0, 1.0, env="Acrobot-v1")
    titles = {
        "old vs. new: ppo on CartPole-v1": [a, b],
        "ppo vs. a2c on CartPole-v1": [a, c],
        "ppo on CartPole-v1: 2 runs": [a, d],
        "clip=0.1 vs. clip=0.3: ppo on CartPole-v1": [e, f],
        "CartPole-v1 vs. Acrobot-v1: ppo": [a, g],
    }
    for title, runs in titles.items():
        assert title_of(by_settings(runs)) == title


def test_runs_of_the_same_name_are_told_apart_in_every_table(tmp_path):
    runs = [write_run(tmp_path / parent / "s0", 0) for parent in ("before", "after")]
    page = Page(write(runs, tmp_path / "page.html").read_text())
    for name in ("before/s0", "after/s0"):
        assert page.text.count(name) >= 4  # its curve, its row, settings and versions


def test_a_page_of_several_runs_begins_with_title_and_table(tmp_path, capsys):
    runs = [write_run(tmp_path / name, seed) for name, seed in (("old", 0), ("new", 0))]
    own = {run: (run / "report.html") for run in runs}
    write([runs[0]])
    before = own[runs[0]].read_bytes()
    assert main(["report", *map(str, runs)]) == 0
    file = tmp_path / "comparison.html"
    assert f"report: {file}" in capsys.readouterr().out
    assert own[runs[0]].read_bytes() == before
    assert not own[runs[1]].exists()
    page = Page(file.read_text())
    assert "old vs. new: appo on CartPole-v1" in page.text
    order = [page.text.index(text) for text in ("Comparison", "1 seed", "Findings", "Curves")]
    assert order == sorted(order)
    assert "480.2" in page.text[: order[2]]
