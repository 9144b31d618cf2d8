"""Tracks the moments of value targets, which are the units of normalised values (PopArt)."""

from __future__ import annotations

from typing import Any

from headrace.nn.policy import Policy
from headrace.nn.task_values import TaskPopArt
from headrace.ops.moments import MovingMoments


class ValueTargets:
    """Collects the value targets of an update's steps, and then moves PopArt's statistics.

    Args:
        policy: its PopArt statistics and value head change in :meth:`move`; it may have none.

    Attributes:
        moments: moving moments of the targets over updates.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.moments = MovingMoments(0.1)
        self._steps: list[tuple[float, float, float]] = []  # count, sum and squares of each

    def note(self, sums: dict[str, float], count: int, center: float = 0.0) -> None:
        """Add the targets of an optimiser step.

        Args:
            sums: sums of metrics over ``count`` valid steps.
            center: value that was subtracted from the targets in these sums.
        """
        if isinstance(self._policy.popart, TaskPopArt):
            self._policy.popart.note(sums)
        total, square = sums["target_sum"], sums["target_sq"]
        square += 2 * center * total + count * center**2
        self._steps.append((count, total + count * center, square))

    def move(self) -> None:
        """Update PopArt's statistics with the targets of all steps since the last call, if any."""
        if not self._steps:  # a custom algorithm took none, as before its replay buffer is full
            return
        count, total, square = map(sum, zip(*self._steps, strict=True))
        self._steps = []
        popart = self._policy.popart
        if isinstance(popart, TaskPopArt):
            popart.shift(self._policy.value_head)
        elif popart is not None and count:
            self.moments.note(total / count, square / count)
            popart.move(self._policy.value_head, self.moments.mean, self.moments.deviation)

    def state_dict(self) -> dict[str, Any]:
        """Return the moving moments; between updates, there is nothing else to save."""
        return self.moments.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.moments.load_state_dict(saved)
