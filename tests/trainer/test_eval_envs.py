"""Evaluations on several environments, each with its own arguments and wrappers."""

from __future__ import annotations

import json

import gymnasium
import pytest
from tries import few_of
from worlds.reporting import Reporting, ReportingVector

import headrace as hr
from headrace.reporting.page import write
from headrace.rundir import checkpoint, curves, resolve_imports

QUICK = hr.PPO(epochs=1, minibatches=1)
SIZES = {
    "num_actors": 1, "envs_per_actor": 2, "fragment_length": 20, "log_interval_s": 1e-6,
    "eval_episodes": 2, "total_steps": 240,
}  # fmt: skip


class Double(gymnasium.RewardWrapper):
    """Rewards twice as large."""

    def reward(self, reward):
        return 2 * reward


class Other(Reporting):
    """Rewards of -1."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, -reward, *rest


EVAL_ENVS = {
    "strong": {"env_kwargs": {"scale": 3.0}},
    "double": {"wrappers": [Double], "episodes": 3},
    "other": {"env": Other, "env_kwargs": {"scale": 5.0}},
    "vector": {"env": ReportingVector},
}


@pytest.mark.parametrize("transport", few_of(["shm", "serial"], ["shm"]))
def test_each_is_reported_under_its_name(tmp_path, transport):
    seen, run_dir = [], tmp_path / "run"
    hr.train(
        Reporting, QUICK, [lambda result: seen.append(result)], eval_envs=EVAL_ENVS,
        env_kwargs={"scale": 2.0}, transport=transport, eval_interval=80, run_dir=run_dir,
        deterministic=True, **SIZES,  # so that it waits for each evaluation
    )  # fmt: skip
    last = [x for x in seen if "eval/strong/mean" in x.metrics][-1].metrics
    assert [last[f"eval/{name}/mean"] for name in EVAL_ENVS] == [4.0, 8.0, -4.0, 4.0]
    scales = {name: last[f"eval/{name}/env/parts/drive"] for name in EVAL_ENVS}
    assert scales == {"strong": 12.0, "double": 8.0, "other": 20.0, "vector": 4.0}
    line = json.loads((run_dir / "evaluations.jsonl").read_text().splitlines()[-1])
    assert line["return_mean"] == 4.0
    assert line["others"]["double"]["episodes"] == 3
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["evaluation"]["others"]["other"]["mean"] == -4.0
    assert checkpoint.read_config(checkpoint.find(run_dir, "best"))["evaluation"]["mean"] == 4.0
    assert "Return evaluated on strong" in write([run_dir]).read_text()
    again = []
    hr.resume(run_dir, [lambda result: again.append(result)], total_steps=320)
    assert again


def test_tasks_are_evaluated_with_other_arguments(tmp_path):
    summary = tmp_path / "run/summary.json"
    hr.train(
        tasks=[Reporting, Other], algo=QUICK, transport="serial", run_dir=tmp_path / "run",
        eval_envs={"strong": {"env_kwargs": {"scale": 3.0}}}, **{**SIZES, "num_actors": 2},
    )  # fmt: skip
    others = json.loads(summary.read_text())["evaluation"]["others"]
    assert others["strong"]["mean"] == 0.0
    assert others["strong"]["tasks"]["Other"]["metrics"]["parts/drive"] == 12.0


@pytest.mark.parametrize(("given", "words"), [
    ({"hard": 3}, "must map each name to a dict"),
    ({"a/b": {}}, "has the name"),
    ({"env": {}}, "none of env, episodic_return"),
    ({"hard": {"env_kwarg": {}}}, "Did you mean 'env_kwargs'"),
    ({"hard": {"episodes": 0}}, "must be 1 or more"),
    ({"hard": {"env_kwargs": {"x": object()}}}, "must be a JSON object"),
    ({"hard": {"wrappers": "Double"}}, "must be a list"),
    ({"hard": {"env": Reporting()}}, "is an instance of Reporting"),
])  # fmt: skip
def test_what_is_no_set_of_environments_is_refused(given, words):
    with pytest.raises(hr.ConfigError, match=words):
        hr.Config(env=Reporting, eval_envs=given)


@pytest.mark.parametrize(("given", "words"), [
    ({"hard": {"env": "CartPole-v1"}}, r"with eval_envs\['hard'\] CartPole-v1 is another"),
    ({"hard": {"env": "Nothing-v0"}}, "Nothing-v0"),
    ({"hard": {"env_kwargs": {"size": 3}}}, "no 'size'"),
])  # fmt: skip
def test_what_does_not_fit_the_run_is_found_before_training(tmp_path, given, words):
    with pytest.raises(hr.ConfigError, match=words):
        hr.train(Reporting, eval_envs=given, run_dir=tmp_path / "run", **SIZES)
    assert not (tmp_path / "run").exists()


def test_a_number_called_mean_in_infos_is_no_environment(tmp_path):
    line = {"env_steps": 1, "eval/env/mean": 0.5, "eval/env.2/mean": 0.5, "eval/hard/mean": 1.0}
    assert curves.eval_envs([curves.RunCurves(tmp_path, {}, 0, [line], [])]) == ["env.2", "hard"]


def test_an_environment_of_none_is_the_runs_own_also_when_it_is_resumed():
    given = {"hard": {"env": None, "env_kwargs": {"sutton_barto_reward": True}}}
    config = hr.Config("CartPole-v1", QUICK, eval_envs=given)
    assert resolve_imports.config(json.loads(json.dumps(config.to_json()))).eval_envs == given


def test_a_run_of_somebody_else_imports_none_of_them():
    from headrace.rundir.import_allowlist import code_in

    config = hr.Config("CartPole-v1", eval_envs={"own": {"env": Reporting}}).to_json()
    assert set(code_in(config)) == {"eval_envs"}
    plain = {"long": {"env_kwargs": {"max_episode_steps": 9}}, "other": {"env": "Acrobot-v1"}}
    assert not code_in(hr.Config("CartPole-v1", eval_envs=plain).to_json())
