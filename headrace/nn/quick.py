"""Torsos whose weights stand still: the same numbers in less time, a third with a few dense rows.

A step of some environments multiplies little. Most of its time goes to calling modules one inside
the other and to operations that one can spare; here are just those that compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.nn.encoder import Encoder
from headrace.nn.image import Image, QuickImage
from headrace.nn.network import DenseTanh
from headrace.ops import tree
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
        self._factor = 2.0 if self._tanh else 1.0  # see DenseTanh; factors of two change no digit
        self._minus_one = layers[0].weight.new_tensor(-1.0)
        norm = torso.normalizer
        self._norm = None if norm is None else (norm.center, norm.scale, norm.limit)
        self._numbers, self._single = torso.numbers, torso.is_single

    def __call__(self, inputs: Tree) -> Tensor:
        """``[N, ...] -> [N, num_outputs]``."""
        x, factor = self._given(inputs), self._factor
        for bias, weight in self._layers:
            x = self._activated(torch.addmm(bias, x, weight, beta=factor, alpha=factor))
        return x

    def beside(self, others: Sequence[QuickTorso], inputs: Tree, counts: list[int]) -> Tensor:
        """What it and others of its network return, each for its own run of rows.

        Only multiplication is done for each by itself.

        Args:
            others: behind it. inputs: ``[N, ...]``. counts: rows of each, itself included.
        """
        torsos = (self, *others)
        if self._norm is None:
            x = self._given(inputs)
        else:
            each = zip(torsos, split(inputs, counts), strict=True)
            x = torch.cat([torso._given(rows) for torso, rows in each])
        beta = alpha = self._factor
        for layers in zip(*(torso._layers for torso in torsos), strict=True):
            runs = zip(layers, x.split(counts), strict=True)
            parts = [torch.addmm(b, rows, w, beta=beta, alpha=alpha) for (b, w), rows in runs]
            x = self._activated(torch.cat(parts))
        return x

    def _activated(self, x: Tensor) -> Tensor:
        if self._tanh:
            return torch.add(self._minus_one, x.sigmoid_(), alpha=2.0, out=x)
        return x.relu_() if self._relu else functional.elu_(x)

    def _given(self, inputs: Tree) -> Tensor:
        return self._normalized(inputs) if self._single else self._numbers(inputs)

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype != self._minus_one.dtype:
            x = x.to(self._minus_one.dtype)
        if self._norm is None:
            return x
        center, scale, limit = self._norm
        return torch.sub(x, center).mul_(scale).clamp_(-limit, limit)


def split(rows: Tree, counts: list[int]) -> list[Tree]:
    """Runs of rows ``[N, ...]``, so many each."""
    ends = list(itertools.accumulate(counts))
    runs = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [tree.map_leaves(lambda x, run=run: x[run], rows) for run in runs]


def quick(torso: Any) -> QuickTorso | None:
    """A quick way through a torso, if it is a dense one of the built-in kind."""
    if type(torso) is not Encoder or torso.mlp is None or not torso.is_dense:
        return None
    return QuickTorso(torso)


def quick_image(torso: Any) -> QuickImage | None:
    """A quick way through a torso, if it is of one image alone and packed at this time."""
    if type(torso) is not Encoder or not torso.has_one_image:
        return None
    return cast(Image, torso.parts[0]).quick()
