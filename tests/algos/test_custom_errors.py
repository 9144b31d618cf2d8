"""Mistakes in a custom algorithm raise an error that names the algorithm and the method."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import headrace as hr
from tests.algos.test_custom import TINY, LossOnly


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
