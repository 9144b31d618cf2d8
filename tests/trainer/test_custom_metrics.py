"""Metrics from infos and callbacks appear wherever a run's metrics do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds.games import CountingGame, CountingTurns
from worlds.reporting import Reporting

import headrace as hr
from headrace.reporting.page import write
from headrace.rundir.plot import plot

QUICK = hr.PPO(epochs=1, minibatches=1)
SIZES = {"envs_per_actor": 2, "fragment_length": 10, "eval_episodes": 2, "log_interval_s": 1e-6}


def results_of(run_dir) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def Scaled():
    return Reporting(2.0)


class Silent(Reporting):
    """The info of the last step is empty."""

    def step(self, action):
        *returned, info = super().step(action)
        return *returned, {} if returned[2] else info


@pytest.mark.parametrize(("engine", "env", "total"), [
    ("sync", Silent, 6.0), ("threads", Silent, 6.0), ("sync", Reporting, 10.0),
])  # fmt: skip
def test_sums_are_of_one_whole_episode(tmp_path, engine, env, total):
    seen = []
    hr.train(
        env, QUICK, [lambda result: seen.append(result.metrics)], info_metrics="parts/drive:sum",
        transport="serial", engine=engine, total_steps=280, run_dir=tmp_path / "run",
        **{**SIZES, "fragment_length": 14}, batch_size=28, num_actors=1,
        deterministic=engine == "sync", checkpoint_interval=56,  # resets within episodes
    )  # fmt: skip
    assert {x["env/parts/drive"] for x in seen if "env/parts/drive" in x} == {total}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["evaluation"]["metrics"] == {"parts/drive": total}


@pytest.mark.parametrize(("transport", "engine"), [("shm", "sync"), ("serial", "threads")])
def test_they_are_in_results_files_evaluations_and_pages(tmp_path, transport, engine):
    run_dir, seen = tmp_path / "run", []

    def call(result, trainer):
        seen.append(result)
        trainer.log("level", len(seen))

    how = {"transport": transport, "engine": engine, "num_actors": 2, "eval_interval": 200}
    how |= {"target_return": 1e9}  # training waits for each evaluation, so that results have it
    settings = {"info_metrics": {"parts/drive": "mean", "is_success": "last"}}
    hr.train(
        Reporting,
        QUICK,
        [call],
        total_steps=400,
        run_dir=run_dir,
        **SIZES,
        **how,
        **settings,
    )
    assert seen[-1].metrics["env/parts/drive"] == 2.5
    assert seen[-1].metrics["env/is_success"] == 1.0
    assert seen[-1].metrics["custom/level"] == len(seen) - 1
    lines = results_of(run_dir)
    assert lines[-1]["env/parts/drive"] == 2.5
    evaluated = [line for line in lines if "eval/episodic_return" in line]
    assert {line["eval/env/parts/drive"] for line in evaluated} == {2.5}
    played = json.loads((run_dir / "evaluations.jsonl").read_text().splitlines()[0])
    assert played["metrics"] == {"parts/drive": 2.5, "is_success": 1.0}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["metrics"]["custom/level"] == len(seen)
    assert summary["evaluation"]["metrics"] == played["metrics"]
    assert "env/parts/drive" in write([run_dir]).read_text()
    assert plot([run_dir], tmp_path / "drive.png", metrics=["env/parts/drive"]).exists()
    with pytest.raises(hr.ConfigError, match=r"Did you mean .env/parts/drive"):
        plot([run_dir], metrics=["env/part/drive"])
    events = next(run_dir.glob("events.out.tfevents*")).read_bytes()
    assert b"env/parts/drive" in events


@pytest.mark.parametrize("game", [CountingGame, CountingTurns])
def test_agents_of_a_game_have_theirs(tmp_path, game):
    def made():
        return (_TellingTurns if game is CountingTurns else _Telling)(game())

    seen = []
    hr.train(
        made,
        QUICK,
        [lambda result: seen.append(result.metrics)],
        total_steps=800,
        run_dir=tmp_path / "run",
        transport="serial",
        **{**SIZES, "envs_per_actor": 6},
    )
    last = next(metrics for metrics in reversed(seen) if "env/points" in metrics)
    own = {n: x for n, x in last.items() if n.startswith("agents/") and n.endswith("env/points")}
    assert sorted(own.values())[-1] == len(own) - 1
    played = hr.evaluate(hr.load(tmp_path / "run"), made, 2)
    assert {one.metrics["points"] for one in played.agents.values()} == set(own.values())


class _Telling:
    """A game whose agents report their number in their infos."""

    def __init__(self, game):
        self._game = game

    def __getattr__(self, name):
        return getattr(self._game, name)

    def _told(self):
        return {a: {"points": float(i)} for i, a in enumerate(self._game.possible_agents)}

    def step(self, actions):
        returned = self._game.step(actions)
        return returned if returned is None else (*returned[:-1], self._told())


class _TellingTurns(_Telling):
    def last(self, *args):
        *rest, _ = self._game.last(*args)
        return *rest, self._told()[self._game.agent_selection]


def test_each_task_has_its_own(tmp_path):
    seen = []
    hr.train(
        tasks=[Reporting, Scaled],
        algo=QUICK,
        callbacks=[lambda result: seen.append(result.metrics)],
        total_steps=400,
        num_actors=2,
        run_dir=tmp_path / "run",
        transport="serial",
        **SIZES,
    )
    last = {name: value for metrics in seen for name, value in metrics.items()}
    assert last["tasks/Reporting/env/parts/drive"] == 4.0
    assert last["tasks/Scaled/env/parts/drive"] == 8.0
    assert last["env/parts/drive"] == 6.0


def test_those_of_several_learners_are_averaged_and_a_resumed_run_goes_on(tmp_path):
    seen = []

    def call(result, trainer):
        seen.append(result.metrics)
        trainer.log("seen", 7)

    def ByRank():
        return Reporting(1.0 + 2.0 * hr.env_context().rank)  # the last steps report 4 and 12

    how = {"num_learners": 2, "num_actors": 2, "run_dir": tmp_path / "run"}
    how |= {"fragment_length": 50}
    hr.train(ByRank, QUICK, [call], total_steps=800, **{**SIZES, **how})
    assert {x["env/parts/drive"] for x in seen if "env/parts/drive" in x} == {8.0}
    assert any(x.get("custom/seen") == 7 for x in seen)
    seen.clear()
    hr.resume(
        tmp_path / "run", [call], env=ByRank, num_learners=1, total_steps=1_200,
        info_metrics="parts/drive:sum",
    )  # fmt: skip
    assert {x["env/parts/drive"] for x in seen if "env/parts/drive" in x} == {10.0}


def test_the_number_of_names_is_bounded_unless_they_were_chosen():
    from headrace.envs.info_metrics import MAX_NAMES
    from headrace.rundir.custom_metrics import CustomMetrics
    from headrace.types import SingleLearner

    sums = {f"env/{i}": [1.0, 1.0] for i in range(2 * MAX_NAMES)}
    for chosen, count in ((None, MAX_NAMES), (",".join(map(str, range(64))), 2 * MAX_NAMES)):
        reported = CustomMetrics(chosen)
        reported.add(sums)
        assert len(reported.gather(SingleLearner())) == count


@pytest.mark.parametrize("name", ["", "with blank", "/x", "x" * 200, 3])
def test_a_name_that_no_metric_can_have_is_refused(name):
    from headrace.rundir.custom_metrics import CustomMetrics

    with pytest.raises(hr.ConfigError, match="needs a name"):
        CustomMetrics().log(name, 1.0)


@pytest.mark.parametrize("value", ["text", None, [1, 2]])
def test_a_value_that_is_no_number_is_refused(value):
    from headrace.rundir.custom_metrics import CustomMetrics

    with pytest.raises(hr.ConfigError, match="needs one number"):
        CustomMetrics().log("x", value)


@pytest.mark.parametrize("how", [
    {"transport": "serial"}, {"num_learners": 2, "fragment_length": 20, "num_actors": 2},
])  # fmt: skip
def test_missing_names_and_values_that_are_not_finite_are_told_once(tmp_path, capsys, how):
    def call(result, trainer):
        trainer.log("bad", float("nan"))
        trainer.log("good", 1.0)

    run_dir, given = tmp_path / "run", {**SIZES, **how}
    names = ["parts/drve", "is_success"]
    hr.train(
        Reporting, QUICK, [call], total_steps=400, run_dir=run_dir, info_metrics=names, **given
    )
    said = capsys.readouterr().out
    assert said.count("info_metrics: no environment has reported 'parts/drve'; numbers in") == 1
    assert "Did you mean 'parts/drive'?" in said
    assert said.count("custom/bad=nan is not finite: such values are left out") == 1
    metrics = json.loads((run_dir / "summary.json").read_text())["metrics"]
    assert metrics["custom/good"] == 1.0
    assert metrics["custom/not_finite"] >= 1.0
    assert not {name for name in metrics if "bad" in name or "seen" in name}


def test_names_that_only_some_episodes_report_are_not_missing():
    from headrace.envs.info_metrics import InfoMetrics
    from headrace.rundir.custom_metrics import CustomMetrics
    from headrace.types import SingleLearner

    said: list[str] = []
    metrics, reported = (
        InfoMetrics(2, "score,rare,bad"),
        CustomMetrics("score,rare,bad", said.append),
    )
    for i in range(3):
        infos = {"score": np.ones(2), "bad": np.full(2, np.nan)}
        infos |= {"rare": np.ones(2)} if i == 2 else {}
        metrics.note(infos, np.zeros(2, bool), np.ones(2, bool))
        reported.add(metrics.take())
        reported.gather(SingleLearner())
    reported.report_missing(99)
    reported.report_missing()
    assert said == []
