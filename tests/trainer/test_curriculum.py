"""Callbacks change environments during training, and runs save the changes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from tries import few_of
from worlds.levels import Levels, LevelsGame, LevelsVector

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.cli import main
from headrace.envs.changes import EnvChange, apply, assign, call
from headrace.envs.names import resolve
from headrace.errors import CheckpointError
from headrace.rundir import checkpoint, import_allowlist
from headrace.zoo.play import Player

SIZES = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 10, "log_interval_s": 1e-6}


def harder(result, trainer):
    """Raises the level with each result, up to 6."""
    trainer.call_envs("set_task", min(result.updates, 6), evaluation=True)


def train(tmp_path, env=Levels, callback=harder, **settings):
    """Return the results of a run."""
    seen = []
    callbacks = [lambda result: seen.append(result), *([callback] if callback else [])]
    given = {"total_steps": 480, "run_dir": tmp_path / "run", "eval_episodes": 2}
    hr.train(env, hr.PPO(epochs=1, minibatches=1), callbacks, **{**SIZES, **given, **settings})
    return seen


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("how", [
    {}, {"engine": "threads", "transport": "serial"},
    {"engine": "async", "transport": "serial"},
    {"num_learners": 2, "fragment_length": 20, "total_steps": 800},
], ids=str)  # fmt: skip
def test_a_callback_makes_the_task_harder_everywhere(tmp_path, how):
    seen = train(tmp_path, **how)
    assert seen[-1].metrics["env/level"] == 6.0
    assert seen[-1].metrics["env/calls"] > 3
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["evaluation"]["mean"] == 30.0  # of five steps each
    made = lines_of(tmp_path / "run/env_changes.jsonl")
    assert [line["args"] for line in made[:6]] == [[i] for i in range(1, 7)]
    assert summary["env_changes"][0]["name"] == "set_task"


@pytest.mark.parametrize("env", [LevelsVector, LevelsGame])
def test_vector_environments_and_games_change(tmp_path, env):
    seen = train(tmp_path, env, transport="serial")
    assert seen[-1].episode_return > 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["evaluation"]["mean"] == (24.0 if env is LevelsVector else 30.0)


def test_a_resumed_run_and_an_actor_that_is_replaced_begin_where_it_was(tmp_path):
    def once(result, trainer):
        if result.updates == 1:
            trainer.set_env_attr("level", 3)
            trainer.call_envs("set_task", 4, bonus=0.5)

    class Dies(Levels):
        def step(self, action):
            if self.level == 4.5 and os.getpid() != trainer_pid:
                with contextlib.suppress(FileExistsError):  # only the first actor dies
                    (tmp_path / "died").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    trainer_pid = os.getpid()
    seen = train(tmp_path, Dies, once)
    assert (tmp_path / "died").exists()
    assert (seen[-1].restarts, seen[-1].metrics["env/level"]) == (1, 4.5)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["evaluation"]["mean"] == 0.0  # evaluations were not to change
    again = []
    hr.resume(tmp_path / "run", [lambda result: again.append(result)], env=Levels, total_steps=640)
    assert {result.metrics["env/level"] for result in again} == {4.5}
    assert len(lines_of(tmp_path / "run/env_changes.jsonl")) == 2


@pytest.mark.parametrize("interval", few_of([80, 1_000_000], [80]))
def test_learners_that_start_again_make_each_change_once(tmp_path, interval):
    def once(result, group):
        if group.num_restarts:
            return result.updates < 10
        if result.updates == 1:
            group.call_envs("set_task", 4)
        elif result.updates == 4:
            os.kill(group.pids()[1], signal.SIGKILL)
        return True  # and trains on: learners may be far ahead of their results

    how = {"num_learners": 2, "total_steps": 10**9, "checkpoint_interval": interval}
    seen = train(tmp_path, callback=once, max_restarts=1, **how)
    assert seen[-1].metrics["env/level"] == 4.0
    assert seen[-1].metrics["env/calls"] == 1.0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert len(summary["env_changes"]) == 1


def test_what_is_changed_as_a_run_begins_holds_from_its_first_step(tmp_path):
    class Begins:
        def begin(self, trainer):
            trainer.set_env_attr("level", 2)

        def __call__(self, result):
            pass

    seen = train(tmp_path, callback=Begins(), transport="serial")
    assert {result.episode_return for result in seen} == {10.0}


def test_evaluations_alone_can_change(tmp_path, capsys):
    def alone(result, trainer):
        trainer.set_env_attr("level", 7, evaluation=True, training=False)

    chosen = {"level": "max"}
    seen = train(tmp_path, callback=alone, transport="serial", info_metrics=chosen)
    assert seen[-1].metrics["env/level"] == 0.0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["evaluation"]["mean"] == 35.0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["mean"], again["metrics"]) == (35.0, {"level": 7.0})
    player = Player(checkpoint.find(tmp_path / "run"), seed=0)
    assert next(player.episodes(1, window=False)) == ({"": 35.0}, 5)


def test_the_best_policy_is_evaluated_with_the_changes_before_it(tmp_path, capsys):
    train(tmp_path, transport="serial", num_actors=1, total_steps=120, eval_interval=40)
    best = checkpoint.find(tmp_path / "run", "best")
    played = checkpoint.read_config(best)["evaluation"]["mean"]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--which", "best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == played > 0
    values = checkpoint.read_config(best)
    import_allowlist.check_changes(best, values, trust=False)  # this user's own
    values["env_changes"] = [call("set_task", (3,), {}).to_json()]
    with pytest.raises(CheckpointError, match="make the calls it lists to the environment: env_ch"):
        import_allowlist.check_changes(best, values, trust=False)
    import_allowlist.check_changes(best, values, trust=True)
    values["config"]["env"] = "CartPole-v1"  # whose methods are harmless
    import_allowlist.check_changes(best, values, trust=False)


@pytest.mark.parametrize("altered", [
    {"name": "_private"}, {"name": "reset"}, {"name": 3}, {"kind": "run"}, {"args": {}},
    {"kwargs": []}, {"kind": "set", "args": []}, {"more": 1},
])  # fmt: skip
def test_a_change_of_a_file_is_checked(altered):
    change = json.loads(call("set_task", (3,), {}).to_json()) | altered
    with pytest.raises((TypeError, ValueError)):
        EnvChange.from_json(json.dumps(change))


@pytest.mark.parametrize("transport", ["shm", "serial"])
def test_what_an_environment_raises_names_the_method(tmp_path, transport):
    def too_hard(result, trainer):
        trainer.call_envs("set_task", 9)

    with pytest.raises(
        hr.HeadraceError, match=r"call_envs\('set_task', 9\) failed in Levels .* ValueError: there"
    ):
        train(tmp_path, callback=too_hard, transport=transport)


@pytest.mark.parametrize("engine", ["sync", "threads", "async"])
def test_a_method_or_attribute_that_is_not_there_is_told(engine):
    envs = hr.make_vec(Levels, 2, engine)
    with pytest.raises(hr.HeadraceError, match=r"needs an attribute 'levle', .* 'level'"):
        apply(envs, assign("levle", 1), "Levels")
    envs.close()


def wrapped(make):
    return gymnasium.wrappers.TimeLimit(make(), 3)


@pytest.mark.parametrize("make", [
    lambda: hr.make_vec(Levels, 2, "sync", wrappers=[lambda env: wrapped(lambda: env)]),
    lambda: hr.make_vec(lambda num_envs: AsyncVectorEnv([Levels] * num_envs), 2),
    lambda: hr.make_vec(lambda num_envs: gymnasium.wrappers.vector.RecordEpisodeStatistics(
        SyncVectorEnv([functools.partial(wrapped, Levels)] * num_envs)), 2),
    lambda: hr.make_vec(LevelsVector, 2),
])  # fmt: skip
def test_changes_reach_through_wrappers(make):
    envs = make()
    envs.reset(seed=0)
    for change, wanted in ((assign("level", 3), 3), (call("set_task", (5,), {}), 5)):
        apply(envs, change, "Levels")
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [wanted, wanted]
    envs.close()


@pytest.mark.parametrize(("name", "args", "words"), [
    ("set_task", (object(),), "must be JSON values"),
    ("set_task", ("x" * 20_000,), "pass the name of a file"),
    ("_secret", (), "without a leading underscore"),
    ("set task", (), "not a valid method name"),
    ("reset", (), "only headrace calls reset"),
])  # fmt: skip
def test_what_can_not_be_remembered_is_refused(name, args, words):
    with pytest.raises(hr.ConfigError, match=words):
        call(name, args, {})
    assert call("f", (np.arange(2), np.float32(0.5)), {}).args == [[0, 1], 0.5]


@pytest.mark.parametrize("how", [
    {}, {"transport": "serial"},
    {"num_learners": 2, "fragment_length": 20, "total_steps": 800},
], ids=str)  # fmt: skip
def test_a_method_that_is_not_there_fails_the_run_at_once(tmp_path, capsys, how):
    def typo(result, trainer):
        if result.updates == 1:
            trainer.call_envs("set_tsk", 1)

    words = r"call_envs\('set_tsk', 1\) needs a method 'set_tsk', .*Did you mean 'set_task'\?$"
    with pytest.raises(hr.HeadraceError, match=words):
        train(tmp_path, callback=typo, **how)
    assert "restart" not in capsys.readouterr().out
    if "num_learners" not in how:  # several learners have saved nothing yet
        again = train(tmp_path, callback=None, resume=True, **{**how, "total_steps": 160})
        assert again[-1].env_steps >= 160


def test_an_attribute_is_not_called_and_evaluations_are_not_tried_again(tmp_path, capsys):
    def wrong(result, trainer):
        trainer.call_envs("level", evaluation=True, training=False)

    train(tmp_path, callback=wrong)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert "needs a method 'level', which Levels doesn't have" in summary["no_evaluation"]
    assert "(restart" not in capsys.readouterr().out


def test_an_actor_that_is_stopped_does_not_hold_up_changes(tiny):
    config = tiny(env=Levels, algo=hr.APPO())
    envs = hr.make_vec(Levels, 1)
    policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
    said: list[str] = []
    source = RolloutSource(config.actor_spec(resolve(Levels), policy), said.append)
    source._queue._timeout_s = 0.2  # of sends only: on a busy machine actors start slowly
    with contextlib.closing(source):
        source.publish(policy, 0, 0)
        source.release([slot for slot, *_ in source.take(1, lambda: False)])
        os.kill(source.pids()[0], signal.SIGSTOP)
        for _ in range(40):
            source.order(assign("told", "x" * 16_000).to_json())
        while not said:
            source.release([slot for slot, *_ in source.take(1, lambda: False)])
    assert said[0].startswith("actor 0: killed because it delivered nothing for ")
