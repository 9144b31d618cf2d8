"""Encodes images: scales them, cuts them into patches where that is faster, and convolves them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.convolutions import ImageTorso, default_convolutions
from headrace.nn.exact_modules import is_exactly
from headrace.nn.image_precision import BFloat16Module, by_patches, memory_format
from headrace.nn.network import Network
from headrace.nn.normalizer import ImageNormalizer
from headrace.nn.patches import patches
from headrace.ops import stacks, tree
from headrace.ops.moments import Moments, moments
from headrace.spaces import observations as spaces
from headrace.spaces.images import channels_first, image_shape, one_hot_channels
from headrace.types import Tree

_SEEN = 32  # largest number of images of a batch used for statistics


class Image(nn.Module):
    """Convolutions for the images of one space: ``[N, *space.shape] -> [N, num_outputs]``.

    Args:
        symbols: number of symbols in a grid; 0: it is an image.
    """

    def __init__(self, path: spaces.Path, space: Box, network: Network, symbols: int = 0) -> None:
        super().__init__()
        self._space, self._layout = space, network.image_layout
        self._name, self._symbols = spaces.dotted(path) or "obs", symbols
        self._clips = bool(network.clip_symbols)
        conv: str = network.conv
        try:
            channels, *sides = image_shape(space, self._layout)
            if conv == "auto":
                conv = default_convolutions(*sides)
            normalizes = network.normalize_images and not symbols
            of_bytes = space.dtype == np.uint8 and not symbols
            scale = 1 / max(1, int(space.high.max())) if of_bytes else 1.0
            planes, factor = channels * max(symbols, 1), 1.0 if normalizes else scale
            self.convolutions = ImageTorso(conv, planes, sides[0], sides[1], factor)
            self._channels_first = channels_first(space, self._layout)
        except ConfigError as error:
            raise ConfigError(f"observation space{spaces.place(path)}: {error}") from error
        self.normalizer = ImageNormalizer((channels, *sides), scale) if normalizes else None
        self.num_outputs = self.convolutions.num_outputs
        self.bfloat16_call = BFloat16Module(self.convolutions, plain=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute features; raises EnvironmentFault if a grid has an unknown symbol."""
        dtype = self.bfloat16_call.dtype
        order = memory_format(dtype, x.device, self.convolutions.residual)
        if self._symbols:
            if x.device.type == "cpu" and not torch.compiler.is_compiling():
                self.check(x)  # on a GPU it would block, and actors have checked
            return self.bfloat16_call(
                one_hot_channels(x, self._space, self._symbols, dtype, self._layout, self._clips)
            )
        image = self._channels_first(x)
        # Bytes are cut before the cast; not every other dtype can be cut.
        x = image if image.dtype == torch.uint8 else image.to(dtype, memory_format=order)
        side = self.convolutions.patch_side if by_patches(dtype, x.device) else 1
        if (cut := patches(x, side)) is x:
            side = 1
        else:
            x, order = cut, torch.preserve_format
        x = x.to(dtype, memory_format=order)
        if self.normalizer is not None:
            x = self.normalizer(x, side, in_place=x is not image)
        return self.bfloat16_call(x)

    def fast_path(self) -> FastImage | None:
        """Return the fast path for bytes; None without packed weights in :attr:`bfloat16_call`."""
        packed, side = self.bfloat16_call.packed, self.convolutions.patch_side
        if packed is None or self._symbols or self._space.dtype != np.uint8:
            return None
        norm = self.normalizer
        if norm is not None and not is_exactly(norm, ImageNormalizer):
            return None
        normalize = None if norm is None else norm.in_place(torch.bfloat16, side)
        return FastImage(
            self._channels_first, side, normalize, packed, self.bfloat16_call.own_dtype
        )

    def moments(self, x: Tree) -> Moments:
        """Return moments of pixels of some images ``[T, B, *space.shape]``, or of stored stacks."""
        rows = tree.map_leaves(lambda x: x.flatten(0, 1).unsqueeze(0), x)
        shape = tree.leaves(rows)[0].shape
        index = torch.linspace(0, shape[1] - 1, min(shape[1], _SEEN)).long()
        some = stacks.flat(tree.map_leaves(lambda x: x[:, index], rows))
        return moments(self._channels_first(some).flatten(1))

    def check(self, x: Tensor) -> None:
        """See ``Encoder.check``."""
        if not x.numel() or not self._symbols or self._clips:
            return
        has_minimum = x.dtype.is_signed or x.dtype == torch.uint8
        x = x if has_minimum else x.long()
        bounds, low = map(int, x.aminmax()), int(self._space.low.min())
        for value in bounds:
            if not low <= value < low + self._symbols:
                raise EnvironmentFault(
                    f"one_hot={self._name!r} holds {value}, which isn't one of its {self._symbols} "
                    f"symbols, {low} to {low + self._symbols - 1}: give another num_symbols"
                )


class FastImage:
    """Computes an :class:`Image` bit for bit with fewer calls, without gradients.

    Weights and running statistics must be constant while it is used.

    Args:
        channels_first: moves the channels to the front, ``[N, C, H, W]``.
        side: side of the patches in pixels.
        normalize: normalises patches in place; None: no normalisation.
        layers: the following layers.
        dtype: dtype of the result.
    """

    def __init__(
        self,
        channels_first: Callable[[Tensor], Tensor],
        side: int,
        normalize: Callable[[Tensor], Tensor] | None,
        layers: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._channels_first, self._side = channels_first, side
        self._normalize, self._layers, self._dtype = normalize, layers, dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Compute features: ``[N, *space.shape] -> [N, num_outputs]``."""
        x = self._channels_first(x)
        if x.dtype != torch.uint8:  # not every dtype can be cut
            x = x.to(torch.bfloat16)
        x = patches(x, self._side).to(torch.bfloat16)
        if self._normalize is not None:
            x = self._normalize(x)
        return self._layers(x).to(self._dtype)
