"""PopArt preserves outputs, and scales targets by their standard deviation."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
import torch

from headrace.nn import popart
from headrace.ops import moments
from tests.ops.test_mutants import mutate


def check_outputs_are_preserved(module: ModuleType) -> None:
    """Compute van Hasselt et al. 2016, equations 8 and 9, in float64 loops with drifting scale."""
    torch.manual_seed(0)
    head, part = torch.nn.Linear(5, 1).double(), module.PopArt().double()
    x = torch.randn(40, 5, dtype=torch.float64)
    assert not part(head(x)).any()
    assert not part.normalized(torch.tensor([3.0, -1e9])).any()
    weight, bias, before = head.weight.clone(), head.bias.clone(), 2.0 * head(x) + 3.0
    part.move(head, 3.0, 2.0)
    torch.testing.assert_close(part(head(x)), before)
    for mean, scale in ((-70.0, 0.01), (1e4, 1e3), (0.0, 1.0)):
        old_mean, old_scale = float(part.mean), float(part.scale)
        part.move(head, mean, scale)
        weight, bias = weight * old_scale / scale, (old_scale * bias + old_mean - mean) / scale
        torch.testing.assert_close(head.weight, weight)
        torch.testing.assert_close(head.bias, bias, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(part(head(x)), before, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(part.normalized(before), head(x), rtol=1e-6, atol=1e-6)
    part.move(head, 5.0, 0.0)  # no target varied, nor was any other than 0
    torch.testing.assert_close(part(head(x)), before, rtol=1e-6, atol=1e-6)


def test_outputs_are_preserved():
    check_outputs_are_preserved(popart)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if scale <= 0.0:", "if scale < 0.0:"),
        ("head.weight.mul_(old_scale / scale)", "head.weight.mul_(1.0)"),
        (".add_((old_mean - mean) / scale)", ""),
        ("(old_mean - mean) / scale", "(old_mean - mean) / old_scale"),
        ("if old_scale > 0.0:", "if True:"),
        ("self.inverse.fill_(1.0 / scale)", "self.inverse.fill_(1.0)"),
        ("(value - self.mean) * self.inverse", "value * self.inverse"),
    ],
)
def test_a_broken_one_is_caught(old, new):
    assert old in inspect.getsource(popart.PopArt)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        check_outputs_are_preserved(mutate(popart, "PopArt", old, new))


def test_no_gradient_is_nan_before_the_first_statistics():
    part, value = popart.PopArt(), torch.tensor([2.0], requires_grad=True)
    (part.normalized(part(value)) - part.normalized(torch.tensor([5.0]))).square().backward()
    assert value.grad.tolist() == [0.0]


def test_running_moments_are_those_of_weighted_batches():
    running = moments.MovingMoments(0.1)
    assert running.mean == running.deviation == 0.0
    batches = [torch.randn(50, dtype=torch.float64) * (i + 1) + i for i in range(30)]
    for n, batch in enumerate(batches):
        running.note(float(batch.mean()), float(batch.square().mean()))
        weights = torch.tensor([0.9 ** (n - i) for i in range(n + 1)], dtype=torch.float64)
        weights /= weights.sum()
        mean = sum(w * b.mean() for w, b in zip(weights, batches, strict=False))
        square = sum(w * b.square().mean() for w, b in zip(weights, batches, strict=False))
        assert running.mean == pytest.approx(float(mean))
        assert running.deviation == pytest.approx(float(square - mean**2) ** 0.5)
    copy = moments.MovingMoments(0.1)
    copy.load_state_dict(running.state_dict())
    assert (copy.mean, copy.deviation) == (running.mean, running.deviation)


def test_targets_that_never_vary_keep_a_thousandth_of_their_size():
    running = moments.MovingMoments(0.1)
    running.note(-100.0, 10_000.0)
    assert running.deviation == pytest.approx(0.1)
    running = moments.MovingMoments(0.1)
    running.note(0.0, 0.0)
    assert running.deviation == 0.0
