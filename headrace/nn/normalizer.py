"""Running statistics that scale a stream to mean 0 and variance 1, or images as a whole."""

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
        """The mean ``[F]`` to subtract from inputs of this dtype: float64 or float32."""
        return self.mean if dtype == torch.float64 else self.center

    def update(self, x: Tensor) -> None:
        """Take ``[N, F]`` more samples, which may be none, into the statistics."""
        self.take(moments(x))

    @torch.no_grad()
    def take(self, new: Moments) -> None:
        """Take more samples, of which there are the moments, into the statistics."""
        total = _merged(self, new)
        self.center.copy_(total.mean)
        self.scale.copy_((total.variance + _EPS).rsqrt())


class ImageNormalizer(nn.Module):
    """``(x - mean) / deviation``: the mean of each pixel, one root mean square deviation from it.

    What never moves becomes 0, so that the first layer isn't busy with the background (LeCun et
    al. 1998, Efficient BackProp, section 4.3). A deviation for each pixel would make a speck that
    is seen once the largest input of all.

    Args:
        shape: of an image, (C, H, W). scale: what images are multiplied by before there are any.
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
        """``[N, C, H, W]``, or patches of it with these sides, scaled, in its own dtype.

        Args:
            in_place: x may be written to.
        """
        center, scale = self._cast(x.dtype, side)
        return (x.sub_(center) if in_place else x.sub(center)).mul_(scale)

    def in_place(self, dtype: torch.dtype, side: int) -> Callable[[Tensor], Tensor]:
        """What does the same in place, as long as the statistics stand still."""
        center, scale = self._cast(dtype, side)
        return lambda x: x.sub_(center).mul_(scale)

    def _cast(self, dtype: torch.dtype, side: int) -> tuple[Tensor, Tensor]:
        return patches(self.center.to(dtype).unsqueeze(0), side), self.scale.to(dtype)

    @torch.no_grad()
    def take(self, new: Moments) -> None:
        """Take more images, of whose pixels there are the moments, into the statistics."""
        total = _merged(self, new)
        self.center.copy_(total.mean.view_as(self.center))
        if (variance := total.variance.mean()) > 0:  # or no picture has differed from another
            self.scale.copy_(variance.rsqrt())


def _merged(own: Any, new: Moments) -> Moments:
    """What a module has seen together with ``new``, which becomes what it has seen."""
    total = merge(Moments(own.count, own.mean, own.square), new)
    own.count.copy_(total.count)
    own.mean.copy_(total.mean)
    own.square.copy_(total.square)
    return total
