"""Checks that a module computes exactly what its class defines, which fast paths rely on."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module


def is_exactly(module: object, *types: type[nn.Module]) -> bool:
    """Return True if a module has exactly one of these types and nothing alters its ``forward``.

    Subclasses (a parametrized module is one), forward and backward hooks, and a ``forward`` set on
    the instance all count as changes.
    """
    if type(module) not in types or not isinstance(module, nn.Module):
        return False
    own = vars(module)
    hooks = own["_forward_hooks"] or own["_forward_pre_hooks"]
    hooks = hooks or own["_backward_hooks"] or own["_backward_pre_hooks"]
    return not hooks and "forward" not in own and not torch_module._has_any_global_hook()
