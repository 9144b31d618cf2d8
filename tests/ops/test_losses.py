"""Losses and statistics match plain loops, and gradients flow where they should."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType

import pytest
import torch
from torch import Tensor

from headrace.ops import action_bounds, losses, ratio
from headrace.ops.returns import gae, vtrace
from tests.ops.oracles import random_stream

assert_equal = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
CLIP = 0.2


@dataclass
class Case:
    """Return random inputs ``[T, B]`` float64 with gradients; NaN where not valid."""

    log_prob: Tensor
    log_ratio: Tensor
    advantage: Tensor
    value: Tensor
    old_value: Tensor
    target: Tensor
    valid: Tensor

    def leaves(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "valid"}

    def steps(self) -> list[dict[str, float]]:
        """Return the valid steps as plain numbers."""
        return [
            {name: x[t, b].item() for name, x in self.leaves().items()}
            for t, b in self.valid.nonzero().tolist()
        ]


def case(seed: int = 0, filler_value: float = math.nan) -> Case:
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(9, 7, generator=generator) > 0.25
    parts = {}
    for name in ("log_prob", "log_ratio", "advantage", "value", "old_value", "target"):
        x = torch.randn(9, 7, generator=generator, dtype=torch.float64)
        x = x * 0.4 if name == "log_ratio" else x
        parts[name] = torch.where(valid, x, filler_value).requires_grad_()
    return Case(**parts, valid=valid)


def gradients(loss: Tensor, c: Case) -> dict[str, Tensor]:
    """Return the gradients of all inputs that the loss depends on."""
    assert loss.shape == ()
    names = list(c.leaves())
    grads = torch.autograd.grad(loss, list(c.leaves().values()), allow_unused=True)
    return {name: g for name, g in zip(names, grads, strict=True) if g is not None}


def check_loss(loss: Tensor, c: Case, expected: float, **slopes: list[float]) -> None:
    """Check the value, and the gradient by input: 0 at reset steps."""
    assert_equal(loss.item(), expected)
    grads = gradients(loss, c)
    assert set(grads) == set(slopes)
    for name, slope in slopes.items():
        wanted = torch.zeros_like(grads[name])
        wanted[c.valid] = torch.tensor(slope, dtype=torch.float64)
        assert_equal(grads[name], wanted)


def clipped(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


def check_policy_gradient(module: ModuleType) -> None:
    c = case()
    s = c.steps()
    loss = module.policy_gradient_loss(c.log_prob, c.advantage, c.valid)
    expected = -sum(x["log_prob"] * x["advantage"] for x in s)
    check_loss(loss, c, expected, log_prob=[-x["advantage"] for x in s])


def check_epsilon_policy_gradient(module: ModuleType) -> None:
    c = case()
    s = c.steps()
    loss = module.epsilon_policy_gradient_loss(c.log_prob, c.advantage, c.valid, 0.3)
    pi = [math.exp(x["log_prob"]) for x in s]
    expected = -sum(math.log(p + 0.3) * x["advantage"] for p, x in zip(pi, s, strict=True))
    slope = [-x["advantage"] * p / (p + 0.3) for p, x in zip(pi, s, strict=True)]
    check_loss(loss, c, expected, log_prob=slope)


def check_surrogate_log_ratio(module: ModuleType) -> None:
    c, rho = case(), 2.0
    beta = 1 / rho
    ratios: dict[str, list[float]] = {"R1": [], "R2": [], "R3": []}
    for x in c.steps():
        pi, target, mu = (math.exp(x[name]) for name in ("log_prob", "value", "old_value"))
        ratios["R1"].append(pi / target)
        ratios["R2"].append(pi / mu)
        ratios["R3"].append(pi / max(target, beta * mu))
    below = [a != b for a, b in zip(ratios["R1"], ratios["R3"], strict=True)]
    assert any(below)  # pi_target < beta * mu
    assert not all(below)
    for kind, expected in ratios.items():
        log_ratio = module.surrogate_log_ratio(c.log_prob, c.value, c.old_value, kind, rho)
        loss = torch.where(c.valid, log_ratio, -math.inf).exp().sum()
        check_loss(loss, c, sum(expected), log_prob=expected)


def check_ppo_clip(module: ModuleType) -> None:
    for clip, max_ratio in ((CLIP, math.inf), (CLIP, 1.0), (math.inf, 1.0)):
        c = case()
        expected, count, slope = 0.0, 0, []
        for x in c.steps():
            ratio, a = math.exp(x["log_ratio"]), x["advantage"]
            bounded = clipped(ratio, 1 - clip, 1 + clip)
            is_free, weighted = ratio * a <= bounded * a, min(max_ratio, ratio) * a
            expected -= weighted if is_free else bounded * a
            slope.append(-weighted if is_free else 0.0)
            count += abs(ratio - 1) > clip
        loss, clipped_count = module.ppo_clip_loss(
            c.log_ratio, c.advantage, c.valid, clip, max_ratio
        )
        check_loss(loss, c, expected, log_ratio=slope)
        assert clipped_count.item() == count
        assert not clipped_count.requires_grad


def check_value(module: ModuleType) -> None:
    c = case()
    s = c.steps()
    loss = module.value_loss(c.value, c.target, c.valid)
    expected = sum(0.5 * (x["value"] - x["target"]) ** 2 for x in s)
    check_loss(loss, c, expected, value=[x["value"] - x["target"] for x in s])


def check_clipped_value(module: ModuleType) -> None:
    c = case()
    expected, slope = 0.0, []
    for x in c.steps():
        free = x["value"] - x["target"]
        change = x["value"] - x["old_value"]
        moved = x["old_value"] + clipped(change, -CLIP, CLIP) - x["target"]
        expected += 0.5 * max(free**2, moved**2)
        slope.append(free if abs(change) < CLIP or free**2 > moved**2 else 0.0)
    loss = module.clipped_value_loss(c.value, c.old_value, c.target, c.valid, CLIP)
    check_loss(loss, c, expected, value=slope)


def check_bounds(module: ModuleType) -> None:
    c = case()
    params = torch.stack([c.value, 3.0 * c.target, 2.0 * c.value], -1)
    params = params.detach().requires_grad_()
    index = torch.tensor([2, 1])  # the first output has no bounds
    middle, half = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.25, 2.0]).double()
    loss = module.bounds_loss(params, module.ActionBounds(index, middle, half), c.valid)
    expected, slope = 0.0, torch.zeros_like(params)
    for t, b in c.valid.nonzero().tolist():
        for i, center, size in ((2, 0.5, 0.25), (1, -1.0, 2.0)):
            m = (params[t, b, i].item() - center) / size
            expected += max(0.0, abs(m) - 1.1) ** 2
            slope[t, b, i] = 2 * max(0.0, abs(m) - 1.1) * (1 if m > 0 else -1) / size
    assert_equal(loss.item(), expected)
    assert_equal(torch.autograd.grad(loss, params)[0], slope.detach())


def check_masked_sum(module: ModuleType) -> None:
    c = case()
    s = c.steps()
    loss = module.masked_sum(c.value, c.valid)
    check_loss(loss, c, sum(x["value"] for x in s), value=[1.0] * len(s))


def check_approx_kl(module: ModuleType) -> None:
    c = case()
    ratio = [math.exp(x["log_ratio"]) for x in c.steps()]
    expected = sum(r - 1 - math.log(r) for r in ratio)
    loss = module.approx_kl(c.log_ratio, c.valid)
    check_loss(loss, c, expected, log_ratio=[r - 1 for r in ratio])


def check_moments(module: ModuleType) -> None:
    c = case()
    s = c.steps()
    errors = [x["target"] - x["value"] for x in s]
    sums = module.value_moments(c.value, c.target, c.valid)
    expected = {
        "target_sum": sum(x["target"] for x in s),
        "target_sq": sum(x["target"] ** 2 for x in s),
        "error_sum": sum(errors),
        "error_sq": sum(e**2 for e in errors),
    }
    assert set(sums) == set(expected)
    for name, value in expected.items():
        assert sums[name].shape == ()
        assert not sums[name].requires_grad
        assert_equal(sums[name].item(), value)
    target = torch.tensor([x["target"] for x in s], dtype=torch.float64)
    ratio = torch.tensor(errors, dtype=torch.float64).var() / target.var()
    result = module.explained_variance(**expected, count=len(s))
    assert_equal(result, 1.0 - ratio.item())


CHECKS = {
    check_policy_gradient: losses,
    check_epsilon_policy_gradient: losses,
    check_surrogate_log_ratio: ratio,
    check_ppo_clip: losses,
    check_value: losses,
    check_clipped_value: losses,
    check_bounds: action_bounds,
    check_masked_sum: losses,
    check_approx_kl: losses,
    check_moments: losses,
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__[6:])
def test_value_and_gradient_equal_the_sum_over_valid_steps(
    check: Callable[[ModuleType], None],
) -> None:
    check(CHECKS[check])


@pytest.mark.parametrize(
    "steps",
    [
        lambda x, c: losses._policy_gradient(x, c.advantage),
        lambda x, c: losses._epsilon_policy_gradient(x, c.advantage, 0.3),
        lambda x, c: losses._ppo_clip(x, c.advantage, CLIP, math.inf)[0],
        lambda x, c: losses.approx_kl_steps(x),
        lambda x, c: losses.StepLoss(
            losses.half_square((c.target - x).square()), losses.half_square_slope(c.target - x)
        ),
        lambda x, c: losses.clipped_value_steps(
            c.target - x, x - c.old_value, c.target - c.old_value, CLIP
        ),
    ],
    ids=["policy_gradient", "epsilon", "ppo_clip", "approx_kl", "value", "clipped_value"],
)
def test_every_slope_is_what_autograd_makes_of_the_value(steps) -> None:
    c = case(filler_value=0.1)
    x = (0.5 * c.log_prob).detach().requires_grad_()
    value, slope = steps(x, c)
    assert_equal(slope, torch.autograd.grad(value.sum(), x)[0])


def every_loss(c: Case) -> list[Tensor]:
    return [
        losses.policy_gradient_loss(c.log_prob, c.advantage, c.valid),
        losses.epsilon_policy_gradient_loss(c.log_prob, c.advantage, c.valid, 1e-6),
        losses.ppo_clip_loss(c.log_ratio, c.advantage, c.valid, CLIP)[0],
        losses.ppo_clip_loss(
            ratio.surrogate_log_ratio(c.log_ratio, c.value, c.old_value, "R3", 2.0),
            c.advantage,
            c.valid,
            CLIP,
        )[0],
        losses.value_loss(c.value, c.target, c.valid),
        losses.clipped_value_loss(c.value, c.old_value, c.target, c.valid, CLIP),
        losses.masked_sum(c.value, c.valid),
        losses.approx_kl(c.log_ratio, c.valid),
    ]


@pytest.mark.parametrize("filler_value", [math.nan, math.inf, -math.inf, 1e300])
def test_what_stands_on_fillers_changes_neither_values_nor_gradients(filler_value: float) -> None:
    clean, dirty = case(filler_value=0.0), case(filler_value=filler_value)
    for a, b in zip(every_loss(clean), every_loss(dirty), strict=True):
        assert a.item() == b.item()
        grads_a, grads_b = gradients(a, clean), gradients(b, dirty)
        assert all(torch.equal(grads_a[name], grads_b[name]) for name in grads_a)


def test_losses_of_column_chunks_add_up() -> None:
    c = case(filler_value=0.0)

    def columns(s: slice) -> Case:
        return Case(**{name: x[:, s] for name, x in vars(c).items()})

    left, right = every_loss(columns(slice(0, 3))), every_loss(columns(slice(3, None)))
    for whole, a, b in zip(every_loss(c), left, right, strict=True):
        assert_equal(whole, a + b)


def test_a_batch_of_fillers_costs_nothing() -> None:
    c = case()
    c.valid = torch.zeros_like(c.valid)
    assert [loss.item() for loss in every_loss(c)] == [0.0] * 8


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_policy_losses_move_no_value_and_value_losses_move_no_policy(estimator: str) -> None:
    s = random_stream(2, 8, 5)
    log_prob = torch.where(s.filler, 0.0, s.log_ratio).requires_grad_()
    value = s.value.requires_grad_()
    log_ratio = log_prob - 0.1
    if estimator == "gae":
        advantage, target = gae(s.reward, value, s.terminated, s.first, gamma=0.9, lam=0.9)
    else:
        target, advantage, _ = vtrace(log_ratio, s.reward, value, s.terminated, s.first, gamma=0.9)
    policy_losses = (
        losses.policy_gradient_loss(log_prob, advantage, ~s.filler),
        losses.ppo_clip_loss(log_ratio, advantage, ~s.filler, CLIP)[0],
    )
    for loss in policy_losses:
        on_value, on_policy = torch.autograd.grad(loss, (value, log_prob), allow_unused=True)
        assert on_value is None
        assert on_policy.isfinite().all()
        assert on_policy.abs().sum() > 0
    loss = losses.value_loss(value[:-1], target, ~s.filler)
    on_value, on_policy = torch.autograd.grad(loss, (value, log_prob), allow_unused=True)
    assert on_policy is None
    assert on_value.isfinite().all()
    assert on_value.abs().sum() > 0


def test_approx_kl_s_expectation_under_mu_is_kl_of_mu_and_pi() -> None:
    log_mu = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64).log_softmax(-1)
    log_pi = torch.tensor([-0.3, 0.4, 0.1], dtype=torch.float64).log_softmax(-1)
    valid = torch.ones(1, 1, dtype=torch.bool)
    expected = sum(
        log_mu[a].exp() * losses.approx_kl((log_pi - log_mu)[a].view(1, 1), valid) for a in range(3)
    )
    assert_equal(expected, (log_mu.exp() * (log_mu - log_pi)).sum())


@pytest.mark.parametrize("rho", [1.0, 2.0, math.inf])
def test_impacts_ratio_is_the_worker_s_times_the_clipped_ratio_of_worker_and_target(
    rho: float,
) -> None:
    g = torch.Generator().manual_seed(0)
    pi, target, mu = 3.0 * torch.randn(3, 40, 5, generator=g, dtype=torch.float64)
    found = ratio.surrogate_log_ratio(pi, target, mu, "R3", rho).exp()
    expected = (mu - target).exp().clamp(max=rho) * (pi - mu).exp()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
    unclipped = ratio.surrogate_log_ratio(pi, target, mu, "R1", rho).exp()
    assert torch.equal(found, unclipped) == (rho == math.inf)
    assert (found <= unclipped).all()


def test_the_epsilon_correction_bounds_the_loss_of_an_impossible_action() -> None:
    log_prob = torch.tensor([[-math.inf, -50.0, -1.0]], dtype=torch.float64, requires_grad=True)
    one, valid = torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    loss = losses.epsilon_policy_gradient_loss(log_prob, one, valid, 1e-6)
    expected = -2 * math.log(1e-6) - math.log(math.exp(-1.0) + 1e-6)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    (slope,) = torch.autograd.grad(loss, log_prob)
    assert_equal(slope[0, 0].item(), 0.0)
    assert abs(slope[0, 1].item()) < 1e-14
    assert slope[0, 2].item() == pytest.approx(-1.0, abs=1e-5)


def test_explained_variance_is_one_for_a_perfect_fit_and_ignores_a_constant_offset() -> None:
    target = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)) + 1000.0
    valid = torch.ones(8, 5, dtype=torch.bool)
    for offset in (0.0, 3.0):
        sums = losses.value_moments(target - offset, target, valid)
        result = losses.explained_variance(**{k: x.item() for k, x in sums.items()}, count=40)
        assert result == pytest.approx(1.0, abs=1e-6)


def test_explained_variance_is_undefined_without_variance_or_with_one_step() -> None:
    target = torch.full((8, 5), 0.1)
    sums = losses.value_moments(target - 1, target, torch.ones(8, 5, dtype=torch.bool))
    assert losses.explained_variance(**{k: x.item() for k, x in sums.items()}, count=40) is None
    assert losses.explained_variance(2.0, 4.0, 0.0, 0.0, count=1) is None
    assert losses.explained_variance(0.0, 0.0, 0.0, 0.0, count=0) is None


def test_a_wrong_shape_or_dtype_is_an_error() -> None:
    x, valid = torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="x must be"):
        losses.masked_sum(x[..., None], valid)
    with pytest.raises(ValueError, match="target must be"):
        losses.value_loss(x, x[:1], valid)
    with pytest.raises(ValueError, match="valid must be"):
        losses.masked_sum(x[0], valid[0])
    with pytest.raises(TypeError, match="valid must be bool"):
        losses.masked_sum(x, x)
    with pytest.raises(TypeError, match="log_ratio must be floating"):
        losses.approx_kl(x.long(), valid)
