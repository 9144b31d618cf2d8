"""Policies that travel without the values of their parameters, which come another way."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

_M = TypeVar("_M", bound=nn.Module)


def hollow(module: _M) -> _M:
    """A copy, for :func:`fill`, whose parameters have their shapes but share one zero each.

    Those that its ``state_dict`` leaves out keep their values, for nothing else brings them.
    """
    copied = copy.deepcopy(module)
    sent = {id(x) for x in copied.state_dict(keep_vars=True).values()}
    for p in copied.parameters():
        if id(p) in sent:
            p.data = p.data.new_zeros(()).expand(p.shape)
    return copied


def fill(module: nn.Module) -> None:
    """Give the parameters of a hollow module memory of their own, of zeros."""
    for p in module.parameters():
        if p.data.untyped_storage().nbytes() < p.numel() * p.element_size():
            p.data = torch.zeros_like(p.data, memory_format=torch.contiguous_format)
