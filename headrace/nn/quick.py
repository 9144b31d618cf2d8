"""A dense torso whose weights stand still: the same numbers, in a third of the time for a few rows.

A step of some environments multiplies little. Most of its time goes to calling modules one inside
the other and to operations that one can spare; here are just those that compute.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.nn.encoder import Encoder
from headrace.nn.network import DenseTanh
from headrace.types import Tree


class QuickTorso:
    """Calls an :class:`Encoder` without convolutions or texts; nothing is differentiated.

    What it returns is the encoder's own, bit for bit. It holds views of weights and running
    statistics, which may be changed in place but not be replaced.
    """

    def __init__(self, torso: Encoder) -> None:
        modules = cast(nn.Sequential, torso.mlp).modules()
        layers = [m for m in modules if isinstance(m, nn.Linear)]
        self._layers = [(layer.bias, layer.weight.t()) for layer in layers]
        kinds = [type(m) for m in cast(nn.Sequential, torso.mlp).modules()]
        self._relu, self._tanh = nn.ReLU in kinds, DenseTanh in kinds
        self._minus_one = layers[0].weight.new_tensor(-1.0)
        norm = torso.normalizer
        self._norm = None if norm is None else (norm.center, norm.scale, norm.limit)
        self._numbers, self._single = torso.numbers, torso.is_single

    def __call__(self, inputs: Tree) -> Tensor:
        """``[N, ...] -> [N, num_outputs]``."""
        x = self._normalized(inputs) if self._single else self._numbers(inputs)
        for bias, weight in self._layers:
            if self._tanh:  # see DenseTanh; factors of two change no digit
                y = torch.addmm(bias, x, weight, beta=2.0, alpha=2.0).sigmoid_()
                x = torch.add(self._minus_one, y, alpha=2.0, out=y)
            else:
                x = torch.addmm(bias, x, weight)
                x = x.relu_() if self._relu else functional.elu_(x)
        return x

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype != self._minus_one.dtype:
            x = x.to(self._minus_one.dtype)
        if self._norm is None:
            return x
        center, scale, limit = self._norm
        return torch.sub(x, center).mul_(scale).clamp_(-limit, limit)


def quick(torso: Any) -> QuickTorso | None:
    """A quick way through a torso, if it is a dense one of the built-in kind."""
    if type(torso) is not Encoder or torso.mlp is None or not torso.is_dense:
        return None
    return QuickTorso(torso)
