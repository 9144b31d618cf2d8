"""Names and order of metrics in the table of results, files and terminal."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

from headrace.rundir.episodes import Episodes
from headrace.rundir.files import RunLog, read_jsonl
from headrace.rundir.league_run import league_metrics
from headrace.rundir.metric_accumulators import BY_RANK, GREATEST, SUMS, MetricAccumulator
from headrace.rundir.result import Result
from headrace.rundir.run_progress import Progress, RunProgress

KNOWN = {"learning_rate": 0.1, "restarts": 2, "eval_return": 3.0, **league_metrics(None)}

FILES = [
    "charts/frames", "charts/episodic_return", "charts/episodic_length", "charts/episodes",
    "charts/SPS", "charts/learning_rate",
    "charts/updates", "losses/policy_loss", "losses/value_loss", "losses/entropy",
    "losses/approx_kl", "losses/target_kl", "losses/clipfrac", "losses/explained_variance",
    "losses/grad_norm", "losses/mean_size",
    "lag/mean", "lag/max", "lag/steps", "lag/steps_max", "lag/dropped",
    "queue/lost", "time/wait", "time/learn", "time/publish", "time/comm", "time/sync",
    "eval/episodic_return",
    "utilisation/learner", "utilisation/actor", "utilisation/environment",
    "memory/learner_bytes", "memory/free_bytes",
    "cores/own", "cores/other", "cores/idle", "cores/learner", "queue/depth", "sync/pulls",
    "sync/bytes",
    "sync/divergence", "league/win_rate", "league/least_win_rate", "league/snapshots",
]  # fmt: skip


def make_result(**fields) -> Result:
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Result))
    return Result(**(nothing | {"env_steps": 0, "seconds": 0.0, "metrics": {}} | fields))


def test_a_result_is_a_dict_of_its_fields_and_of_its_metrics():
    result = make_result(env_steps=7, entropy=0.5, metrics={"env/success": 1.0})
    assert (result["env_steps"], result["entropy"], result["env/success"]) == (7, 0.5, 1.0)
    assert result["episode_return"] is None
    assert result["metrics"] is result.metrics
    assert "env/success" in result
    assert "env/failure" not in result
    assert result.get("env/failure", 3) == 3
    names = [field.name for field in dataclasses.fields(Result)]
    assert list(result) == [*names, "env/success"]
    assert len(result) == len(names) + 1
    assert dict(result)["env_steps"] == 7


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timesteps_total", "timesteps_total is RLlib's name; use 'env_steps'"),
        ("episode_reward_mean", "episode_reward_mean is RLlib's name; use 'episode_return'"),
        ("episode_len_mean", "use 'episode_length'"),
        ("env_step", "Did you mean 'env_steps'"),
    ],
)
def test_a_name_that_a_result_lacks_is_reported_with_the_one_to_use(name, words):
    with pytest.raises(KeyError, match=re.escape(words)):
        make_result()[name]
    use = re.search(r"'(\w+)'", words)[1]
    assert use in make_result()


def test_every_field_with_a_name_in_files_is_written_under_it_in_the_order_of_the_table(tmp_path):
    names = [field.name for field in dataclasses.fields(Result)]
    nowhere = {"tasks": None, "agents": None, "policies": None, "metrics": {}}
    result = Result(**{name: number for number, name in enumerate(names)} | nowhere)
    wanted = {
        field.metadata["file"]: float(getattr(result, field.name))
        for field in dataclasses.fields(Result)
        if field.metadata["file"] is not None
    }
    assert list(result.scalars().items()) == list(wanted.items())
    assert list(wanted) == FILES
    assert pickle.loads(pickle.dumps(result)) == result
    log = RunLog(tmp_path, 0)
    log.result(result)
    log.close()
    line = {"env_steps": result.env_steps, "seconds": result.seconds}
    assert read_jsonl(tmp_path / "metrics.jsonl") == [line | wanted]
    assert list(make_result(entropy=0.5, lag_max=0).scalars()) == ["losses/entropy", "lag/max"]


def test_what_is_counted_and_told_is_what_the_table_names():
    assert set(SUMS) == {
        "wait_s", "learn_s", "publish_s", "comm_s", "sync_s", "acting_ns", "waiting_ns",
        "stepping_ns",
        "num_rollouts", "num_lags", "lag_sum", "lag_steps_sum", "env_steps", "dropped", "lost",
        "pulls", "num_measured", "divergence_nano",
    }  # fmt: skip
    assert GREATEST == ("lag_max", "lag_steps_max")
    assert BY_RANK == ("approx_kl", "clipfrac", "entropy", "value_loss")
    meter = MetricAccumulator()
    for number, name in enumerate(SUMS + GREATEST):
        setattr(meter, name, number + 2**40)
    assert vars(MetricAccumulator.read(iter(meter.numbers()))) == vars(meter)
    assert vars(MetricAccumulator.read(iter(MetricAccumulator().numbers()))) == vars(
        MetricAccumulator()
    )
    rest = iter([*meter.numbers(), 7.0])
    MetricAccumulator.read(rest)
    assert list(rest) == [7.0]  # nothing beyond is taken


def test_a_result_is_what_the_table_says_of_the_counts(tiny):
    tally = RunProgress(Progress(), tiny(num_learners=2), 1000, 0.0)
    meter, episodes = MetricAccumulator(), Episodes(5)
    meter.wait_s, meter.learn_s, meter.publish_s, meter.comm_s, meter.sync_s = 1, 2, 3, 4, 6
    meter.acting_ns, meter.waiting_ns, meter.num_rollouts = 30, 10, 4
    meter.stepping_ns = 15
    meter.count(num_lags=4, lag_sum=6, lag_steps_sum=10, lag_max=5, lag_steps_max=7)
    meter.divergence_nano, meter.num_measured, meter.pulls, meter.dropped = 5 * 10**8, 2, 7, 3
    meter.lost = 4
    meter.note(entropy=0.5, queue_depth=2)
    meter.note(entropy=1.5)
    tally._progress.add(meter)
    tally.add(meter)
    result = tally.result(episodes, **KNOWN)
    assert (result.time_wait, result.time_learn, result.time_publish) == (0.5, 1.0, 1.5)
    assert (result.time_comm, result.time_sync) == (2.0, 3.0)
    assert result.utilisation_learner == 1 - 7 / 16
    assert (result.utilisation_actor, result.lag_mean, result.lag_max) == (0.75, 1.5, 5)
    assert (result.lag_steps, result.lag_steps_max) == (2.5, 7)
    assert (result.entropy, result.queue_depth, result.policy_loss) == (1.0, 2.0, None)
    assert (result.sync_pulls, result.sync_bytes, result.sync_divergence) == (7, 7000, 0.25)
    assert (result.dropped, result.lost, result.restarts, result.updates) == (3, 4, 2, 1)
    empty = tally.result(episodes, **KNOWN)  # nothing since
    assert (empty.lag_mean, empty.lag_max, empty.entropy, empty.utilisation_actor) == (None,) * 4
    assert (empty.utilisation_learner, empty.dropped, empty.sync_pulls) == (0.0, 3, 7)
    summary = tally.summary()
    assert (summary["dropped"], summary["lost"]) == (3, 4)
    assert summary["time"] == {"wait": 0.5, "learn": 1, "publish": 1.5, "comm": 2, "sync": 3}
    assert summary["lag"] == {"mean": 1.5, "max": 5, "steps": 2.5, "steps_max": 7, "bound": 0}
    assert summary["utilisation"] == {"learner": 1 - 7 / 16, "actor": 0.75, "environment": 0.5}
    assert summary["sync"] == {"pulls": 7, "bytes": 7000, "divergence": 0.25}


# The environment, which actor processes import as well, brings an algorithm's new loss along.
WORLD = """
from gymnasium.envs.classic_control import CartPoleEnv
from headrace.algos.a2c import A2C
from headrace.algos.a3c import A3C

def surprised(loss):
    def more(self, policy, batch, state):
        total, metrics = loss(self, policy, batch, state)
        return total, metrics | {"surprise": 0.5 * batch.valid.sum()}
    return more

class Cart(CartPoleEnv):
    pass

A2C.loss, A3C.loss = surprised(A2C.loss), surprised(A3C.loss)
"""

# Two metrics more, one line each: what an algorithm reports, and a share of what is counted.
ONE_LINE_EACH = """
import sys
from pathlib import Path
from headrace.processes import start_fork_server
start_fork_server("headrace.actors.actor")
assert "headrace.rundir.result" not in sys.modules
import headrace.rundir.result as result_module

source = Path(result_module.__file__).read_text()
mark = "    queue_depth: "
lines = (
    '    surprise: float | None = metric("losses/surprise", Mean(by_rank=True))\\n'
    '    cut: float | None = metric("queue/cut", Ratio("cut_rollouts", "num_rollouts"))\\n'
)
assert source.count(mark) == 1
exec(compile(source.replace(mark, lines + mark), "result.py", "exec"), vars(result_module))

import headrace as hr
from headrace.evaluating import run_end
run_end.plot = run_end._report = lambda *_: None
from headrace.rundir.files import read_jsonl
from headrace.rundir.league_run import league_metrics
from headrace.rundir.metric_accumulators import MetricAccumulator

rollout = MetricAccumulator.rollout
def counted(self, header):
    rollout(self, header)
    self.cut_rollouts += 1
MetricAccumulator.rollout = counted

for algo in (hr.A2C, hr.A3C):
    results, run_dir = [], Path(algo.__name__)
    hr.train(
        "surprise:Cart", algo(), callbacks=[results.append], run_dir=str(run_dir), seed=1,
        transport="shm", num_actors=2, envs_per_actor=4, fragment_length=8, total_steps=128,
        log_interval_s=0.0, log_iterations=True, eval_episodes=0,
    )
    lines = read_jsonl(run_dir / "metrics.jsonl")
    parts = read_jsonl(run_dir / "iterations" / "rank_0.jsonl")
    assert lines and {line["losses/surprise"] for line in lines} == {0.5}, lines
    assert {line["queue/cut"] for line in lines} == {1.0}, lines
    assert {line["surprise"] for line in parts} == {0.5}, parts
    assert all(result.surprise == 0.5 and result.cut == 1.0 for result in results), results
"""


def test_a_new_metric_is_one_line_of_the_table_also_where_actors_learn(tmp_path):
    (tmp_path / "surprise.py").write_text(WORLD)
    (tmp_path / "script.py").write_text(ONE_LINE_EACH)
    run = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_figures_of_several_tasks_are_over_the_windows_of_all():
    episodes = Episodes(2, tasks=("quick", "slow"))
    assert (episodes.mean_return, episodes.mean_length, episodes.windows) == (None, None, [])
    episodes.add(np.array([[-9.0]]), np.array([[90.0]]), task=1)
    assert episodes.mean_return is None  # of which one hasn't ended an episode
    for value in (1.0, 2.0, 3.0):
        episodes.add(np.array([[value]]), np.array([[10.0]]), task=0)
    assert (episodes.mean_return, episodes.mean_length) == ((2.5 - 9.0) / 2, 50.0)
    assert episodes.windows == [2.0, 3.0, -9.0]  # the last two of all are 2 and 3
