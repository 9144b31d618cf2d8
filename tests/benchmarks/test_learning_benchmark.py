"""The learning suite: grid and scores, without real runs."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.processes import cores
from headrace.studies.statistics import interquartile

ROOT = Path(__file__).parents[2]
TASK = "CartPole-v1"
LOW, HIGH = 23.7, 500.0


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # main adds to it


@pytest.fixture
def learning():
    return importlib.import_module("learning")


@pytest.fixture(autouse=True)
def scores(benchmarks, monkeypatch):
    monkeypatch.setattr("headrace.studies.statistics.REPEATS", 20)
    return importlib.import_module("learning_scores")


@pytest.fixture
def pages():
    return importlib.import_module("learning_report")


def run_of(algo: str, seed: int, curve: list, *, evaluated=LOW, task=TASK, seconds=10.0) -> dict:
    """Write the file of a run with the given scores."""
    curve = [(s, steps, LOW + score * (HIGH - LOW)) for s, steps, score in curve]
    return {
        "task": task,
        "algo": algo,
        "seed": seed,
        "budget": {"seconds": seconds, "steps": 1000, "cores": 1},
        "training_return": curve[-1][2],
        "env_steps": curve[-1][1],
        "evaluation": {"mean": evaluated, "std": 0.0, "episodes": 20},
        "commit": "abc",
        "machine": "here",
        "settings": {},
        "curve": curve,
    }


def save(folder: Path, *runs: dict) -> None:
    for run in runs:
        path = folder / run["task"] / run["algo"] / f"{run['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run))


def suite_of(scores, *runs: dict):
    return scores.Suite(runs, [(r["task"], r["algo"], r["seed"]) for r in runs])


# -- figures ---------------------------------------------------------------------------------------


def test_a_grid_of_known_numbers_is_reported_right(learning, tmp_path):
    finals = {"appo": (0.9, 0.4, 0.6, 0.8), "sb3": (0.1, 0.7, 0.3, 0.2)}
    for algo, each in finals.items():
        for seed, score in enumerate(each):
            save(tmp_path, run_of(algo, seed, [(3.0, 100, 0.1), (9.0, 500, score)], evaluated=HIGH))
    args = {"tasks": TASK, "algos": "appo,sb3", "seeds": 4, "output": tmp_path, "report": True}
    assert learning.main(learning.Args(**args)) == 0
    text = (tmp_path / "report.md").read_text()
    found = [float(x) for x in re.findall(r"\| (-?\d\.\d\d) \(", text.split("Evaluated")[0])]
    # The middle halves: (0.6 + 0.8) / 2 and (0.2 + 0.3) / 2 at the end of seconds and steps. Of 16
    # pairs of seeds, appo wins 14. Both solve the task in the evaluation.
    appo, sb3 = [0.7, 0.7, 1.0, 14 / 16, 1.0], [0.25, 0.25, 1.0, 1.0]
    assert found == pytest.approx([*appo, *sb3], abs=0.006)
    assert "| CartPole-v1, 10 s | 500.0 | 500.0 |" in text
    with (tmp_path / "learning_suite.csv").open() as file:
        rows = list(csv.DictReader(file))
    returns = [row["training_return"] for row in rows if row["program"] == "Stable-Baselines3 PPO"]
    assert returns == [f"{LOW + s * (HIGH - LOW):.1f}" for s in finals["sb3"]]
    reached = [row["seconds_to_threshold"] for row in rows if row["program"] == "appo"]
    assert reached == ["9.0", "", "", ""]  # 0.9 is the threshold
    assert (tmp_path / "learning_suite.png").exists()


def test_intervals_hold_the_value_and_a_report_is_the_same_every_time(scores):
    runs = [run_of("appo", seed, [(1.0, 9, seed / 10)]) for seed in range(5)]
    suite = suite_of(scores, *runs)
    first, second = (
        interquartile({"appo": suite.scores("appo", 0, [1.0])})["appo"] for _ in range(2)
    )
    assert (first.low[0], first.high[0]) == (second.low[0], second.high[0])
    assert first.value[0] == pytest.approx(0.2)
    assert first.low[0] < 0.2 < first.high[0]
    from rliable.metrics import aggregate_iqm

    assert first.value[0] == pytest.approx(aggregate_iqm(suite.scores("appo", 0, [1.0])))


def test_equal_steps_end_where_the_run_with_the_fewest_does(scores):
    fast = run_of("appo", 0, [(1.0, 100, 0.2), (5.0, 400, 0.5), (9.0, 900, 0.9)])
    slow = run_of("sb3", 0, [(9.0, 400, 0.3)])
    suite = suite_of(scores, fast, slow)
    found = suite.scores("appo", 1, [0.125, 0.25, 0.5, 1.0]).ravel()
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.5])
    assert suite.scores("appo", 0, [1.0]).ravel() == pytest.approx([0.9])


def test_what_came_after_the_budget_counts_nowhere(scores):
    late = run_of("appo", 0, [(9.9, 100, 0.1), (12.0, 200, 1.0)])
    assert suite_of(scores, late).scores("appo", 0, [1.0]).ravel() == pytest.approx([0.1])
    assert scores.seconds_to(late, 400.0) == math.inf
    assert scores.seconds_to(late, 60.0) == 9.9


def test_the_worst_task_is_where_the_share_of_the_best_score_is_lowest(scores):
    def run(algo, task, score):
        low, high = scores.TASKS[task].low, scores.TASKS[task].high
        value = low + score * (high - low)
        made = run_of(algo, 0, [(1.0, 9, 0.0)], task=task, evaluated=value)
        return made | {"training_return": value - 1.0}

    runs = [run("appo", TASK, 0.9), run("sb3", TASK, 0.6)]
    runs += [run("appo", "Acrobot-v1", 0.2), run("sb3", "Acrobot-v1", 0.8)]
    runs += [run("appo", "Taxi-v4", -0.5), run("sb3", "Taxi-v4", -0.1)]  # says nothing
    suite = suite_of(scores, *runs)
    assert suite.worst("appo") == (pytest.approx(0.25), "Acrobot-v1")
    assert suite.worst("sb3") == (pytest.approx(2 / 3), TASK)


def test_a_task_that_lacks_a_run_is_told_but_not_aggregated(scores, pages):
    runs = [run_of(algo, 0, [(1.0, 9, 0.5)], task=task)
            for task in (TASK, "Acrobot-v1") for algo in ("appo", "sb3")]  # fmt: skip
    expected = [(r["task"], r["algo"], r["seed"]) for r in runs]
    suite = scores.Suite(runs[:-1], expected)
    assert suite.whole == [TASK]
    text = pages.page(suite, pages.summary_rows(suite))
    assert "| Acrobot-v1, 10 s |" in text
    assert f"of 1 tasks × 1 seeds: {TASK}." in text
    assert "nothing is aggregated" in pages.page(scores.Suite(runs[:1], expected), [])


def test_the_page_is_filled_in_between_its_markers(pages, tmp_path):
    page = tmp_path / "learning.md"
    page.write_text((ROOT / "docs/results/learning.md").read_text())
    head, _, rest = page.read_text().partition(pages.BEGIN)
    tail = rest.partition(pages.END)[2]
    for text in ("first", "second"):
        pages.fill_in(page, text)
    assert page.read_text() == f"{head}{pages.BEGIN}\n\nsecond\n\n{pages.END}{tail}"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="lacks the lines"):
        pages.fill_in(page, "third")


# -- the grid --------------------------------------------------------------------------------------


@pytest.fixture
def start(learning, monkeypatch, tmp_path):
    """Starts the grid with recorded instead of real runs; those of ``broken`` programs fail."""
    done, broken = [], set()

    def stand_in(case, children):
        done.append((case.task.name, case.seed, case.algo))
        if case.algo in broken:
            raise RuntimeError("it broke")
        run = run_of(case.algo, case.seed, [(1.0, 9, 0.5)], task=case.task.name)
        return run | {"budget": learning.budget_of(case, len(cores()))}

    monkeypatch.setattr(learning, "measure", stand_in)

    def start(**settings):
        done.clear()
        known = {"tasks": TASK, "algos": "ppo,sb3", "seeds": 1, "output": tmp_path} | settings
        return learning.main(learning.Args(**known)), list(done)

    start.broken = broken
    return start


def test_programs_take_turns_and_what_is_there_is_never_done_again(start):
    assert start() == (0, [(TASK, 0, "ppo"), (TASK, 0, "sb3")])
    tasks = f"{TASK},Acrobot-v1"
    _, done = start(tasks=tasks, seeds=2)
    order = [(TASK, 1), ("Acrobot-v1", 0), ("Acrobot-v1", 1)]
    assert done == [(*where, algo) for where in order for algo in ("ppo", "sb3")]
    assert start(tasks=tasks, seeds=2) == (0, [])


def test_a_run_that_fails_leaves_nothing_and_is_told_with_its_reason(start, tmp_path, capsys):
    start.broken.add("sb3")
    assert start()[0] == 1
    assert f"{TASK}/sb3/0.json: RuntimeError: it broke" in capsys.readouterr().out
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["ppo"]
    start.broken.clear()
    assert start() == (0, [(TASK, 0, "sb3")])


def test_runs_of_another_budget_are_no_part_of_a_grid(start):
    start()
    with pytest.raises(ConfigError, match="choose another --output"):
        start(scale=0.5)


def test_the_test_group_is_run_only_if_named(learning):
    def tasks_of(**settings):
        return {case.task.group for case in learning.grid(learning.Args(**settings))}

    assert tasks_of() == {"development", "validation"}
    assert tasks_of(groups="test") == {"test"}
    assert tasks_of(groups="test", tasks=TASK) == {"development"}


def test_wrong_settings_are_told_before_anything_starts(learning):
    for settings, words in (
        ({"tasks": "CartPole"}, "Did you mean 'CartPole-v1'"),
        ({"groups": "tests"}, "Did you mean 'test'"),
        ({"algos": "pppo"}, "Did you mean 'ppo'"),
        ({"seeds": 0}, "1 or more"),
        ({"jobs": 10_000}, "at most the core count"),
        ({"scale": 0.0}, "above 0"),
        ({"docs": ROOT / "nowhere"}, "(nearest: docs)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            learning.Args(**settings)
