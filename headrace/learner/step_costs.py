"""Computes the cost of a step in a batch: memory kept for its gradient, and multiplications."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.spaces.walk import map_space
from headrace.types import Tree

_ROWS = 2


class PolicyStepCost(NamedTuple):
    """Cost of the forward pass of one step."""

    num_bytes: int  # kept for the backward pass, in float32
    products: int  # multiplications: parameters, those of convolutions at each place


def step_cost(policy: Policy) -> PolicyStepCost:
    """Compute a step's cost on the CPU from shapes alone; it is the same on every machine."""
    parameters = list(policy.parameters())
    own = {p.untyped_storage().data_ptr() for p in parameters}
    kernels = {p.shape for p in parameters if p.ndim == 4}  # scaled ones have other memory
    num_bytes, products = 0, sum(p.numel() for p in parameters)

    def keep(x: Tensor) -> Tensor:
        nonlocal num_bytes
        if x.untyped_storage().data_ptr() not in own and x.shape not in kernels:
            num_bytes += x.nbytes
        return x.detach()  # x itself would keep its graph, and with it these weights

    def count(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal products
        places = output[0, 0].numel() - 1
        products += places * sum(p.numel() for p in module.parameters())

    precision = policy.precision
    with contextlib.ExitStack() as stack:
        for module in policy.modules():
            if isinstance(module, nn.Conv2d):
                stack.callback(module.register_forward_hook(count).remove)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(saved_tensors_hooks(keep, lambda x: x))
        stack.callback(policy.compute_in, precision)
        policy.compute_in("float32")
        first = torch.zeros(1, _ROWS, dtype=torch.bool)
        policy(example(policy, _ROWS), first, policy.initial_core(_ROWS))
    return PolicyStepCost(num_bytes // _ROWS, products)


def example(policy: Policy, num: int) -> Tree:
    """Return inputs ``[1, num, ...]`` whose observations are in their space; zeros might not be.

    Integers have their lowest values, which are valid symbols for any number of symbols.
    """
    inputs, space = policy.inputs, copy.deepcopy(policy.inputs.features_space)
    space.seed(0)

    def value(leaf: gymnasium.Space) -> Any:
        return leaf.low if isinstance(leaf, Box) and leaf.dtype.kind in "iu" else leaf.sample()

    samples = [map_space(value, space)] * num
    obs = tree.map_leaves(lambda *x: torch.as_tensor(np.stack(x)), *samples)
    example = obs if inputs.plain else inputs.example(num) | {"observation": obs}
    return tree.map_leaves(lambda x: x.unsqueeze(0), example)
