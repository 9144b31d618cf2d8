"""Losses or gradients that aren't finite stop a run before the step, with one sentence."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.errors import NonFinite
from headrace.learner.optimizer import Optimizer
from headrace.rundir import checkpoint
from tests.distributed.threads import run_learners


class GoldenEnv(gymnasium.Env):
    """Observes noise; from some step on, rewards are as large as float32 allows."""

    def __init__(self, golden_at: int = 50, continuous: bool = False) -> None:
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32) if continuous else Discrete(2)
        self._life, self._golden_at = 0, golden_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        assert np.isfinite(action).all(), "this simulator crashes"
        self._life += 1
        reward = 3e38 if self._life >= self._golden_at else float(self.np_random.random())
        return self._observe(), reward, self._life % 10 == 0, False, {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


@pytest.fixture
def steps(monkeypatch):
    """Return weights after optimiser steps, each one or all of an update in one call."""
    taken: list[torch.Tensor] = []
    step, counted = Optimizer.step, Optimizer.counted

    def noted(self: Optimizer, gradient: torch.Tensor, learning_rate: float) -> None:
        assert gradient.isfinite().all()
        step(self, gradient, learning_rate)
        taken.append(self.memory["flat"].clone())

    def noted_at_once(self: Optimizer, num_steps: int) -> None:
        counted(self, num_steps)
        taken.append(self.memory["flat"].clone())

    monkeypatch.setattr(Optimizer, "step", noted)
    monkeypatch.setattr(Optimizer, "counted", noted_at_once)
    return taken


def failing(config: hr.Config) -> tuple[hr.Trainer, str]:
    """Train until the error, and return its message."""
    with hr.Trainer(config, notify=lambda text: None) as trainer:
        with pytest.raises(NonFinite) as caught:
            list(trainer)
        return trainer, str(caught.value)


ALGORITHMS = {
    "a2c": hr.A2C(),
    "ppo": hr.PPO(epochs=2, minibatches=2),
    "appo": hr.APPO(epochs=2, minibatches=2),
    "impala": hr.IMPALA(minibatches=2),
    "impact": hr.IMPACT(buffer_size=2, passes=2),
    "a3c": hr.A3C(),
    "rmsprop": hr.A2C(optimizer="rmsprop"),
    "without fused": hr.PPO(epochs=2, minibatches=2, fused=False),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_step_of_a_loss_that_overflows_is_not_taken(tiny, steps, name):
    algo = ALGORITHMS[name]
    settings = {"env": GoldenEnv, "transport": "serial", "scale_free": False}
    settings |= {"envs_per_actor": 2, "checkpoint_interval": 16, "total_steps": 10_000}
    trainer, said = failing(tiny(algo=algo, **settings))
    assert "\n" not in said
    assert "gradient of value_" in said
    assert "largest |reward| of the batch: 3e+38" in said
    assert "Gradient norm of the step before: " in said
    assert "before: none" not in said
    assert "learning_rate=0.00" in said
    assert ". Try smaller rewards (reward_scale" in said
    where = "after update {}, its" if name == "a3c" else "update {},"
    assert where.format(trainer.updates + (name != "a3c")) + " optimiser step " in said
    assert len(steps) >= 1
    now = trainer.learner.optimizer.memory["flat"]
    assert torch.equal(now, steps[-1])
    saved = checkpoint.load_policy(checkpoint.find(trainer.run_dir))
    assert all(p.isfinite().all() for p in saved.parameters())
    lines = (trainer.run_dir / "metrics.jsonl").read_text()
    assert not {"NaN", "Infinity", "-Infinity"} & set(lines.replace(",", " ").split())


@pytest.mark.parametrize("name", ["ppo", "a3c", "impact"])
def test_weights_that_a_rate_made_huge_are_told_whoever_chokes_on_them_first(tiny, steps, name):
    algo = replace(ALGORITHMS[name], learning_rate=1e9)
    env = {"env": GoldenEnv, "env_kwargs": {"golden_at": 10**9, "continuous": True}}
    settings = {"transport": "serial", "envs_per_actor": 2, "total_steps": 10_000}
    trainer, said = failing(tiny(algo=algo, scale_free=False, **env, **settings))
    assert "smaller learning_rate" in said
    assert torch.equal(trainer.learner.optimizer.memory["flat"], steps[-1])


def test_a_rate_that_makes_weights_infinite_is_told_at_that_update(tiny):
    config = tiny(algo=hr.A2C(optimizer="rmsprop", learning_rate=1e9), transport="serial")
    trainer, said = failing(config)
    assert f"update {trainer.updates + 1}" in said
    assert "a weight became infinite" in said or "was not taken" in said


def test_actors_are_not_restarted_for_gradients_that_would_be_the_same_again(tiny):
    env = {"env": GoldenEnv, "envs_per_actor": 2, "scale_free": False, "max_restarts": 3}
    trainer, said = failing(tiny(algo=hr.A3C(), total_steps=10**6, **env))
    assert said.startswith("actor 0, after update ")
    assert trainer.source.num_restarts == 0
    assert all(p.isfinite().all() for p in trainer.policy.parameters())


def test_all_of_several_learners_end_at_the_same_step(tiny, tmp_path):
    """Update of several learners, of which only one has a value that isn't finite."""

    def golden_on_one() -> gymnasium.Env:
        is_one = threading.current_thread().name == "learner-1"
        return GoldenEnv(golden_at=30 if is_one else 10**9)

    config = tiny(
        env=golden_on_one, num_learners=2, num_actors=2, envs_per_actor=1, transport="serial",
        algo=hr.PPO(epochs=1, minibatches=1), total_steps=10_000, scale_free=False, engine="sync",
    )  # fmt: skip

    def work(group) -> tuple[int, str]:
        with group.in_turn():
            trainer = hr.Trainer(config, notify=lambda text: None, group=group)
        with trainer:
            with pytest.raises(NonFinite) as caught:
                list(trainer)
            return trainer.learner.num_steps, str(caught.value)

    (steps, said), (others, they_said) = run_learners(2, work)
    assert steps == others >= 1
    assert said.split("Gradient")[0] == they_said.split("Gradient")[0]


def test_a_gradient_whose_square_overflows_is_clipped_and_not_lost(tiny):
    with hr.Trainer(tiny(transport="serial"), notify=lambda text: None) as trainer:
        learner = trainer.learner
        gradient = torch.full_like(learner.optimizer.memory["flat"], 1e25)
        norm = learner.optimizer.divide(gradient, 1)
        assert norm == pytest.approx(1e25 * math.sqrt(len(gradient)), rel=1e-5)
        before = learner.optimizer.memory["flat"].clone()
        learner.optimizer.clipped_step(gradient, norm, learner.algorithm.max_grad_norm, 1e-3)
        assert not torch.equal(before, learner.optimizer.memory["flat"])


def test_the_command_line_says_it_and_fails(start, tmp_path):
    (tmp_path / "golden.py").write_text(
        "import gymnasium\n"
        "class Golden(gymnasium.Wrapper):\n"
        "    def __init__(self): super().__init__(gymnasium.make('CartPole-v1')); self.n = 0\n"
        "    def step(self, action):\n"
        "        self.n += 1\n"
        "        obs, _, *rest = self.env.step(action)\n"
        "        return obs, 3e38 if self.n > 40 else 1.0, *rest\n"
    )
    script = start(
        *("-m", "headrace", "train", "ppo", "--env-id", "golden:Golden", "--transport", "serial"),
        *("--run-dir", "run", "--no-scale-free", "--fragment-length", "8", "--envs-per-actor", "2"),
        *("--num-actors", "1", "--batch-size", "16", "--minibatches", "1", "--epochs", "1"),
        *("--checkpoint-interval", "16", "--eval-episodes", "0"),
    )
    assert script.wait() == 2
    assert "largest |reward| of the batch: 3e+38" in script.output
    assert "Traceback" not in script.output
    policy = hr.load(tmp_path / "run")
    assert all(p.isfinite().all() for p in policy.parameters())
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
