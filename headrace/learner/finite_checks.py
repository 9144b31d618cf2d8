"""Stops a run before an optimiser step with NaN or infinity, and names the quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from headrace.errors import NonFinite

# Sums over the steps of a batch that steer the learner, by name: the first cause comes first.
_STEERING = {
    "target_sq": "value targets",
    "entropy": "entropy",
    "value_loss": "value loss",
    "policy_loss": "policy loss",
}
_LONGEST_STEP = 1e19  # a gradient's square, which the optimiser averages, has to fit float32
_LARGE_REWARD = 1e3


def is_finite(sums: Mapping[str, float], norm: float, max_norm: float) -> bool:
    """Return True if an optimiser step is safe.

    Args:
        sums: sums of a batch, by metric.
        norm: norm of the gradient, which is clipped to ``max_norm``.
    """
    steering = (sums[name] for name in _STEERING)
    return (
        math.isfinite(norm)
        and min(norm, max_norm) < _LONGEST_STEP
        and all(map(math.isfinite, steering))
    )


def not_finite(
    sums: Mapping[str, float], gradient: Tensor, parameters: Iterable[tuple[str, Tensor]]
) -> str:
    """Name the quantities that are not finite; ``gradient`` is flat, in the parameters' order."""
    found = [f"{words} {sums[k]:g}" for k, words in _STEERING.items() if not math.isfinite(sums[k])]
    start = 0
    for name, parameter in parameters:
        part = gradient[start : start + parameter.numel()]
        start += parameter.numel()
        bad = part[~part.isfinite()]
        if len(bad):
            found.append(f"gradient of {name} {bad[0]:g}")
            break
    return ", ".join(found) or f"a gradient whose square overflows (from {_LONGEST_STEP:g} on)"


def non_finite_error(
    where: str, what: str, last_norm: float | None, reward: Tensor | None, learning_rate: float
) -> NonFinite:
    """Build the error for a step that is not taken.

    Args:
        where: update and step.
        what: the quantities, see :func:`not_finite`.
        last_norm: gradient norm of the previous step.
        reward: rewards of the batch, as returned by the environments.
    """
    largest = 0.0 if reward is None or not reward.numel() else float(reward.abs().max())
    before = "none" if last_norm is None else f"{last_norm:.3g}"
    remedies = [f"a smaller learning_rate ({learning_rate / 10:g})", "a smaller max_grad_norm"]
    if largest > _LARGE_REWARD:
        remedies.insert(0, "smaller rewards (reward_scale, or scale_free=True)")
    return NonFinite(
        f"{where} was not taken: {what}. Gradient norm of the step before: {before}; largest "
        f"|reward| of the batch: {largest:.3g}; learning_rate={learning_rate:g}. Try "
        f"{', '.join(remedies)}, and resume from the latest checkpoint"
    )


def check_weights(flat: Tensor, where: str, learning_rate: float) -> None:
    """Raise NonFinite unless all weights ``[N]`` are finite."""
    if not math.isfinite(float(flat.sum())) and not bool(torch.isfinite(flat).all()):
        raise non_finite_error(where, "a weight became infinite", None, None, learning_rate)
