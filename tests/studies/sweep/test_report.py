"""headrace sweep: values for ranking and pruning, and its report."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.studies.machine import wide_console
from headrace.studies.sweep import report
from headrace.studies.sweep.command import run
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store
from headrace.studies.sweep.trials import _Reports as Reports
from headrace.studies.sweep.trials import measured

SAMPLE = ("learning_rate=loguniform:1e-5,1e-2", "entropy_coef=uniform:0,0.1")


@pytest.mark.parametrize("prune", ["none", "median", "halving"])
def test_a_trial_that_is_worse_than_others_ends_early_where_it_is_asked_for(tmp_path, prune):
    """Trials 0 to 5 return their number; the journal has their reports."""
    config = hr.Config(total_steps=1600)
    sweep = Sweep(
        sample=SAMPLE, trials=6, sampler="random", prune=prune, config=config, output=str(tmp_path)
    )
    heard = {}

    def measure(sweep, claim, repeat, children):
        request = {"prune": prune, "before": 0, "seeds": 1, "output": sweep.output}
        request |= {"trial": claim.trial_id}
        reports = None if prune == "none" else Reports(request, config, None)
        heard[claim.number] = 0
        for steps in range(50, 1601, 50):
            mean = -float(claim.number)
            result = SimpleNamespace(env_steps=steps, episode_return=mean, tasks=None)
            heard[claim.number] = steps
            if reports is not None and not reports(result):
                return {"pruned": True}
        return {"score": -float(claim.number)}

    assert run(sweep, wide_console(), measure) == 0
    trials = Store(sweep).trials()
    states = [trial.state.name for trial in trials]
    if prune == "none":
        assert states == ["COMPLETE"] * 6
        assert set(heard.values()) == {1600}
        return
    assert states[0] == "COMPLETE"
    assert states[-1] == "PRUNED"
    assert trials[-1].value == -5.0  # what it reported last
    assert "(pruned)" in report.rows_of(trials)[-1]["score"]
    first = {"median": 200, "halving": 100}[prune]  # the least steps at which it may happen
    assert heard[5] == first
    if prune == "median":  # of four at least
        assert states == ["COMPLETE"] * 4 + ["PRUNED"] * 2


def test_of_several_tasks_the_mean_capped_score_counts_where_references_are_known(tmp_path):
    file = tmp_path / "own.json"
    players = {"random": 0.0, "reference": 100.0}
    file.write_text(json.dumps({"tasks": {"CartPole-v1": players, "Acrobot-v1": players}}))
    config = hr.Config(tasks=("CartPole-v1", "Acrobot-v1"))
    given = {"sample": SAMPLE, "trials": 2, "sampler": "random", "config": config}
    scores, pages = {}, {}
    for name, references in (("raw", None), ("capped", str(file))):
        sweep = Sweep(**given, output=str(tmp_path / name), references=references)

        def ended(sweep, claim, repeat, children):
            folder = sweep.trial_dir(claim.number) / f"seed-{repeat}"
            returns = {"CartPole-v1": [500.0, 100.0][claim.number], "Acrobot-v1": 50.0}
            tasks = {task: {"mean": value} for task, value in returns.items()}
            config = sweep.run_config(claim.number, claim.values, repeat)
            evaluation = {"mean": sum(returns.values()) / 2, "tasks": tasks}
            summary = {"env_steps": config.total_steps, "evaluation": evaluation}
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text(json.dumps(summary))
            (folder / "config.json").write_text(json.dumps({"config": config.to_json()}))
            return measured(sweep, claim, repeat, children)

        assert run(sweep, wide_console(), ended) == 0
        scores[name] = [trial.value for trial in Store(sweep).trials()]
        pages[name] = (tmp_path / name / "sweep.md").read_text()
        assert pages[name].startswith("# Sweep: appo on CartPole-v1, Acrobot-v1")
    assert scores == {"raw": [275.0, 75.0], "capped": [0.75, 0.75]}
    assert "mean return over 2 tasks, in which one task may outweigh" in pages["raw"]
    assert "mean over 2 tasks of scores, capped at 1, by own (0 random" in pages["capped"]
    with pytest.raises(ConfigError, match="references=None, not"):
        Store(Sweep(**given, output=str(tmp_path / "raw"), references=str(file)))
    other = Sweep(sample=SAMPLE, references=str(file), config=hr.Config("Pendulum-v1"))
    with pytest.raises(ConfigError, match="no reference score for 'Pendulum-v1'"):
        other.check()


def test_trials_are_pruned_by_the_scores_that_rank_them(tmp_path):
    config = hr.Config(tasks=("Pong", "Breakout"), total_steps=1600)
    sweep = Sweep(
        sample=SAMPLE, sampler="random", prune="median", config=config, output=str(tmp_path)
    )
    assert sweep.suite_name == "atari-57"
    claim = Store(sweep).claim(set())
    request = {"prune": "median", "before": 0, "seeds": 1, "output": sweep.output}
    reports = Reports(request | {"trial": claim.trial_id}, config, sweep.suite)
    returns = {"ALE/Pong-v5": -20.7, "ALE/Breakout-v5": 400.0}
    tasks = {name: SimpleNamespace(episode_return=value) for name, value in returns.items()}
    assert reports(SimpleNamespace(env_steps=100, episode_return=189.65, tasks=tasks))
    (trial,) = Store(sweep).trials()
    assert trial.intermediate_values == {100: pytest.approx(0.5, abs=0.01)}


def test_the_best_trials_of_several_seeds_have_interquartile_means(tmp_path):
    sweep = Sweep(sample=SAMPLE, trials=4, seeds=4, sampler="random", output=str(tmp_path))
    seeds = [0.0, 2.0, 3.0, 70.0]
    run(sweep, wide_console(), lambda _, claim, i, *__: {"score": seeds[i] + claim.number})
    table = (tmp_path / "sweep.md").read_text().partition("## Interquartile means")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    found = [[cell.strip().partition(" ")[0] for cell in row] for row in rows[2:5]]
    assert found == [["3", "5.50"], ["2", "4.50"], ["1", "3.50"]]


def learned(sweep: Sweep, number: int, count: int = 20) -> SimpleNamespace:
    """Write the run of a trial, and return the trial."""
    folder = sweep.trial_dir(number) / "seed-0"
    folder.mkdir(parents=True)
    lines = [{"env_steps": i, "charts/episodic_return": float(i)} for i in range(1, count + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = SimpleNamespace(is_finished=lambda: True)
    scores = {"scores": [float(number)]}
    return SimpleNamespace(number=number, value=float(number), user_attrs=scores, state=state)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_picture_tells_of_means_over_runs_where_there_are_several(tmp_path, monkeypatch, seeds):
    asked = []
    monkeypatch.setattr(report, "band", lambda: asked.append(1) or "mean")
    sweep = Sweep(sample=SAMPLE, seeds=seeds, output=str(tmp_path))
    report.draw(sweep, [learned(sweep, 0)], {}, "title", tmp_path / "sweep.png")
    assert len(asked) == seeds - 1


def test_no_panel_is_empty_however_few_trials_there_are(tmp_path, monkeypatch):
    drawn = []
    picture = report.picture

    @contextlib.contextmanager
    def seen(*args, **kwargs):
        with picture(*args, **kwargs) as (figure, axes):
            yield figure, axes
            drawn.append([len(ax.lines) + len(ax.patches) for ax in axes])
            for ax in axes:
                for line in ax.lines:  # a line of one point needs a marker
                    assert len(set(line.get_xdata())) != 1 or line.get_marker() != "None"

    monkeypatch.setattr(report, "picture", seen)
    sweep, path = Sweep(sample=SAMPLE, output=str(tmp_path)), tmp_path / "sweep.png"
    assert not report.draw(sweep, [], {}, "title", path)
    assert not path.exists()
    one, short = learned(sweep, 0), learned(sweep, 1, count=1)
    without = SimpleNamespace(number=2, value=2.0, user_attrs=one.user_attrs, state=one.state)
    for trials, panels in (([one], 2), ([short], 2), ([without], 1), ([one, short, without], 2)):
        assert report.draw(sweep, trials, {}, "title", path)
        assert path.stat().st_size > 1000
        assert len(drawn[-1]) == panels
        assert all(drawn[-1])


def test_a_sweep_shows_its_progress_and_how_to_continue_its_best_run(tmp_path, capsys):
    sweep = Sweep(sample=SAMPLE, trials=3, seeds=2, sampler="random", output=str(tmp_path))

    def measure(sweep, claim, repeat, children):
        (sweep.trial_dir(claim.number) / f"seed-{repeat}").mkdir(parents=True)
        return {"score": [1.0, 3.0, 2.0][claim.number] - 0.1 * repeat}

    assert run(sweep, wide_console(), measure) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.partition("]")[0] for line in lines if "trial " in line and "score" in line]
    assert re.fullmatch(r"\[1/3, \d+:\d\d:\d\d left", shown[0])
    assert shown[2] == "[3/3"
    best = tmp_path / "trials" / "0001" / "seed-0"
    command = f"headrace resume {best} --total-steps {2 * sweep.base.total_steps:_}"
    assert f"best run: {best}" in lines
    assert f"continue it: {command}" in lines
    assert f"Continue it with `{command}`." in (tmp_path / "sweep.md").read_text()


def test_importances_find_what_matters(tmp_path):
    sweep = Sweep(sample=SAMPLE, trials=24, sampler="random", output=str(tmp_path))
    assert (
        run(sweep, wide_console(), lambda s, claim, *_: {"score": claim.values["entropy_coef"]})
        == 0
    )
    shares = report.importances(Store(sweep).study)
    assert list(shares) == ["entropy_coef", "learning_rate"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["entropy_coef"] > 0.8
    ranks = [float(row["score"]) for row in report.rows_of(Store(sweep).trials())]
    assert ranks == sorted(ranks, reverse=True)
    assert "for being among the best tenth of trials" in (tmp_path / "sweep.md").read_text()


@pytest.mark.parametrize(("trials", "best"), [(9, None), (10, 5), (20, 5), (80, 8)])
def test_importances_are_of_at_least_five_best_trials(tmp_path, monkeypatch, trials, best):
    evaluator = optuna.importance.PedAnovaImportanceEvaluator
    chosen, choose = [], evaluator._get_top_quantile_trials

    def choosing(self, *args):
        chosen.append(choose(self, *args))
        return chosen[-1]

    monkeypatch.setattr(evaluator, "_get_top_quantile_trials", choosing)
    study = optuna.create_study(direction="maximize")
    for i in range(trials):
        ranges = {"x": optuna.distributions.FloatDistribution(0, trials)}
        study.add_trial(optuna.create_trial(params={"x": i}, distributions=ranges, value=i))
    assert list(report.importances(study)) == ([] if best is None else ["x"])
    if best is not None:
        assert sorted(t.value for t in chosen[0]) == list(range(trials - best, trials))


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_lists_and_dicts_are_drawn_and_reported_as_any_choice(tmp_path, sampler):
    hidden, kwargs = ([64], [256, 256]), ({}, {"render_mode": None})
    sample = ("hidden=choice:[64],[256,256]", 'env_kwargs=choice:{},{"render_mode":null}')
    sweep = Sweep(sample=sample, trials=12, sampler=sampler, output=str(tmp_path))
    seen = []

    def measure(sweep, claim, repeat, children):
        seen.append(claim.values["hidden"])
        assert claim.values["hidden"] in hidden
        assert claim.values["env_kwargs"] in kwargs
        return {"score": float(len(claim.values["hidden"]))}

    assert run(sweep, wide_console(), measure) == 0
    assert all(one in seen for one in hidden)
    assert next(iter(report.importances(Store(sweep).study))) == "hidden"
    page = (tmp_path / "sweep.md").read_text()
    assert "| [256, 256] | {} |" in page
    assert "## Importances" in page


def test_a_trial_that_was_trained_to_its_end_is_not_thrown_out(tmp_path):
    """The second trial is better until its last report, at a rung of halving."""
    config = hr.Config(total_steps=1600)
    sweep = Sweep(
        sample=SAMPLE, trials=2, sampler="random", prune="halving", config=config,
        output=str(tmp_path), seeds=2,
    )  # fmt: skip

    def measure(sweep, claim, repeat, children):
        request = {"prune": "halving", "before": 1600 * repeat, "seeds": 2, "suite": None}
        request |= {"output": sweep.output, "trial": claim.trial_id}
        reports = Reports(request, config, None)
        for steps in range(100, 1601, 100):
            ends = repeat == 1 and steps == 1600
            mean = -1.0 if claim.number == 1 and ends else float(claim.number)
            result = SimpleNamespace(env_steps=steps, episode_return=mean, tasks=None)
            if not reports(result):
                return {"pruned": True}
        return {"score": mean}

    assert run(sweep, wide_console(), measure) == 0
    assert [t.state.name for t in Store(sweep).trials()] == ["COMPLETE", "COMPLETE"]


def test_a_run_without_a_score_ends_its_trial_and_the_page_says_why(tmp_path, capsys):
    sweep = Sweep(sample=SAMPLE, trials=1, sampler="random", output=str(tmp_path))

    class Ended:
        def call(self, function, request, *_):
            folder = Path(request["config"]["run_dir"])
            folder.mkdir(parents=True)
            summary = {"env_steps": 9, "episodic_return": None, "tasks": None}
            (folder / "summary.json").write_text(json.dumps(summary))
            (folder / "config.json").write_text(json.dumps({"config": request["config"]}))
            return {}

    def measure(sweep, claim, repeat, children):
        return measured(sweep, claim, repeat, Ended())

    assert run(sweep, wide_console(), measure) == 0
    assert "interrupted" not in capsys.readouterr().out
    page = (tmp_path / "sweep.md").read_text()
    assert "- trial 0: " in page
    assert "seed-0 has no score: no episode ended, or its return isn't a number" in page
