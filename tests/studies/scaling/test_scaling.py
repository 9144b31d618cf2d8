"""The scaling study: its flags, its runs, resuming, and its files.

Only one run is real; the others are stand-ins that write the files of a run.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.studies.machine import wide_console
from headrace.studies.scaling import allreduce
from headrace.studies.scaling import command as scaling
from headrace.studies.scaling.model import Cost, Timing, sum_s
from headrace.studies.scaling.settings import Scaling, case_config, cases_of, predictable

ITERS = 25


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Creates a study with stand-ins for runs and all-reduces."""
    monkeypatch.setattr(scaling, "train_apart", Fake())
    monkeypatch.setattr(scaling, "gradient_bytes", lambda config: 1000)
    monkeypatch.setattr(allreduce, "measure", timings)
    monkeypatch.setattr(scaling, "num_cores", lambda: 2)
    monkeypatch.setattr(scaling.report, "num_cores", lambda: 2)

    def make(settings=None, **flags) -> Scaling:
        config = replace(Scaling().config, **(settings or {}))
        known = {"world_sizes": (1, 2, 4), "repeats": 2, "output": str(tmp_path / "out")}
        return Scaling(config=config, **(known | flags))

    return make


class Fake:
    """Stand-in for a run; W learners take 100 + 10 W ms for an iteration of 60 steps each."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.broken: set[int] = set()

    def __call__(self, config, children, timeout_s) -> None:
        size = config.num_learners
        self.runs.append((size, config.seed))
        if size in self.broken:
            raise RuntimeError("it broke")
        folder = Path(config.run_dir)
        (folder / "iterations").mkdir(parents=True, exist_ok=True)
        t_iter = 0.1 + 0.01 * size
        times = {"t_rollout": 0.05, "t_learn": 0.04, "t_comm": 0.01 * (size - 1), "t_sync": 0.005}
        times = {"t_iter": t_iter, **times}
        for rank in range(size):
            lines = [
                {"update": i, "rank": rank, "env_steps": 60 * size * i, "seconds": t_iter * i}
                | {"steps": 60, "fps": 60 / t_iter, "approx_kl": 0.01, **times}
                for i in range(1, ITERS + 1)
            ]
            write(folder / "iterations" / f"rank_{rank}.jsonl", lines)
        if config.eval_interval is not None:
            points = [(60 * size * i, t_iter * i, 10.0 * i + config.seed) for i in (5, 10, 20)]
            names = ("env_steps", "seconds", "return_mean")
            write(folder / "evaluations.jsonl", [dict(zip(names, p, strict=True)) for p in points])
        summary = {"episodic_return": 7.0, "evaluation": None}
        (folder / "summary.json").write_text(json.dumps(summary))


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def timings(table, world_sizes, message_bytes, console):
    return [
        Timing(way, size, size <= 2, n, sum_s(way, size, n, Cost(1e-4, 1e-9)))
        for way in allreduce.WAYS
        for size in world_sizes
        for n in message_bytes
        if size > 1
    ]


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- what is run -----------------------------------------------------------------------------------


def test_constant_batch_shares_the_settings_out_as_they_are():
    flags = Scaling(total_iters=10)
    config = case_config(flags, 4, 3)
    assert (config.num_learners, config.seed, config.num_actors) == (4, 3, 1)
    assert config.resolved_batch_size == flags.config.resolved_batch_size == 2048
    assert config.total_steps == 20480
    assert config.log_iterations
    assert config.overwrite
    assert config.run_dir == "runs/scaling/runs/constant-batch-w4-seed3"
    assert (config.transport, config.cores_per_learner, config.learner_threads) == ("serial", 1, 1)


@pytest.mark.parametrize("batch_size", [None, 4096])
def test_growing_batch_gives_each_learner_what_one_has(batch_size):
    base = replace(Scaling().config, batch_size=batch_size)
    flags = Scaling(mode="growing-batch", total_iters=10, config=base)
    config = case_config(flags, 4, 0)
    assert (config.num_actors, config.envs_per_actor) == (4, 64)
    assert config.resolved_batch_size == 4 * base.resolved_batch_size
    assert config.total_steps == 40 * base.resolved_batch_size
    assert config.per_learner.resolved_batch_size == base.resolved_batch_size


def test_a_run_with_a_target_goes_as_far_as_the_settings_allow():
    base = replace(Scaling().config, target_return=50.0, eval_interval=100, stop_return=5.0)
    config = case_config(Scaling(config=base), 2, 0)
    assert (config.total_steps, config.target_return) == (base.total_steps, 50.0)
    assert config.stop_return is None


def test_preemption_holds_for_every_world_size():
    flags = Scaling(config=replace(Scaling().config, preempt_fraction=0.5))
    assert case_config(flags, 1, 0).preempt_fraction == 0.5
    assert case_config(flags, 4, 0).preempt_fraction == 0.5


def test_a_study_of_several_tasks_is_titled_after_all(tmp_path):
    config = replace(Scaling().config, tasks=("CartPole-v1", "Acrobot-v1"), num_actors=2)
    assert Scaling(config=config).title.startswith("ppo on CartPole-v1, Acrobot-v1, ")


def test_seeds_are_outermost():
    cases = cases_of(Scaling(world_sizes=(1, 4), repeats=2))
    assert [(c["world_size"], c["seed"]) for c in cases] == [(1, 0), (4, 0), (1, 1), (4, 1)]


def test_constant_batch_is_extrapolated_as_far_as_the_environments_go():
    sizes, limit = predictable(Scaling())
    assert sizes == [32, 64]
    assert "world size 128" in limit
    assert "64 environments" in limit
    few = replace(Scaling().config, envs_per_actor=48)
    sizes, limit = predictable(Scaling(config=few))
    assert sizes == []
    assert "num_learners=32" in limit
    assert predictable(Scaling(mode="growing-batch")) == ([32, 64, 128, 256, 512], "")


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch):
    """Parses arguments of the command without running anything."""
    found = []
    monkeypatch.setattr(scaling, "run", lambda flags, console: found.append(flags) or 0)

    def parse(*arguments) -> Scaling:
        assert scaling.main(arguments) == 0
        return found[-1]

    return parse


def test_flags_of_the_study_and_of_its_runs_stand_side_by_side(parsed):
    assert parsed() == Scaling()
    found = parsed(
        "appo", "--world-sizes", "2,8", "--mode", "growing-batch", "--epochs", "3",
        "--num-actors", "2", "--transport", "shm", "--network-gbps", "8", "--seed", "5",
        "--network-latency-us", "20", "--target-return", "9", "--eval-interval", "100",
    )  # fmt: skip
    assert (found.world_sizes, found.mode) == ((2, 8), "growing-batch")
    assert found.config.target_return == 9.0
    assert isinstance(found.config.algo, hr.APPO)
    assert (found.config.algo.epochs, found.config.num_actors, found.config.seed) == (3, 2, 5)
    assert (found.config.transport, found.cores_per_learner) == ("shm", 1)
    assert (found.link.latency_s, found.link.bytes_per_s) == pytest.approx((20e-6, 1e9))
    assert math.isinf(parsed().link.bytes_per_s)


@pytest.mark.parametrize("recipe", [["--recipe", "cartpole"], ["--recipe=cartpole"]])
def test_a_recipe_is_what_the_flags_modify(parsed, recipe):
    config = parsed("ppo", *recipe, "--minibatches", "2").config
    assert (config.stop_return, config.algo.minibatches) == (475.0, 2)
    assert config.is_sized  # which the recipe leaves to a run
    assert (config.transport, config.cores_per_learner) == ("serial", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pppo"], ["'pppo'", "'ppo'"]),
        (["--recipe", "cartpol"], ["'cartpol'", "'cartpole'"]),
        (["--world-sizes", "1,3"], ["world size 3", "num_learners=3", "64 environments"]),
        (["--env-id", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(arguments, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        scaling.main([*arguments, "--output", str(tmp_path / "out")])
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--world-sizes", "1,x"], "1,2,4"),
        (["--world-sizes", "2,2"], "different"),
        (["--world-sizes", "0,1"], "1 or more"),
        (["--repeats", "0"], "repeats=0"),
        (["--warmup-iters", "-1"], "warmup_iters=-1"),
        (["--total-iters", "5"], "total_iters=5"),
        (["--timeout-s", "0"], "timeout_s"),
        (["--network-gbps", "0"], "network_gbps"),
        (["--network-latency-us", "-1"], "network_latency_us"),
        (["--num-learners", "2"], "world_sizes=…"),
        (["--run-dir", "x"], "run_dir"),
        (["--target-return", "5"], "eval_interval"),
    ],
)
def test_a_wrong_flag_is_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        scaling.main(arguments)
    assert ended.value.code == 2
    assert words in "".join(capsys.readouterr())


def test_a_wrong_choice_is_named():
    with pytest.raises(ConfigError, match="--mode both must be one of constant-batch, growing"):
        scaling.main(["--mode", "both"])


# -- the study -------------------------------------------------------------------------------------


def test_a_study_writes_its_tables_pictures_and_model(study, capsys):
    assert scaling.run(study({"eval_interval": 100}), wide_console()) == 0
    shown, folder = capsys.readouterr().out, Path(study().output)
    runs, summary = read(folder / "per_run.csv"), read(folder / "summary.csv")
    assert len(runs) == 6
    rates = {row["world_size"]: float(row["fps"]) for row in summary}
    assert rates == pytest.approx({"1": 60 / 0.11, "2": 120 / 0.12, "4": 240 / 0.14})
    assert float(summary[2]["speedup_fps"]) == pytest.approx(240 / 0.14 / (60 / 0.11))
    assert [row["exceeds_cores"] for row in summary] == ["False", "False", "True"]
    assert float(summary[1]["final_return"]) == 200.5
    model = json.loads((folder / "model.json").read_text())
    assert [row["world_size"] for row in model["extrapolated"]] == [1, 2, 4, 32, 64]
    assert model["model"]["sync_s"] == pytest.approx(0.005 / math.sqrt(2 * math.log(2)))
    assert model["model"]["messages"] == [1000] * (6 * 16) + [6 * 16 * 24]
    assert model["model"]["rows"] == [512, 512]  # what each counted, and moments
    assert model["model"]["link"] == {"latency_s": 0.0, "bytes_per_s": None}
    for name in ("scaling.png", "curves.png"):
        assert (folder / name).stat().st_size > 10_000
    for words in (
        "relative to W = 1",
        "4 *",
        "120.00",
        "loopback",
        "Larger world sizes are invalid: world size 128",
    ):
        assert words in shown
    assert "curves.png" in shown.splitlines()[-1]


def test_what_was_measured_is_not_measured_again(study):
    fake = scaling.train_apart
    assert scaling.run(study(), wide_console()) == 0
    assert fake.runs == [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)]
    assert scaling.run(study(world_sizes=(1, 2, 4, 8), repeats=1), wide_console()) == 0
    assert fake.runs[6:] == [(8, 0)]
    assert scaling.run(study(mode="growing-batch", repeats=1), wide_console()) == 0
    assert fake.runs[7:] == [(1, 0), (2, 0), (4, 0)]


@pytest.mark.parametrize("change", [{"settings": {"envs_per_actor": 32}}, {"warmup_iters": 6}])
def test_other_settings_need_another_folder(study, change):
    assert scaling.run(study(), wide_console()) == 0
    with pytest.raises(ConfigError, match="other settings"):
        scaling.run(study(**change), wide_console())


def test_a_run_that_fails_costs_no_other_and_is_repeated(study, capsys):
    fake = scaling.train_apart
    fake.broken = {2}
    assert scaling.run(study(repeats=1), wide_console()) == 1
    assert "it broke" in (shown := capsys.readouterr().out)
    assert "world size 2, seed 0" in shown
    assert [row["world_size"] for row in read(Path(study().output) / "summary.csv")] == ["1", "4"]
    fake.broken = set()
    assert scaling.run(study(repeats=1), wide_console()) == 0
    assert fake.runs[3:] == [(2, 0)]


def test_nothing_is_written_of_nothing(study):
    scaling.train_apart.broken = {1, 2, 4}
    assert scaling.run(study(), wide_console()) == 1
    assert not (Path(study().output) / "summary.csv").exists()


def test_the_time_to_a_target_is_in_the_table(study, capsys):
    flags = study({"target_return": 100.5, "eval_interval": 100}, world_sizes=(2, 4))
    assert scaling.run(flags, wide_console()) == 0
    shown, (two, four) = capsys.readouterr().out, read(Path(flags.output) / "summary.csv")
    # Seed 0 reaches 100.5 with the third evaluation, seed 1 with the second.
    assert float(two["time_to_target"]) == pytest.approx(0.12 * 15)
    assert float(four["speedup_time"]) == pytest.approx(2 * 0.12 / 0.14)
    assert "reaches 100.5" in shown
    assert "2 x those over W = 2" in shown


def test_without_evaluations_there_are_no_curves(study, capsys):
    assert scaling.run(study(repeats=1), wide_console()) == 0
    assert "no curves.png" in capsys.readouterr().out
    assert not (Path(study().output) / "curves.png").exists()


def test_only_world_sizes_beyond_the_cores_give_pictures_without_a_model(study, capsys):
    flags = study({"eval_interval": 100}, world_sizes=(4, 8), repeats=1)
    assert scaling.run(flags, wide_console()) == 0
    assert "Nothing is extrapolated" in capsys.readouterr().out
    assert json.loads((Path(flags.output) / "model.json").read_text())["extrapolated"] == []
    assert (Path(flags.output) / "scaling.png").exists()


def test_runs_that_end_in_their_warm_up_have_no_speed_but_the_rest(study, monkeypatch):
    flags = study({"target_return": 50.0, "eval_interval": 100}, warmup_iters=25, total_iters=26)
    assert scaling.run(flags, wide_console()) == 0
    one = read(Path(flags.output) / "summary.csv")[0]
    assert (one["fps"], one["reached"]) == ("", "2")
    assert float(one["time_to_target"]) == pytest.approx(0.11 * 5)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_the_real_command_measures_real_runs(tmp_path, capsys):
    output = tmp_path / "out"
    assert scaling.main([
        "--world-sizes", "1,2", "--repeats", "1", "--warmup-iters", "1", "--total-iters", "4",
        "--envs-per-actor", "8", "--fragment-length", "8", "--eval-episodes", "2",
        "--eval-interval", "64", "--output", str(output),
    ]) == 0  # fmt: skip
    runs = read(output / "per_run.csv")
    assert [row["world_size"] for row in runs] == ["1", "2"]
    for row in runs:
        assert float(row["fps"]) > 0
        assert 0.5 < float(row["coverage"]) < 1.05
        assert int(row["iterations"]) >= 3
        assert float(row["final_return"]) > 0
    assert float(runs[1]["t_comm"]) > 0
    assert (output / "curves.png").exists()
