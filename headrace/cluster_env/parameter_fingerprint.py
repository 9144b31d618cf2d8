"""Detects changes of an agent's parameters by comparison with a copy.

The check runs at each step. Values are compared, because ``parameter.data`` changes without a
version counter. Collecting the tensors takes longer than comparing them, so the collected tensors
are reused while a module consists of the same parts.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.cluster_env.agent import is_module_alone, parameters
from headrace.ops import tree


class ParameterFingerprint:
    """Copy of an agent's parameters at construction."""

    def __init__(self, agent: Any) -> None:
        now = parameters(agent)
        self._before = tree.map_leaves(_copied, now)
        self._modules: list[nn.Module] = []  # empty: collect them again
        if is_module_alone(agent) and all(map(_is_plain, agent.modules())):
            self._modules = list(agent.modules())
            self._names, self._parts = _registered(self._modules)
            self._tensors, self._copies = list(now.values()), list(self._before.values())
            self._dtypes = [copy.dtype for copy in self._copies]

    def is_of(self, agent: Any) -> bool:
        """Return whether they equal the same agent's current parameters; NaN equals nothing."""
        if self._modules and self._has_the_same_parts():
            dtypes = [tensor.dtype for tensor in self._tensors]
            return dtypes == self._dtypes and all(map(torch.equal, self._tensors, self._copies))
        return _equal(self._before, parameters(agent))

    def _has_the_same_parts(self) -> bool:
        names, parts = _registered(self._modules)
        return names == self._names and all(map(operator.is_, parts, self._parts))


def _registered(modules: list[nn.Module]) -> tuple[list[str], list[Any]]:
    """Return names and objects of the parameters, buffers and submodules of these modules."""
    registries: list[dict[str, Any]] = []
    for one in modules:
        registries += one._parameters, one._buffers, one._modules
    names = list(itertools.chain.from_iterable(registries))
    return names, list(itertools.chain.from_iterable(map(_VALUES, registries)))


def _is_plain(module: nn.Module) -> bool:
    """Return whether ``state_dict`` consists of parameters and buffers only."""
    return (
        all(getattr(type(module), name) is getattr(nn.Module, name) for name in _MAKE_STATE)
        and not vars(module).keys() & _MAKE_STATE
        and not module._state_dict_hooks
        and not module._state_dict_pre_hooks
    )


_VALUES = operator.methodcaller("values")
_MAKE_STATE = {"state_dict", "_save_to_state_dict", "get_extra_state"}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _equal(before: Any, now: Any) -> bool:
    """Return whether two trees of parameters hold equal values; NaN equals nothing."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_equal(before[k], now[k]) for k in before)
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(_equal, before, now))
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.dtype == now.dtype and torch.equal(before, now)
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        return before.dtype == now.dtype and np.array_equal(before, now)
    return type(before) is type(now) and bool(before == now)
