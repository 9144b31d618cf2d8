"""The activation functions of dense layers, with their derivatives and in-place forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headrace.nn.exact_modules import is_exactly

_aten = torch.ops.aten


def _linear_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t()).mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


class _LinearTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _linear_tanh(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        grad = torch.ops.aten.tanh_backward(grad_y, y)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        return grad_x, (x.t() @ grad).t(), grad.sum(0)


class DenseTanh(nn.Linear):
    """``tanh(x W^T + b)``: ``[..., in_features] -> [..., out_features]``; once differentiable.

    It costs what a layer with ReLU costs. On processors torch's own tanh takes several times as
    long as its sigmoid, and the gradient of a weight with few inputs several times as long as its
    transpose. ``tanh x = 2 sigmoid(2x) - 1`` (absolute error below 2e-7 in float32) and the
    transposed product take a third off a training step of a small network.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        function = _LinearTanh.apply if torch.is_grad_enabled() else _linear_tanh
        return function(rows, self.weight, self.bias).view(*x.shape[:-1], self.out_features)


# Without dimensions, so it takes the dtype and device of the other operand. A script may have
# changed torch's default device before this import.
_MINUS_ONE = torch.tensor(-1.0, device="cpu")


def _tanh_of_half_(x: Tensor) -> Tensor:
    return torch.add(_MINUS_ONE, x.sigmoid_(), alpha=2.0, out=x)


@dataclass(frozen=True)
class Activation:
    """One activation function.

    ``module`` defines it. The other forms compute the same function for the fast paths; a fast
    path whose form is None leaves its work to the modules.

    Args:
        module: makes the module behind a linear layer. None: ``linear`` applies the function too.
        linear: the layer before it.
        in_place: overwrites ``factor * (x W^T + b)`` with the activations and returns them.
        backward: the gradient of ``x W^T + b``, from the gradient of the activations and these.
        factor: see ``in_place``; a power of two, so that it is exact.
        compiled: its name among the compiled functions (``native/library.py``).
    """

    module: Callable[[], nn.Module] | None
    linear: type[nn.Linear] = nn.Linear
    in_place: Callable[[Tensor], Tensor] | None = None
    backward: Callable[[Tensor, Tensor], Tensor] | None = None
    factor: float = 1.0
    compiled: str | None = None


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(
        None,
        DenseTanh,
        in_place=_tanh_of_half_,
        backward=_aten.tanh_backward,
        factor=2.0,
        compiled="tanh",
    ),
    "relu": Activation(
        nn.ReLU,
        in_place=Tensor.relu_,
        backward=lambda grad, y: _aten.threshold_backward(grad, y, 0.0),
        compiled="relu",
    ),
    "elu": Activation(
        nn.ELU,
        in_place=functional.elu_,
        backward=lambda grad, y: _aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y),
        compiled="elu",
    ),
}
"""By name. An entry needs nothing but its module; ``Network.activation`` lists the names."""


def exact_layers(mlp: nn.Module, activation: str) -> list[nn.Linear] | None:
    """The linear layers of an ``mlp`` of layers with this activation; None for any other module."""
    kind = ACTIVATIONS.get(activation)
    if kind is None or not is_exactly(mlp, nn.Sequential):
        return None
    modules: list[Any] = list(mlp.children())
    layers = modules if kind.module is None else modules[::2]
    if not all(is_exactly(x, kind.linear) and x.bias is not None for x in layers):
        return None
    if kind.module is not None:
        example = _example(kind.module)
        between, about = modules[1::2], example.extra_repr()  # such as the alpha of nn.ELU
        if len(between) != len(layers):
            return None
        if not all(is_exactly(x, type(example)) and x.extra_repr() == about for x in between):
            return None
    return layers


@functools.cache
def _example(make: Callable[[], nn.Module]) -> nn.Module:
    return make()
