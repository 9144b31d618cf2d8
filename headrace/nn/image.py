"""Images of an observation: scaled, cut into patches where that is faster, and convolved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.convolutions import ImageTorso, min_side
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

_SEEN = 32  # images of a batch, at most, of which statistics are taken


class Image(nn.Module):
    """Convolutions on the images of one space: ``[N, *space.shape] -> [N, num_outputs]``.

    Args:
        symbols: how many a grid of symbols has; 0: it is an image.
    """

    def __init__(self, path: spaces.Path, space: Box, network: Network, symbols: int = 0) -> None:
        super().__init__()
        self._space, self._layout = space, network.image_layout
        self._name, self._symbols = spaces.dotted(path) or "obs", symbols
        conv = network.conv
        try:
            channels, *sides = image_shape(space, self._layout)
            if conv == "auto":
                conv = "nature" if min(sides) >= min_side("nature") else "impala_deep"
            normalizes = network.normalize_images and not symbols
            scale = 1 / 255 if space.dtype == np.uint8 and not symbols else 1.0
            planes, factor = channels * max(symbols, 1), 1.0 if normalizes else scale
            self.convolutions = ImageTorso(conv, planes, sides[0], sides[1], factor)
            self._channels_first = channels_first(space, self._layout)
        except ConfigError as error:
            raise ConfigError(f"observation space{spaces.place(path)}: {error}") from error
        self.normalizer = ImageNormalizer((channels, *sides), scale) if normalizes else None
        self.num_outputs = self.convolutions.num_outputs
        self.halved = BFloat16Module(self.convolutions, plain=True)

    def forward(self, x: Tensor) -> Tensor:
        """Raises EnvironmentFault where a grid holds what is no symbol of it."""
        dtype = self.halved.dtype
        order = memory_format(dtype, x.device, self.convolutions.residual)
        if self._symbols:
            if x.device.type == "cpu" and not torch.compiler.is_compiling():
                self.check(x)  # elsewhere it would wait; who acts has looked
            given = self._space, self._symbols, dtype, self._layout
            return self.halved(one_hot_channels(x, *given).contiguous(memory_format=order))
        image = self._channels_first(x)
        # Bytes are cut before they are cast; of other numbers not all can be cut.
        x = image if image.dtype == torch.uint8 else image.to(dtype, memory_format=order)
        side = self.convolutions.patch_side if by_patches(dtype, x.device) else 1
        if (cut := patches(x, side)) is x:
            side = 1
        else:
            x, order = cut, torch.preserve_format
        x = x.to(dtype, memory_format=order)
        if self.normalizer is not None:
            x = self.normalizer(x, side, in_place=x is not image)
        return self.halved(x)

    def quick(self) -> FastImage | None:
        """The fast path for bytes. None unless :attr:`halved` holds packed weights."""
        packed, side = self.halved.packed, self.convolutions.patch_side
        if packed is None or self._symbols or self._space.dtype != np.uint8:
            return None
        norm = self.normalizer
        if norm is not None and not is_exactly(norm, ImageNormalizer):
            return None
        normalize = None if norm is None else norm.in_place(torch.bfloat16, side)
        return FastImage(self._channels_first, side, normalize, packed, self.halved.own_dtype)

    def moments(self, x: Tree) -> Moments:
        """Of the pixels of some of the images ``[T, B, *space.shape]``, or of stacks apart."""
        rows = tree.map_leaves(lambda x: x.flatten(0, 1).unsqueeze(0), x)
        shape = tree.leaves(rows)[0].shape
        index = torch.linspace(0, shape[1] - 1, min(shape[1], _SEEN)).long()
        some = stacks.flat(tree.map_leaves(lambda x: x[:, index], rows))
        return moments(self._channels_first(some).flatten(1))

    def check(self, x: Tensor) -> None:
        """See ``Encoder.check``."""
        if not x.numel() or not self._symbols:
            return
        bounds, low = map(int, x.aminmax()), int(self._space.low.min())
        for value in bounds:
            if not low <= value < low + self._symbols:
                raise EnvironmentFault(
                    f"one_hot={self._name!r} holds {value}, which is none of its {self._symbols} "
                    f"symbols, {low} to {low + self._symbols - 1}: give another num_symbols"
                )


class FastImage:
    """Calls an :class:`Image` without modules and questions whose answers are known.

    What it returns is the image's own, bit for bit, as long as its weights and running statistics
    stand still. Nothing is differentiated.

    Args:
        channels_first: to ``[N, C, H, W]``. side: of the patches. normalize: these, in place, if
        not None. layers: what follows. dtype: of what is returned.
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
        """``[N, *space.shape]`` to ``[N, num_outputs]``."""
        x = self._channels_first(x)
        if x.dtype != torch.uint8:  # of which not all could be cut
            x = x.to(torch.bfloat16)
        x = patches(x, self._side).to(torch.bfloat16)
        if self._normalize is not None:
            x = self._normalize(x)
        return self._layers(x).to(self._dtype)
