"""headrace sweep: every trial runs once despite kills, on several hosts, and is reported."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import gymnasium
import optuna
import pytest
from patience import PATIENCE_S, wait_until
from warm import Program

import headrace as hr
from headrace.cli import main
from headrace.config import algorithms
from headrace.errors import ConfigError
from headrace.rundir import resolve_imports
from headrace.rundir.files import read_jsonl
from headrace.studies import flags
from headrace.studies.machine import wide_console
from headrace.studies.sweep import report
from headrace.studies.sweep.command import run
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store, storage

STUB = Path(__file__).with_name("stub.py")
SAMPLE = ("learning_rate=loguniform:1e-5,1e-2", "entropy_coef=uniform:0,0.1")


def begun(folder: Path, **settings) -> Program:
    output = os.open(folder / "output.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    words = [sys.executable, str(STUB), str(folder), json.dumps(settings)]
    try:
        return Program(words, folder, output, shared=True)
    finally:
        os.close(output)


def ended(program: Program, folder: Path) -> None:
    assert program.wait(PATIENCE_S) == 0, (folder / "output.txt").read_text()


def lines(folder: Path) -> list[dict]:
    log = folder / "log.jsonl"
    return read_jsonl(log) if log.exists() else []


def wait_for_lines(program: Program, folder: Path, count: int) -> None:
    def reached() -> bool:
        ended = program.poll() is not None
        there = len(lines(folder)) >= count  # also if it has done all the rest meanwhile
        assert there or not ended, (folder / "output.txt").read_text()
        return there

    wait_until(reached, pause_s=0.002)


def check(folder: Path, trials: int, seeds: int = 1) -> list:
    """Check that every trial finished once, with its initial values."""
    study = optuna.load_study(study_name="sweep", storage=storage(folder))
    assert [trial.number for trial in study.trials] == list(range(trials))
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    for trial in study.trials:
        assert len(trial.user_attrs["scores"]) == seeds
        assert trial.value == pytest.approx(trial.params["learning_rate"] + (seeds - 1) / 2)
        own = [line for line in lines(folder) if line["trial"] == trial.number]
        assert own
        assert all(line["values"] == trial.params for line in own)
    return study.trials


@pytest.mark.parametrize("sampler", [pytest.param("random", marks=pytest.mark.slow), "tpe"])
def test_killed_twice_and_resumed_every_trial_ends_once(tmp_path, sampler):
    """Killed trials are resumed; none is lost, and finished ones aren't repeated."""
    rng = random.Random(sampler)
    for _ in range(2):
        before = len(lines(tmp_path))
        program = begun(tmp_path, trials=24, jobs=2, sampler=sampler)
        wait_for_lines(program, tmp_path, before + rng.randint(6, 14))
        program.kill()
        program.wait(PATIENCE_S)
    ended(begun(tmp_path, trials=24, jobs=2, sampler=sampler), tmp_path)
    check(tmp_path, 24)
    over = [line["trial"] for line in lines(tmp_path) if not line["begins"]]
    again = [number for number in set(over) if over.count(number) > 1]
    assert set(over) == set(range(24))
    assert len(again) <= 4  # killed between the end of a run and the journal's line about it
    count = len(lines(tmp_path))
    ended(begun(tmp_path, trials=24, jobs=2, sampler=sampler), tmp_path)  # nothing is left to do
    assert len(lines(tmp_path)) == count
    assert (tmp_path / "sweep.png").exists()


def test_processes_share_a_sweep_and_random_values_do_not_depend_on_who_draws_them(tmp_path):
    folders = [tmp_path / name for name in ("shared", "alone")]
    for folder in folders:
        folder.mkdir()
    shared = [begun(folders[0], trials=12, sampler="random", seeds=2) for _ in range(3)]
    ended(begun(folders[1], trials=12, sampler="random", seeds=2), folders[1])
    for program in shared:
        ended(program, folders[0])
    found = [check(folder, 12, seeds=2) for folder in folders]
    assert [t.params for t in found[0]] == [t.params for t in found[1]]
    assert len({line["pid"] for line in lines(folders[0])}) > 1
    assert sum(not line["begins"] for line in lines(folders[0])) == 24
    assert len({tuple(t.params.values()) for t in found[0]}) == 12


def test_a_line_of_the_journal_that_was_cut_is_mended(tmp_path):
    sweep = Sweep(sample=SAMPLE, trials=2, sampler="random", output=str(tmp_path))
    store = Store(sweep)
    store.finish(store.claim(set()), [1.0])
    journal = tmp_path / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    again = Store(sweep)
    again.finish(again.claim(set()), [2.0])
    assert [trial.value for trial in Store(sweep).trials()] == [1.0, 2.0]


def test_a_trial_without_all_its_values_gets_the_rest(tmp_path):
    sweep = Sweep(sample=SAMPLE, trials=1, sampler="tpe", output=str(tmp_path))
    trial = Store(sweep).study.ask()  # and killed behind the first value
    rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
    store = Store(sweep)
    claim = store.claim(set())
    assert claim.values["learning_rate"] == rate
    assert set(claim.values) == {"learning_rate", "entropy_coef"}
    assert store.claim(set()) is None  # another process works on it


def test_sweeps_of_neighbouring_seeds_draw_other_values(tmp_path):
    claims = []
    for seed in (0, 1):
        config, output = hr.Config(seed=seed), str(tmp_path / str(seed))
        store = Store(Sweep(sample=SAMPLE, trials=2, sampler="tpe", config=config, output=output))
        claims += [store.claim(set()) for _ in range(2)]
    assert len({claim.values["learning_rate"] for claim in claims}) == 4


def test_who_is_cut_short_goes_on_with_the_next_command(tmp_path, capsys):
    sweep = Sweep(sample=SAMPLE, trials=3, sampler="random", output=str(tmp_path))

    def failing(sweep, claim, repeat, children):
        if claim.number == 1:
            raise RuntimeError("the disk is full")
        return {"error": "the loss is NaN"} if claim.number == 2 else {"score": 1.0}

    assert run(sweep, wide_console(), failing) == 1
    assert "interrupted, start the command again to resume it: the disk is full" in (
        capsys.readouterr().out
    )
    done = []

    def well(sweep, claim, repeat, children):
        done.append(claim.number)
        return {"score": 2.0}

    assert run(sweep, wide_console(), well) == 0
    assert done == [1]
    page = (tmp_path / "sweep.md").read_text()
    assert "trial 2: the loss is NaN" in page
    assert [row["trial"] for row in report.rows_of(Store(sweep).trials())] == ["1", "0", "2"]


def test_values_that_contradict_each_other_end_their_trial_alone(tmp_path, capsys):
    sample = ("rho_bar=choice:0.5,4.0", "c_bar=choice:0.25,2.0")
    config = hr.Config(algo=hr.IMPALA())
    sweep = Sweep(sample=sample, trials=12, sampler="random", config=config, output=str(tmp_path))
    for _ in range(2):  # and they are not tried again
        assert run(sweep, wide_console(), lambda *_: {"score": 1.0}) == 0
    assert capsys.readouterr().out.count("c_bar=2): no score: rho_bar=0.5 must be") > 0
    for trial in Store(sweep).trials():
        contradictory = trial.params["rho_bar"] < trial.params["c_bar"]
        assert ("scores" in trial.user_attrs) != contradictory


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 2}, "seeds=1, not 2"),
        ({"sample": SAMPLE[:1]}, "sample.entropy_coef"),
        ({"config": hr.Config(algo=hr.APPO(clip=0.3))}, "clip=0.2, not 0.3"),
        ({"config": hr.Config("Acrobot-v1")}, "env='CartPole-v1', not 'Acrobot-v1'"),
    ],
)
def test_a_folder_of_another_sweep_is_refused(tmp_path, change, words):
    known = {"sample": SAMPLE, "output": str(tmp_path)}
    Store(Sweep(**known))
    Store(Sweep(**known, trials=99, jobs=7))  # which changes no trial
    with pytest.raises(ConfigError, match=words):
        Store(Sweep(**(known | change)))


@pytest.mark.parametrize(("before", "goes_on"), [([64, 64], True), (None, True), ([32], False)])
def test_a_folder_that_says_what_is_now_left_to_the_run_goes_on(tmp_path, before, goes_on):
    sweep = Sweep(sample=SAMPLE, output=str(tmp_path))
    Store(sweep)
    file = tmp_path / "sweep.json"
    identity = json.loads(file.read_text())
    identity["config"]["network"]["hidden"] = before
    file.write_text(json.dumps(identity))
    if goes_on:
        Store(sweep)
        return
    with pytest.raises(ConfigError, match=r"hidden=\[32\], not \[64, 64\]"):
        Store(sweep)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "a sweep needs a setting to sample: give --sample"),
        (["--sample", "learning-rat=uniform:0.1,0.2"], "'learning_rate'"),
        (["--preset", "impala", "--sampler", "tpe"], "sampler='tpe'"),
        (["--run-dir", "x", "--preset", "impala"], "run_dir='x'"),
        (["--tasks", "CartPole-v1,Nowhere-v0", "--preset", "impala"], "Nowhere-v0"),
    ],
)
def test_a_wrong_command_is_one_sentence(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["sweep", "appo", *words])
    except SystemExit as end:  # of tyro, which frames the sentence
        status = end.code
    assert status == 2
    assert told in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def _unnamed():
    return gymnasium.make("CartPole-v1")


def test_code_that_other_processes_cannot_import_is_an_error_before_anything_starts(
    tmp_path, monkeypatch
):
    unnamed = {"learning_rate": [1e-3, 1e-4]}, {"output": str(tmp_path / "sweep")}
    with pytest.raises(ConfigError, match=r"env=.*<lambda>' can't be found by its name"):
        hr.sweep(lambda: _unnamed(), hr.PPO(), unnamed[0], **unnamed[1])
    monkeypatch.setattr(_unnamed, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "_unnamed", _unnamed, raising=False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r"'__main__:_unnamed' was defined without a file"):
        hr.sweep(_unnamed, hr.PPO(), unnamed[0], **unnamed[1])
    assert not (tmp_path / "sweep").exists()


def test_code_of_a_file_is_importable_without_a_script(tmp_path, monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in the command
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nimport gymnasium\nimport headrace as hr\n\n"
        "def make():\n    return gymnasium.make('CartPole-v1')\n\n"
        "@dataclass(frozen=True)\nclass Mine(hr.PPO):\n    pass\n"
    )
    config = hr.Config(f"{file}:make")
    resolve_imports.check_importable(config.to_json())
    kind = algorithms.find(f"{file}:Mine", None)
    resolve_imports.check_importable(hr.Config("CartPole-v1", kind()).to_json())


def test_sizes_that_are_left_open_suit_the_tasks_of_all_trials():
    words = ["appo", "--tasks", "CartPole-v1,Acrobot-v1,Pendulum-v1", "--preset", "impala"]
    sweep = flags.parse(Sweep, "headrace sweep", words, hr.Config())
    assert sweep.config.is_sized
    assert sweep.config.num_actors == 3
    assert flags.named(sweep.config) == "CartPole-v1, Acrobot-v1, Pendulum-v1"


def test_the_papers_protocol_is_the_same_combinations_for_all():
    one = Sweep(preset="impala", config=hr.Config(algo=hr.IMPALA()))
    assert (one.trials, one.draws, one.base.algo.optimizer) == (24, "random", "rmsprop")
    assert len(one.parameters) == 3
    config = one.run_config(3, {"optimizer_eps": 0.1, "hidden": (8,)}, 0)
    assert (config.algo.optimizer_eps, config.network.hidden) == (0.1, (8,))
    assert config.run_dir == "runs/sweep/trials/0003/seed-0"


def test_a_whole_small_sweep(tmp_path, monkeypatch, capsys, forked_children):
    monkeypatch.chdir(tmp_path)
    words = ["--transport", "serial", "--num-actors", "1", "--envs-per-actor", "8",
             "--fragment-length", "16", "--total-steps", "512", "--eval-episodes", "2",
             "--sample", "learning-rate=loguniform:1e-4,1e-2", "--jobs", "2"]  # fmt: skip
    assert main(["sweep", "ppo", *words, "--trials", "2"]) == 0
    assert main(["sweep", "ppo", *words, "--trials", "3"]) == 0
    page = Path("runs/sweep/sweep.md").read_text()
    assert "3 of 3 trials of 512 steps" in page
    rates = {
        json.loads(Path(f"runs/sweep/trials/000{i}/seed-0/config.json").read_text())["config"][
            "algo"
        ]["learning_rate"]
        for i in range(3)
    }
    assert len(rates) == 3
    assert "The best trials" in capsys.readouterr().out
