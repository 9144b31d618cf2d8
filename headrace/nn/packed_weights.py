"""Inference with a copy of the weights in oneDNN's memory layout.

Without the copy weights are reordered in each call, which takes long compared with a few images.
The copy is valid while weights are constant, on a CPU, without gradients. The operations are those
that ``torch.compile`` generates for CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.nn.exact_modules import is_exactly
from headrace.nn.patches import PatchConv2d, patches

_ROWS = 64  # the layout of dense weights is optimised for this many rows


def can_pack(device: torch.device) -> bool:
    """Return True if this PyTorch can pack weights and the CPU supports bfloat16."""
    return device.type == "cpu" and _works()


@functools.cache
def _works() -> bool:
    """Return True if a small network can be packed and called."""
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
    """Return True if :class:`PackedNetwork` computes exactly the same function as these layers."""
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
    """Computes layers in bfloat16 with the weights of the latest :meth:`pack`, without gradients.

    Functions are called directly, because modules would take as long as a small layer.

    Args:
        layers: layers for which :func:`can_pack_layers` is True.
    """

    def __init__(self, layers: nn.Sequential) -> None:
        self._parts: list[_Convolution | _Dense] = []
        self._steps: list[Callable[[Tensor], Tensor]] = []
        for layer in layers:
            if isinstance(layer, nn.ReLU):
                self._parts[-1].then = "relu"  # also after a Flatten
                continue
            if isinstance(layer, nn.Flatten):
                self._steps.append(_flat)
                continue
            part = _PARTS[type(layer)](layer)
            self._parts.append(part)
            self._steps.append(part)

    def pack(self) -> None:
        """Copy and pack the layers' current weights."""
        with torch.inference_mode():
            for part in self._parts:
                part.pack()

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the layers' output in bfloat16."""
        for step in self._steps:
            x = step(x)
        return x


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1)


class _Convolution:
    """Packed ``nn.Conv2d``; a ``PatchConv2d`` is computed on patches, into which images are cut."""

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
    """Packed ``nn.Linear``."""

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
