"""Simulated accelerator: tensors that claim another device and are computed on the CPU.

PyTorch's fake tensors carry no values, which a learner reads (lengths of sequences, norms of
gradients, early stops), and a build of torch without CUDA can't index them or move them to
"cuda". The tensors here carry values. Each operation is computed on the CPU after checking the rule
of accelerators: all tensors of an operation are on one device. Exceptions are those of CUDA:
numbers without dimensions, indices, and copies.

:func:`install` changes the process permanently, so use it in separate processes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "elsewhere"
_aten = torch.ops.aten
_COPY = {_aten._to_copy.default, _aten.copy_.default}
_INDEX = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}
_INDEX |= {_aten._index_put_impl_.default}
_PACK = {_aten._pack_padded_sequence.default, _aten._pack_padded_sequence_backward.default}


def _lstm_cell(x: Any, h: Any, c: Any, b_x: Any = None, b_h: Any = None) -> Any:
    gates = x + h + (0.0 if b_x is None else b_x + b_h)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(d_h: Any, d_c: Any, c: Any, c_new: Any, kept: Any, has_bias: bool) -> Any:
    i, f, g, o = kept.chunk(4, 1)
    d_h = torch.zeros_like(c) if d_h is None else d_h
    d_c = d_h * o * (1 - c_new.tanh() ** 2) + (0.0 if d_c is None else d_c)
    slopes = d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g)
    d_gates = torch.cat([*slopes, d_h * c_new.tanh() * o * (1 - o)], 1)
    return d_gates, d_c * f, d_gates.sum(0) if has_bias else None


def _gru_cell(x: Any, h: Any, state: Any, b_x: Any = None, b_h: Any = None) -> Any:
    if b_x is not None:
        x, h = x + b_x, h + b_h
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, 1), h.chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return n + z * (state - n), torch.cat([r, z, n, state, h_n], 1)


def _gru_cell_backward(d_h: Any, kept: Any, has_bias: bool) -> Any:
    r, z, n, state, h_n = kept.chunk(5, 1)
    d_z, d_n = d_h * (state - n) * z * (1 - z), d_h * (1 - z) * (1 - n * n)
    d_r = d_n * h_n * r * (1 - r)
    d_x, d_g = torch.cat([d_r, d_z, d_n], 1), torch.cat([d_r, d_z, d_n * r], 1)
    return d_x, d_g, d_h * z, *((d_x.sum(0), d_g.sum(0)) if has_bias else (None, None))


# Operators of recurrent cells that accelerators have and the CPU lacks.
_CELLS = {
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    _aten._thnn_fused_gru_cell.default: _gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}


class WrongDevice(RuntimeError):
    """Tensors of one operation are on two devices."""


class Elsewhere(Tensor):
    """A tensor on the simulated device, with values in ``inner``."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        with torch.inference_mode(False):  # in which a wrapper could not be changed in place
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=torch.device(NAME, 0),
            )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Elsewhere) -> None:
        self.inner = other.inner  # needed where a parameter becomes a view of a flat vector


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def install() -> None:
    """Register the device in this process."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) copies, as others do


@contextlib.contextmanager
def mode() -> Iterator[torch.device]:
    """Enable the device inside the block."""
    with _Mode():
        yield torch.device(NAME, 0)


@functools.cache
def _is_made_of_others(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if _is_made_of_others(func):
        with _Mode():
            return func.decompose(*args, **kwargs)
    tensors: list[Tensor] = []
    given, named = _inside(args, tensors), _inside(kwargs, tensors)
    theirs = {id(t.inner): t for t in tensors if isinstance(t, Elsewhere)}
    there, device = bool(theirs), kwargs.get("device")
    if device is not None:
        there, named["device"] = torch.device(device).type == NAME, "cpu"
    if theirs:
        _check(func, args, tensors)
    if there and kwargs.get("generator") is not None:
        raise WrongDevice(f"{func}: a generator of the processor for numbers {NAME}")
    out = _CELLS.get(func, func)(*given, **named)
    if func is _aten.copy_.default:
        return args[0]
    if there and func is _aten._pack_padded_sequence.default:
        return Elsewhere(out[0]), out[1]  # lengths stay on the CPU
    return _wrapped(out, theirs) if there else out


def _inside(values: Any, found: list[Tensor]) -> Any:
    """Return arguments with the values of simulated tensors, which are added to ``found``."""
    if isinstance(values, Tensor):
        found.append(values)
        return values.inner if isinstance(values, Elsewhere) else values
    if isinstance(values, dict):
        return {key: _inside(value, found) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_inside(value, found) for value in values)
    return values


def _wrapped(out: Any, theirs: dict[int, Elsewhere]) -> Any:
    """Return the results of an operation as simulated tensors; inputs are returned themselves."""
    if isinstance(out, Tensor):
        return theirs[id(out)] if id(out) in theirs else Elsewhere(out)
    return type(out)(_wrapped(x, theirs) for x in out) if isinstance(out, tuple | list) else out


def _check(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Raise WrongDevice where CUDA would."""
    if func in _COPY or func in _PACK:
        return
    here = [t for t in tensors if not isinstance(t, Elsewhere)]
    if func in _INDEX:
        inside = isinstance(args[0], Elsewhere)
        here = [t for t in args[2:3] if isinstance(t, Tensor)] if inside else [args[0]]
        here = [t for t in here if not isinstance(t, Elsewhere)]
    if any(t.dim() for t in here) or (func in _INDEX and here and here[0] is args[0]):
        shapes = [(tuple(t.shape), str(t.device)) for t in tensors]
        raise WrongDevice(f"{func} is given tensors on two devices: {shapes}")
