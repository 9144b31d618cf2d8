"""Computes gradients of the built-in dense networks with compiled functions.

One call replaces about 200 small torch operations. The results are those of
:class:`~headrace.learner.fused.FusedNetwork`, to rounding; ``headrace/native`` has the
formulas, and ``ops/losses.py`` defines the losses.
"""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters, PolicyOutputs
from headrace.native.library import SUMS, Functions, Network, Terms, functions
from headrace.nn.encoder import DenseLayers, Encoder
from headrace.nn.native_layout import as_dense, network_of, place_actions
from headrace.nn.policy import Policy
from headrace.ops import stacks, tree
from headrace.ops.losses import LossTerms
from headrace.types import Batch, Metrics, State, Tree


def native_network(policy: Policy, layers: list[DenseLayers], flat: Tensor) -> NativeNetwork | None:
    """Return the compiled path of a policy for which ``can_fuse`` is True, or None.

    Args:
        layers: dense layers of each torso.
        flat: tensor of which the parameters are views.
    """
    compiled = functions(flat.dtype)
    if compiled is None:
        return None
    network = None if policy.core is not None else network_of(policy, layers[0])
    if network is None or not network.parts:  # an unknown distribution has no parts
        return None
    _place_parameters(network, policy, layers)
    return NativeNetwork(policy, network, flat, compiled)


class Memory:
    """Memory of one call, which is used again: structures, activations and sums."""

    def __init__(self, network: Network) -> None:
        self.network, self.terms = Network.from_buffer_copy(network), Terms()
        self.sums = (ctypes.c_double * len(SUMS))()
        self.work = torch.empty(0)
        self.addresses = tuple(map(ctypes.addressof, (self.network, self.terms, self.sums)))


class NativeNetwork:
    """Computes the gradient of a loss with respect to a policy; safe to use from several threads.

    Made by :func:`native_network`.

    Attributes:
        flat: tensor ``[P]`` of which the parameters are views.
        compiled: the compiled functions.
    """

    def __init__(self, policy: Policy, network: Network, flat: Tensor, compiled: Functions) -> None:
        self._policy, self.flat, self.compiled = policy, flat, compiled
        self._torso = cast(Encoder, policy.torso)
        self._network = network
        self._bounds = _place_bounds(network, policy, flat.dtype)
        self._free: list[Memory] = []  # memory that isn't in use

    def by_hand(
        self, algorithm: Hyperparameters, batch: Batch, state: State
    ) -> tuple[Tensor, Metrics]:
        """Return the flat gradient ``[P]`` and metrics of the loss of an algorithm's terms."""
        memory = self._taken()
        gradient = torch.zeros_like(self.flat)  # other parameters of the policy keep 0
        with torch.inference_mode():
            metrics = self._by_hand(memory, gradient, algorithm, batch, state)
        self._free.append(memory)
        return gradient, metrics

    def _by_hand(
        self,
        memory: Memory,
        gradient: Tensor,
        algorithm: Hyperparameters,
        batch: Batch,
        state: State,
    ) -> Metrics:
        shape, compiled, flat = batch.valid.shape, self.compiled, self.flat
        num, weights = shape[0] * shape[1], flat.data_ptr()
        network, terms, sums = memory.addresses
        inputs = tree.map_leaves(lambda x: x.flatten(0, 1), batch.obs)
        outputs, value = self._forward(memory, inputs)
        total, work, scale = len(value), memory.work.data_ptr(), memory.network.value_scale
        log_prob, entropy = flat.new_empty(num), flat.new_empty(num)
        chances = torch.empty_like(outputs)
        params = self._params(outputs[:num])
        kept = self.place_actions(memory.network, batch.action)
        scores = chances.data_ptr(), log_prob.data_ptr(), entropy.data_ptr()
        if outside := compiled.score(network, weights, num, outputs.data_ptr(), *scores):
            raise IndexError(f"{outside} choices of a batch's actions are out of range")
        said = PolicyOutputs(
            log_prob.view(shape),
            entropy.view(shape),
            value.view(-1, shape[1]),
            params.view(*shape, -1),
            self._policy.popart,
            self._policy.action_bounds,
        )
        loss = algorithm.terms(said, batch, state)
        kept += place_terms(memory.terms, loss, batch, algorithm, scale, flat.dtype)
        compiled.backward(
            network, weights, terms, num, total, work, outputs.data_ptr(), *scores,
            value.data_ptr(), gradient.data_ptr(), sums,
        )  # fmt: skip
        return {**sums_of(memory.sums, loss, scale)}

    def outputs(self, inputs: Tree) -> tuple[Tensor, Tensor]:
        """Return parameters of distributions ``[N, num_params]`` and values ``[N]``."""
        memory = self._taken()
        outputs, value = self._forward(memory, inputs)
        self._free.append(memory)
        return self._policy.finished(outputs, inputs), value

    def memory(self) -> Memory:
        """Return memory for the structures of a call."""
        return Memory(self._network)

    def _taken(self) -> Memory:
        try:
            return self._free.pop()  # another thread may take the last one
        except IndexError:
            return self.memory()

    def _forward(self, memory: Memory, inputs: Tree) -> tuple[Tensor, Tensor]:
        """Return the outputs of the policy's head ``[N, num_outputs]``, masked, and values."""
        flat, (x, *kept) = self.flat, self.place_inputs(memory.network, inputs)
        count = len(x)
        size = self.compiled.workspace(memory.addresses[0], count)
        if memory.work.numel() < size:
            memory.work = flat.new_empty(size)
        outputs, value = flat.new_empty(count, memory.network.outputs), flat.new_empty(count)
        self.compiled.forward(
            memory.addresses[0], flat.data_ptr(), x.data_ptr(), count, memory.work.data_ptr(),
            outputs.data_ptr(), value.data_ptr(),
        )  # fmt: skip
        del kept
        if self._policy.inputs.mask != "none":
            finished = self._policy.finished(outputs, inputs)
            outputs = finished[:, : outputs.shape[1]].contiguous()
        return outputs, value

    def place_inputs(self, network: Network, inputs: Tree) -> list[Tensor]:
        """Return the inputs of the first layer ``[N, inputs]``, and tensors that must be kept.

        Writes how to normalise the inputs, and the units of the values.
        """
        torso, popart, dtype = self._torso, self._policy.popart, self.flat.dtype
        norm = torso.normalizer if torso.is_single and inputs.dtype == dtype else None
        kept, network.center = [], None
        if norm is not None:
            kept = [center := norm.center_for(dtype)]
            network.center, network.scale = center.data_ptr(), norm.scale.data_ptr()
            network.limit = norm.limit
        network.value_scale, network.value_mean = 1.0, 0.0
        if popart is not None:
            network.value_scale, network.value_mean = float(popart.scale), float(popart.mean)
        return [as_dense(torso.numbers(inputs) if norm is None else inputs, dtype), *kept]

    def mask(self, inputs: Tree) -> Tensor | None:
        """Return the mask of actions ``[N, num_mask]`` bool, if there is one."""
        if self._policy.inputs.mask == "none":
            return None
        return cast(Tensor, inputs["action_mask"]).contiguous()

    def _params(self, outputs: Tensor) -> Tensor:
        """Return a copy of the heads' outputs ``[N, num_outputs]`` with the free parameters."""
        free = self._policy.log_std
        if free is None:
            return outputs.clone()
        return torch.cat((outputs, free.expand(len(outputs), -1)), 1)

    def place_actions(self, network: Network, action: Any) -> list[Tensor]:
        """Write pointers to actions ``[T, B, ...]``; returns the tensors, which must be kept."""
        flat = tree.map_leaves(lambda x: x.flatten(0, 1), action)
        return place_actions(network, self._policy.distribution, flat, self.flat.dtype)


class NativeOutputs:
    """A policy for algorithms, whose outputs without gradients are computed by compiled functions.

    Args:
        is_current: tells whether the network computes what the policy does.
    """

    def __init__(
        self, policy: Policy, network: NativeNetwork, is_current: Callable[[], bool]
    ) -> None:
        self._policy, self._network, self._is_current = policy, network, is_current

    def __call__(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        if torch.is_grad_enabled() or not self._is_current():
            outputs: tuple[Tensor, Tensor, Tree] = self._policy(inputs, first, core)
            return outputs
        params, value = self._network.outputs(stacks.flat(inputs))
        return params.unflatten(0, first.shape), value.view(first.shape), core

    def values(self, inputs: Tree, first: Tensor, core: Tree) -> Tensor:
        """See :meth:`Policy.values`."""
        return self(inputs, first, core)[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:  # as a target network
        return copy.deepcopy(self._policy, memo)

    def __getattr__(self, name: str) -> Any:
        if name == "_policy":  # before __init__, as in copies
            raise AttributeError(name)
        return getattr(self._policy, name)


def _place_parameters(network: Network, policy: Policy, layers: list[DenseLayers]) -> None:
    """Write the positions of a policy's parameters in the flat vector of all of them."""
    starts: dict[Tensor, int] = {}
    start = 0
    for p in policy.parameters():
        starts[p], start = start, start + p.numel()
    network.torsos = len(layers)
    for k, torso in enumerate(layers):
        for i, layer in enumerate(torso.linear):
            network.weight[k][i], network.bias[k][i] = starts[layer.weight], starts[layer.bias]
    head, value_head, free = policy.policy_head, policy.value_head, policy.log_std
    network.policy_weight, network.policy_bias = starts[head.weight], starts[head.bias]
    network.value_weight, network.value_bias = starts[value_head.weight], starts[value_head.bias]
    network.log_std = 0 if free is None else starts[free]


def _place_bounds(network: Network, policy: Policy, dtype: torch.dtype) -> list[Tensor]:
    """Write pointers to the range of each output; returns the tensors, which must be kept."""
    bounds = policy.action_bounds
    if bounds is None:
        return []
    middle = torch.zeros(network.outputs, dtype=dtype)
    half = torch.full_like(middle, math.inf)  # no bounds
    middle[bounds.places], half[bounds.places] = bounds.middle.to(dtype), bounds.half.to(dtype)
    network.middle, network.half = middle.data_ptr(), half.data_ptr()
    return [middle, half]


def place_terms(
    terms: Terms,
    loss: LossTerms,
    batch: Batch,
    algorithm: Hyperparameters,
    value_scale: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Write a loss's data; returns the tensors, which must be kept while it is used."""
    data = {
        "advantage": loss.advantage,
        "target": loss.target,
        "behaviour": batch.log_prob,
        "old_log_prob": loss.old_log_prob,
        "old_value": loss.old_value,
        "weight": loss.weight,
    }
    kept = [batch.valid.contiguous()]
    terms.valid = kept[0].data_ptr()
    for name, x in data.items():
        if x is not None:
            if x.shape != batch.valid.shape:  # the functions read as many numbers
                shapes = tuple(batch.valid.shape), tuple(x.shape)
                raise ValueError(f"{name} must be {shapes[0]} like valid, got {shapes[1]}")
            kept.append(as_dense(x, dtype))
        setattr(terms, name, None if x is None else kept[-1].data_ptr())
    terms.clip = -1.0 if loss.clip is None else loss.clip
    terms.max_ratio = loss.max_ratio
    terms.value_clip = cast(float, loss.value_clip) if loss.clips_values else -1.0
    terms.epsilon, terms.kl_coef = loss.epsilon, loss.kl_coef
    terms.value_coef, terms.entropy_coef = algorithm.value_coef, algorithm.entropy_coef
    terms.value_scale, terms.bounds_coef = value_scale, algorithm.bounds_coef
    return kept


def sums_of(sums: Any, loss: LossTerms, value_scale: float) -> dict[str, float]:
    """Return sums of metrics by name, as :mod:`headrace.ops.loss_derivatives` does."""
    metrics: dict[str, float] = dict(zip(SUMS, sums, strict=True))
    if not loss.clips_values:
        per_unit = 1.0 / value_scale if value_scale > 0 else 0.0
        metrics["value_loss"] = 0.5 * metrics["error_sq"] * per_unit**2
    if loss.clip is None:
        del metrics["clipfrac"]
    metrics.update((name, float(x)) for name, x in loss.sums.items())
    return metrics
