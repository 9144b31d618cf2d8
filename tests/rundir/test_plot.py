"""Plots of runs match NumPy on the files that the tests write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import headrace as hr
from headrace.cli import main
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir import plot as plots
from headrace.rundir.curves import output_of, read_run
from headrace.rundir.plot import draw, plot
from headrace.studies import statistics


@pytest.fixture
def write(tmp_path):
    """Writes a run whose return after n steps is n · ``slope``, and returns its directory."""

    def run(name, slope=1.0, steps=(0, 100, 200), evaluated=(), **settings):
        folder = tmp_path / name
        folder.mkdir()
        config = hr.Config(**{"algo": hr.PPO(), "run_dir": str(folder), **settings})
        (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
        lines = [
            {"env_steps": n, "seconds": n / 10, "charts/episodic_return": slope * n,
             "charts/SPS": 10.0} for n in steps
        ]  # fmt: skip
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        lines = [{"env_steps": n, "seconds": n / 10, "return_mean": -slope * n} for n in evaluated]
        (folder / "evaluations.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        return folder

    return run


def drawn(*folders, interval=None) -> Figure:
    return draw([read_run(folder) for folder in folders], interval)


def labels(figure: Figure) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in figure.axes[0].get_legend().get_texts()]


def test_seeds_are_one_curve_with_their_interval(write):
    def interval(values):
        return values.mean(0), values.min(0), values.max(0)

    folders = [write(f"s{i}", slope, seed=i) for i, slope in enumerate([1.0, 2.0, 6.0])]
    figure = drawn(*folders, interval=interval)
    panel = figure.axes[0]
    (line,) = panel.get_lines()
    x, y = line.get_xdata(), line.get_ydata()
    np.testing.assert_allclose([x[0], x[-1]], [0, 200])
    np.testing.assert_allclose(y, 3.0 * x)
    band = panel.collections[0].get_paths()[0].get_extents()
    np.testing.assert_allclose([band.y0, band.y1], [0.0, 200 * 6.0])
    np.testing.assert_allclose(figure.axes[1].get_lines()[0].get_xdata()[-1], 20.0)
    assert labels(figure) == ["ppo on CartPole-v1 (3 seeds)"]
    assert "interquartile mean and its 95% bootstrap interval" in figure.get_supxlabel()


def test_the_command_takes_the_interval_of_rliable(write, capsys, monkeypatch):
    monkeypatch.setattr("headrace.studies.statistics.REPEATS", 20)
    taken = []
    monkeypatch.setattr(plots, "draw", lambda runs, interval, _: taken.append(interval) or Figure())
    folders = [str(write(f"s{i}", 1.0, seed=i)) for i in range(2)]
    assert main(["plot", *folders]) == 0
    assert main(["plot", folders[0]]) == 0
    assert taken == [statistics.over_runs, None]
    monkeypatch.setitem(sys.modules, "rliable.library", None)
    assert main(["plot", *folders]) == 0
    assert taken[2] is None
    assert "headrace: Curves have no intervals: " in capsys.readouterr().err


def test_a_mean_ends_where_its_first_run_ends(write):
    folders = [write("a", 1.0), write("b", 3.0, steps=(50, 150), seed=1)]
    (line,) = drawn(*folders).axes[0].get_lines()
    np.testing.assert_allclose(line.get_xdata()[[0, -1]], [50, 150])
    np.testing.assert_allclose(line.get_ydata(), 2.0 * line.get_xdata())


def test_several_settings_are_named_by_what_tells_them_apart(write):
    folders = [
        write("a", algo=hr.PPO(clip=0.1)),
        write("b", 2.0, algo=hr.PPO(clip=0.1), seed=1),
        write("c", algo=hr.PPO(clip=0.3, epochs=2)),
        write("d", algo=hr.APPO(), num_actors=3),
    ]
    figure = drawn(*folders)
    assert labels(figure) == [
        f"ppo, epochs={hr.PPO().epochs}, clip=0.1 (2 seeds)",
        "ppo, epochs=2, clip=0.3 (1 seed)",
        "appo (1 seed)",
    ]
    assert len(figure.axes[0].get_lines()) == 3
    assert len(figure.axes[0].collections) == 1  # a single run has no band


def test_one_seed_each_is_named_by_its_settings(write):
    slow, fast = (write(n, algo=hr.PPO(learning_rate=r)) for n, r in (("a", 1e-4), ("b", 1e-3)))
    assert labels(drawn(slow, fast)) == ["learning_rate=0.0001", "learning_rate=0.001"]


def test_runs_with_equal_settings_and_seeds_are_named_by_their_directories(write, tmp_path):
    old, new = write("old", 1.0), write("new", 2.0)
    assert labels(drawn(old, new)) == ["old", "new"]
    fast = write("fast", algo=hr.PPO(learning_rate=1e-3))
    assert labels(drawn(old, new, fast)) == [
        f"learning_rate={hr.PPO().learning_rate}, old",
        f"learning_rate={hr.PPO().learning_rate}, new",
        "learning_rate=0.001",
    ]
    for parent in ("before", "after"):
        (tmp_path / parent).mkdir()
    each = [write(f"{parent}/s{i}", seed=i) for parent in ("before", "after") for i in range(2)]
    assert labels(drawn(*each)) == ["before (2 seeds)", "after (2 seeds)"]
    assert labels(drawn(each[0], each[2])) == ["before/s0", "after/s0"]


def test_files_about_several_runs_are_next_to_them_and_replace_none_of_theirs(
    write, tmp_path, monkeypatch
):
    for parent in ("before", "after"):
        (tmp_path / parent).mkdir()
    a, b, c = write("a"), write("b", seed=1), write("before/c", seed=2)
    d = write("after/d", seed=3)
    assert plot([a]) == a / "curve.png"
    before = (a / "curve.png").read_bytes()
    assert plot([a, b]) == tmp_path / "comparison.png"
    assert (a / "curve.png").read_bytes() == before
    assert not (b / "curve.png").exists()
    assert output_of([c, d], "x", "y") == tmp_path.resolve() / "y"
    monkeypatch.chdir(tmp_path)
    assert output_of([Path("before/c"), Path("after/d")], "x", "y") == Path("y")
    assert output_of([Path("before/c")], "x", "y") == Path("before/c/x")


def test_settings_that_are_missing_have_their_defaults(write):
    old, new = write("old"), write("new", seed=1)
    known = json.loads((old / "config.json").read_text())
    del known["config"]["scale_free"], known["config"]["max_restarts"]
    (old / "config.json").write_text(json.dumps(known))
    assert len(drawn(old, new).axes[0].get_lines()) == 1
    (old / "config.json").unlink()
    assert labels(drawn(old, new)) == ["old", "new"]


def test_evaluations_are_drawn_where_each_run_has_them(write):
    folders = [write(f"e{i}", evaluated=(0, 200), seed=i) for i in range(2)]
    figure = drawn(*folders, write("other", num_actors=3))
    for panel in figure.axes[:2]:
        trained, played, other = panel.get_lines()
        np.testing.assert_allclose(trained.get_ydata()[[0, -1]], [0, 200])
        np.testing.assert_allclose(played.get_ydata()[[0, -1]], [0, -200])
        assert (trained.get_linestyle(), played.get_linestyle()) == ("-", "--")
        assert trained.get_color() == played.get_color() != other.get_color()
        assert panel.get_ylabel() == "return (last 100 episodes)\n(dashed: evaluated)"
    assert labels(figure) == ["num_actors=auto (2 seeds)", "num_actors=3 (1 seed)"]
    (line,) = drawn(write("none")).axes[0].get_lines()
    assert line.get_linestyle() == "-"


def test_axes_begin_at_0_and_say_what_their_seconds_are(write):
    axes = drawn(write("late", steps=(50, 100))).axes
    assert [panel.get_xlim()[0] for panel in axes] == [0, 0, 0]
    assert axes[1].get_xlabel() == "seconds of training\n(without start-up and evaluations)"
    assert axes[2].get_xlabel() == axes[1].get_xlabel()


def test_one_run_is_drawn_as_it_is(write):
    panel = drawn(write("a", evaluated=(0, 200))).axes[0]
    line, played = panel.get_lines()
    np.testing.assert_array_equal(played.get_xydata(), [[0, 0], [200, -200]])
    np.testing.assert_array_equal(line.get_xydata(), [[0, 0], [100, 100], [200, 200]])
    assert panel.get_legend() is None


def test_runs_without_an_episode_count_in_no_mean(write):
    empty, full = write("empty", steps=()), write("full", seed=1)
    (empty / "metrics.jsonl").write_text('{"env_steps": 5, "seconds": 1, "charts/SPS": 5}\n')
    assert labels(drawn(empty, full)) == ["ppo on CartPole-v1 (1 seed)"]
    apart = write("apart", steps=(300, 400), seed=2)
    assert labels(drawn(full, apart)) == ["ppo on CartPole-v1 (2 seeds): no common steps"]


def test_what_cannot_be_drawn_is_said(write, tmp_path, capsys):
    assert main(["plot"]) == 2
    assert "plot needs one or more run directories" in capsys.readouterr().err
    run = write("a")
    with pytest.raises(CheckpointError, match=r"has no metrics.*Did you mean .*/a\?"):
        plot([tmp_path])
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        plot([tmp_path / "nowhere"])
    for output in (tmp_path / "no" / "x.png", tmp_path / "x.nothing"):
        with pytest.raises(ConfigError, match=r"output='.*' can't be written"):
            plot([run], output)
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="can't be read"):
        plot([run])
    assert plot([write("b"), write("c", seed=1)], tmp_path / "x.png").stat().st_size > 1000
