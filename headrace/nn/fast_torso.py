"""Torsos whose weights stand still: the same numbers in less time, a third with a few dense rows.

A step of some environments multiplies little. Most of its time goes to calling modules one inside
the other and to operations that one can spare; here are just those that compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.nn.encoder import Encoder
from headrace.nn.image import FastImage, Image
from headrace.nn.network import DenseTanh
from headrace.ops import tree
from headrace.types import Tree

_FEW = 1 << 18  # products of a layer, at most: of more, NumPy's BLAS begins threads


class FastTorso:
    """Calls an :class:`Encoder` without convolutions or texts; nothing is differentiated.

    What it returns is the encoder's own, bit for bit. It holds views of weights and running
    statistics, which may be changed in place but not be replaced.
    """

    def __init__(self, torso: Encoder) -> None:
        modules = cast(nn.Sequential, torso.mlp).modules()
        layers = [m for m in modules if isinstance(m, nn.Linear)]
        self.layers = [(layer.bias, layer.weight.t()) for layer in layers]
        kinds = [type(m) for m in cast(nn.Sequential, torso.mlp).modules()]
        self.relu, self.tanh = nn.ReLU in kinds, DenseTanh in kinds
        self._factor = 2.0 if self.tanh else 1.0  # see DenseTanh; factors of two change no digit
        self._minus_one = layers[0].weight.new_tensor(-1.0)
        norm, self._input_dtype = torso.normalizer, torso.value_dtype or layers[0].weight.dtype
        self.norm = None
        if norm is not None:
            self.norm = norm.center_for(self._input_dtype), norm.scale, norm.limit
        self._numbers, self.is_single = torso.numbers, torso.is_single

    def __call__(self, inputs: Tree) -> Tensor:
        """``[N, ...] -> [N, num_outputs]``."""
        x, factor = self._given(inputs), self._factor
        for bias, weight in self.layers:
            x = self._activated(torch.addmm(bias, x, weight, beta=factor, alpha=factor))
        return x

    def beside(self, others: Sequence[FastTorso], inputs: Tree, counts: list[int]) -> Tensor:
        """What it and others of its network return, each for its own run of rows.

        Only multiplication is done for each by itself.

        Args:
            others: behind it. inputs: ``[N, ...]``. counts: rows of each, itself included.
        """
        torsos = (self, *others)
        if self.norm is None:
            x = self._given(inputs)
        else:
            each = zip(torsos, split(inputs, counts), strict=True)
            x = torch.cat([torso._given(rows) for torso, rows in each])
        beta = alpha = self._factor
        for layers in zip(*(torso.layers for torso in torsos), strict=True):
            runs = zip(layers, x.split(counts), strict=True)
            parts = [torch.addmm(b, rows, w, beta=beta, alpha=alpha) for (b, w), rows in runs]
            x = self._activated(torch.cat(parts))
        return x

    def _activated(self, x: Tensor) -> Tensor:
        if self.tanh:
            return torch.add(self._minus_one, x.sigmoid_(), alpha=2.0, out=x)
        return x.relu_() if self.relu else functional.elu_(x)

    def _given(self, inputs: Tree) -> Tensor:
        return self._normalized(inputs) if self.is_single else self._numbers(inputs)

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype != self._input_dtype:
            x = x.to(self._input_dtype)
        if self.norm is None:
            return x
        center, scale, limit = self.norm
        return torch.sub(x, center).to(scale.dtype).mul_(scale).clamp_(-limit, limit)


class NumPyPolicy:
    """Calls a policy of dense layers on a few rows of numbers, by NumPy.

    There it takes half of what torch does, whose calls cost more than such a multiplication does,
    the more as the environments' steps in between empty the caches. What it returns is the policy's
    own but for the last digits. It holds views, as :class:`FastTorso` does.

    Args:
        torso: of one row of numbers, with tanh or ReLU; its weights are float32 on a processor.
        head: behind it. free: what stands behind the head's outputs in each row, or None.
    """

    def __init__(self, torso: FastTorso, head: nn.Linear, free: Tensor | None) -> None:
        layers = [*torso.layers, (head.bias, head.weight.t())]
        self._layers = [(_array(bias), _array(weight)) for bias, weight in layers]
        self._tanh, self._free = torso.tanh, np.empty(0) if free is None else _array(free)
        norm = torso.norm
        self._norm = None if norm is None else (_array(norm[0]), _array(norm[1]), norm[2])
        self.most_rows = _FEW // max(weight.size for _, weight in self._layers)

    @np.errstate(all="ignore")  # what isn't finite is left to who looks for it, as torch does
    def __call__(self, inputs: Tensor) -> Tensor:
        """``[N, num_inputs] -> [N, num_params]``, with N up to ``most_rows``."""
        x = _array(inputs)
        if self._norm is None:
            x = x.astype(np.float32)
        else:
            center, scale, limit = self._norm
            x = np.subtract(x, center, dtype=center.dtype).astype(np.float32, copy=False)
            x *= scale
            np.minimum(np.maximum(x, -limit, out=x), limit, out=x)
        *hidden, (bias, weight) = self._layers
        for more, by in hidden:
            x = x @ by
            x += more
            x = np.tanh(x, out=x) if self._tanh else np.maximum(x, 0.0, out=x)
        y, num = np.empty((len(x), len(bias) + len(self._free)), np.float32), len(bias)
        np.add(x @ weight, bias, out=y[:, :num])
        y[:, num:] = self._free
        return torch.from_numpy(y)


def _array(x: Tensor) -> np.ndarray:
    return cast(np.ndarray, x.detach().numpy())


def few_rows(policy: Any, torso: Any) -> NumPyPolicy | None:
    """A quick way for few rows through a :class:`Policy`, whose torso has this one, if any."""
    head = policy.policy_head
    if type(torso) is not FastTorso or not torso.is_single or not (torso.tanh or torso.relu):
        return None  # what isn't single has more inputs, such as a mask
    if policy.core is not None:
        return None
    if head.weight.device.type != "cpu" or head.weight.dtype != torch.float32:
        return None
    return NumPyPolicy(torso, head, policy.log_std)


def split(rows: Tree, counts: list[int]) -> list[Tree]:
    """Runs of rows ``[N, ...]``, so many each."""
    ends = list(itertools.accumulate(counts))
    runs = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [tree.map_leaves(lambda x, run=run: x[run], rows) for run in runs]


def quick(torso: Any) -> FastTorso | None:
    """A quick way through a torso, if it is a dense one of the built-in kind."""
    if type(torso) is not Encoder or torso.mlp is None or not torso.is_dense:
        return None
    return FastTorso(torso)


def quick_image(torso: Any) -> FastImage | None:
    """A quick way through a torso, if it is of one image alone and packed at this time."""
    if type(torso) is not Encoder or not torso.has_one_image:
        return None
    return cast(Image, torso.parts[0]).quick()
