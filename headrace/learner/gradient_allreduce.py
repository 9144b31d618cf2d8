"""Sums gradients, metrics and counts of several learners, in one vector per optimiser step."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.types import Group

_HALF = 4096  # a count travels as two float32, count = high * 4096 + low: exact up to 2**36


class GradientAllReduce:
    """All-reduces gradients and metrics of a group of learners.

    Value targets are sent relative to their last known mean. That doesn't change their variance,
    and their squares would not fit float32 otherwise.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.center = 0.0  # mean of the targets at the latest step

    def added_up(
        self, gradient: Tensor, values: dict[str, float], count: int
    ) -> tuple[Tensor, dict[str, float], int]:
        """Return gradient, sums of metrics and count of all learners, with targets less ``center``.

        Args:
            gradient: ``[P]``, summed over this learner's steps.
            values: sums of metrics, with ``target_sum`` and ``target_sq``.
            count: number of valid steps.
        """
        center, total = self.center, values["target_sum"]
        square = values["target_sq"] - 2 * center * total + count * center**2
        values = values | {"target_sum": total - count * center, "target_sq": square}
        tail = gradient.new_tensor([*values.values(), *divmod(count, _HALF)])
        flat = self._group.sum(torch.cat([gradient, tail]))
        *numbers, high, low = flat[len(gradient) :].tolist()
        values = dict(zip(values, numbers, strict=True))
        count = int(high) * _HALF + int(low)
        self.center += values["target_sum"] / max(count, 1)
        return flat[: len(gradient)], values, count
