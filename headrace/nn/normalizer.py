"""Running statistics that normalise numbers by feature, or whole images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.nn.patches import patches
from headrace.ops.moments import Moments, merge, moments

_CLIP = 10.0
_EPS = 1e-8


class Normalizer(nn.Module):
    """Normalises to ``clip((x - mean) / std, -10, 10)`` with the moments of all samples taken.

    The state is module buffers. It travels and is saved with the weights, and changes only between
    rollouts.

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
        """Normalise ``[..., F]`` to float32; before the first update, inputs are only clipped.

        Float64 inputs are centred in float64. With a large offset, such as Unix time, float32
        can't represent the differences between samples.
        """
        if x.dtype == torch.float64:
            centred = (x - self.mean).to(self.scale.dtype)
        else:
            centred = x - self.center
        return (centred * self.scale).clamp(-_CLIP, _CLIP)

    def center_for(self, dtype: torch.dtype) -> Tensor:
        """Return the mean ``[F]`` to subtract from inputs of this dtype: float64 or float32."""
        return self.mean if dtype == torch.float64 else self.center

    def update(self, x: Tensor) -> None:
        """Add samples ``[N, F]`` to the statistics; N may be 0."""
        self.take(moments(x))

    @torch.no_grad()
    def take(self, new: Moments) -> None:
        """Add samples to the statistics, given their moments."""
        total = _merged(self, new)
        self.center.copy_(total.mean)
        self.scale.copy_((total.variance + _EPS).rsqrt())


class ImageNormalizer(nn.Module):
    """Normalises images to ``(x - mean) / deviation``, with a mean per pixel and one deviation.

    Constant pixels become 0, so that the first layer ignores the background (LeCun et al. 1998,
    Efficient BackProp, section 4.3). With a deviation per pixel, a rare bright pixel would become
    the largest input.

    Args:
        shape: shape of an image, (C, H, W).
        scale: factor on images before there are statistics.
    """

    def __init__(self, shape: tuple[int, ...], scale: float) -> None:
        super().__init__()
        num_pixels = math.prod(shape)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_pixels, dtype=torch.float64))
        self.register_buffer("square", torch.zeros(num_pixels, dtype=torch.float64))
        self.register_buffer("center", torch.zeros(shape))
        self.register_buffer("scale", torch.tensor(scale))
        self.center: Tensor
        self.scale: Tensor

    def forward(self, x: Tensor, side: int = 1, in_place: bool = False) -> Tensor:
        """Normalise ``[N, C, H, W]``, or patches with these sides, keeping the dtype.

        Args:
            in_place: x may be overwritten.
        """
        center, scale = self._cast(x.dtype, side)
        return (x.sub_(center) if in_place else x.sub(center)).mul_(scale)

    def in_place(self, dtype: torch.dtype, side: int) -> Callable[[Tensor], Tensor]:
        """Return a function that normalises in place while the statistics are constant."""
        center, scale = self._cast(dtype, side)
        return lambda x: x.sub_(center).mul_(scale)

    def _cast(self, dtype: torch.dtype, side: int) -> tuple[Tensor, Tensor]:
        return patches(self.center.to(dtype).unsqueeze(0), side), self.scale.to(dtype)

    @torch.no_grad()
    def take(self, new: Moments) -> None:
        """Add images to the statistics, given the moments of their pixels."""
        total = _merged(self, new)
        self.center.copy_(total.mean.view_as(self.center))
        if (variance := total.variance.mean()) > 0:  # 0 while all images were equal
            self.scale.copy_(variance.rsqrt())


def _merged(own: Any, new: Moments) -> Moments:
    """Merge ``new`` into a module's moments in place, and return the result."""
    total = merge(Moments(own.count, own.mean, own.square), new)
    own.count.copy_(total.count)
    own.mean.copy_(total.mean)
    own.square.copy_(total.square)
    return total
