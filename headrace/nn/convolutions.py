"""Convolutional torsos of published agents: images ``[N, C, H, W]`` to features ``[N, F]``.

Every module takes floats that are already scaled, and tells its ``F`` in ``num_outputs``. Weights
start orthogonal with gain sqrt(2), biases at zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from headrace.errors import ConfigError, require_choice


@dataclass(frozen=True)
class _Window:
    """What a convolution or a pooling looks at, on either axis."""

    kernel: int
    stride: int
    padding: int = 0

    def outputs(self, side: int) -> int:
        return (side + 2 * self.padding - self.kernel) // self.stride + 1

    def least_side(self, outputs: int) -> int:
        return max(1, (outputs - 1) * self.stride + self.kernel - 2 * self.padding)


_POOL = _Window(3, 2, 1)
_WINDOWS = {
    "impala_shallow": (_Window(8, 4), _Window(4, 2)),
    "impala_deep": (_POOL,) * 3,  # its convolutions keep the side
    "nature": (_Window(8, 4), _Window(4, 2), _Window(3, 1)),
    "impact": (_Window(4, 2, 1), _Window(4, 2, 1), _Window(4, 1, 2), _Window(11, 1)),
}


class ImageTorso(nn.Module):
    """Layers that turn ``[N, C, H, W]`` into ``[N, num_outputs]``."""

    def __init__(self, layers: list[nn.Module], num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.num_outputs = num_outputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[N, num_outputs]`` of images ``[N, C, H, W]``."""
        return self.layers(x)


def impala_shallow(channels: int, height: int, width: int) -> ImageTorso:
    """Espeholt et al. (2018), Figure 3, left: 2 convolutions, then 256 units.

    8x8 with stride 4 and 16 channels, 4x4 with stride 2 and 32 channels; ReLU after each layer.

    Raises:
        ConfigError: the image is too small.
    """
    sides = _sides("impala_shallow", channels, height, width)
    layers = _convolutions("impala_shallow", (channels, 16, 32))
    return ImageTorso([*layers, *_dense(32 * math.prod(sides), 256)], 256)


def impala_deep(channels: int, height: int, width: int) -> ImageTorso:
    """Espeholt et al. (2018), Figure 3, right: 15 convolutions, then 256 units.

    Three sections of 16, 32 and 32 channels: a 3x3 convolution, a 3x3 max-pooling with stride 2,
    two residual blocks. Every convolution and pooling is padded by 1, so a section halves the
    sides, rounded up.

    Raises:
        ConfigError: the image is empty.
    """
    sides = _sides("impala_deep", channels, height, width)
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise((channels, 16, 32, 32)):
        pool = nn.MaxPool2d(_POOL.kernel, _POOL.stride, _POOL.padding)
        layers += [_same(num_in, num_out), pool, _Residual(num_out), _Residual(num_out)]
    return ImageTorso([*layers, nn.ReLU(), *_dense(32 * math.prod(sides), 256)], 256)


def nature(channels: int, height: int, width: int) -> ImageTorso:
    """Mnih et al. (2015), Methods: 3 convolutions, then 512 units.

    8x8 with stride 4 and 32 channels, 4x4 with stride 2 and 64, 3x3 with stride 1 and 64; ReLU
    after each layer.

    Raises:
        ConfigError: the image is too small.
    """
    sides = _sides("nature", channels, height, width)
    layers = _convolutions("nature", (channels, 32, 64, 64))
    return ImageTorso([*layers, *_dense(64 * math.prod(sides), 512)], 512)


def impact(channels: int, height: int, width: int) -> ImageTorso:
    """Luo et al. (2020), section 4.3: 3 convolutions of 4x4 and one of 11x11, for 42x42 images.

    The paper gives the kernels and ReLU, but neither strides, paddings nor channels. Here the
    strides are 2, 2, 1, 1 and the paddings 1, 1, 2, 0, under which sides of 42 become 21, 10, 11
    and 1: the last kernel covers everything and stands for a dense layer. Channels are 16, 32, 64
    and 256. A larger image leaves more than one place, each with its 256 outputs.

    Raises:
        ConfigError: the image is too small.
    """
    sides = _sides("impact", channels, height, width)
    layers = _convolutions("impact", (channels, 16, 32, 64, 256))
    return ImageTorso([*layers, nn.Flatten()], 256 * math.prod(sides))


CONVOLUTIONS: dict[str, Callable[[int, int, int], ImageTorso]] = {
    "impala_shallow": impala_shallow,
    "impala_deep": impala_deep,
    "nature": nature,
    "impact": impact,
}
"""By name: ``(channels, height, width) -> module``."""


def min_side(name: str) -> int:
    """The smallest height, and the smallest width, of an image for this torso.

    Raises:
        ConfigError: there is no such torso.
    """
    require_choice("conv", name, _WINDOWS)
    side = 1
    for window in reversed(_WINDOWS[name]):
        side = window.least_side(side)
    return side


def _sides(name: str, channels: int, height: int, width: int) -> tuple[int, int]:
    """Height and width after the convolutions."""
    shape = f"(channels={channels}, height={height}, width={width})"
    if channels < 1:
        raise ConfigError(f"conv={name!r} can't take an image of {shape}: it has no channel")
    if min(height, width) < min_side(name):
        fitting = [other for other in _WINDOWS if min_side(other) <= min(height, width)]
        advice = f"{', '.join(fitting)} would work" if fitting else "no other would work"
        raise ConfigError(
            f"conv={name!r} can't take an image of {shape}: height and width must be at least "
            f"{min_side(name)}; {advice}"
        )
    for window in _WINDOWS[name]:
        height, width = window.outputs(height), window.outputs(width)
    return height, width


def _convolutions(name: str, channels: tuple[int, ...]) -> list[nn.Module]:
    """One convolution a window, each with a ReLU."""
    layers: list[nn.Module] = []
    pairs = itertools.pairwise(channels)
    for window, (num_in, num_out) in zip(_WINDOWS[name], pairs, strict=True):
        conv = nn.Conv2d(num_in, num_out, window.kernel, window.stride, window.padding)
        layers += [conv, nn.ReLU(inplace=True)]
    return layers


def _dense(num_in: int, num_out: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(num_in, num_out), nn.ReLU(inplace=True)]


def _same(num_in: int, num_out: int) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, 3, padding=1)


class _Residual(nn.Module):
    """``x + conv(relu(conv(relu(x))))`` with 3x3 convolutions that keep the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # The first ReLU leaves its input alone, which is added at the end.
        middle = [_same(channels, channels), nn.ReLU(inplace=True), _same(channels, channels)]
        self.layers = nn.Sequential(nn.ReLU(), *middle)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)
