"""Moments of value targets over an update's steps, also of targets from which a center is taken."""

import gymnasium
import pytest
import torch

import headrace as hr
from headrace.learner.value_targets import ValueTargets


@pytest.mark.parametrize("center", [0.0, 5.0])
def test_moments_are_those_of_all_targets_whatever_the_center(center):
    spaces = gymnasium.spaces.Box(-9, 9, (3,)), gymnasium.spaces.Discrete(4)
    policy = hr.Policy(*spaces, hr.Network((8,), normalize_values=True))
    targets, all_steps = ValueTargets(policy), torch.tensor([[4.0, 6.0, 5.0], [7.0, 9.0, 11.0]])
    for step in all_steps:
        shifted = step - center
        sums = {"target_sum": float(shifted.sum()), "target_sq": float(shifted.square().sum())}
        targets.note(sums, len(step), center)
    targets.move()
    assert targets.moments.mean == pytest.approx(float(all_steps.mean()))
    deviation = float(all_steps.std(correction=0))
    assert targets.moments.deviation == pytest.approx(deviation, rel=1e-4)
    assert float(policy.popart.mean) == pytest.approx(float(all_steps.mean()))
