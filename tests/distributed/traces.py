"""Traces of learners, to compare several with one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor


@dataclasses.dataclass
class Trace:
    """State and metrics of a learner after each update."""

    values: list[Tensor] = dataclasses.field(default_factory=list)
    metrics: list[dict[str, float]] = dataclasses.field(default_factory=list)
    coefs: list[float] = dataclasses.field(default_factory=list)
    num_steps: int = 0


def check_same(ours: list[Trace], one: Trace, tolerance: float, of_metrics: float) -> None:
    """Check that learners have equal bits after every update: those of one learner, rounded."""
    for trace in ours:
        assert trace.num_steps == one.num_steps
        assert trace.metrics == ours[0].metrics
        assert trace.coefs == ours[0].coefs == one.coefs
        for a, b, c in zip(trace.values, ours[0].values, one.values, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=tolerance, atol=tolerance)
    for theirs, wanted in zip(ours[0].metrics, one.metrics, strict=True):
        assert theirs == pytest.approx(wanted, rel=of_metrics, abs=of_metrics)
