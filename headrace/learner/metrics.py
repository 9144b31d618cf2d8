"""Turns the learner's sums over valid steps into the means that it reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.errors import ConfigError
from headrace.nn.task_values import SUMS
from headrace.ops.losses import explained_variance
from headrace.types import Metrics

_MOMENTS = ("target_sum", "target_sq", "error_sum", "error_sq")  # of explained_variance
_NEEDED = ("policy_loss", "value_loss", "entropy", *_MOMENTS)


def check_names(sums: Metrics, algorithm: str) -> None:
    """Raise ConfigError unless a loss reports the sums that the learner reads."""
    if missing := [name for name in _NEEDED if name not in sums]:
        raise ConfigError(
            f"the loss of {algorithm} reports no {', '.join(missing)}, which the learner reads: "
            "return the metrics of headrace.algos.common.total_loss, and add your own to them"
        )


def checked_loss(returned: Any, algorithm: Any) -> tuple[Tensor, Metrics]:
    """Return what a loss returned; raise ConfigError unless it is a scalar and its metrics."""
    match returned:
        case (Tensor() as loss, dict() as metrics) if loss.numel() == 1 and loss.requires_grad:
            return loss, metrics
    raise ConfigError(
        f"{type(algorithm).__name__}.loss must return a scalar tensor with a gradient and a dict "
        "of metrics, as headrace.algos.common.total_loss does"
    )


def as_numbers(sums: Metrics) -> dict[str, float]:
    """Convert sums of metrics to floats, reading all tensors at once."""
    tensors = {name: x.double() for name, x in sums.items() if isinstance(x, Tensor)}
    numbers = torch.stack(list(tensors.values())).tolist() if tensors else []
    return {**sums, **dict(zip(tensors, numbers, strict=True))}  # type: ignore[dict-item]


def step_metrics(sums: dict[str, float], count: int) -> dict[str, float]:
    """Return means per valid step, and the explained variance of the values if it is defined."""
    steps = max(count, 1)
    means = {
        name: value / steps
        for name, value in sums.items()
        if name not in _MOMENTS and not name.startswith(SUMS)
    }
    explained = explained_variance(**{name: sums[name] for name in _MOMENTS}, count=count)
    return means if explained is None else means | {"explained_variance": explained}


def of_trained_values(metrics: dict[str, float], sums: dict[str, float]) -> dict[str, float]:
    """Leave out value loss and explained variance of a step that doesn't train the values.

    Normalised values have no units before the end of the first update, and their loss is 0.
    """
    if sums["value_loss"] != 0.0 or sums["error_sq"] <= 0.0:
        return metrics
    return {k: v for k, v in metrics.items() if k not in ("value_loss", "explained_variance")}


def mean_metrics(per_step: list[dict[str, float]]) -> dict[str, float]:
    """Average over steps of each metric that any of them has."""
    names = {name for metrics in per_step for name in metrics}
    present = {name: [m[name] for m in per_step if name in m] for name in sorted(names)}
    return {name: sum(values) / len(values) for name, values in present.items()}
