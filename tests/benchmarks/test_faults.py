"""Random faults, settings and damage are reproducible, and their results are checked correctly."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from patience import PATIENCE_S


def test_the_same_number_draws_the_same_fault(benchmark):
    faults = benchmark("faults")
    drawn = [faults.drawn(3, number, faults.BACKENDS) for number in range(200)]
    assert drawn == [faults.drawn(3, number, faults.BACKENDS) for number in range(200)]
    assert {one.backend for one in drawn} == set(faults.BACKENDS)
    assert {one.phase for one in drawn} == set(faults.PHASES)
    assert {one.name for one in drawn} == {*faults.OUTSIDE, *faults.INSIDE}


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: 0, None),
        (lambda: print("headrace: bad value") or 2, None),
        (lambda: print("bad value") or 2, "exit status 2 without a message"),
        (lambda: sys.exit("headrace: bad value"), None),
        (lambda: 1 // 0, "prints a traceback"),
        (lambda: sys.modules["time"].sleep(60), "hangs"),
    ],
    ids=["good", "sentence", "words", "exit", "traceback", "hang"],
)
def test_ends_are_judged(function, problem, benchmark):
    limit_s = 1.0 if problem == "hangs" else PATIENCE_S
    assert benchmark("fuzz_trials").ended(function, limit_s).problem == problem


def test_much_memory_is_a_problem(benchmark, monkeypatch):
    trials = benchmark("fuzz_trials")
    monkeypatch.setattr(trials, "_MOST_GB", 0.001)
    assert trials.ended(lambda: 0, PATIENCE_S).problem == "uses more than 0.001 GB of memory"


def _refusing(refusals):
    """Return a run that rejects settings by messages: {setting: {value: message}}."""

    def run(algorithm, env, settings, folder):
        for name, by_value in refusals.items():
            if settings.get(name) in by_value:
                print(f"headrace: {name}={settings.get(name)} {by_value[settings.get(name)]}")
                return 2
        return 0

    return run


@pytest.mark.parametrize(
    ("refusals", "end", "rejections"),
    [
        ({}, "trained", 0),
        ({"gamma": {7: "must be at most 1 (nearest: 1.0)"}}, "trained", 1),
        (
            {"gamma": {7: "is bad (nearest: 1.0)", 1.0: "is bad (nearest: 0.9)"}},
            "rejects its nearest value",
            1,
        ),
        ({"gamma": {7: "is bad (nearest: 1.0)", 1.0: "must be None with task"}}, "trained", 2),
        ({"gamma": {7: "is bad"}, "task": {2: "is bad"}}, "trained", 2),
        ({"other": {None: "is bad"}}, "refused", 0),
    ],
    ids=["good", "nearest", "bad-nearest", "unfit", "dropped", "not-given"],
)
def test_trials_follow_error_messages(refusals, end, rejections, benchmark):
    configs = benchmark("fuzz_configs")
    settings = {"gamma": 7, "task": 2}
    found = configs.trial("ppo", "CartPole-v1", settings, _refusing(refusals))
    assert found[::2] == (end, rejections)
    assert settings == {"gamma": 7, "task": 2}


def _places(checks, folder, taken, steps, kept):
    """Write the files of a run: counted steps, env_steps of its results, and of a checkpoint."""
    places = checks.Places(folder)
    places.environment(0)
    (places.run / "checkpoints" / f"step_{kept}").mkdir(parents=True)
    np.array([taken]).tofile(places.counts(0) / "headrace-actor-0.1")
    lines = "".join(f'{{"env_steps": {n}}}\n' for n in steps)
    (places.run / "metrics.jsonl").write_text(lines)
    (places.run / "summary.json").write_text(json.dumps({"env_steps": steps[-1]}))
    return places


@pytest.mark.parametrize(
    ("taken", "problem"),
    [(999, "1,000 steps are reported, 999 were taken"), (1_000, None), (5_000, None),
     (20_000, "1,000 steps are reported of 20,000 taken")],
)  # fmt: skip
def test_reported_steps_are_compared_with_counted_steps(taken, problem, benchmark, tmp_path):
    checks, outcome = benchmark("faults_checks"), benchmark("faults_checks").Outcome()
    places = _places(checks, tmp_path, taken, [500, 1_000], 1_000)
    fault = checks.Fault("shm", "end", "", "", 1, 0.0, "command", 9)
    checks.check_steps(fault, 0, outcome, places, 0, began_at=0)
    assert outcome.faults == ([problem] if problem else [])
    assert outcome.counts == [taken]


@pytest.mark.parametrize(
    ("status", "what", "is_old"),
    [(0, "command", True), (0, "error", False), (1, "command", False)],
    ids=["finished", "not-written", "failed"],
)
def test_a_finished_run_has_its_last_step_in_a_checkpoint(
    status, what, is_old, benchmark, tmp_path
):
    checks = benchmark("faults_checks")
    outcome = checks.Outcome(happened=True)
    places = _places(checks, tmp_path, 2_000, [1_000, 2_000], 1_000)
    fault = checks.Fault("shm", "end", "", "", 1, 0.0, what, 9)
    checks.check_checkpoint(fault, status, outcome, places.run)
    assert bool(outcome.faults) == is_old


def test_files_of_a_finished_run_are_checked(benchmark, tmp_path):
    checks = benchmark("faults_checks")
    places = _places(checks, tmp_path, 2_000, [1_000, 2_000], 2_000)
    checks.check_files(outcome := checks.Outcome(), places.run)
    assert outcome.faults == []
    with (places.run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1500}\n{"env_s\n')
    (places.run / "policy.tmp").touch()
    checks.check_files(outcome, places.run)
    (places.temporary / "left").touch()
    checks.check_left(outcome, places, "no such mark", checks.shared_memory())
    assert outcome.faults == [
        "metrics.jsonl has the line '{\"env_s'",
        "env_steps of metrics.jsonl do not increase",
        "summary.json and metrics.jsonl differ in env_steps",
        "the run keeps ['policy.tmp']",
        "left files ['temporary/left']",
    ]


def test_logs_that_a_message_names_may_stay(benchmark, tmp_path):
    checks = benchmark("faults_checks")
    places = _places(checks, tmp_path, 2_000, [1_000, 2_000], 2_000)
    log = places.temporary / "ray/session_1/logs/agent.log"
    log.parent.mkdir(parents=True)
    log.touch()
    outcome = checks.Outcome(output=f"headrace: the agent has exited (its log: {log})")
    checks.check_left(outcome, places, "no such mark", checks.shared_memory())
    assert outcome.faults == []


def test_a_signal_without_a_process_has_not_happened(benchmark):
    run = benchmark("faults_run")
    fault = run.Fault("serial", "end", "", "", 1, 0.0, "child", 9)
    with run.subprocess.Popen(["sleep", "9"]) as process:
        assert not run._cause(fault, process, "no such mark", 0)
        assert run._cause(fault._replace(what="command"), process, "no such mark", 0)


def test_trials_draw_many_settings(benchmark):
    configs = benchmark("fuzz_configs")
    rng = configs.random.Random(0)
    drawn = [configs.drawn(rng)[2] for _ in range(300)]
    assert len({name for one in drawn for name in one}) > 60


def test_every_damage_changes_a_file(benchmark, tmp_path):
    runs = benchmark("fuzz_runs")
    for name, damage in runs.DAMAGES.items():
        file = tmp_path / f"{name}.json"
        file.write_text('{"a": [1, 2, {"b": "c"}], "d": 4.0}')
        (tmp_path / "other.json").write_text("3")
        before = file.lstat()
        damage(file, tmp_path, runs.random.Random(1))
        after = file.lstat() if file.is_symlink() or file.exists() else None
        assert after is None or (after.st_mtime_ns, after.st_mode) != (
            before.st_mtime_ns,
            before.st_mode,
        )


def test_a_damage_that_changes_nothing_is_drawn_again(benchmark, tmp_path):
    runs = benchmark("fuzz_runs")
    for seed in range(10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "empty").touch()
        path, name = runs.damage(folder, tmp_path, runs.random.Random(seed))
        assert path == folder / "empty"
        assert name not in ("cut", "flip", "swap")


def test_settings_are_constructed_without_training(benchmark, tmp_path, capsys):
    configs = benchmark("fuzz_configs")
    settings = {"gamma": 0.5, "num_actors": 2, "max_policy_lag": 3}
    assert configs.run_constructor("ppo", "CartPole-v1", settings, tmp_path) == 0
    assert configs.run_constructor("ppo", "CartPole-v1", settings | {"gamma": 7.0}, tmp_path) == 2
    assert capsys.readouterr().out.startswith("headrace: gamma=7.0 must be at most 1")
    assert not list(tmp_path.iterdir())
    drawn = [configs.with_extremes(settings, configs.random.Random(n)) for n in range(50)]
    assert {type(one["gamma"]) for one in drawn} == {float}
    assert {type(one["num_actors"]) for one in drawn} == {int}
    assert any(one["num_actors"] == 2**63 for one in drawn)
