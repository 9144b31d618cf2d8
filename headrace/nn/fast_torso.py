"""Inference fast paths of dense networks while weights are constant.

With a few rows, most of the time of a forward pass is spent in calls of nested modules. The fast
paths compute the same function with the necessary operations only.
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

_MOST_PRODUCTS = 1 << 18  # per layer; with more, NumPy's BLAS starts threads


class FastTorso:
    """Computes an :class:`Encoder` without convolutions or texts, bit for bit, without gradients.

    It holds views of weights and running statistics, which may change in place but must not be
    replaced.
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
        """Compute features: ``[N, ...] -> [N, num_outputs]``."""
        x, factor = self._first_input(inputs), self._factor
        for bias, weight in self.layers:
            x = self._activated(torch.addmm(bias, x, weight, beta=factor, alpha=factor))
        return x

    def forward_joint(self, others: Sequence[FastTorso], inputs: Tree, counts: list[int]) -> Tensor:
        """Compute several torsos of equal networks, each on its own group of rows.

        Only the matrix products are computed separately.

        Args:
            others: torsos of the later groups.
            inputs: ``[N, ...]``, all rows.
            counts: number of rows of each torso, starting with this one.
        """
        torsos = (self, *others)
        if self.norm is None:
            x = self._first_input(inputs)
        else:
            each = zip(torsos, split(inputs, counts), strict=True)
            x = torch.cat([torso._first_input(rows) for torso, rows in each])
        beta = alpha = self._factor
        for layers in zip(*(torso.layers for torso in torsos), strict=True):
            runs = zip(layers, x.split(counts), strict=True)
            parts = [torch.addmm(b, rows, w, beta=beta, alpha=alpha) for (b, w), rows in runs]
            x = self._activated(torch.cat(parts))
        return x

    def _first_input(self, inputs: Tree) -> Tensor:
        return self._normalized(inputs) if self.is_single else self._numbers(inputs)

    def _normalized(self, x: Tensor) -> Tensor:
        if x.dtype != self._input_dtype:
            x = x.to(self._input_dtype)
        if self.norm is None:
            return x
        center, scale, limit = self.norm
        return torch.sub(x, center).to(scale.dtype).mul_(scale).clamp_(-limit, limit)


class NumPyPolicy:
    """Computes a policy of dense layers on a few rows with NumPy.

    It takes half the time of torch, whose calls cost more than such small products. Results differ
    from the policy's in the last digits. Like :class:`FastTorso` it holds views of the weights.

    Args:
        torso: torso for one row of numbers, with float32 weights on a CPU and an activation that
            has a NumPy version.
        head: policy head.
        free: parameters appended to the head's outputs in each row, or None.
    """

    def __init__(self, torso: FastTorso, head: nn.Linear, free: Tensor | None) -> None:
        layers = [*torso.layers, (head.bias, head.weight.t())]
        self._layers = [(_array(bias), _array(weight)) for bias, weight in layers]
        assert torso.activation.numpy is not None
        self._activated = torso.activation.numpy
        self._free = np.empty(0) if free is None else _array(free)
        norm = torso.norm
        self._norm = None if norm is None else (_array(norm[0]), _array(norm[1]), norm[2])
        self.most_rows = _MOST_PRODUCTS // max(weight.size for _, weight in self._layers)

    @np.errstate(all="ignore")  # as in torch; NaN and infinity are checked elsewhere
    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute ``[N, num_inputs] -> [N, num_params]``, with N up to ``most_rows``."""
        x = _array(inputs)
        if self._norm is None:
            x = x.astype(np.float32)
        else:
            center, scale, limit = self._norm
            x = np.subtract(x, center, dtype=center.dtype).astype(np.float32, copy=False)
            x *= scale
            np.minimum(np.maximum(x, -limit, out=x), limit, out=x)
        *hidden, (bias, weight) = self._layers
        for hidden_bias, hidden_weight in hidden:
            x = x @ hidden_weight
            x += hidden_bias
            x = self._activated(x)
        y, num = np.empty((len(x), len(bias) + len(self._free)), np.float32), len(bias)
        np.add(x @ weight, bias, out=y[:, :num])
        y[:, num:] = self._free
        return torch.from_numpy(y)


def _array(x: Tensor) -> np.ndarray:
    return cast(np.ndarray, x.detach().numpy())


def numpy_policy(policy: Any, torso: Any) -> NumPyPolicy | None:
    """Return the NumPy path of a :class:`Policy` with this fast torso, or None."""
    head = policy.policy_head
    if type(torso) is not FastTorso or not torso.is_single or torso.activation.numpy is None:
        return None  # other torsos have more inputs, such as a mask
    if policy.core is not None or head.bias is None:
        return None
    weights = (head.weight, *(weight for _, weight in torso.layers))
    if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in weights):
        return None
    return NumPyPolicy(torso, head, policy.log_std)


def split(rows: Tree, counts: list[int]) -> list[Tree]:
    """Split rows ``[N, ...]`` into groups of these sizes."""
    ends = list(itertools.accumulate(counts))
    runs = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [tree.map_leaves(lambda x, run=run: x[run], rows) for run in runs]


def fast_torso(torso: Any) -> FastTorso | None:
    """Return the fast path of a torso if all its modules are known, else None."""
    dense = torso.exact_layers() if type(torso) is Encoder else None
    if dense is None or dense.activation.in_place is None:
        return None
    return FastTorso(torso, dense)


def fast_image(torso: Any) -> FastImage | None:
    """Return the fast path of a torso for a single image with packed weights, else None."""
    image = torso.exact_image() if type(torso) is Encoder else None
    return None if image is None else image.fast_path()
