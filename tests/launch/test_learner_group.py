"""Runs with several learners: reproducible, and restarted or stopped when a process dies."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError, ConfigError, LearnerFailed
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl
from headrace.rundir.folders import steps_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the environments below

PPO = hr.PPO(epochs=2, minibatches=2)
ALGOS = {
    "ppo": PPO,
    "impala": hr.IMPALA(epochs=1, minibatches=1),
    "impact": hr.IMPACT(buffer_size=2, passes=2),
}
FOR_EVER = 10**9


def saved_weights(run_dir: str | Path) -> dict[str, torch.Tensor]:
    """Return the steps of the latest checkpoint."""
    return hr.load(run_dir).state_dict()


# -- whole runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        pytest.param("ppo", "serial", marks=pytest.mark.slow),
        ("ppo", "shm"),
        pytest.param("impala", "serial", marks=pytest.mark.full),
        ("impala", "shm"),
        ("impact", "serial"),
        pytest.param("impact", "shm", marks=pytest.mark.full),
    ],
)
def test_two_learners_train_one_policy_and_write_a_line_each_per_update(
    tiny, nobody, leftovers, name, transport
):
    config = tiny(algo=ALGOS[name], num_learners=2, transport=transport)
    policy = hr.train(config)
    summary = json.loads(Path(config.run_dir, "summary.json").read_text())
    assert summary["env_steps"] >= 640
    parts = [
        read_jsonl(Path(config.run_dir, "iterations", f"rank_{rank}.jsonl")) for rank in (0, 1)
    ]
    for rank, lines in enumerate(parts):
        assert [line["rank"] for line in lines] == [rank] * summary["updates"]
        assert [line["update"] for line in lines] == list(range(1, summary["updates"] + 1))
        assert lines[-1]["env_steps"] == summary["env_steps"]
    steps = np.array([[line["steps"] for line in lines] for lines in parts])
    assert np.cumsum(steps.sum(0)).tolist() == [line["env_steps"] for line in parts[0]]
    assert (np.abs(steps.sum(1) / steps.sum() - 0.5) < 0.1).all()  # each has half of it
    for key, value in saved_weights(config.run_dir).items():
        assert torch.equal(value, policy.state_dict()[key]), key
    assert policy.predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert nobody() == []
    assert leftovers() == set()


def test_one_seed_gives_the_same_weights_every_time_and_with_either_transport(tiny, watch):
    runs = []
    for transport, seed in (("serial", 0), ("serial", 0), ("shm", 0), ("serial", 1)):
        settings = {"transport": transport, "seed": seed, "total_steps": 256}
        watch(tiny(num_learners=2, overwrite=True, **settings))
        runs.append(saved_weights(tiny().run_dir))
    first, again, shm, other = runs
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
        assert torch.equal(value, shm[name]), name
        assert value.ndim < 2 or not torch.equal(value, other[name]), name


def test_a_callback_that_returns_false_ends_all_learners(tiny, nobody):
    seen = []

    def stop(result) -> bool:
        seen.append(result.updates)
        return result.updates < 3

    config = tiny(num_learners=2, total_steps=FOR_EVER, transport="serial")
    policy = hr.train(config, callbacks=[stop])
    assert seen[:3] == [1, 2, 3]
    summary = json.loads(Path(config.run_dir, "summary.json").read_text())
    lines = read_jsonl(Path(config.run_dir, "iterations", "rank_1.jsonl"))
    assert lines[-1]["update"] == summary["updates"] == seen[-1]
    for name, value in saved_weights(config.run_dir).items():
        assert torch.equal(value, policy.state_dict()[name])
    assert nobody() == []


def test_a_run_goes_on_with_another_number_of_learners(tiny, watch):
    config = tiny(num_learners=2, transport="serial", total_steps=256)
    _, results, _ = watch(config)
    before = saved_weights(config.run_dir)
    seen = []
    policy = hr.resume(config.run_dir, [seen.append], num_learners=1, total_steps=512)
    assert [result.updates for result in seen[:1]] == [results[-1].updates + 1]
    assert results[-1].env_steps < seen[0].env_steps <= results[-1].env_steps + 64
    assert seen[-1].env_steps >= 512
    assert any(not torch.equal(v, before[k]) for k, v in policy.state_dict().items())
    _, results, _ = watch(resume_config(config.run_dir, num_learners=4, total_steps=768))
    assert results[0].updates == seen[-1].updates + 1
    lines = read_jsonl(Path(config.run_dir, "iterations", "rank_3.jsonl"))
    assert [line["update"] for line in lines] == [result.updates for result in results]


# -- scripts ------------------------------------------------------------------------------------

SCRIPT = """
import gymnasium
import headrace as hr

print("THE SCRIPT RUNS", flush=True)

class Mine(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2.0 * reward, *rest

policy = hr.train(
    Mine, hr.PPO(epochs=1), num_learners=2, num_actors=2, envs_per_actor=4, fragment_length=8,
    total_steps=10**9, run_dir="run", eval_episodes=2, log_interval_s=0.0, learner_threads=1,
    callbacks=[lambda result: print("UPDATE", result.updates, flush=True)],
)
print("action", policy.predict([0.0, 0.0, 0.0, 0.0])[0])
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="ctrl-c"),
        pytest.param(signal.SIGTERM, id="term", marks=pytest.mark.full),
    ],
)
def test_a_script_without_a_main_guard_saves_and_leaves_nothing_when_all_get_a_signal(
    start, gone, leftovers, tmp_path, number
):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py")
    script.wait_for("UPDATE 3")
    family = script.family()
    assert len(family) >= 6  # the script, the fork server, two learners, two actors
    os.killpg(script.process.pid, number)  # as a terminal or a cluster does
    assert script.wait() == 0, script.output
    assert script.output.count("THE SCRIPT RUNS") == 1
    assert re.search(r"^action [01]$", script.output, re.MULTILINE)
    assert "Traceback" not in script.output
    check_interrupted(tmp_path / "run")
    assert gone(family) == []
    assert leftovers() == set()


def test_ctrl_c_that_reaches_only_the_script_ends_its_learners(tiny, nobody, leftovers, capsys):
    def interrupt(result) -> None:
        if result.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)

    config = tiny(num_learners=2, total_steps=FOR_EVER, eval_episodes=2)
    hr.train(config, callbacks=[interrupt])
    assert capsys.readouterr().out.count("stopped early; to continue: hr.resume(") == 1
    check_interrupted(Path(config.run_dir))
    assert nobody() == []
    assert leftovers() == set()


def check_interrupted(run_dir: Path) -> None:
    """The last update is saved, without an evaluation."""
    summary = json.loads((run_dir / "summary.json").read_text())
    saved = checkpoint.find(run_dir)
    assert saved.name == f"step_{summary['env_steps']}"
    assert "evaluation" not in summary


def test_nothing_outlives_a_killed_script(start, gone, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py")
    script.wait_for("UPDATE 3")
    family = script.family()
    assert len(family) >= 6
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert gone(family) == []


# -- errors before anything is started ----------------------------------------------------------


def test_what_is_wrong_from_the_start_is_said_before_any_process_is_started(
    tiny, nobody, leftovers, tmp_path
):
    with pytest.raises(ConfigError, match=r"num_learners=3 can't divide 8 .*nearest: 2 or 4"):
        tiny(num_learners=3)
    with pytest.raises(ConfigError, match="num_learners=0 must be 1 or more"):
        tiny(num_learners=0)
    with pytest.raises(ConfigError, match="CartPool-v1"):
        hr.train(tiny(env="CartPool-v1", num_learners=2))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("do not delete")
    with pytest.raises(CheckpointError, match="exists already"):
        hr.train(tiny(num_learners=2))
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        hr.train(tiny(num_learners=2, resume=True))
    assert (tmp_path / "run" / "mine.txt").exists()
    assert nobody() == []
    assert leftovers() == set()


def test_a_trainer_says_what_trains_with_several_learners(tiny):
    with pytest.raises(ConfigError, match=r"learners=2 .*hr\.train, hr\.LearnerGroup, .*torchrun"):
        hr.Trainer(tiny(num_learners=2))


# -- failures -----------------------------------------------------------------------------------


class BreaksInOneLearner(gymnasium.Wrapper):
    """CartPole that raises, hangs or returns invalid data in one learner (or its actor) only."""

    def __init__(self, rank: int, mode: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        names = [multiprocessing.current_process().name]
        parent = multiprocessing.parent_process()
        names += [] if parent is None else [parent.name]
        self._left = 20 if f"headrace-learner-{rank}" in names else -1
        self._mode = mode

    def step(self, action):
        self._left -= 1
        if self._left == 0:
            while self._mode == "hang":
                time.sleep(1.0)
            raise RuntimeError("the motor is on fire")
        return self.env.step(action)


@pytest.mark.parametrize(("rank", "transport"), [(0, "serial"), (1, "shm")])
def test_an_error_in_one_learner_ends_all_at_once_with_its_traceback(
    tiny, watch, nobody, leftovers, transport, rank
):
    kwargs = {"rank": rank, "mode": "raise"}
    config = tiny(env=BreaksInOneLearner, env_kwargs=kwargs, transport=transport, max_restarts=0)
    with pytest.raises(LearnerFailed) as caught:  # at once, as learner_timeout_s is 1,800
        hr.train(config, num_learners=2, total_steps=FOR_EVER)
    text = str(caught.value)
    assert text.startswith(f"learner {rank} failed: ")
    assert "RuntimeError: the motor is on fire" in text
    assert 'raise RuntimeError("the motor is on fire")' in text
    assert nobody() == []
    assert leftovers() == set()


def test_groups_that_begin_in_the_same_second_have_different_directories(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr("headrace.trainer.start.default_run_dir", lambda *_: tmp_path / "a")
    monkeypatch.setattr("headrace.trainer.start.check", lambda *_: None)  # neither exists yet
    config = dataclasses.replace(tiny(num_learners=2, num_actors=2), run_dir=None)
    groups = [hr.LearnerGroup(config, notify=lambda line: None) for _ in range(2)]
    for group in groups:
        group.close()
    assert [group.run_dir for group in groups] == [tmp_path / "a", tmp_path / "a-2"]


def test_a_learner_whose_environment_hangs_is_named_at_the_timeout(tiny, watch, nobody):
    kwargs = {"rank": 1, "mode": "hang"}
    config = tiny(env=BreaksInOneLearner, env_kwargs=kwargs, transport="serial", num_learners=2)
    with pytest.raises(LearnerFailed, match="learner 0 waited for learner 1: was silent for 8 s"):
        hr.train(config, total_steps=FOR_EVER, learner_timeout_s=8)  # learners start in less
    assert nobody() == []


@pytest.mark.parametrize(
    ("rank", "number"),
    [
        pytest.param(0, signal.SIGKILL, id="0-killed", marks=pytest.mark.full),
        pytest.param(1, signal.SIGKILL, id="1-killed"),
        pytest.param(0, signal.SIGSTOP, id="0-stopped", marks=pytest.mark.slow),
        pytest.param(1, signal.SIGSTOP, id="1-stopped", marks=pytest.mark.full),
    ],
)
def test_a_lost_learner_is_named_and_nobody_is_left(tiny, watch, nobody, leftovers, rank, number):
    lost_at = []

    def lose(group, result) -> None:
        if result.updates == 3:
            os.kill(group.pids()[rank], number)
            lost_at.append(time.monotonic())

    said = []
    timeout_s = 1800.0 if number == signal.SIGKILL else 8.0
    config = tiny(num_learners=2, num_actors=2, total_steps=FOR_EVER, learner_timeout_s=timeout_s)
    with pytest.raises(LearnerFailed) as caught:
        watch(config, lose, said)
    seconds, text = time.monotonic() - lost_at[0], str(caught.value)
    if number == signal.SIGKILL:
        assert text == f"learner {rank} exited with code -9"
    else:
        assert re.search(rf"learner {rank}:? was silent for 8 s", text)
        assert seconds > 7
    steps = steps_of(checkpoint.find(config.run_dir))
    assert steps >= 3 * 64
    assert said[-1].startswith(f"saved at {steps:,} steps: `headrace resume ")
    saved = checkpoint.load_trainer(checkpoint.find(config.run_dir))
    assert len(saved["own"]) == len(saved["episodes"]) == 2
    hr.resume(config.run_dir, total_steps=steps + 128, learner_timeout_s=600)
    assert steps_of(checkpoint.find(config.run_dir)) >= steps + 128
    assert nobody() == []
    assert leftovers() == set()


def test_learners_that_are_all_silent_are_noticed(tiny, watch, nobody):
    def stop(group, result) -> None:
        if result.updates == 3:
            group.config = dataclasses.replace(group.config, learner_timeout_s=2)
            for pid in group.pids():
                os.kill(pid, signal.SIGSTOP)

    config = tiny(num_learners=2, total_steps=FOR_EVER, transport="serial")
    with pytest.raises(
        LearnerFailed, match=r"^learner 0 was silent for 2 s \(learner_timeout_s\)$"
    ):
        watch(config, stop)
    assert nobody() == []


@pytest.mark.slow
def test_who_reads_results_slowly_does_not_take_the_learners_for_silent(tiny, watch):
    seen = []

    def dawdle(group, result) -> None:
        seen.append(result.updates)
        if len(seen) == 2:
            time.sleep(3.0)
        if len(seen) == 5:
            group.stop()

    settings = {"learner_timeout_s": 2, "log_interval_s": 0.2, "transport": "serial"}
    _, _, said = watch(tiny(num_learners=2, total_steps=FOR_EVER, **settings), dawdle)
    assert len(seen) >= 5
    assert said == []


def test_lost_learners_are_made_good_from_the_last_checkpoint(tiny, watch, nobody):
    config = tiny(
        num_learners=2,
        total_steps=FOR_EVER,  # it is stopped: learners may be far ahead of their results
        checkpoint_interval=500,
        max_restarts=2,
    )
    lost: list[int] = []

    def lose(group, result) -> None:
        if len(lost) == group.num_restarts < 2 and result.env_steps > 800 * (len(lost) + 1):
            os.kill(group.pids()[1 - len(lost)], signal.SIGKILL)
            lost.append(result.env_steps)
        if group.num_restarts == 2 and result.env_steps > 2_000:
            group.stop()

    group, results, said = watch(config, lose)
    restarts = [text for text in said if "restarting all learners" in text]
    assert group.num_restarts == len(restarts) == 2
    for number, text in enumerate(restarts, 1):
        assert text.startswith(f"learner {2 - number} exited with code -9")
        assert f"(restart {number}/2)" in text
    steps = [result.env_steps for result in results]
    again = [after for before, after in itertools.pairwise(steps) if after <= before]
    assert len(again) <= 2
    assert steps[-1] >= 2_000
    assert all(after > 500 for after in again)
    lines = read_jsonl(Path(config.run_dir, "iterations", "rank_1.jsonl"))
    updates = [line["update"] for line in lines]
    assert updates == sorted(set(updates))
    assert updates[-1] == results[-1].updates
    events = list(Path(config.run_dir).glob("events.*"))
    assert len(events) == 3  # a run from step 0 would have deleted the first
    assert nobody() == []
