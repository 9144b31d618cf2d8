"""headrace pbt: its settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import populations as stub
import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.recipes import recipe
from headrace.studies.machine import wide_console
from headrace.studies.pbt import command
from headrace.studies.pbt.command import run
from headrace.studies.pbt.settings import Population
from headrace.studies.scores.runs import RunScore

CONSTANT = hr.IMPALA(lr_schedule="constant")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"burn_in": 400}, r"burn_in=400 must be below total_steps=400.*nearest: 20"),
        ({"sample": ("epochs=int:1,4",)}, "epochs can't evolve"),
        ({"sample": ("total_steps=uniform:1,4",)}, "the study sets total_steps"),
        ({"sample": ("lam=uniform:0.0,0.5",)}, "lam can't evolve"),
        ({"sample": ("optimizer=choice:adam,rmsprop",)}, "optimizer can't evolve"),
        ({"members": 1}, "members=1"),
        ({"factor": 1.0}, "factor=1.0"),
        ({"config": hr.Config(algo=hr.IMPALA(), total_steps=10**7)}, "lr_schedule='linear'"),
        (
            {"config": hr.Config(algo=replace(CONSTANT, entropy_schedule="linear"))},
            "entropy_schedule='linear'",
        ),
        ({"config": hr.Config(algo=CONSTANT, run_dir="x", total_steps=10**7)}, "run_dir='x'"),
        ({"config": hr.Config(algo=CONSTANT, stop_return=9.0)}, "stop_return=9.0 must be None"),
        (
            {
                "config": hr.Config(
                    algo=CONSTANT, eval_interval=9, eval_episodes=1, target_return=9.0
                )
            },
            "target_return=9.0 must be None",
        ),
    ],
)
def test_what_cannot_evolve_is_named(change, words):
    make = Population if "config" in change else stub.population
    with pytest.raises(ConfigError, match=words):
        make(**{"output": "x", "burn_in": 80} | change).check()


def test_the_papers_numbers_are_the_defaults():
    config = hr.Config("PongNoFrameskip-v4", CONSTANT, total_steps=50_000_000)
    paper = Population(config=config)
    assert (paper.members, paper.burn_in * 4, paper.factor) == (24, 20_000_000, 1.2)
    assert (paper.lead, paper.probability) == (0.05, 1 / 3)
    names = [one.name for one in paper.parameters]
    assert names == ["entropy_coef", "learning_rate", "optimizer_eps"]
    human = RunScore("impala", 14.6, {"PongNoFrameskip-v4": 14.6}, 1, None, [])
    assert paper.fitness(human) == pytest.approx(1.0)
    short = Population(config=hr.Config("Pong", CONSTANT, total_steps=50_000_000))
    assert short.fitness(RunScore("impala", 14.6, {"Pong": 14.6}, 1, None, [])) == pytest.approx(
        1.0
    )
    better = RunScore("impala", 21.0, {"PongNoFrameskip-v4": 21.0}, 1, None, [])
    assert paper.fitness(better) > 1.1  # of one task nothing is capped


def test_of_several_tasks_the_mean_capped_score_counts(tmp_path):
    config = hr.Config(tasks=("Pong", "Breakout"), algo=hr.IMPALA(lr_schedule="constant"))
    several = Population(config=config)
    assert several.lead == 0.05
    returns = {"ALE/Pong-v5": -20.7, "ALE/Breakout-v5": 400.0}  # nothing, and far above a human
    found = several.fitness(RunScore("impala", 189.65, returns, 1, None, []))
    assert found == pytest.approx(0.5, abs=0.01)
    config = hr.Config(tasks=("Pong", "CartPole-v1"), algo=hr.IMPALA(lr_schedule="constant"))
    with pytest.raises(ConfigError, match="no reference score of Pong, CartPole-v1"):
        _ = Population(config=config).lead


def test_without_a_reference_score_the_threshold_has_to_be_given(tmp_path):
    config = hr.Config("CartPole-v1", CONSTANT)
    known = {"config": config, "burn_in": 1000, "output": str(tmp_path / "population")}
    with pytest.raises(ConfigError, match=r"no reference score of CartPole-v1.*threshold=10"):
        run(Population(**known), wide_console(), stub.train)
    assert not any(tmp_path.iterdir())
    file = tmp_path / "own.json"
    task = {"random": 20.0, "reference": 500.0}
    file.write_text(json.dumps({"tasks": {"CartPole-v1": task}}))
    own = Population(**known, references=str(file))
    known_score = RunScore("impala", 260.0, {"CartPole-v1": 260.0}, 1, None, [])
    assert (own.lead, own.fitness(known_score)) == (0.05, 0.5)
    assert Population(**known, threshold=7.0).lead == 7.0


def test_no_member_has_the_seed_of_another_nor_of_a_population_beside_it():
    config = hr.Config(algo=CONSTANT)
    several = [Population(config=replace(config, seed=seed)) for seed in (0, 1, 2**31 - 1)]
    seeds = [one.seed_of(member) for one in several for member in range(24)]
    assert len(set(seeds)) == 3 * 24
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_folder_of_another_population_is_refused(tmp_path):
    run(stub.population(str(tmp_path), members=2), wide_console(), stub.train)
    with pytest.raises(ConfigError, match=r"holds a population with members=2, not 3"):
        run(stub.population(str(tmp_path), members=3), wide_console(), stub.train)
    file = tmp_path / "population.json"
    identity = json.loads(file.read_text())
    identity["config"]["algo"]["name"] = "ppo"
    file.write_text(json.dumps(identity))
    with pytest.raises(ConfigError, match=r"holds a population with algo='ppo', not 'impala'"):
        run(stub.population(str(tmp_path), members=2), wide_console(), stub.train)


@pytest.mark.parametrize(("file", "what"), [("sweep.json", "a sweep"), ("config.json", "a run")])
def test_a_folder_of_something_else_is_refused(tmp_path, file, what):
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=f"holds {what}, not a population: .* output='FOLDER'"):
        run(stub.population(str(tmp_path), members=2), wide_console(), stub.train)
    assert not (tmp_path / "population.json").exists()


def test_a_folder_from_before_a_setting_existed_goes_on(tmp_path):
    run(stub.population(str(tmp_path), members=2), wide_console(), stub.train)
    file = tmp_path / "population.json"
    identity = json.loads(file.read_text())
    del identity["config"]["policies"]
    file.write_text(json.dumps(identity))
    assert run(stub.population(str(tmp_path), members=2), wide_console(), stub.train) == 0


def test_a_recipes_return_to_stop_at_is_left_out(monkeypatch):
    found = []
    monkeypatch.setattr(command, "run", lambda population, console: found.append(population) or 0)
    assert recipe("cartpole", "impala").stop_return == 475.0
    command.main(["impala", "--recipe", "cartpole", "--threshold", "10"])
    assert found[0].config.stop_return is None


def test_a_population_shows_its_progress_and_how_to_continue_its_best_run(tmp_path, capsys):
    population = stub.population(str(tmp_path), members=2)
    assert run(population, wide_console(), stub.train) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.partition("]")[0] for line in lines if "steps, score" in line and "[" in line]
    assert re.fullmatch(r"\[\d+%, \d+:\d\d:\d\d left", shown[0])
    assert shown[-1] == "[100%"
    best = next(line.removeprefix("best run: ") for line in lines if "best run" in line)
    assert Path(best).parent.parent == tmp_path / "members"
    total = 2 * population.config.total_steps
    assert f"continue it: headrace resume {best} --total-steps {total:_}" in lines
