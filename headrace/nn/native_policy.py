"""Acts with compiled functions while the weights of a policy of dense layers are constant.

One call replaces about ten small torch operations. In rollouts, it also samples the actions.
``headrace/native/act.inc`` has the formulas. Results are those of the modules, to rounding.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.native.library import PAD, Acting, Functions, Network, functions
from headrace.nn.encoder import DenseLayers, Encoder
from headrace.nn.native_layout import as_dense, network_of, place_actions
from headrace.ops import tree
from headrace.spaces import observations as spaces
from headrace.spaces.masks import MASK
from headrace.types import Tree

_FLOATS = (torch.float32, torch.float64)
_MOST_UNITS = 512  # units of a layer from which torch is as fast with one thread


def native_policy(policy: Any) -> NativePolicy | None:
    """Return the compiled path of a :class:`Policy`; None if it isn't supported."""
    torso, head = policy.torso, policy.policy_head
    dense = torso.exact_layers() if type(torso) is Encoder else None
    if policy.network.use_sde:  # noise depends on the features of each step
        return None
    if dense is None or head.bias is None or (compiled := functions(head.weight.dtype)) is None:
        return None
    dtype = head.weight.dtype
    weights = [x for layer in (*dense.linear, head) for x in (layer.weight, layer.bias)]
    if any(x.device.type != "cpu" or x.dtype != dtype for x in weights):
        return None
    network = network_of(policy, dense, _MOST_UNITS)
    return None if network is None else NativePolicy(policy, dense, network, compiled)


class NativePolicy:
    """Computes a policy's parameters and actions; safe to use from several threads.

    Weights are copied at construction. :func:`native_policy` creates it.
    """

    def __init__(
        self, policy: Any, dense: DenseLayers, network: Network, compiled: Functions
    ) -> None:
        self._policy, self._torso, self._act = policy, policy.torso, compiled.act
        self._dtype, norm = policy.policy_head.weight.dtype, policy.torso.normalizer
        self._path, self._is_wide = policy.torso.only_row, False
        layers = [*dense.linear, policy.policy_head]
        if policy.core is not None:  # it lies between torso and head
            del layers[-1]
            network.outputs = network.parts = 0
        self._packed = _pack(layers, compiled)
        free = self._packed if policy.log_std is None else policy.log_std.detach()
        self._free = free.contiguous()  # its address is used
        self._knows_distribution = network.parts > 0
        self._network, self._normalized = network, Network.from_buffer_copy(network)
        if norm is not None:
            own = self._torso.value_dtype or self._dtype
            self._kept = norm.center_for(own), norm.scale  # their addresses are used
            network.center, network.scale = (x.data_ptr() for x in self._kept)
            network.limit, self._is_wide = norm.limit, own == torch.float64

    def features(self, inputs: Tree) -> Tensor:
        """Return features ``[N, num_outputs]`` of the torso of a policy with a core."""
        return self._evaluated(inputs, self._torso.num_outputs, None)

    def params(self, inputs: Tree) -> Tensor:
        """Return parameters of the distribution ``[N, num_params]`` of a policy without a core."""
        policy, mask = self._policy, self._mask(inputs)
        params = self._evaluated(inputs, policy.distribution.num_params, mask)
        if mask is None and policy.inputs.mask != "none":
            return policy.distribution.apply_mask(params, inputs[MASK])  # type: ignore[no-any-return]
        return params

    def chooser(
        self, inputs: Tree, noise: Tensor, action: Tree, log_prob: Tensor
    ) -> Callable[[int], None] | None:
        """Return a function that acts in row t of a rollout; None if it isn't supported.

        Args:
            inputs: ``[T + 1, B, ...]``; row t is read when the function is called.
            noise: ``[T, B, num_noise]``, see :meth:`Distribution.noise`.
            action: ``[T, B, ...]``, written by the function.
            log_prob: ``[T, B]``, written by the function.
        """
        is_dense = all(isinstance(x, Tensor) and x.is_contiguous() for x in tree.leaves(inputs))
        others = (*tree.leaves(action), noise, log_prob)
        if not self._knows_distribution or self._dtype != torch.float32 or not is_dense:
            return None
        if not all(x.is_contiguous() for x in others):
            return None
        x = self._row(inputs)
        network = Network.from_buffer_copy(self._normalized if x is None else self._network)
        flat = tree.map_leaves(lambda x: x.flatten(0, 1), action)
        placed = place_actions(network, self._policy.distribution, flat, self._dtype)
        acting = self._acting(x, self._mask(inputs))
        acting.noise, acting.log_prob = noise.data_ptr(), log_prob.data_ptr()
        num, torso = noise.shape[1], self._torso
        kept = self, network, acting, inputs, placed, noise, log_prob  # their addresses are used
        call = functools.partial(self._act, ctypes.addressof(network), ctypes.addressof(acting))
        if x is None:

            def choose_composed(t: int, kept: Any = kept) -> None:
                row = tree.map_leaves(lambda x: x[t], inputs)
                x = as_dense(torso.numbers(row), self._dtype)
                _check_memory(call(x.data_ptr(), t * num, num))

            return choose_composed
        begin, num_bytes = x.data_ptr(), x.stride(0) * x.element_size()

        def choose(t: int, kept: Any = kept) -> None:
            _check_memory(call(begin + t * num_bytes, t * num, num))

        return choose

    def _evaluated(self, inputs: Tree, size: int, mask: Tensor | None) -> Tensor:
        """Return the results ``[N, size]`` of inputs ``[N, ...]``."""
        network, x = self._network, self._row(inputs)
        if x is None:
            network, x = self._normalized, as_dense(self._torso.numbers(inputs), self._dtype)
        results = torch.empty(len(x), size, dtype=self._dtype)
        acting = self._acting(x, mask)
        acting.params = results.data_ptr()
        at = ctypes.addressof(network), ctypes.addressof(acting)
        _check_memory(self._act(*at, x.data_ptr(), 0, len(x)))
        return results

    def _row(self, inputs: Tree) -> Tensor | None:
        """Return the input array if it is the only one and needs no conversion, else None."""
        if self._path is None:
            return None
        x = spaces.at(self._torso.observation(inputs), self._path)
        return x if x.dtype in _FLOATS and x.is_contiguous() else None

    def _mask(self, inputs: Tree) -> Tensor | None:
        """Return the mask that the compiled function applies."""
        if self._policy.inputs.mask == "none" or not self._knows_distribution:
            return None
        mask: Tensor = inputs[MASK]
        return mask.contiguous()

    def _acting(self, x: Tensor | None, mask: Tensor | None) -> Acting:
        is_double = (self._dtype if x is None else x.dtype) == torch.float64
        acting = Acting(self._packed.data_ptr(), self._free.data_ptr(), is_double, self._is_wide)
        if mask is not None:
            acting.mask = mask.data_ptr()
        return acting


def _check_memory(succeeded: int) -> None:
    if not succeeded:
        raise MemoryError("not enough memory for the activations of a forward pass")


def _pack(layers: list[Any], compiled: Functions) -> Tensor:
    """Pack the layers one after another, in the layout of the compiled functions."""
    widths = [-(-layer.out_features // PAD) * PAD for layer in layers]
    sizes = [(layer.in_features + 1) * width for layer, width in zip(layers, widths, strict=True)]
    packed = torch.empty(sum(sizes), dtype=layers[0].weight.dtype)
    to = packed.data_ptr()
    for layer in layers:
        weight, bias = layer.weight.contiguous(), layer.bias.contiguous()
        size = layer.in_features, layer.out_features
        num = compiled.pack(weight.data_ptr(), bias.data_ptr(), *size, to)
        to += num * packed.element_size()
    return packed
