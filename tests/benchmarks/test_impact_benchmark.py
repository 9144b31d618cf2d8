"""benchmarks/impact.py: settings, resuming, measures and files.

Only one run is real; the others are stand-ins that write a curve.
"""

from __future__ import annotations

import csv
import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.algos import ALGORITHMS
from headrace.errors import ConfigError
from headrace.studies.children import Children

SUMMARY = {
    "episodic_return": 30.0,
    "evaluation": {"mean": 40.0, "std": 1.0},
    "utilisation": {"learner": 0.5, "actor": 1.0},
    "lag": {"mean": 2.0},
    "sps": 1000.0,
    "seconds_total": 9.0,
    "seconds_to_first_update": 4.0,
}
CURVE = {"env_steps": [0, 100, 400], "seconds": [0.0, 1.0, 3.0], "return": [0.0, 10.0, 30.0]}


@pytest.fixture
def impact(benchmark):
    return benchmark("impact")


@pytest.fixture
def tasks(benchmark):
    return benchmark("impact_tasks")


@pytest.fixture
def runs(benchmark):
    return benchmark("impact_runs")


@pytest.fixture
def start(impact, monkeypatch, runs, tmp_path):
    """Starts the benchmark with recorded instead of real runs; those in ``broken`` fail."""
    done, broken = [], set()

    def stand_in(run, threshold, folder, log_interval_s, children):
        done.append((run.env, run.name, run.seed))
        if run.name in broken:
            raise RuntimeError("it broke")
        path = runs.curve_path(folder, run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"curve": {str(CURVE).replace(chr(39), chr(34))}}}')
        return runs.results(SUMMARY, CURVE, threshold)

    monkeypatch.setattr(impact, "measure", stand_in)

    def start(*studies: str, seeds: int = 2, **settings) -> tuple[int, list]:
        done.clear()
        settings = {"env_id": "CartPole-v1", "compare_env_ids": ("CartPole-v1",)} | settings
        args = impact.Args(studies=studies, seeds=seeds, output=tmp_path / "out", **settings)
        return impact.main(args), list(done)

    start.broken = broken
    return start


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:t_target=")
def test_every_setting_of_every_study_is_one_that_headrace_takes(tasks):
    for task in tasks.TASKS.values():
        for study in tasks.STUDIES.values():
            for run in study(task).values():
                algo = ALGORITHMS[run.algo](**run.hyper)
                hr.Config(run.env, algo, network=hr.Network(**run.network), **run.config)


@pytest.mark.filterwarnings("ignore:t_target=")
def test_t_target_goes_in_factors_of_4_from_a_sixteenth_to_16_times_n_k(tasks):
    task = tasks.TASKS["LunarLander-v3"]
    task = replace(task, impact={**task.impact, "buffer_size": 4, "passes": 4})
    periods = [ALGORITHMS["impact"](**run.hyper) for run in tasks.t_target(task).values()]
    assert [algo.resolved_t_target for algo in periods] == [1, 4, 16, 64, 256]
    small = replace(task, impact={**task.impact, "buffer_size": 1, "passes": 2})
    periods = [ALGORITHMS["impact"](**run.hyper) for run in tasks.t_target(small).values()]
    assert [algo.resolved_t_target for algo in periods] == [1, 1, 2, 8, 32]


def test_each_step_of_the_ladder_changes_only_what_it_names(tasks):
    for task in tasks.TASKS.values():
        steps = list(tasks.ladder(task).values())
        assert [run.algo for run in steps] == ["impala", "appo", "impact", "impact"]
        assert len({str(sorted(run.config.items())) for run in steps}) == 1
        algos = [asdict(ALGORITHMS[run.algo](**run.hyper)) for run in steps]
        objective, replayed, clipped = (
            {k for k in a.keys() & b.keys() if a[k] != b[k]} for a, b in itertools.pairwise(algos)
        )
        assert objective == {"clip", "pg_rho_bar"}
        assert replayed == set()
        assert clipped == {"ratio"}
        assert algos[1]["epochs"] == algos[1]["minibatches"] == 1
        assert [a.get("ratio") for a in algos] == [None, None, "R2", "R3"]


def test_a_setting_that_is_the_tuned_one_is_the_same_run_in_every_study(tasks):
    task = tasks.TASKS["LunarLander-v3"]
    tuned = task.run("impact")
    for name in tasks.STUDIES:
        same = [run for run in tasks.STUDIES[name](task).values() if run == tuned]
        assert len(same) == 1, name


def test_a_change_of_any_setting_is_another_run(tasks):
    tuned = tasks.TASKS["LunarLander-v3"].run("impact")
    others = [tuned.changed(passes=7), tuned.changed(num_actors=7), replace(tuned, eval_episodes=7)]
    assert len({run.settings for run in [tuned, *others]}) == 4
    assert replace(tuned, seed=7).settings == tuned.settings
    assert tuned.changed(passes=7, num_actors=7).name == "impact passes=7 num_actors=7"


def test_an_environment_without_settings_is_refused_by_name(start):
    with pytest.raises(ConfigError, match=r"CartPole-v0.*choose.*CartPole-v1"):
        start("ratio", env_id="CartPole-v0")
    with pytest.raises(ConfigError, match="seeds=0"):
        start("ratio", seeds=0)


# -- figures ---------------------------------------------------------------------------------------


def test_the_area_and_the_way_to_the_threshold_are_those_of_the_curve(runs):
    result = runs.results(SUMMARY, CURVE, threshold=10.0)
    assert result["area"] == pytest.approx((100 * 5.0 + 300 * 20.0) / 400)
    assert (result["steps_to"], result["seconds_to"]) == (100, 1.0)
    assert (result["final_return"], result["eval_return"]) == (30.0, 40.0)
    assert (result["seconds"], result["startup_s"]) == (5.0, 4.0)
    never = runs.results(SUMMARY, CURVE, threshold=30.5)
    assert never["steps_to"] is None
    assert never["seconds_to"] is None


def test_a_curve_has_one_point_for_each_number_of_steps_and_starts_with_the_first_update(runs):
    name = "charts/episodic_return"
    lines = [
        {"env_steps": 10, "seconds": 4.0},
        {"env_steps": 20, "seconds": 4.5, name: 1.0},
        {"env_steps": 20, "seconds": 4.6, name: 1.0},
        {"env_steps": 30, "seconds": 5.0, name: 2.0},
    ]
    curve = runs.curve_of(lines, first_s=4.0)
    assert curve == {"env_steps": [20, 30], "seconds": [0.5, 1.0], "return": [1.0, 2.0]}


def test_the_return_at_a_time_is_the_last_one_by_then(impact):
    run = impact.Ended({}, CURVE)
    assert [run.return_at(s) for s in (0.0, 0.9, 1.0, 99.0)] == [0.0, 0.0, 10.0, 30.0]
    assert run.return_at(-1.0) is None


# -- what is done and written ----------------------------------------------------------------------


@pytest.mark.full
def test_a_run_that_has_ended_is_not_repeated(start):
    code, done = start("ratio", seeds=1)
    assert code == 0
    assert [seed for *_, seed in done] == [0, 0, 0]
    assert start("ratio", seeds=1) == (0, [])
    assert [seed for *_, seed in start("ratio", seeds=2)[1]] == [1, 1, 1]
    assert len(start("ratio", seeds=2, total_steps=1024)[1]) == 6


def test_a_failed_run_loses_only_itself_and_is_repeated_at_the_next_start(start, tmp_path):
    start.broken.add("impact ratio=R2")
    code, done = start("ratio", seeds=1)
    assert code == 1
    assert len(done) == 3
    assert [row["setting"][:2] for row in read(tmp_path / "out/summary.csv")] == ["R1", "R3"]
    start.broken.clear()
    assert start("ratio", seeds=1) == (0, [("CartPole-v1", "impact ratio=R2", 0)])
    assert len(read(tmp_path / "out/summary.csv")) == 3


def test_every_study_has_a_picture_and_a_row_per_setting_and_shared_runs_are_done_once(
    start, tasks, tmp_path
):
    code, done = start(*tasks.STUDIES)
    assert code == 0
    assert len(done) == len(set(done))
    assert [seed for *_, seed in done] == sorted(seed for *_, seed in done)
    task, out = tasks.TASKS["CartPole-v1"], tmp_path / "out"
    wanted = [(name, setting) for name, of in tasks.STUDIES.items() for setting in of(task)]
    summary = read(out / "summary.csv")
    assert [(row["study"], row["setting"]) for row in summary] == wanted
    assert {row["runs"] for row in summary} == {"2"}
    assert {row["final_return"] for row in summary} == {"30.0"}
    for name in tasks.STUDIES:
        assert (out / f"{name}_CartPole-v1.png").stat().st_size > 1000


def test_the_summary_keeps_the_studies_that_are_not_done_this_time(start, tmp_path):
    start("ratio")
    start("k")
    start("ratio", seeds=1)
    rows = read(tmp_path / "out/summary.csv")
    assert [(row["study"], row["runs"]) for row in rows] == [("k", "2")] * 5 + [("ratio", "1")] * 3


@pytest.mark.usefixtures("forked_children")
def test_a_real_run_leaves_its_figures_and_its_curve(runs, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tasks.TASKS["CartPole-v1"].run("impact", total_steps=2048, eval_episodes=2)
    result = runs.measure(run, 5.0, tmp_path, 0.0, Children())
    assert result["final_return"] > 5.0
    assert result["eval_return"] > 5.0
    assert 0 < result["steps_to"] <= 2048 + 512
    assert result["lag_mean"] >= 0
    assert runs.curve_path(tmp_path, run).exists()


@pytest.mark.usefixtures("forked_children")
def test_a_run_that_fails_says_why(runs, tasks, tmp_path):
    run = tasks.TASKS["CartPole-v1"].run("ppo").changed(batch_size=1000)
    with pytest.raises(RuntimeError, match="batch_size=1000 must be a multiple"):
        runs.measure(run, 5.0, tmp_path, 0.0, Children())
