"""Networks whose weights lie, in a copy, as oneDNN multiplies them.

Left as they are, weights are put in that order again at each call, which for a few images is much
of the work. A copy is of use as long as the weights stand still, on a processor, without gradients.
The operations are those that ``torch.compile`` writes for processors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.nn.exact_modules import is_exactly
from headrace.nn.patches import PatchConv2d, patches

_ROWS = 64  # whose best order a dense layer's weights get; fewer are as fast in it as in their own


def can_pack(device: torch.device) -> bool:
    """Whether this PyTorch can pack weights, and this processor multiplies bfloat16."""
    return device.type == "cpu" and _works()


@functools.cache
def _works() -> bool:
    """Whether a small network passes."""
    with torch.random.fork_rng(devices=[]):  # skip_init would import 40 MB
        layers = nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(1, 1)
    try:
        small = PackedNetwork(nn.Sequential(*layers))
        small.pack()
        small(torch.zeros(1, 1, 2, 2, dtype=torch.bfloat16))
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError, TypeError):
        return False


def can_pack_layers(layers: nn.Module) -> bool:
    """Whether :class:`PackedNetwork` computes exactly what these layers do."""
    if not is_exactly(layers, nn.Sequential):
        return False
    first, *others = layers.children()
    return is_exactly(first, *_PARTS) and all(map(_can_pack_layer, (first, *others)))


def _can_pack_layer(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return False
    elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
        return False
    return is_exactly(layer, nn.ReLU, nn.Flatten, *_PARTS)


class PackedNetwork:
    """Computes what layers say in bfloat16, with the weights that they had at :meth:`pack`.

    Nothing is differentiated. One layer's function is called after the other: modules around them
    would take as long as a small layer.

    Args:
        layers: some for which :func:`can_pack_layers` holds.
    """

    def __init__(self, layers: nn.Sequential) -> None:
        self._parts: list[_Convolution | _Dense] = []
        self._steps: list[Callable[[Tensor], Tensor]] = []
        for layer in layers:
            if isinstance(layer, nn.ReLU):
                self._parts[-1].then = "relu"  # also where it is behind a Flatten
                continue
            if isinstance(layer, nn.Flatten):
                self._steps.append(_flat)
                continue
            part = _PARTS[type(layer)](layer)
            self._parts.append(part)
            self._steps.append(part)

    def pack(self) -> None:
        """Take the layers' weights as they are now."""
        with torch.inference_mode():
            for part in self._parts:
                part.pack()

    def __call__(self, x: Tensor) -> Tensor:
        """What the layers return, as bfloat16."""
        for step in self._steps:
            x = step(x)
        return x


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


class _Convolution:
    """``nn.Conv2d``; of what takes patches, the one of patches, into which it cuts images."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self._of = conv
        self._side = conv.side if isinstance(conv, PatchConv2d) else 1
        stride = (1, 1) if self._side > 1 else conv.stride
        self._window = list(conv.padding), list(stride), list(conv.dilation), conv.groups
        self.then = "none"

    def pack(self) -> None:
        conv = self._of
        if isinstance(conv, PatchConv2d):
            weight = (conv.of_patches if self._side > 1 else conv.of_images)(torch.bfloat16)
        else:
            weight = conv.weight.to(torch.bfloat16)
        weight = weight.contiguous(memory_format=torch.channels_last)
        reorder = torch._C._nn.mkldnn_reorder_conv2d_weight  # type: ignore[attr-defined]
        self._weight = reorder(weight.to_mkldnn(), *self._window)
        self._bias = None if conv.bias is None else conv.bias.to(torch.bfloat16, copy=True)

    def __call__(self, x: Tensor) -> Any:
        if self._side > 1 and x.shape[1] == self._of.in_channels:
            x = patches(x.detach(), self._side)
        given: tuple[Any, ...] = (*self._window, self.then, [], "")
        return torch.ops.mkldnn._convolution_pointwise.default(x, self._weight, self._bias, *given)


class _Dense:
    """``nn.Linear``."""

    def __init__(self, layer: nn.Linear) -> None:
        self._of, self.then = layer, "none"

    def pack(self) -> None:
        layer = self._of
        weight = layer.weight.to(torch.bfloat16)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = None if layer.bias is None else layer.bias.to(torch.bfloat16, copy=True)

    def __call__(self, x: Tensor) -> Any:
        given: tuple[Any, ...] = (self.then, [], "")
        return torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, *given)


_PARTS: dict[type, Any] = {nn.Conv2d: _Convolution, PatchConv2d: _Convolution, nn.Linear: _Dense}
