"""Mistakes in a custom algorithm raise an error that names the algorithm and the method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import headrace as hr
from headrace.learner.learner import Learner
from tests.algos.test_custom import TINY, LossOnly
from tests.learner.test_learner import make_policy


@dataclass(frozen=True)
class Returning(LossOnly):
    """Returns something else than a loss and its metrics."""

    kind: str = "alone"

    def loss(self, policy, batch, state):
        loss, metrics = super().loss(policy, batch, state)
        other = {
            "alone": loss,
            "constant": (loss.detach(), metrics),
            "rows": (loss.expand(3), metrics),
        }
        return other[self.kind]


@pytest.mark.parametrize("core", [None, "lstm"])
@pytest.mark.parametrize("kind", ["alone", "constant", "rows"])
def test_a_loss_that_returns_something_else_is_named(tmp_path, kind, core):
    network = hr.Network(core=core, core_size=4)
    with pytest.raises(hr.ConfigError, match=r"Returning\.loss must return a scalar tensor"):
        hr.train("CartPole-v1", Returning(kind=kind), network=network, run_dir=tmp_path / "run",
                 **TINY)  # fmt: skip


@dataclass(frozen=True)
class Idle(LossOnly):
    """Neither takes rollouts nor trains."""

    def batches(self, policy, fresh, state, group):
        return []


def test_batches_without_rollouts_stop_the_run(tmp_path):
    with pytest.raises(hr.ConfigError, match=r"Idle\.batches must call fresh\(\)"):
        hr.train("CartPole-v1", Idle(), run_dir=tmp_path / "run", **TINY)


@dataclass(frozen=True)
class Unsaved(LossOnly):
    """Has a state that checkpoints can't hold."""

    kind: str = "number"

    def init(self, policy):
        values = {"number": np.float64(1), "array": {"x": np.zeros(2)}, "function": lambda: 1}
        return {"fine": {"a": [1, 2.0]}, "mine": values[self.kind]}


class Buffer:
    """Counts the times that it is saved."""

    saved = 0

    def state_dict(self):
        self.saved += 1
        return {}


@dataclass(frozen=True)
class Buffering(LossOnly):
    def init(self, policy):
        return {"buffer": Buffer()}


def test_large_objects_are_not_saved_at_the_start():
    assert Learner(make_policy(), Buffering()).state["buffer"].saved == 0


@pytest.mark.parametrize("kind", ["number", "array", "function"])
def test_a_state_that_could_not_be_resumed_is_an_error_at_the_start(kind):
    with pytest.raises(hr.ConfigError, match=r"Unsaved\.init returns 'mine', a .* can't save"):
        Learner(make_policy(), Unsaved(kind=kind))
