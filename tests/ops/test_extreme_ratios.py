"""Ratios of exp(-700) to exp(700): targets equal the literal sums, and nothing becomes NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tries import examples

from headrace.ops import losses
from headrace.ops.loss_derivatives import derivatives
from headrace.ops.losses import LossTerms
from headrace.ops.returns import reverse_linear_recurrence, vtrace
from tests.ops.oracles import Stream, random_stream, vtrace_oracle

LOG_RATIOS = (-700.0, -100.0, -20.0, 0.0, 20.0, 89.0, 350.0, 700.0)
bars = st.sampled_from((0.5, 1.0, 3.0, math.inf))


def extreme_stream(seed: int, num_steps: int) -> Stream:
    """Return sums without cancellation, so that digits can be compared at any size."""
    stream = random_stream(seed, num_steps, 3, end_rate=0.25)
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(LOG_RATIOS), stream.reward.shape, generator=generator)
    stream.log_ratio = torch.where(
        stream.filler, math.nan, torch.tensor(LOG_RATIOS).double()[which]
    )
    stream.reward = 1.0 + stream.reward.abs()
    stream.value = 0.1 * stream.value.sigmoid()
    return stream


def run(stream: Stream, dtype: torch.dtype, clips: dict[str, float]) -> tuple[Tensor, ...]:
    parts = (stream.log_ratio, stream.reward, stream.value)
    return vtrace(
        *(x.to(dtype) for x in parts), stream.terminated, stream.first, gamma=0.9, **clips
    )


def check_against_oracle(stream: Stream, clips: dict[str, float]) -> None:
    expected = vtrace_oracle(stream, 0.9, **clips)
    # What a target beyond the range leads to, in the rows before it, is beyond it, too.
    in_range = expected[0].isfinite().int().flip(0).cummin(0).values.flip(0).bool()
    for result, oracle in zip(run(stream, torch.float64, clips), expected, strict=True):
        known = in_range & oracle.isfinite()
        torch.testing.assert_close(result[known], oracle[known], rtol=1e-9, atol=1e-9)
    bounded = all(clips[name] < math.inf for name in ("rho_bar", "c_bar", "pg_rho_bar"))
    for dtype in (torch.float32, torch.float64):
        vs, pg_advantage, advantage = run(stream, dtype, clips)
        assert not vs.isnan().any()
        assert not advantage.isnan().any()
        assert not (pg_advantage.isnan() & advantage.isfinite()).any()
        if bounded:
            for result, oracle in zip((vs, pg_advantage, advantage), expected, strict=True):
                torch.testing.assert_close(result.double(), oracle, rtol=1e-4, atol=1e-4)


@examples(30, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    num_steps=st.integers(1, 12),
    lam=st.sampled_from((0.0, 0.5, 1.0)),
    rho_bar=bars,
    c_bar=bars,
    pg_rho_bar=bars,
)
def test_vtrace_equals_the_oracle_at_extreme_ratios(seed, num_steps, **clips) -> None:
    check_against_oracle(extreme_stream(seed, num_steps), clips)


@pytest.mark.full
@examples(3000)
@given(
    seed=st.integers(0, 2**31),
    num_steps=st.integers(1, 20),
    lam=st.floats(0.0, 1.0),
    rho_bar=bars,
    c_bar=bars,
    pg_rho_bar=bars,
)
def test_vtrace_equals_the_oracle_at_thousands_of_extreme_ratios(seed, num_steps, **clips) -> None:
    check_against_oracle(extreme_stream(seed, num_steps), clips)


def test_a_trace_behind_an_end_is_0_however_large_the_products_before_it_are() -> None:
    inputs = torch.ones(5, 1)
    decays = torch.tensor([[1e30], [1e30], [0.0], [1e30], [1.0]])
    x = reverse_linear_recurrence(inputs, decays)[:, 0].tolist()
    assert x[1:] == pytest.approx([1e30, 1.0, 1e30, 1.0])
    assert x[0] == math.inf  # 1e60 in float32


def test_a_small_product_after_large_ones_is_not_lost() -> None:
    inputs = torch.tensor([[0.0]] * 5 + [[1e-300]], dtype=torch.float64)
    ends = [[1e-200], [1e-200], [1.0], [1e200], [1e200], [1.0]]
    decays = torch.tensor(ends, dtype=torch.float64)
    assert reverse_linear_recurrence(inputs, decays)[0].item() == pytest.approx(1e-300)


def policy_loss(log_ratio: Tensor, advantage: Tensor) -> tuple[float, Tensor]:
    log_ratio = log_ratio.clone().requires_grad_()
    valid = torch.ones_like(advantage, dtype=torch.bool)
    loss, _ = losses.ppo_clip_loss(log_ratio, advantage, valid, 0.2)
    return loss.item(), torch.autograd.grad(loss, log_ratio)[0]


@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
@pytest.mark.parametrize("advantage", [0.0, 2.0])
def test_the_clipped_loss_is_finite_where_the_formula_is(log_ratio, advantage) -> None:
    shape = (1, 1)
    ratios, advantages = torch.full(shape, log_ratio), torch.full(shape, advantage)
    loss, slope = policy_loss(ratios, advantages)
    ratio = math.exp(log_ratio)
    assert loss == pytest.approx(-min(ratio, max(0.8, min(1.2, ratio))) * advantage)
    assert slope.item() == pytest.approx(-ratio * advantage if ratio <= 1.2 else 0.0)
    zeros, valid = torch.zeros(shape), torch.ones(shape, dtype=torch.bool)
    terms = LossTerms(advantages, zeros, clip=0.2)
    by_hand = derivatives(terms, ratios, zeros, zeros, zeros, valid, 0.5)
    assert by_hand.sums["policy_loss"] == pytest.approx(loss)
    assert by_hand.log_prob.item() == pytest.approx(slope.item())


def test_a_ratio_beyond_float32_with_a_negative_advantage_is_a_huge_loss_and_no_nan() -> None:
    loss, slope = policy_loss(torch.full((1, 1), 700.0), torch.full((1, 1), -0.5))
    assert loss == pytest.approx(0.5 * torch.finfo(torch.float32).max, rel=1e-3)
    assert slope.isfinite().all()
