"""Derivatives and metrics of the loss that an algorithm's terms select, without autograd.

In small batches, autograd's bookkeeping takes longer than the arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.ops.losses import (
    LossTerms,
    approx_kl_steps,
    clipped_value_steps,
    half_square,
    half_square_slope,
    policy_steps,
)


class LossDerivatives(NamedTuple):
    """The derivatives of a summed loss; 0 on fillers."""

    log_prob: Tensor  # [T * B]
    value: Tensor  # [T * B]  with respect to the value head's output
    sums: dict[str, float]  # metrics, the same as with autograd


def derivatives(
    terms: LossTerms,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    behaviour_log_prob: Tensor,
    valid: Tensor,
    value_coef: float,
    value_scale: float = 1.0,
) -> LossDerivatives:
    """Compute derivatives and metrics of the loss that the terms select.

    Call it with gradients disabled. The derivative with respect to the entropy is a constant, and
    not included.

    Args:
        log_prob, entropy, value: ``[T, B]``, outputs of the policy.
        valid: ``[T, B]`` bool; fillers may hold anything.
        value_scale: V in the rewards' units is ``value_scale`` times the head's output, plus a
            constant; 0: the head isn't trained.
    """
    log_ratio = log_prob - behaviour_log_prob
    kl = approx_kl_steps(log_ratio)
    policy, metrics = policy_steps(terms, log_prob, log_ratio)
    per_unit = 1.0 / value_scale if value_scale > 0 else 0.0
    rows = {"target": terms.target, "error": terms.target - value, "entropy": entropy}
    rows |= {"approx_kl": kl.value, "policy_loss": policy.value, "d_log_prob": policy.slope}
    rows |= metrics
    if terms.clips_values:
        assert terms.value_clip is not None
        assert terms.old_value is not None
        error, move = rows["error"] * per_unit, (value - terms.old_value) * per_unit
        full_move = (terms.target - terms.old_value) * per_unit
        of = clipped_value_steps(error, move, full_move, terms.value_clip)
        rows |= {"value_loss": of.value, "d_value": of.slope}
    masked = torch.where(valid, torch.stack(list(rows.values())), 0.0).flatten(1)
    totals = masked.double()
    sums = dict(zip(rows, totals.sum(1).tolist(), strict=True))
    sums["target_sq"], sums["error_sq"] = totals[:2].square().sum(1).tolist()
    sums["target_sum"], sums["error_sum"] = sums.pop("target"), sums.pop("error")
    del sums["d_log_prob"]
    each = dict(zip(rows, masked.unbind(), strict=True))
    if not terms.clips_values:
        sums["value_loss"] = half_square(sums["error_sq"]) * per_unit**2
        d_value = half_square_slope(each["error"], value_coef * per_unit)
    else:
        del sums["d_value"]
        d_value = each["d_value"] * value_coef
    d_log_prob = each["d_log_prob"]
    if terms.kl_coef > 0:
        d_log_prob = d_log_prob + terms.kl_coef * torch.where(valid, kl.slope, 0.0).flatten()
    sums |= {name: float(x) for name, x in terms.sums.items()}
    return LossDerivatives(d_log_prob, d_value, sums)
