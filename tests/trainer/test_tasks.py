"""Several tasks with one policy: fixed shares of the batch, and results of each task."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tries import few_of

import headrace as hr
from headrace.algos.replay import CircularBuffer
from headrace.cli.commands import evaluate
from headrace.cli.training import config_of
from headrace.envs import atari
from headrace.envs.names import Tasks, env_name, resolve
from headrace.envs.tasks import check_order
from headrace.envs.unified_tasks import UnifiedTask
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError
from headrace.recipes import for_tasks, take_recipe
from headrace.rundir import checkpoint, health, import_allowlist
from headrace.rundir.config_file import check_resumed, from_json
from headrace.rundir.directories import default_run_dir
from headrace.rundir.files import RunLog, read_jsonl
from headrace.trainer import batch_collector
from headrace.trainer.auto_sizes import choose
from tests.worlds.counting import CountingEnv

TASKS = ("CartPole-v1", "Acrobot-v1")


class Quick(CountingEnv):
    """Shows 1 instead of its number; episodes of 5 to 7 steps."""

    mark = 1

    def _observe(self, action):
        obs = super()._observe(action)
        obs[0] = self.mark
        return obs


class Slow(Quick):
    """Shows 2, is slow, and has longer episodes."""

    mark = 2

    def __init__(self):
        super().__init__(episode_length=20)

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


@pytest.fixture
def batches(monkeypatch):
    """Return the labels of each batch's columns with their counts, also for IMPACT's replays."""
    seen = []

    def noted(batch):
        marks = batch.obs[0, :, 0]
        assert (batch.obs[:, :, 0] == marks).all()  # a column is of one task
        seen.append(Counter(marks.int().tolist()))
        return batch

    gather, visit = batch_collector.gather, CircularBuffer.visit
    monkeypatch.setattr(
        batch_collector, "gather", lambda *given, **named: noted(gather(*given, **named))
    )
    monkeypatch.setattr(CircularBuffer, "visit", lambda *given: noted(visit(*given)))
    return seen


SHARES = {
    "asynchronous": (hr.IMPALA(epochs=1, minibatches=1), {}),
    "lag of 0, so that most is dropped": (
        hr.IMPALA(epochs=1, minibatches=1),
        {"max_policy_lag": 0},
    ),
    "more actors than credits": (
        hr.IMPALA(epochs=1, minibatches=1),
        {"num_actors": 6, "batch_size": 32},
    ),
    "serial": (hr.IMPALA(epochs=1, minibatches=1), {"transport": "serial"}),
    "synchronous": (hr.A2C(), {}),
    "several passes": (hr.APPO(), {}),
    "several passes over what all sent": (hr.PPO(), {}),
    "gradients of actors": (hr.A3C(), {}),
    "a buffer of batches": (hr.IMPACT(), {}),
}
FEW = ["asynchronous", "lag of 0, so that most is dropped", "gradients of actors"]


@pytest.mark.parametrize("name", few_of(list(SHARES), FEW))
@pytest.mark.filterwarnings("ignore:num_actors=6", "ignore:most rollouts are dropped")
def test_a_batch_holds_as_much_of_each_task_however_slow_it_is(name, tiny, finish, batches):
    algo, settings = SHARES[name]
    settings = {"num_actors": 4, "envs_per_actor": 2, "batch_size": 64, **settings}
    config = tiny(tasks=(Quick, Slow), algo=algo, total_steps=384, **settings)
    _, results = finish(config)
    half = config.resolved_batch_size // config.fragment_length // 2
    assert len(batches) >= 6
    assert set(map(str, batches)) == {str(Counter({1: half, 2: half}))}
    quick, slow = results[-1].tasks["Quick"], results[-1].tasks["Slow"]
    assert quick.env_steps + slow.env_steps == results[-1].env_steps
    assert 5 <= quick.episode_length <= 7 < 20 <= slow.episode_length <= 22


def test_each_task_is_told_apart_in_results_files_and_evaluations(tiny, tmp_path, capsys):
    results = []
    run_dir = str(tmp_path / "run")
    settings = {"num_actors": 2, "transport": "serial", "run_dir": run_dir, "eval_episodes": 3}
    hr.train(
        tasks=(Quick, Slow),
        algo=hr.A2C(),
        envs_per_actor=4,
        fragment_length=16,
        total_steps=1280,
        log_interval_s=0.0,
        callbacks=[results.append],
        **settings,
    )
    last = results[-1].tasks
    assert list(last) == ["Quick", "Slow"]
    mean = np.mean([one.episode_return for one in last.values()])
    assert results[-1].episode_return == pytest.approx(mean)  # each task counts alike
    length = np.mean([one.episode_length for one in last.values()])
    assert results[-1].episode_length == pytest.approx(length)
    line = read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]
    assert line["tasks/Slow/episodic_return"] == pytest.approx(last["Slow"].episode_return)
    assert line["tasks/Quick/env_steps"] == last["Quick"].env_steps > 0
    events = EventAccumulator(run_dir)
    events.Reload()
    written = events.Scalars("tasks/Slow/episodic_length")[-1].value
    assert written == pytest.approx(last["Slow"].episode_length)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["tasks"]["Quick"]["episodes"] == last["Quick"].episodes
    of_each = summary["evaluation"]["tasks"]
    assert [one["episodes"] for one in of_each.values()] == [3, 3]
    assert of_each["Slow"]["mean_length"] >= 20 > of_each["Quick"]["mean_length"]
    assert summary["evaluation"]["episodes"] == 6
    shown = capsys.readouterr().out
    assert "last 100 episodes of each task" in shown
    assert "Slow " in shown
    assert f"evaluated {of_each['Slow']['mean']:.1f}" in shown


def test_a_run_of_tasks_goes_on_and_is_loaded_and_evaluated(tiny, finish, tmp_path, capsys):
    config = tiny(tasks=TASKS, num_actors=2, network=hr.Network(task_id=True), eval_episodes=1)
    _, results = finish(config)
    before = results[-1].tasks
    hr.resume(tmp_path / "run", total_steps=1280, callbacks=[results.append])
    after = results[-1].tasks
    for name in TASKS:
        assert after[name].env_steps > before[name].env_steps
        assert after[name].episodes >= before[name].episodes
    assert before[TASKS[0]].episodes > 0
    policy = hr.load(tmp_path / "run")
    assert policy.network.hidden == (256, 256)
    assert policy.observation_space["observation"].shape == (4 + 6,)
    assert policy.observation_space["task"].n == 2
    found = hr.evaluate(policy, list(TASKS), 1)
    assert list(found.tasks) == list(TASKS)
    evaluate([str(tmp_path / "run"), "--episodes", "1"])
    assert "Acrobot-v1: return" in capsys.readouterr().out
    config = checkpoint.read_config(tmp_path / "run")["config"]
    assert config["tasks"] == list(TASKS)
    assert config["env"] == TASKS[0]


def test_tasks_that_draw_nothing_leave_films_of_the_others(tiny, finish, tmp_path, capsys, drawn):
    finish(tiny(tasks=(Quick, "CartPole-v1"), num_actors=2, transport="serial", total_steps=64))
    evaluate([str(tmp_path / "run"), "--episodes", "1", "--video", str(tmp_path / "films")])
    said = capsys.readouterr().err
    assert "headrace: Quick: " in said
    assert "video: " in said
    assert drawn == ["CartPole-v1"]


@pytest.fixture
def drawn(monkeypatch):
    """Records the environments in videos, and rejects those that can't be rendered."""
    names = []

    def film(policy, env, path, *_):
        if env_name(env) == "Quick":
            raise ConfigError("it can't be drawn")
        names.append(env_name(env))
        return path

    monkeypatch.setattr("headrace.rundir.video.record_video", film)
    return names


def test_what_only_comes_in_vectors_is_refused_beside_single_environments(tiny, tmp_path):
    with pytest.raises(ConfigError, match="engine='sync' can't make CartPoleVectorEnv"):
        hr.train(tiny(tasks=(CartPoleVectorEnv, Quick), num_actors=2, run_dir=str(tmp_path / "r")))
    assert not (tmp_path / "r").exists()


def test_several_tasks_have_a_folder_without_blanks_and_no_limit_of_one():
    name = env_name(Tasks(("CartPole-v1", "ALE/Pong-v5")))
    assert default_run_dir(name, "appo").name.startswith("2-tasks-appo-")
    alone = {"env": "CartPole-v1", "tasks": []}
    assert health.with_episode_limit(alone)["max_episode_steps"] == 500
    assert (
        health.with_episode_limit(alone | {"tasks": ["CartPole-v1", "Own-v0"]})["max_episode_steps"]
        is None
    )


def test_callables_of_one_name_are_told_how_they_differ():
    made = [functools.partial(CountingEnv, episode_length=n) for n in (5, 6)]
    with pytest.raises(ConfigError, match=r"not CountingEnv twice .*distinct __name__s"):
        resolve(Tasks(tuple(made)))
    made[1].__name__ = "Longer"
    assert resolve(Tasks(tuple(made))).names == ("CountingEnv", "Longer")


def test_the_score_of_several_games_is_the_mean_of_theirs_each_capped(monkeypatch, tmp_path):
    wrap = Wrap(UnifiedTask, "the joining of tasks", {})
    score = atari.human_normalized(resolve("Breakout"), "sync", {}, (wrap,), 30.5)
    assert score == pytest.approx(1.0, abs=0.01)  # spaces are padded, rewards are as they were
    scores = iter([0.2, 3.0, 0.2, None])
    monkeypatch.setattr("headrace.evaluation.human_normalized", lambda *_: next(scores))
    spaces = CountingEnv().observation_space, CountingEnv().action_space
    policy = hr.Policy(*spaces, hr.Network(hidden=(4,)))
    tasks = Tasks((Quick, Slow), joined=True)
    found = hr.evaluate(policy, tasks, 1)
    assert found.human_normalized == pytest.approx(0.6)
    log = RunLog(tmp_path, 0)
    log.evaluation(found, 10, 1.0)
    log.close()
    (line,) = read_jsonl(tmp_path / "evaluations.jsonl")
    assert line["tasks_human_normalized"] == {"Quick": 0.2, "Slow": 3.0}
    assert hr.evaluate(policy, tasks, 1).human_normalized is None


def test_learners_share_out_the_actors_of_each_task(tiny, tmp_path):
    results = []
    settings = {"num_actors": 4, "num_learners": 2, "run_dir": str(tmp_path / "two")}
    config = tiny(tasks=(Quick, Slow), algo=hr.A2C(), **settings)
    hr.train(config, callbacks=[results.append])
    tasks = results[-1].tasks
    assert sum(one.env_steps for one in tasks.values()) == results[-1].env_steps
    assert all(one.episodes > 0 for one in tasks.values())


@pytest.mark.parametrize("known", [("Pong", "Breakout"), ("games:ALE/Pong-v5", "ALE/Breakout-v5")])
def test_tasks_in_another_order_are_refused_however_they_are_spelled(known):
    with pytest.raises(ConfigError, match="must be in the order"):
        check_order(("ALE/Breakout-v5", "ALE/Pong-v5"), known)
    check_order(("ALE/Pong-v5", "ALE/Breakout-v5"), known)
    with pytest.raises(ConfigError, match="must be in the order"):
        check_order(("B", "A"), ("Outer.A", "Outer.B"))


def test_several_tasks_have_a_wider_perceptron_unless_told_otherwise(tiny):
    def width(tasks, **network) -> tuple[int, ...] | None:
        return tiny(tasks=tasks, num_actors=2, network=hr.Network(**network)).settled.network.hidden

    assert width(TASKS) == (256, 256)
    assert width(TASKS[:1]) == (64, 64)
    assert width(TASKS, hidden=(64,)) == (64,)
    assert hr.Config().settled.network.hidden == (64, 64)


@pytest.mark.parametrize("algo", [hr.APPO(), hr.PPO(), hr.IMPACT()], ids=["appo", "ppo", "impact"])
@pytest.mark.parametrize(
    "given", [{}, {"batch_size": 1536}, {"num_learners": 2}, {"num_actors": 6}]
)
def test_sizes_that_are_left_open_suit_the_tasks(algo, given):
    tasks = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
    config = choose(hr.Config(tasks=tasks, algo=algo, **given), None, cores=1)
    unit = 3 * config.num_learners
    assert config.num_actors % unit == 0
    assert config.per_learner.rollouts_per_update % 3 == 0
    assert all(getattr(config, name) == value for name, value in given.items())


@pytest.mark.parametrize("algo", [hr.APPO(), hr.PPO(), hr.A2C(), hr.IMPACT()], ids=repr)
@pytest.mark.parametrize(("count", "parts"), [(2, 2), (3, 3), (4, 4), (8, 4)])
def test_a_batch_holds_of_each_task_what_one_alone_has(algo, count, parts):
    """For up to four tasks; more share the sizes of four."""
    alone = choose(hr.Config(algo=algo), None, cores=1)
    config = choose(hr.Config(tasks=[f"Own-v{i}" for i in range(count)], algo=algo), None, cores=1)
    assert config.fragment_length == alone.fragment_length
    envs = config.num_actors * config.envs_per_actor
    assert envs == parts * alone.num_actors * alone.envs_per_actor
    assert config.batch_size == parts * alone.batch_size


def test_a_batch_holds_as_much_where_fewer_environments_are_given():
    given = {"num_actors": 2, "envs_per_actor": 4}
    config = choose(hr.Config(tasks=TASKS, algo=hr.APPO(), **given), None, cores=1)
    assert config.batch_size == 2 * choose(hr.Config(), None, cores=1).batch_size


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_actors": 3}, "num_actors=3 must be a multiple of 2.* 2 tasks; nearest: 2 or 4"),
        (
            {"num_actors": 2, "num_learners": 2},
            "num_actors=2 must be a multiple of 4.*2 tasks and 2 learners; nearest: 4",
        ),
        (
            {"num_actors": 2, "algo": hr.APPO(), "batch_size": 64 * 3},
            "batch_size=192 must be a multiple of 128, in whole rollouts.*nearest: 128 or 256",
        ),
        ({"tasks": ("CartPole-v1",) * 2}, "tasks='CartPole-v1,CartPole-v1'.*not CartPole-v1 twice"),
        ({"env": "Pendulum-v1"}, "env='Pendulum-v1' must be left out with tasks"),
        ({"num_actors": 2, "cluster": "ray", "algo": hr.APPO(), "min_actors": 1}, "min_actors=1"),
        ({"tasks": (), "network": hr.Network(task_id=True)}, "task_id=True must be False without"),
    ],
)
def test_what_doesnt_suit_tasks_is_refused(settings, words, tiny):
    with pytest.raises(hr.ConfigError, match=words):
        tiny(**({"tasks": TASKS} | settings))


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (("CartPole-v1", "Pendulum-v1"), "tasks 'CartPole-v1' and 'Pendulum-v1' can't be joined"),
        (("CartPole-v1", "NoSuchTask-v1"), "'NoSuchTask-v1' is unknown"),
        (("CartPole-v1", "popgym-Autoencode-v0"), "'popgym-Autoencode-v0'.*pip install popgym"),
    ],
)
def test_tasks_that_cant_be_are_refused_before_a_run_begins(tasks, words, tmp_path):
    with pytest.raises(hr.ConfigError, match=words):
        hr.train(tasks=tasks, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_tasks_take_the_place_of_a_recipes_environment(monkeypatch):
    pong = hr.recipe("atari", "appo")
    found = []
    monkeypatch.setattr("headrace.api.run", lambda config, callbacks, quiet: found.append(config))
    hr.train(pong, tasks=("Pong", "Breakout"), seed=3)
    config, rest = take_recipe(["--recipe", "atari", "--tasks", "Pong,Breakout"], "appo", None)
    assert rest == ["--tasks", "Pong,Breakout"]
    assert (
        config.env_kwargs == found[0].env_kwargs == {**pong.env_kwargs, "full_action_space": True}
    )
    assert found[0].tasks == ("Pong", "Breakout")
    assert replace(config, tasks=("Pong", "Breakout"), seed=3).to_json() == found[0].to_json()
    alone, _ = take_recipe(["--recipe", "atari"], "appo", None)
    assert alone == pong
    with pytest.raises(hr.ConfigError, match="tasks='atari-5' must be"):
        hr.train(pong, tasks="atari-5")


@pytest.mark.parametrize("algo", ["impala", "appo", "ppo", "impact"])
@pytest.mark.parametrize("suite", ["atari-5", "atari-57"])
def test_a_recipes_sizes_grow_to_fit_a_suite(algo, suite):
    config = replace(for_tasks(hr.recipe("atari", algo), (suite,)), tasks=(suite,))
    chosen = choose(config, None, cores=1)  # which refuses what doesn't fit
    assert chosen.num_actors % len(config.tasks) == 0
    assert chosen.batch_size % (chosen.sizes.rollout_steps * len(config.tasks)) == 0


def test_a_task_by_another_of_its_names_is_the_same_one():
    with pytest.raises(hr.ConfigError, match="each task once, not ALE/Pong-v5 twice"):
        resolve(Tasks(("Pong", "ALE/Pong-v5")))


def test_an_environment_beside_tasks_is_refused():
    with pytest.raises(hr.ConfigError, match="env='CartPole-v1' must be left out with tasks"):
        hr.train("CartPole-v1", tasks=TASKS)
    with pytest.raises(hr.ConfigError, match="env=None"):
        hr.train()


def test_tasks_are_named_with_commas_on_a_command_line():
    argv = ["--tasks", "CartPole-v1,Acrobot-v1", "--task-id", "--per-task-values"]
    config = config_of("impala", argv)
    assert config.tasks == TASKS
    assert config.network.task_id
    assert config.network.per_task_values
    assert config_of("impala", ["--tasks", "atari-5"]).tasks[0] == "ALE/BattleZone-v5"
    again = from_json(config.to_json())
    assert again.tasks == TASKS


def test_code_that_a_task_names_is_code_of_a_run():
    config = hr.Config(tasks=("CartPole-v1", "some.module:make")).to_json()
    assert import_allowlist.code_in(config) == {"tasks": ["some.module:make"]}
    kwargs = hr.Config(tasks=TASKS, env_kwargs={"x": 1}).to_json()
    assert import_allowlist.code_in(kwargs) == {}
    other = import_allowlist.sign(config)
    assert import_allowlist.sign({**config, "tasks": ["CartPole-v1", "some.module:other"]}) != other


def test_the_tasks_of_a_run_cant_change():
    before, after = (hr.Config(tasks=tasks, run_dir="x") for tasks in (TASKS, TASKS[::-1]))
    with pytest.raises(hr.ConfigError, match=r"tasks=.*must be.*counted by task"):
        check_resumed(before, after)
