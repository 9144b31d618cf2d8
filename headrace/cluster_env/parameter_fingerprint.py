"""Whether an agent has learnt: its parameters against a copy of those that it had.

Each step asks. A version counter can't answer (``parameter.data`` changes without one), so values
are compared; what is saved is to collect them, which takes longer: as long as a module consists of
the same parts, its tensors are those that were found before.
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
    """An agent's parameters as they were when this was made."""

    def __init__(self, agent: Any) -> None:
        now = parameters(agent)
        self._before = tree.map_leaves(_copied, now)
        self._modules: list[nn.Module] = []  # empty: collect them again
        if is_module_alone(agent) and all(map(_is_plain, agent.modules())):
            self._modules = list(agent.modules())
            self._names, self._parts = _held(self._modules)
            self._tensors, self._copies = list(now.values()), list(self._before.values())
            self._dtypes = [copy.dtype for copy in self._copies]

    def is_of(self, agent: Any) -> bool:
        """Whether they are what the same agent's are now; NaN equals nothing."""
        if self._modules and self._has_the_same_parts():
            dtypes = [tensor.dtype for tensor in self._tensors]
            return dtypes == self._dtypes and all(map(torch.equal, self._tensors, self._copies))
        return _equal(self._before, parameters(agent))

    def _has_the_same_parts(self) -> bool:
        names, parts = _held(self._modules)
        return names == self._names and all(map(operator.is_, parts, self._parts))


def _held(modules: list[nn.Module]) -> tuple[list[str], list[Any]]:
    """Names and objects of all parameters, buffers and modules that these hold themselves."""
    held: list[dict[str, Any]] = []
    for one in modules:
        held += one._parameters, one._buffers, one._modules
    names = list(itertools.chain.from_iterable(held))
    return names, list(itertools.chain.from_iterable(map(_VALUES, held)))


def _is_plain(module: nn.Module) -> bool:
    """Whether its ``state_dict`` is its parameters and buffers, and nothing that it makes up."""
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
    """Whether two trees of parameters hold the same values; NaN equals nothing."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_equal(before[k], now[k]) for k in before)
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(_equal, before, now))
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.dtype == now.dtype and torch.equal(before, now)
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        return before.dtype == now.dtype and np.array_equal(before, now)
    return type(before) is type(now) and bool(before == now)
