"""Convolutional torsos from papers: images ``[N, C, H, W]`` to features ``[N, F]``.

Weights start orthogonal with gain sqrt(2), biases at zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn

from headrace.errors import ConfigError, require_choice
from headrace.nn.network import orthogonal
from headrace.nn.patches import PatchConv2d


class _Window(NamedTuple):
    """Kernel, stride and padding of a convolution or pooling, on both axes."""

    kernel: int
    stride: int
    padding: int = 0


_SAME = _Window(3, 1, 1)  # keeps height and width


class _Design(NamedTuple):
    windows: tuple[_Window, ...]  # of the convolutions, or of the poolings if residual
    channels: tuple[int, ...]  # after each of them
    units: int | None  # of a dense layer at the end
    residual: bool = False


CONVOLUTIONS = {
    # Espeholt et al. (2018), Figure 3, left.
    "impala_shallow": _Design((_Window(8, 4), _Window(4, 2)), (16, 32), 256),
    # Espeholt et al. (2018), Figure 3, right: 15 convolutions. Three sections of a 3x3 convolution,
    # a 3x3 max-pooling with stride 2 and two residual blocks. Every convolution and pooling is
    # padded by 1, so a section halves the sides, rounded up.
    "impala_deep": _Design((_Window(3, 2, 1),) * 3, (16, 32, 32), 256, residual=True),
    # Mnih et al. (2015), Methods.
    "nature": _Design((_Window(8, 4), _Window(4, 2), _Window(3, 1)), (32, 64, 64), 512),
    # Young and Tian (2019), arXiv 1903.03176, section 3, for 10x10 images.
    "minatar": _Design((_Window(3, 1),), (16,), 128),
    # For images between those of "minatar" and "nature", where the former's dense layer is large.
    "small": _Design((_Window(3, 2, 1), _Window(3, 2, 1)), (16, 32), 128),
    # Luo et al. (2020), section 4.3, for 42x42 images. The paper gives the kernels and ReLU, but
    # neither strides, paddings nor channels. With these, sides of 42 become 21, 10, 11 and 1: the
    # last kernel covers the whole image, like a dense layer. A larger image leaves several
    # positions with 256 outputs each.
    "impact": _Design(
        (_Window(4, 2, 1), _Window(4, 2, 1), _Window(4, 1, 2), _Window(11, 1)),
        (16, 32, 64, 256),
        None,
    ),
}
"""By name; ReLU after each layer."""

_SMALL_SIDE = 16  # pixels


class ImageTorso(nn.Module):
    """Maps images ``[N, channels, height, width]`` to features ``[N, num_outputs]``.

    It also accepts images as patches with sides of ``patch_side``, see
    ``headrace/nn/patches.py``; 1: it doesn't.

    Args:
        name: one of ``CONVOLUTIONS``.
        scale: factor on the images.

    Raises:
        ConfigError: the name is unknown, or the image is empty or too small.
    """

    def __init__(
        self, name: str, channels: int, height: int, width: int, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.num_outputs = math.prod(_sides(name, channels, height, width))
        windows, all_channels, units, residual = CONVOLUTIONS[name]
        self.residual = residual
        layers: list[nn.Module] = []
        num_in = channels
        for window, num_out in zip(windows, all_channels, strict=True):
            conv = nn.Conv2d if layers else PatchConv2d
            if residual:
                layers += [conv(num_in, num_out, *_SAME), nn.MaxPool2d(*window)]
                layers += [_Residual(num_out), _Residual(num_out)]
            else:
                layers += [conv(num_in, num_out, *window), nn.ReLU(inplace=True)]
            num_in = num_out
        layers[0].scale = scale  # type: ignore[assignment]
        if residual:
            layers.append(nn.ReLU())
        # Flatten before ReLU, so that ReLU's gradient and saved input have the same memory layout.
        layers.insert(-1, nn.Flatten())
        self.num_outputs *= num_in
        if units is not None:
            layers += [nn.Linear(self.num_outputs, units), nn.ReLU(inplace=True)]
            self.num_outputs = units
        self.layers = nn.Sequential(*layers)
        self.patch_side = getattr(layers[0], "side", 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                orthogonal(module, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def min_side(name: str) -> int:
    """Return the smallest height and width of an image for this torso.

    Raises:
        ConfigError: the name is unknown.
    """
    require_choice("conv", name, CONVOLUTIONS)
    side = 1
    for kernel, stride, padding in reversed(CONVOLUTIONS[name].windows):
        side = max(1, (side - 1) * stride + kernel - 2 * padding)
    return side


def default_convolutions(height: int, width: int) -> str:
    """Return the name of the default convolutions for images of this size."""
    if min(height, width) >= min_side("nature"):
        return "nature"
    tiny = min(height, width) >= min_side("minatar") and max(height, width) < _SMALL_SIDE
    return "minatar" if tiny else "small"


def _sides(name: str, channels: int, height: int, width: int) -> tuple[int, int]:
    """Return height and width after the convolutions."""
    shape = f"(channels={channels}, height={height}, width={width})"
    if channels < 1:
        raise ConfigError(f"conv={name!r} can't take an image of {shape}: it has no channel")
    if min(height, width) < min_side(name):
        fitting = [other for other in CONVOLUTIONS if min_side(other) <= min(height, width)]
        advice = f"{', '.join(fitting)} would work" if fitting else "no other would work"
        raise ConfigError(
            f"conv={name!r} can't take an image of {shape}: height and width must be at least "
            f"{min_side(name)}; {advice}"
        )
    for kernel, stride, padding in CONVOLUTIONS[name].windows:
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    return height, width


class _Residual(nn.Module):
    """Residual block ``x + conv(relu(conv(relu(x))))`` of constant shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # The first ReLU isn't in place, because its input is added at the end.
        first, second = (nn.Conv2d(channels, channels, *_SAME) for _ in range(2))
        self.layers = nn.Sequential(nn.ReLU(), first, nn.ReLU(inplace=True), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)
