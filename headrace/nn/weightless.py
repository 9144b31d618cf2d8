"""Copies of policies without weights, for sending the structure alone."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

_M = TypeVar("_M", bound=nn.Module)


def weightless_copy(module: _M) -> _M:
    """Return a copy for :func:`allocate_weights`, whose parameters occupy a single zero each.

    Those that its ``state_dict`` leaves out keep their values, for nothing else brings them.
    """
    copied = copy.deepcopy(module)
    sent = {id(x) for x in copied.state_dict(keep_vars=True).values()}
    for p in copied.parameters():
        if id(p) in sent:
            p.data = p.data.new_zeros(()).expand(p.shape)
    return copied


def allocate_weights(module: nn.Module) -> None:
    """Allocate the parameters of a weightless copy in place, as zeros."""
    for p in module.parameters():
        if p.data.untyped_storage().nbytes() < p.numel() * p.element_size():
            p.data = torch.zeros_like(p.data, memory_format=torch.contiguous_format)
