"""Checkpoints are complete at any time, and a killed run continues where it was."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np
import pytest
import safetensors.torch
import torch

import headrace as hr
from headrace.api import resume_config
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.rundir.files import read_jsonl
from headrace.trainer import batch_collector

# Run with the algorithm and the transport; dies in the middle, some updates after a checkpoint.
KILLED = """
import os, signal, sys
import headrace as hr

def die(result):
    if result.updates == 15:
        os.kill(os.getpid(), signal.SIGKILL)

hr.train(
    "CartPole-v1", eval(sys.argv[1]), callbacks=[die], transport=sys.argv[2],
    num_actors=2, envs_per_actor=4, fragment_length=8, learner_threads=1, seed=3,
    total_steps=1400, checkpoint_interval=250, log_interval_s=0.0, eval_episodes=0,
    deterministic=True, run_dir="run",
)
"""


def same(one: hr.Policy, other: hr.Policy) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def description(trainer: hr.Trainer) -> dict:
    """Return the contents of its config.json."""
    return checkpoint.read_config(checkpoint.find(trainer.run_dir))


@pytest.fixture
def deterministic(tiny):
    def make(algo, transport, **settings) -> hr.Config:
        return tiny(
            algo=algo, transport=transport, num_actors=2, envs_per_actor=4, seed=3,
            total_steps=1400, checkpoint_interval=250, deterministic=True, **settings,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("algo", "transport"),
    [
        pytest.param("hr.PPO(epochs=2, minibatches=2)", "shm", id="ppo"),
        pytest.param("hr.A2C(lr_schedule='linear')", "shm", id="a2c", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_resumes_to_the_weights_of_an_uninterrupted_one(
    start, deterministic, finish, tmp_path, algo, transport
):
    script = start("-c", KILLED, algo, transport, shared=True)
    assert script.wait() == -signal.SIGKILL, script.output
    saved = hr.load(tmp_path / "run")
    died_at = read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]["env_steps"]
    assert int(checkpoint.find(tmp_path / "run").name[5:]) < died_at
    resumed, _ = finish(resume_config(tmp_path / "run"))
    whole, results = finish(deterministic(eval(algo), transport, run_dir=str(tmp_path / "whole")))
    assert whole.env_steps >= 1400
    assert whole.updates > 15
    assert same(resumed.policy, whole.policy)
    assert not same(saved, whole.policy)
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [line["env_steps"] for line in lines] == [r.env_steps for r in results]
    for line, result in zip(lines, results, strict=True):
        assert line.get("charts/episodic_return") == result.episode_return
        assert line.get("losses/policy_loss") == result.policy_loss


def test_resume_of_an_asynchronous_run_continues_every_counter(tiny, finish):
    first, before = finish(tiny(algo=hr.APPO(epochs=1, minibatches=1), num_actors=2))
    config = resume_config(first.run_dir, total_steps=1280, log_interval_s=0.0)
    second, after = finish(config)
    assert after[0].updates == before[-1].updates + 1
    assert before[-1].env_steps < after[0].env_steps <= before[-1].env_steps + 128
    assert after[0].episodes >= before[-1].episodes > 0
    assert second.learner.num_steps == second.updates == after[-1].updates
    assert after[-1].env_steps >= 1280
    assert checkpoint.find(second.run_dir).name == f"step_{second.env_steps}"


def environments(config, monkeypatch) -> tuple[hr.Trainer, set[float]]:
    """Trains to the end; also returns the labels of environments in the first batch."""
    seen: list[set[float]] = []
    gather = batch_collector.gather

    def noted(*args, **kwargs):
        batch = gather(*args, **kwargs)
        seen.append(set(batch.obs[..., 0].flatten().tolist()))
        return batch

    monkeypatch.setattr(batch_collector, "gather", noted)
    with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer:
        list(trainer)
    monkeypatch.undo()
    return trainer, seen[0]


def test_a_finished_deterministic_run_meets_new_environments_when_it_is_continued(
    tiny, monkeypatch
):
    config = tiny(deterministic=True, transport="serial", env="worlds:CountingEnv")
    first, before = environments(config, monkeypatch)
    resumed = resume_config(first.run_dir, total_steps=1280)
    _, after = environments(resumed, monkeypatch)
    assert len(before) == len(after) == 8
    assert before.isdisjoint(after)


# -- the files ----------------------------------------------------------------------------------


def test_rotation_keeps_the_latest_and_the_best_and_the_links_resolve(tiny, finish):
    trainer, _ = finish(tiny(checkpoint_interval=64, keep_checkpoints=2, transport="serial"))
    folder = trainer.run_dir / "checkpoints"
    steps = sorted(int(p.name[5:]) for p in folder.glob("step_*"))
    latest, best = (checkpoint.find(trainer.run_dir, name) for name in ("latest", "best"))
    assert latest.name == f"step_{trainer.env_steps}" == f"step_{steps[-1]}"
    assert best.is_dir()
    others = [s for s in steps if f"step_{s}" != best.name]
    assert 2 <= len(steps) <= 3
    assert len(others) <= 2
    files = {"policy.safetensors", "trainer.pt", "config.json", "SHA256SUMS"}
    assert {p.name for p in latest.iterdir()} == files
    assert same(hr.load(trainer.run_dir), trainer.policy)
    best_state = checkpoint.load_trainer(best)
    assert best_state["best_return"] == pytest.approx(np.mean(best_state["episodes"][0]["returns"]))
    assert trainer.progress.best_return == best_state["best_return"]


def test_the_best_checkpoint_outlives_the_rotation(tmp_path, tiny, finish):
    trainer, _ = finish(tiny(total_steps=64, transport="serial"))
    for env_steps in (1000, 2000, 3000, 4000):
        path = checkpoint_writer.save(
            trainer.run_dir, description(trainer), trainer.policy, {"env_steps": env_steps}
        )
        if env_steps == 1000:
            checkpoint_writer.point("best", path)
        checkpoint_writer.rotate(trainer.run_dir, 2)
    left = {p.name for p in (trainer.run_dir / "checkpoints").glob("step_*")}
    assert left == {"step_1000", "step_3000", "step_4000"}
    assert checkpoint.find(trainer.run_dir, "best").name == "step_1000"


@pytest.mark.parametrize("stage", ["safetensors.torch.save", "torch.save", "os.replace"])
def test_a_checkpoint_cut_short_changes_nothing_and_the_next_one_succeeds(
    tiny, finish, monkeypatch, stage
):
    trainer, _ = finish(tiny(transport="serial"))
    before = checkpoint.find(trainer.run_dir)
    weights = hr.load(trainer.run_dir)

    def crash(*args, **kwargs):
        raise KeyboardInterrupt

    state = {"env_steps": 10_000}
    arguments = (trainer.run_dir, description(trainer), trainer.policy, state)
    owner, _, name = stage.rpartition(".")
    target = {"safetensors.torch": safetensors.torch, "torch": torch, "os": os}[owner]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoint_writer.save(*arguments)
    assert (trainer.run_dir / "checkpoints" / "step_10000.tmp").is_dir()
    assert checkpoint.find(trainer.run_dir) == before
    assert same(hr.load(trainer.run_dir), weights)
    checkpoint_writer.rotate(trainer.run_dir, 3)  # the leftover isn't a checkpoint
    assert checkpoint_writer.save(*arguments).name == "step_10000"
    assert not (trainer.run_dir / "checkpoints" / "step_10000.tmp").exists()
    assert checkpoint.find(trainer.run_dir).name == "step_10000"


def test_a_line_of_metrics_cut_by_a_crash_is_dropped_on_resume(tiny, finish):
    trainer, results = finish(tiny(transport="serial"))
    file = trainer.run_dir / "metrics.jsonl"
    file.write_text(file.read_text() + '{"env_steps": 7')
    finish(resume_config(trainer.run_dir, total_steps=1280))
    steps = [line["env_steps"] for line in read_jsonl(file)]
    assert steps[: len(results)] == [r.env_steps for r in results]
    assert steps == sorted(set(steps))
    assert len(file.read_text().splitlines()) == len(steps)


class Unusual(hr.A2C):
    """Has a state of values that no built-in algorithm has."""

    def init(self, policy):
        return super().init(policy) | {"best": -np.inf, "mean": None, "count": 0}

    def after_step(self, policy, state, metrics):
        state["mean"], state["count"] = torch.ones(2), torch.tensor(1.0)
        return False


def test_a_custom_algorithm_may_save_any_plain_values(tiny, finish):
    config = tiny(algo=Unusual(), transport="serial", total_steps=128)
    finish(config)
    state = checkpoint.load_trainer(checkpoint.find(config.run_dir))["learner"]["state"]
    assert (state["best"], state["mean"].tolist()) == (-np.inf, [1.0, 1.0])
    trainer, _ = finish(tiny(algo=Unusual(), transport="serial", total_steps=256, resume=True))
    assert trainer.env_steps >= 256
    assert trainer.learner.state["best"] == -np.inf


def test_checkpoints_are_due_by_time_as_well_as_by_steps(tiny, monkeypatch):
    saved_at = []
    monkeypatch.setattr(
        "headrace.trainer.checkpointing.checkpoint_writer.rotate",
        lambda run_dir, keep: saved_at.append(checkpoint.find(run_dir).name),
    )
    settings = {"transport": "serial", "total_steps": 320}
    with hr.Trainer(tiny(checkpoint_interval_s=1e-6, **settings)) as trainer:
        for _ in trainer:
            pass
    assert saved_at == trainer_names(trainer)
    saved_at.clear()
    for deterministic, interval_s in ((True, 1e-6), (False, float("inf"))):
        config = tiny(
            checkpoint_interval_s=interval_s,
            deterministic=deterministic,
            overwrite=True,
            **settings,
        )
        with hr.Trainer(config) as trainer:
            for _ in trainer:
                pass
        assert saved_at == trainer_names(trainer)[-1:]  # the last one alone
        saved_at.clear()


def trainer_names(trainer: hr.Trainer) -> list[str]:
    """Return the names of checkpoints after each update."""
    rows = read_jsonl(trainer.run_dir / "metrics.jsonl")
    return [f"step_{steps}" for steps in sorted({row["env_steps"] for row in rows})]
