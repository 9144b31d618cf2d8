"""Embedding of Discrete and MultiDiscrete observations with many values."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from headrace.errors import EnvironmentFault
from headrace.spaces import observations as spaces

_LEAST_CODES = 1024
"""Number of values from which a learned embedding replaces a one-hot, which would cost more."""
_LEAST_PER_PART = 64
"""Least average number of values per part: many small parts are cheaper as one-hots."""
_WIDTH = 16
"""Size of the vector of each value."""


def is_embedded(space: gymnasium.Space) -> bool:
    """Return True if this space is embedded rather than one-hot encoded."""
    if not isinstance(space, Discrete | MultiDiscrete):
        return False
    num_parts = 1 if isinstance(space, Discrete) else space.nvec.size
    return flatdim(space) >= max(_LEAST_CODES, _LEAST_PER_PART * num_parts)


class CodeEmbedding(nn.Module):
    """Sum of one learned vector per part: ``[N, *space.shape]`` integers to ``[N, num_outputs]``.

    This equals a linear layer without bias on the one-hots, at the cost of a lookup.

    Args:
        path: path of the space in the observation, for messages.
        space: Discrete or MultiDiscrete.
    """

    num_outputs = _WIDTH

    def __init__(self, path: spaces.Path, space: Any) -> None:
        super().__init__()
        self._name, self._space = spaces.dotted(path) or "obs", space
        sizes = space.nvec if isinstance(space, MultiDiscrete) else [space.n]
        self._sizes = torch.as_tensor(sizes).long().reshape(-1)
        self._starts = torch.as_tensor(space.start).long().reshape(-1)
        ends = self._sizes.cumsum(0)
        self.register_buffer("offsets", ends - self._sizes - self._starts, persistent=False)
        self.offsets: Tensor
        self.embedding = nn.Embedding(int(ends[-1]), _WIDTH)
        nn.init.normal_(self.embedding.weight, std=len(self._sizes) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Look up and sum the vectors; on the CPU, raises EnvironmentFault as :meth:`check`."""
        codes = x.long().reshape(x.shape[0], -1)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check(codes)
        return self.embedding(codes + self.offsets).sum(1)

    def check(self, x: Tensor) -> None:
        """Raise EnvironmentFault if any of ``[N, *space.shape]`` is outside the space."""
        codes = x.long().reshape(x.shape[0], -1) - self._starts.to(x.device)
        outside = (codes < 0) | (codes >= self._sizes.to(x.device))
        if outside.any():
            raise EnvironmentFault(
                f"the observation {self._name!r} holds {int(x.reshape(codes.shape)[outside][0])}, "
                f"which is outside its space {self._space}"
            )
