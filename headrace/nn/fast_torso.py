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

from headrace.nn.encoder import DenseLayers, Encoder
from headrace.nn.image import FastImage
from headrace.ops import tree
from headrace.types import Tree

_FEW = 1 << 18  # products of a layer, at most: of more, NumPy's BLAS begins threads


class FastTorso:
    """Calls an :class:`Encoder` without convolutions or texts; nothing is differentiated.

    What it returns is the encoder's own, bit for bit. It holds views of weights and running
    statistics, which may be changed in place but not be replaced.
    """

    def __init__(self, torso: Encoder, dense: DenseLayers) -> None:
        layers, self.activation = dense
        self.layers = [(layer.bias, layer.weight.t()) for layer in layers]
        assert self.activation.in_place is not None
        self._activated, self._factor = self.activation.in_place, self.activation.factor
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
        torso: of one row of numbers; its weights are float32 on a processor, and its activation
            has a form for NumPy.
        head: behind it. free: what stands behind the head's outputs in each row, or None.
    """

    def __init__(self, torso: FastTorso, head: nn.Linear, free: Tensor | None) -> None:
        layers = [*torso.layers, (head.bias, head.weight.t())]
        self._layers = [(_array(bias), _array(weight)) for bias, weight in layers]
        assert torso.activation.numpy is not None
        self._activated = torso.activation.numpy
        self._free = np.empty(0) if free is None else _array(free)
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
            x = self._activated(x)
        y, num = np.empty((len(x), len(bias) + len(self._free)), np.float32), len(bias)
        np.add(x @ weight, bias, out=y[:, :num])
        y[:, num:] = self._free
        return torch.from_numpy(y)


def _array(x: Tensor) -> np.ndarray:
    return cast(np.ndarray, x.detach().numpy())


def few_rows(policy: Any, torso: Any) -> NumPyPolicy | None:
    """The NumPy path of a :class:`Policy` whose torso has this fast path; None if it has none."""
    head = policy.policy_head
    if type(torso) is not FastTorso or not torso.is_single or torso.activation.numpy is None:
        return None  # what isn't single has more inputs, such as a mask
    if policy.core is not None or head.bias is None:
        return None
    weights = (head.weight, *(weight for _, weight in torso.layers))
    if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in weights):
        return None
    return NumPyPolicy(torso, head, policy.log_std)


def split(rows: Tree, counts: list[int]) -> list[Tree]:
    """Runs of rows ``[N, ...]``, so many each."""
    ends = list(itertools.accumulate(counts))
    runs = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [tree.map_leaves(lambda x, run=run: x[run], rows) for run in runs]


def quick(torso: Any) -> FastTorso | None:
    """The fast path of a torso whose every module it knows; None for any other."""
    dense = torso.exact_layers() if type(torso) is Encoder else None
    if dense is None or dense.activation.in_place is None:
        return None
    return FastTorso(torso, dense)


def quick_image(torso: Any) -> FastImage | None:
    """The fast path of a torso for a single image with packed weights; None for any other."""
    image = torso.exact_image() if type(torso) is Encoder else None
    return None if image is None else image.quick()
