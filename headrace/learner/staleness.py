"""How old what is learnt from is: in updates, and in optimiser steps, since its policy acted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.types import Tree

_MAX_VERSIONS = 10_000  # that are remembered


class _Acted(NamedTuple):
    """Sums over, and the oldest of, the columns of a batch whose version is known."""

    num_columns: int
    version_sum: int
    oldest: int
    steps_sum: int  # of the optimiser steps that were done when the versions were published
    oldest_steps: int


class LagCounter:
    """Counts, for every optimiser step, the lag of each column that it learns from.

    Nothing is counted until a version was :meth:`published`.
    """

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # optimiser steps done, by version, oldest first
        self._version = self._num_steps = 0
        self._read_of: Tree = None
        self._read: _Acted | None = None
        self._counts: dict[str, int] = {}

    @property
    def version(self) -> int | None:
        """The latest that was published; None: none was."""
        return self._version if self._steps else None

    def published(self, version: int, num_steps: int) -> None:
        """After so many optimiser steps the weights of this version are what actors fetch."""
        self._steps[version], self._version = num_steps, version
        if len(self._steps) > _MAX_VERSIONS:
            del self._steps[next(iter(self._steps))]

    def step(self, version: Tree, num_steps: int) -> None:
        """An optimiser step learns from a batch of these versions, after so many steps.

        Args:
            version: see :class:`Batch`; the same object is not read again.
        """
        if not self._steps or not isinstance(version, Tensor):
            return
        if version is not self._read_of:
            self._read_of, self._read = version, self._acted(version)
        if self._read is None:
            return
        num_columns, version_sum, oldest, steps_sum, oldest_steps = self._read
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
        """What was counted since the last call, under the names in the table of results."""
        counts, self._counts = self._counts, {}
        return counts

    def _acted(self, version: Tensor) -> _Acted | None:
        values, counts = np.unique(version.cpu().numpy(), return_counts=True)
        pairs = [(v, n) for v, n in zip(values.tolist(), counts.tolist(), strict=True) if v >= 0]
        if not pairs:
            return None
        steps = [self._steps_before(v) for v, _ in pairs]
        return _Acted(
            sum(n for _, n in pairs),
            sum(v * n for v, n in pairs),
            pairs[0][0],
            sum(s * n for s, (_, n) in zip(steps, pairs, strict=True)),
            steps[0],
        )

    def _steps_before(self, version: int) -> int:
        """Of a version that is forgotten: as if each had taken as many steps as those since."""
        found = self._steps.get(version)
        if found is not None:
            return found
        oldest = next(iter(self._steps))
        return self._steps[oldest] * version // max(oldest, 1)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"published": torch.tensor(list(self._steps.items()), dtype=torch.int64)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._steps = dict(saved["published"].view(-1, 2).tolist())
