"""Describes built-in dense networks for the compiled functions, in acting and in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headrace.native.library import (
    ACTIVATIONS,
    CATEGORICAL,
    GAUSSIAN,
    MAX_LAYERS,
    MAX_PARTS,
    Network,
)
from headrace.nn.encoder import DenseLayers
from headrace.ops.distributions.composite import Composite
from headrace.ops.distributions.discrete import Categorical, MultiCategorical
from headrace.ops.distributions.gaussian import DiagGaussian
from headrace.ops.distributions.scores import has_score

MOST_UNITS = 256  # units of a layer from which torch computes gradients as fast


def network_of(policy: Any, dense: DenseLayers, most: int = MOST_UNITS) -> Network | None:
    """Return the shape of a policy's torso and policy head; None if it isn't supported.

    The network has no parts if the distribution isn't supported.

    Args:
        dense: the layers of its torso, or of each of its torsos.
        most: largest number of inputs or units of a layer.
    """
    kind = dense.activation.compiled
    sizes = [dense.linear[0].in_features, *(layer.out_features for layer in dense.linear)]
    if kind not in ACTIVATIONS or len(sizes) > MAX_LAYERS + 1 or max(sizes) > most:
        return None
    network = Network(1, len(sizes) - 1, ACTIVATIONS.index(kind))
    network.sizes[: len(sizes)] = sizes
    network.outputs = policy.policy_head.out_features
    network.free_params = 0 if policy.log_std is None else policy.log_std.numel()
    network.num_mask = policy.distribution.num_mask
    parts = list(_parts(policy.distribution)) if has_score(policy.distribution) else []
    if len(parts) <= MAX_PARTS:
        network.parts = len(parts)
        for place, (part, size) in zip(network.part, parts, strict=False):
            place.kind, place.size = part, size
    return network


def _parts(distribution: Any) -> Iterator[tuple[int, int]]:
    """Yield the kind and size of each choice or Gaussian of a distribution."""
    if isinstance(distribution, Categorical):
        yield CATEGORICAL, distribution.n
    elif isinstance(distribution, MultiCategorical):
        yield from ((CATEGORICAL, n) for n in distribution.nvec)
    elif isinstance(distribution, DiagGaussian):
        yield GAUSSIAN, distribution.num_outputs
    else:
        for part in distribution.parts:
            yield from _parts(part)


def place_actions(
    network: Network, distribution: Any, action: Any, dtype: torch.dtype
) -> list[Tensor]:
    """Write pointers to actions ``[N, ...]`` into the parts of a network.

    Returns:
        the tensors, which must be kept while the pointers are used.
    """
    kept = []
    parts = _actions(distribution, action, dtype)
    for part, (values, position) in zip(network.part, parts, strict=False):
        part.action = values.data_ptr() + position * values.element_size()
        part.stride = values.stride(0)
        kept.append(values)
    return kept


def _actions(distribution: Any, action: Any, dtype: torch.dtype) -> Iterator[tuple[Tensor, int]]:
    """Yield the actions of each part, and the position of its first element."""
    if isinstance(distribution, Composite):
        each = distribution.each_action(action)
        for part, own in zip(distribution.parts, each, strict=True):
            yield from _actions(part, own, dtype)
    elif isinstance(distribution, DiagGaussian):
        yield as_dense(action, dtype), 0
    else:
        choices = as_dense(action, torch.int64)
        count = len(distribution.nvec) if isinstance(distribution, MultiCategorical) else 1
        yield from ((choices, i) for i in range(count))


def as_dense(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a contiguous tensor of this dtype; the check is faster than a no-op conversion."""
    return x if x.dtype == dtype and x.is_contiguous() else x.to(dtype).contiguous()
