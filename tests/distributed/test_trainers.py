"""Whole runs of several learners stay together and stop together."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from torch import Tensor

import headrace as hr
import headrace.evaluating.evaluator
from headrace.errors import ConfigError, LearnerFailed
from headrace.evaluation import Evaluation
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl
from tests.distributed.runs import ALGOS, STEPS, check_together, iterations, train, weights
from tests.tries import few_named

# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", few_named(ALGOS, ["ppo", "impala-replay"]))
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.full), 3])
def test_learners_train_together_and_count_everybodys_steps(several, algo, size):
    before: list[Tensor] = []
    runs = train(several(size, algo=algo), begin=lambda trainer: before.append(weights(trainer)))
    check_together(runs)
    trainer, results = runs[0].trainer, runs[0].results
    assert all(torch.equal(one, before[0]) for one in before)
    assert (runs[0].weights - before[0]).abs().max() > 1e-3
    assert 800 <= trainer.env_steps == results[-1].env_steps < 800 + STEPS
    assert [result.updates for result in results] == list(range(1, trainer.updates + 1))
    lines = [iterations(trainer.run_dir, rank) for rank in range(size)]
    assert sum(line["steps"] for own in lines for line in own) == trainer.env_steps
    for rank, own in enumerate(lines):
        assert {line["rank"] for line in own} == {rank}
        assert [line["update"] for line in own] == list(range(1, trainer.updates + 1))
        assert [line["env_steps"] for line in own] == [result.env_steps for result in results]
        assert all(line["steps"] <= STEPS // size for line in own)
        assert all(line["entropy"] > 0 for line in own)
    assert len({tuple(line["entropy"] for line in own) for own in lines}) == size  # its own data
    assert len(read_jsonl(trainer.run_dir / "metrics.jsonl")) == len(results)
    assert len(list(trainer.run_dir.glob("events.out.tfevents.*"))) == 1


@pytest.mark.parametrize(
    "algo",
    few_named(
        {
            "ppo": hr.PPO(epochs=2, minibatches=1, learning_rate=3e-3, normalize_returns=True),
            "impala": hr.IMPALA(epochs=1, minibatches=1, learning_rate=3e-3),
            "impact": hr.IMPACT(buffer_size=2, passes=2, learning_rate=3e-3),
        },
        ["ppo", "impact"],
    ),
)
def test_the_same_environments_give_the_same_run_whoever_has_them(several, algo):
    shape: dict[str, Any] = {"algo": algo, "num_actors": 6, "envs_per_actor": 2}
    shape["network"] = hr.Network(normalize_observations=True)
    one, two, three = (
        train(several(size, str(size), total_steps=450, **shape))[0] for size in (1, 2, 3)
    )
    for run in (two, three):
        torch.testing.assert_close(run.weights, one.weights, rtol=1e-3, atol=1e-4)
        assert len(run.results) == len(one.results) >= 5
        for ours, theirs in zip(run.results, one.results, strict=True):
            for name in ("env_steps", "updates", "episodes", "lag_mean", "lag_max", "dropped"):
                assert getattr(ours, name) == getattr(theirs, name), name
            for name in ("episode_return", "policy_loss", "value_loss", "entropy", "grad_norm"):
                wanted = getattr(theirs, name)
                near = wanted if wanted is None else pytest.approx(wanted, 1e-2, 1e-3)
                assert getattr(ours, name) == near, name


def test_a_linear_learning_rate_follows_the_steps_of_all(several):
    algo = hr.A2C(learning_rate=1e-2, lr_schedule="linear")
    for result in train(several(2, algo=algo))[0].results:
        left = max(0.0, 1 - result.env_steps / 800)
        assert result.learning_rate == pytest.approx(1e-2 * left)


@pytest.mark.parametrize("size", [1, 2])
def test_times_with_others_are_reported_where_there_are_others(several, size):
    runs = train(several(size))
    lines = read_jsonl(runs[0].trainer.run_dir / "metrics.jsonl")
    assert len(lines) > 3
    for line in lines:
        assert ("time/comm" in line) == ("time/sync" in line) == (size == 2)
        assert line["time/wait"] > 0 < line["time/learn"]
    times = runs[0].trainer.summary()["time"]
    for name in ("comm", "sync"):
        total = sum(line.get(f"time/{name}", 0.0) for line in lines)
        assert (times[name] or 0.0) == pytest.approx(total)
    assert sum(line.get("time/comm", 0.0) for line in lines) > 0 or size == 1


def test_a_trainer_alone_says_how_several_learners_are_started(several):
    with pytest.raises(ConfigError, match=r"num_learners=2 needs as many processes: use hr\.train"):
        hr.Trainer(several(2))


@pytest.mark.parametrize(("odd", "like"), [(0, "1, 2"), (2, "0, 1")])
def test_a_learner_that_left_the_others_is_found_at_the_first_update(several, odd, like):
    def begin(trainer: hr.Trainer) -> None:
        if trainer.group.rank == odd:
            trainer.policy.value_head.bias.data += 1e-6

    with pytest.raises(LearnerFailed, match=f"weights of learner {odd} .* of learners {like}:"):
        train(several(3), begin)


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "updates"),
    [(0, {3}), (1, {3, 4})],  # learner 1 may have gone on already
)
def test_a_stop_of_any_learner_stops_all_after_the_update(several, who, updates):
    def watch(trainers: list[hr.Trainer], result: hr.Result) -> None:
        if result.updates == 3:
            trainers[who].stop()
            assert not trainers[who]._loop._may_leave()  # not before the others' next sum

    runs = train(several(3, total_steps=2000), watch=watch)
    check_together(runs)
    assert runs[0].trainer.updates in updates
    assert (checkpoint.find(runs[0].trainer.run_dir) / "trainer.pt").exists()


def test_a_stop_is_seen_without_a_result_in_between(several):
    stopped: list[int] = []
    threads: list[threading.Thread] = []

    def stop_later(trainer: hr.Trainer) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while trainer.updates < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        trainer.stop()
        stopped.append(trainer.updates)

    def begin(trainer: hr.Trainer) -> None:
        if trainer.group.rank == 1:
            threads.append(threading.Thread(target=stop_later, args=(trainer,), daemon=True))
            threads[0].start()

    runs = train(several(2, total_steps=2_000_000, log_interval_s=1e9), begin)
    threads[0].join()
    check_together(runs)
    assert len(runs[0].results) == 2  # of the first update, and at the end
    assert 3 <= stopped[0] <= runs[0].trainer.updates <= stopped[0] + 2


def test_the_run_ends_when_the_last_episodes_of_all_are_good_enough(several):
    runs = train(several(2, stop_return=15.0, total_steps=20_000))
    check_together(runs)
    results = runs[0].results
    assert results[-1].episode_return >= 15.0
    assert results[-1].episodes >= 100
    for run in runs:
        assert run.trainer.episodes.window == 50
        assert len(run.trainer.episodes.returns) == 50
    returns = [x for run in runs for x in run.trainer.episodes.returns]
    assert results[-1].episode_return == pytest.approx(sum(returns) / 100)
    assert results[-2].episodes < 130  # it ended as soon as there were enough


# -- periodic evaluation --------------------------------------------------------------------------


@dataclasses.dataclass
class Evaluator:
    """Replaces ``evaluate``: sleeps, and returns given means."""

    means: list[float]
    delay_s: float = 0.0
    calls: list[tuple[str, float]] = dataclasses.field(default_factory=list)

    def __call__(self, policy: hr.Policy, env: Any, episodes: int, **others: Any) -> Evaluation:
        self.calls.append((threading.current_thread().name, time.monotonic()))
        time.sleep(self.delay_s)
        mean = self.means[min(len(self.calls), len(self.means)) - 1]
        return Evaluation(episodes, mean, 1.5, mean, mean, 9.0)


@pytest.mark.parametrize("size", [1, 2])
def test_an_evaluation_that_reaches_the_target_ends_the_run_for_all(several, size, monkeypatch):
    evaluator = Evaluator([10.0, 20.0, 300.0])
    monkeypatch.setattr(headrace.evaluating.evaluator, "evaluate", evaluator)
    settings: dict[str, Any] = {"eval_interval": 200, "eval_episodes": 4, "target_return": 250.0}
    runs = train(several(size, total_steps=2000, **settings))
    check_together(runs)
    trainer, results = runs[0].trainer, runs[0].results
    assert [name for name, _ in evaluator.calls] == ["learner-0"] * 3
    lines = [json.loads(x) for x in (trainer.run_dir / "evaluations.jsonl").open()]
    assert [line["return_mean"] for line in lines] == [10.0, 20.0, 300.0]
    assert all(line["return_std"] == 1.5 and line["episodes"] == 4 for line in lines)
    assert trainer.env_steps == lines[-1]["env_steps"] == results[-1].env_steps
    known = {result.env_steps: result.eval_return for result in results}
    for number, line in enumerate(lines, start=1):  # at the first update beyond
        assert 200 * number <= line["env_steps"] < 200 * number + STEPS
        assert known[line["env_steps"]] == line["return_mean"]
    assert results[0].eval_return is None
    assert all(run.trainer._loop.evaluations.latest == 300.0 for run in runs)


def test_seconds_leave_out_the_evaluations(several, monkeypatch):
    evaluator = Evaluator([1.0], delay_s=0.6)
    monkeypatch.setattr(headrace.evaluating.evaluator, "evaluate", evaluator)
    runs = train(several(2, eval_interval=200, eval_episodes=4))
    check_together(runs)
    run_dir = runs[0].trainer.run_dir
    lines = read_jsonl(run_dir / "evaluations.jsonl")
    assert len(lines) == len(evaluator.calls) == 4
    for i in range(3):
        seconds = lines[i + 1]["seconds"] - lines[i]["seconds"]
        passed = evaluator.calls[i + 1][1] - evaluator.calls[i][1]
        assert 0 < seconds <= passed - 0.59
    for rank in range(2):
        known = {line["env_steps"]: line["seconds"] for line in iterations(run_dir, rank)}
        assert [known[line["env_steps"]] for line in lines] == [line["seconds"] for line in lines]
        assert sum(line["t_iter"] for line in iterations(run_dir, rank)) < lines[-1]["seconds"] + 1
    for run in runs:  # each leaves out its own waiting for the result
        assert run.trainer.summary()["seconds_training"] < run.trainer.summary()["seconds_total"]
        assert run.trainer.progress.trained_s == pytest.approx(
            runs[0].trainer.progress.trained_s,
            abs=1.2,  # the four evaluations took 2.4 s
        )


def test_an_evaluation_plays_with_the_policy_as_it_is_then(several, monkeypatch):
    seen: list[tuple[Tensor, int]] = []

    def evaluate(policy: hr.Policy, env: Any, episodes: int, **others: Any) -> Evaluation:
        values = torch.cat([v.reshape(-1).double() for v in policy.state_dict().values()])
        found = hr.evaluate(policy, env, episodes, **others)
        seen.append((values, found.episodes))
        return found

    monkeypatch.setattr(headrace.evaluating.evaluator, "evaluate", evaluate)
    runs = train(several(2, eval_interval=300, eval_episodes=2, total_steps=600))
    assert [episodes for _, episodes in seen] == [2, 2]
    assert not torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[1][0], runs[1].weights)
    lines = read_jsonl(runs[0].trainer.run_dir / "evaluations.jsonl")
    assert all(line["return_mean"] >= 8 for line in lines)
