"""Running statistics that scale a stream to mean 0 and variance 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.ops.moments import Moments, merge, moments

_CLIP = 10.0
_EPS = 1e-8


class Normalizer(nn.Module):
    """``clip((x - mean) / std, -10, 10)`` with the moments of all that :meth:`take` was given.

    Its state is module buffers: it travels with the weights and is saved with them, and it changes
    only between rollouts.

    Args:
        num_inputs: F, numbers per sample.
    """

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_inputs, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(num_inputs, dtype=torch.float64))
        self.register_buffer("center", torch.zeros(num_inputs))  # what forward uses
        self.register_buffer("scale", torch.ones(num_inputs))
        self.count: Tensor
        self.mean: Tensor
        self.square: Tensor
        self.center: Tensor
        self.scale: Tensor

    limit = _CLIP

    def forward(self, x: Tensor) -> Tensor:
        """``[..., F]`` scaled; unchanged before the first update."""
        return ((x - self.center) * self.scale).clamp(-_CLIP, _CLIP)

    def update(self, x: Tensor) -> None:
        """Take ``[N, F]`` more samples, which may be none, into the statistics."""
        self.take(moments(x))

    @torch.no_grad()
    def take(self, new: Moments) -> None:
        """Take more samples, of which there are the moments, into the statistics."""
        total = merge(Moments(self.count, self.mean, self.square), new)
        self.count.copy_(total.count)
        self.mean.copy_(total.mean)
        self.square.copy_(total.square)
        self.center.copy_(total.mean)
        self.scale.copy_((total.variance + _EPS).rsqrt())
