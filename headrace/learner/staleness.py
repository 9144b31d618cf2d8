"""Measures policy lag of training data, in updates and in optimiser steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.types import Tree

_MAX_VERSIONS = 10_000  # number of versions remembered


class _BatchVersions(NamedTuple):
    """Statistics of the policy versions of a batch's columns, where known."""

    num_columns: int
    version_sum: int
    oldest: int
    steps_sum: int  # optimiser steps done when the versions were published
    oldest_steps: int


class LagCounter:
    """Records the lag of each column in every optimiser step.

    Nothing is recorded before the first :meth:`published`.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # optimiser steps done, by version, oldest first
        self._version = self._num_steps = 0
        self._last_versions: Tree = None
        self._last_statistics: _BatchVersions | None = None
        self._counts: dict[str, int] = {}

    @property
    def version(self) -> int | None:
        """Return the latest published version, or None."""
        return self._version if self._steps else None

    def published(self, version: int, num_steps: int) -> None:
        """Record that actors get this version from now on, after ``num_steps`` optimiser steps."""
        self._steps[version], self._version = num_steps, version
        if len(self._steps) > _MAX_VERSIONS:
            del self._steps[next(iter(self._steps))]

    def step(self, version: Tree, num_steps: int) -> None:
        """Record an optimiser step on a batch, after ``num_steps`` earlier ones.

        Args:
            version: policy versions, see :class:`Batch`; the same object isn't read again.
        """
        if not self._steps or not isinstance(version, Tensor):
            return
        if version is not self._last_versions:
            self._last_versions, self._last_statistics = version, self._statistics(version)
        if self._last_statistics is None:
            return
        num_columns, version_sum, oldest, steps_sum, oldest_steps = self._last_statistics
        counts = self._counts
        if not counts:
            counts |= dict.fromkeys(("num_lags", "lag_sum", "lag_steps_sum"), 0)
            counts |= {"lag_max": 0, "lag_steps_max": 0}
        counts["num_lags"] += num_columns
        counts["lag_sum"] += num_columns * self._version - version_sum
        counts["lag_steps_sum"] += num_columns * num_steps - steps_sum
        counts["lag_max"] = max(counts["lag_max"], self._version - oldest)
        counts["lag_steps_max"] = max(counts["lag_steps_max"], num_steps - oldest_steps)

    def take(self) -> dict[str, int]:
        """Return the counts since the last call, by their names in the table of results."""
        counts, self._counts = self._counts, {}
        return counts

    def _statistics(self, version: Tensor) -> _BatchVersions | None:
        values, counts = np.unique(version.cpu().numpy(), return_counts=True)
        pairs = [(v, n) for v, n in zip(values.tolist(), counts.tolist(), strict=True) if v >= 0]
        if not pairs:
            return None
        steps = [self._steps_before(v) for v, _ in pairs]
        return _BatchVersions(
            sum(n for _, n in pairs),
            sum(v * n for v, n in pairs),
            pairs[0][0],
            sum(s * n for s, (_, n) in zip(steps, pairs, strict=True)),
            steps[0],
        )

    def _steps_before(self, version: int) -> int:
        """Return the optimiser steps before a version, interpolated if it was forgotten."""
        steps = self._steps.get(version)
        if steps is not None:
            return steps
        oldest = next(iter(self._steps))
        return self._steps[oldest] * version // max(oldest, 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"published": torch.tensor(list(self._steps.items()), dtype=torch.int64)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._steps = dict(saved["published"].view(-1, 2).tolist())
