"""Rearranges images into patches, for convolutions whose strides are whole patches.

A kernel of 8x8 with stride 4 moves by patches of 4x4. With the pixels of each patch side by side,
as channels, it is a kernel of 2x2 with stride 1: the same sums, of many channels instead of few, as
processors that multiply matrices of bfloat16 want them. This is known as *space to depth*.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_RUNS = {4: torch.int32, 8: torch.int64, 16: torch.complex128}  # bytes that are copied as one


class PatchConv2d(nn.Conv2d):
    """``nn.Conv2d`` for images ``[N, C, H, W]`` or for the patches of :func:`patches`.

    It multiplies them by ``scale``, which is done with its weights: they are fewer than pixels.
    """

    scale = 1.0

    @property
    def side(self) -> int:
        """Side of the patches that it accepts; 1: none."""
        side = self.stride[0]
        whole = self.stride[1] == side and not any(n % side for n in self.kernel_size)
        return side if whole and not any(self.padding) else 1

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == self.in_channels:
            return self._conv_forward(x, self.of_images(x.dtype), self.bias)
        weight = self.of_patches(x.dtype).contiguous(memory_format=torch.channels_last)
        return nn.functional.conv2d(x, weight, self.bias)

    def of_images(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel for images, ``[O, C, H, W]``."""
        weight = self.weight.to(dtype)  # first, so that it is the same with weights of either dtype
        return weight if self.scale == 1.0 else weight * self.scale

    def of_patches(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel for patches, ``[O, C * side * side, H // side, W // side]``."""
        side, weight = self.side, self.of_images(dtype)
        num_out, channels, height, width = weight.shape
        weight = weight.view(num_out, channels, height // side, side, width // side, side)
        return weight.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


def patches(x: Tensor, side: int) -> Tensor:
    """Rearrange ``[N, C, H, W]`` to ``[N, C * side * side, H // side, W // side]``, channels last.

    Channel ``(c * side + i) * side + j`` is pixel (i, j) of the patches of channel c. What is left
    over at the bottom and to the right, no kernel comes to. Where there is no fast way, or a
    gradient is asked for x, x itself.
    """
    run = side * x.element_size()
    if side == 1 or run not in _RUNS or x.requires_grad:
        return x
    num, channels, rows, columns = *x.shape[:2], *(n // side for n in x.shape[2:])
    if x.shape[2:] != (rows * side, columns * side):
        x = x[:, :, : rows * side, : columns * side]
    flat = x.reshape(-1)
    if flat.storage_offset() * x.element_size() % run or not flat.is_contiguous():
        flat = flat.clone(memory_format=torch.contiguous_format)
    runs = flat.view(_RUNS[run]).view(num, channels, rows, side, columns).transpose(1, 2)
    # Two copies that move runs of memory are faster than one that moves single elements.
    runs = runs.reshape(num * rows, channels * side, columns).transpose(1, 2).reshape(-1)
    y = runs.view(x.dtype).view(num, rows, columns, channels * side * side)
    return y.permute(0, 3, 1, 2)
