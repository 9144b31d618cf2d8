"""The paper studies of benchmarks/ with tiny settings: resumable, exact, and all files written."""

from __future__ import annotations

import copy
import csv
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.rundir.curves import on_grid
from headrace.studies.aggregation import mean_se
from headrace.studies.children import Children
from headrace.studies.machine import wide_console

CASES = [{"name": name, "lr": 1e-4, "seed": seed} for name in ("a", 'b, "c"') for seed in (0, 1)]
COLUMNS = ("name", "lr", "seed", "score")


@pytest.fixture
def study():
    from headrace.studies import run_table as study

    return study


@pytest.fixture
def console():
    return wide_console()


class Measured:
    """A measurement that records its cases, and fails for those in ``broken``."""

    def __init__(self, broken: tuple[Any, ...] = ()) -> None:
        self.asked: list[Any] = []
        self.broken = broken

    def __call__(self, case, children):
        self.asked.append(case)
        if case in self.broken:
            raise RuntimeError("it broke")
        return {"score": 10.0 * case["seed"] + 0.1}


# -- the shared part -------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_finished_run_is_never_measured_again(study, console, tmp_path, jobs):
    first, second = Measured(), Measured()
    table = study.Study(tmp_path, COLUMNS)
    table.run(CASES[:3], first, console, jobs)
    again = study.Study(tmp_path, COLUMNS)
    again.run(CASES, second, console, jobs)
    assert table.failed == again.failed == []
    assert len(first.asked) == 3
    assert second.asked == CASES[3:]
    assert [row["score"] for row in again.done(CASES)] == [0.1, 10.1, 0.1, 10.1]
    assert study.Study(tmp_path, COLUMNS).missing(CASES) == []


def test_other_settings_are_another_run(study, console, tmp_path):
    table = study.Study(tmp_path, COLUMNS)
    table.run(CASES, Measured(), console)
    assert table.missing([CASES[0] | {"lr": 1e-3}]) == [CASES[0] | {"lr": 1e-3}]
    assert table.missing([CASES[0] | {"lr": 0.0001}]) == []


def test_a_line_cut_by_an_interruption_is_measured_again(study, console, tmp_path):
    study.Study(tmp_path, COLUMNS).run(CASES, Measured(), console)
    path = tmp_path / "runs.csv"
    path.write_bytes(path.read_bytes()[:-3])
    table, measured = study.Study(tmp_path, COLUMNS), Measured()
    assert table.missing(CASES) == CASES[3:]
    table.run(CASES, measured, console)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["score"] for row in rows] == ["0.1", "10.1", "0.1", "10.1"]


def test_a_run_that_fails_is_noted_and_stays_missing(study, console, tmp_path, capsys):
    table = study.Study(tmp_path, COLUMNS)
    table.run(CASES, Measured(broken=(CASES[1],)), console)
    assert table.failed == [CASES[1]]
    assert "it broke" in capsys.readouterr().out
    assert study.Study(tmp_path, COLUMNS).missing(CASES) == [CASES[1]]


def test_a_table_with_other_columns_is_refused_by_its_path(study, console, tmp_path):
    study.Study(tmp_path, COLUMNS).run(CASES, Measured(), console)
    with pytest.raises(ConfigError, match=r"runs\.csv has the columns name, lr, seed, score"):
        study.Study(tmp_path, (*COLUMNS, "more"))


@pytest.mark.parametrize("row", [{}, {"x": 1, "z": 2}, {"x": 1, "y": "a\nb"}])
def test_a_row_that_does_not_fit_the_table_is_refused(study, tmp_path, row):
    with pytest.raises(ValueError):
        study.Study(tmp_path, ("x", "y")).append(row)
    assert not (tmp_path / "runs.csv").exists()


VALUES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(st.characters(blacklist_categories=("Cs", "Cc"))),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_a_case_is_found_again_whatever_its_values(study, tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("study")
    study.Study(folder, ("value", "score")).append({"value": value, "score": 1})
    table = study.Study(folder, ("value", "score"))
    nan = isinstance(value, str) and value.strip().lower().lstrip("+-") == "nan"
    assert nan or table.missing([{"value": value}]) == []


def test_mean_and_standard_error_are_those_of_their_definition():
    mean, error = mean_se([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3))
    assert math.isnan(mean_se([5.0])[1])


def test_curves_are_compared_where_all_of_them_have_values():
    x, values = on_grid([([0, 10], [0, 10]), ([2, 8], [4, 10])])
    assert (x[0], x[-1]) == (2, 8)
    assert values[:, [0, -1]] == pytest.approx(np.array([[2, 8], [4, 10]]))


# -- corrections -----------------------------------------------------------------------------------


def corrections_args(corrections, folder: Path, **changes: Any) -> Any:
    tiny = {"total_steps": 400, "num_envs": 4, "fragment_length": 5, "replay_updates": 20}
    return corrections.Args(
        corrections=("vtrace", "none"), replay_fractions=(0.5,), seeds=2, forced_lag=3,
        learning_rate=1e-2, output=folder, **(tiny | changes),
    )  # fmt: skip


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_actor_acts_with_the_weights_of_exactly_the_forced_lag_ago(
    benchmark, monkeypatch, tmp_path, lag
):
    from headrace.learner.learner import Learner

    corrections = benchmark("corrections")
    versions, batches, update = [], [], Learner.update

    def noted(self, fresh, learning_rate):
        versions.append(copy.deepcopy(self.policy))
        batches.append(fresh())
        return update(self, lambda: batches[-1], learning_rate)

    monkeypatch.setattr(Learner, "update", noted)
    case = corrections.cases_of(corrections_args(corrections, tmp_path))[0]
    result = corrections.train(case | {"forced_lag": lag, "replay_fraction": 0.0})
    assert (result["lag_min"], result["lag_max"]) == (0, lag)
    for i, batch in enumerate(batches[lag:]):
        errors = [_log_prob_error(versions[lag + i - back], batch) for back in range(lag + 1)]
        assert errors[lag] < 1e-5
        assert all(error > 1e-5 for error in errors[:lag])


def _log_prob_error(policy: Any, batch: Any) -> float:
    with torch.no_grad():
        params, _, _ = policy(batch.obs, batch.first, batch.core)
        log_prob = policy.distribution.log_prob(params[:-1], batch.action)
    return float((log_prob - batch.log_prob)[batch.valid].abs().max())


def test_the_same_case_gives_the_same_figures(benchmark, tmp_path):
    corrections = benchmark("corrections")
    case = corrections.cases_of(corrections_args(corrections, tmp_path))[0]
    first, second = corrections.train(case), corrections.train(case)
    other = corrections.train(case | {"seed": 7})
    assert first == second
    assert first["kl"] != other["kl"]


@pytest.mark.full
@pytest.mark.usefixtures("forked_children")
def test_the_corrections_are_resumed_and_write_table_and_pictures(
    benchmark, monkeypatch, tmp_path, capsys
):
    corrections, apart, call = benchmark("corrections"), iter([True]), Children.call

    def first_apart(self, function, request, *rest):
        return call(self, function, request, *rest) if next(apart, False) else function(request)

    monkeypatch.setattr(Children, "call", first_apart)
    assert corrections.main(corrections_args(corrections, tmp_path)) == 0
    output = capsys.readouterr().out
    assert "[  4/4" in output
    assert "vtrace" in output
    assert "Machine:" in output
    for name in ("runs.csv", "summary.csv", "corrections.png", "curves.png"):
        assert (tmp_path / name).stat().st_size > 100
    monkeypatch.setattr(corrections, "train_apart", None)  # any call fails
    assert corrections.main(corrections_args(corrections, tmp_path)) == 0
    assert corrections.main(corrections_args(corrections, tmp_path, gamma=0.5)) == 1


def test_the_distance_is_in_standard_errors_of_the_difference(benchmark):
    corrections = benchmark("corrections")
    returns = {"vtrace": (10.0, 12.0), "none": (1.0, 5.0)}
    rows = [
        {"correction": name, "replay_fraction": 0.5, "kl": 0.1}
        | dict.fromkeys(corrections.MEASURES, value)
        for name, values in returns.items()
        for value in values
    ]
    vtrace, none = corrections.summarise(rows)
    assert vtrace["final_return_z"] == pytest.approx((11 - 3) / math.sqrt(1**2 + 2**2))
    assert none["final_return_z"] is None


# -- architectures ---------------------------------------------------------------------------------


def test_even_episodes_are_alike_and_uneven_ones_are_not(benchmark):
    architectures = benchmark("architectures")
    args = architectures.Args(step_ms=0.0, reset_ms=0.0, episode_length=20)

    def lengths(task: str) -> list[int]:
        env = architectures.Costly(**architectures.env_kwargs(vars(args) | {"task": task}))
        found = []
        for seed in range(200):
            env.reset(seed=seed)
            found.append(next(t for t in itertools.count(1) if env.step(0)[2]))
        return found

    assert set(lengths("even")) == {20}
    uneven = lengths("uneven")
    assert 15 < sum(uneven) / 200 < 25
    assert min(uneven) < 5
    assert max(uneven) > 50


@pytest.mark.parametrize("cost", ["sleep", "busy"])
def test_the_environments_alone_are_what_their_costs_allow(benchmark, cost):
    import time

    architectures = benchmark("architectures")
    args = architectures.Args(num_envs=1, step_ms=4.0, reset_ms=20.0, episode_length=5, cost=cost)
    assert architectures.ideal_sps(args, "even") == pytest.approx(5 / (5 * 0.004 + 0.004))
    assert architectures.ideal_sps(args, "uneven") == pytest.approx(5 / (5 * 0.004 + 0.020))
    env = architectures.Costly(**architectures.env_kwargs(vars(args) | {"task": "even"}))
    start = time.monotonic()
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    assert time.monotonic() - start >= 5 / architectures.ideal_sps(args, "even")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_the_architectures_are_resumed_and_write_table_and_picture(
    benchmark, monkeypatch, tmp_path, capsys
):
    architectures = benchmark("architectures")
    args = architectures.Args(
        num_envs=2, fragment_length=5, step_ms=1.0, reset_ms=5.0, episode_length=10, seconds=0.5,
        warm_up_s=0.2, repeats=1, architectures=("A2C, one process", "IMPALA"), output=tmp_path,
    )  # fmt: skip
    assert architectures.main(args) == 0
    output = capsys.readouterr().out
    assert "environments alone" in output
    assert "Machine:" in output
    for name in ("runs.csv", "summary.csv", "architectures.png"):
        assert (tmp_path / name).stat().st_size > 100
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert [row["sps"] for row in csv.DictReader(file) if float(row["sps"]) <= 0] == []
    monkeypatch.setattr(architectures, "measure_apart", None)  # any call fails
    assert architectures.main(args) == 0


@pytest.mark.parametrize("network", ["small", "deep"])
def test_every_architecture_is_a_config_that_headrace_accepts(benchmark, network):
    import headrace as hr

    architectures = benchmark("architectures")
    for name in architectures.ARCHITECTURES:
        args = architectures.Args(architectures=(name,), network=network)
        case = architectures.cases_of(args)[0]
        config = architectures.config_of(case, "unused")
        assert isinstance(config, hr.Config)
        assert config.precision == args.precision != "auto"  # of all rows the same
        assert config.algo.steps_per_batch == 1  # of all rows the same
        synchronous = config.algo.max_lag == 0
        assert config.num_credits >= (1 if synchronous else 4) * config.num_actors
        env = architectures.Costly(**architectures.env_kwargs(case))
        assert env.observation_space.contains(env.reset(seed=0)[0])


@pytest.mark.parametrize("slow", [False, True])
def test_no_waiting_environment_waits_for_the_learner(benchmark, slow):
    waiting = benchmark("waiting")
    args = waiting.Args()
    config = waiting.config_of(args, waiting.Waiting, "claim" if slow else "", 10**6, "unused")
    assert config.num_actors * config.envs_per_actor == args.num_envs == 512
    assert config.num_credits >= 2 * config.num_actors
    assert config.algo.steps_per_batch == 1
    assert (config.inference, config.precision) == ("actor", "float32")


# -- shared inference ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_acting_in_actors_and_in_one_process_are_compared(benchmark, tmp_path, capsys):
    inference = benchmark("inference")
    args = inference.Args(
        networks=("shallow",), crews=("2x1",), seconds=0.3, warm_up_updates=1, repeats=1,
        output=tmp_path,
    )  # fmt: skip
    assert inference.main(args) == 0
    assert "actors x environments" in capsys.readouterr().out
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["inference"] for row in rows] == ["actor", "shared"]
    assert all(float(row["sps"]) > 0 and float(row["cpu_ms"]) > 0 for row in rows)
    assert all(row["auto"] in inference.KINDS and float(row["ceiling"]) > 0 for row in rows)


def test_an_interrupted_training_of_a_benchmark_is_no_measurement():
    """By default, a Trainer's loop ends at Ctrl-C as at the end of its run."""
    files = (Path(__file__).parents[2] / "benchmarks").rglob("*.py")
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    trainers = {name: text for name, text in texts.items() if "hr.Trainer(" in text}
    assert len(trainers) > 10
    stops = ("handle_signals=False", "trainer.interrupted", "the run was not evaluated")
    assert [name for name, text in trainers.items() if not any(s in text for s in stops)] == []
