"""What the loss of an actor-critic is made of, and its derivatives by hand.

``algos/common.py`` gives the same loss to autograd; here are the formulas that it would arrive at,
where its bookkeeping would take longer than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.ops.ratio import exp_ratio


class LossTerms(NamedTuple):
    """The data and thresholds of a loss; tensors are ``[T, B]`` and let no gradient through."""

    advantage: Tensor  # with all that weights or scales it
    target: Tensor  # of the values
    clip: float | None = None  # of the ratio pi/old (ops.losses.ppo_clip_loss); None: -A log pi
    old_log_prob: Tensor | None = None  # what the clipped ratio is over; None: the behaviour's
    epsilon: float = 0.0  # above 0: -A log(pi + epsilon)
    old_value: Tensor | None = None  # with value_clip: ops.losses.clipped_value_loss
    value_clip: float | None = None  # in the value head's own units
    kl_coef: float = 0.0  # of a penalty: KL(behaviour || pi)
    sums: Mapping[str, Tensor] = MappingProxyType({})  # further metrics


class LossDerivatives(NamedTuple):
    """Of a summed loss; 0 on fillers."""

    log_prob: Tensor  # [T * B]
    value: Tensor  # [T * B]  with respect to the value head's output
    sums: dict[str, float]  # metrics, the same as autograd's path reports


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
    """All but the one with respect to the entropy, which is a constant; to be called in no_grad.

    Args:
        log_prob, entropy, value: ``[T, B]``, what the policy says.
        valid: ``[T, B]`` bool. Anything may stand on fillers.
        value_scale: V in the rewards' units is ``value_scale`` times the head's output, plus a
            constant; 0: the head isn't trained.
    """
    log_ratio = log_prob - behaviour_log_prob
    excess = log_ratio.expm1()
    per_unit = 1.0 / value_scale if value_scale > 0 else 0.0
    rows = {"target": terms.target, "error": terms.target - value, "entropy": entropy}
    rows |= {"approx_kl": excess - log_ratio, **_policy_rows(terms, log_prob, log_ratio)}
    if terms.value_clip is not None:
        rows |= _clipped_value_rows(terms, value, rows["error"], per_unit)
    masked = torch.where(valid, torch.stack(list(rows.values())), 0.0).flatten(1)
    totals = masked.double()
    sums = dict(zip(rows, totals.sum(1).tolist(), strict=True))
    sums["target_sq"], sums["error_sq"] = totals[:2].square().sum(1).tolist()
    sums["target_sum"], sums["error_sum"] = sums.pop("target"), sums.pop("error")
    del sums["d_log_prob"]
    each = dict(zip(rows, masked.unbind(), strict=True))
    if terms.value_clip is None:
        sums["value_loss"] = 0.5 * sums["error_sq"] * per_unit**2
        d_value = each["error"] * (-value_coef * per_unit)
    else:
        del sums["d_value"]
        d_value = each["d_value"] * value_coef
    d_log_prob = each["d_log_prob"]
    if terms.kl_coef > 0:
        d_log_prob = d_log_prob + terms.kl_coef * torch.where(valid, excess, 0.0).flatten()
    sums |= {name: float(x) for name, x in terms.sums.items()}
    return LossDerivatives(d_log_prob, d_value, sums)


def _policy_rows(terms: LossTerms, log_prob: Tensor, log_ratio: Tensor) -> dict[str, Tensor]:
    """The policy's loss, its derivative with respect to log pi, and where the ratio is clipped."""
    advantage = terms.advantage
    if terms.clip is not None:
        if terms.old_log_prob is not None:
            log_ratio = log_prob - terms.old_log_prob
        ratio = exp_ratio(log_ratio)
        bounded = ratio.clamp(1.0 - terms.clip, 1.0 + terms.clip)
        plain, limited = -ratio * advantage, -bounded * advantage
        return {
            "policy_loss": torch.maximum(plain, limited),
            "d_log_prob": torch.where(plain >= limited, plain, 0.0),
            "clipfrac": (ratio != bounded).to(ratio.dtype),
        }
    if terms.epsilon > 0:
        corrected = torch.logaddexp(log_prob, log_prob.new_tensor(math.log(terms.epsilon)))
        share = (log_prob - corrected).exp()
        return {"policy_loss": -corrected * advantage, "d_log_prob": share * -advantage}
    return {"policy_loss": -log_prob * advantage, "d_log_prob": -advantage}


def _clipped_value_rows(
    terms: LossTerms, value: Tensor, error: Tensor, per_unit: float
) -> dict[str, Tensor]:
    """Half the larger squared error, of V or of V moved at most so far, and its derivative."""
    assert terms.old_value is not None
    clip = terms.value_clip or 0.0
    move, error = (value - terms.old_value) * per_unit, error * per_unit
    moved_error = (terms.target - terms.old_value) * per_unit - move.clamp(-clip, clip)
    free = (error.abs() >= moved_error.abs()) | (move.abs() <= clip)
    return {
        "value_loss": 0.5 * torch.maximum(error.square(), moved_error.square()),
        "d_value": torch.where(free, -error, 0.0),
    }
