"""Loads the compiled functions of ``dense.c``.

The file is built with the package where there is a C compiler. Without it, or with the environment
variable HEADRACE_NATIVE=0, callers use torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

NAME = "headrace.native._dense"  # a shared library, not a module
SWITCH = "HEADRACE_NATIVE"  # environment variable; 0: off
MAX_LAYERS, MAX_PARTS, PAD = 8, 32, 16
ACTIVATIONS = ("tanh", "relu", "elu")
CATEGORICAL, GAUSSIAN = 0, 1
SUMS = (
    "target_sum", "target_sq", "error_sum", "error_sq", "entropy", "approx_kl", "policy_loss",
    "clipfrac", "value_loss",
)  # fmt: skip
_P, _N = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS: dict[
    str, Any
] = {  # in the order of dense.c: the type of the result and those of the arguments
    "forward": (None, _P, _P, _P, _N, _P, _P, _P),
    "score": (_N, _P, _P, _N, _P, _P, _P, _P),
    "backward": (None, _P, _P, _P, _N, _N, _P, _P, _P, _P, _P, _P, _P, _P),
    "divide": (ctypes.c_double, _P, _N, ctypes.c_double),
    "descend": (None, _N, _P, _P, _P, _P, ctypes.c_double, ctypes.c_double, _N, _P),
    "update": (_N, _P, _P, _P, _P, _P),
    "pack": (_N, _P, _P, _N, _N, _P),
    "act": (_N, _P, _P, _P, _N, _N),
}


class Part(ctypes.Structure):
    """One distribution of a policy: a choice, or a diagonal Gaussian."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("size", ctypes.c_int64),  # number of choices, or of dimensions
        ("action", ctypes.c_void_p),  # int64, or of the network's precision
        ("stride", ctypes.c_int64),  # elements from one step's action to the next
    )


class Network(ctypes.Structure):
    """Shapes of a network, and positions of its weights in the flat vector of all parameters."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("torsos", "layers", "activation")),
        *((name, ctypes.c_int64) for name in ("outputs", "free_params", "parts", "num_mask")),
        ("sizes", ctypes.c_int64 * (MAX_LAYERS + 1)),  # of the inputs, and of each layer
        ("weight", ctypes.c_int64 * MAX_LAYERS * 2),
        ("bias", ctypes.c_int64 * MAX_LAYERS * 2),
        *((name, ctypes.c_int64) for name in ("policy_weight", "policy_bias")),
        *((name, ctypes.c_int64) for name in ("value_weight", "value_bias", "log_std")),
        ("value_scale", ctypes.c_double),  # V = value_scale * output + value_mean
        ("value_mean", ctypes.c_double),
        ("center", ctypes.c_void_p),  # of the inputs; null: they are used as they are
        ("scale", ctypes.c_void_p),
        ("limit", ctypes.c_double),  # of normalised inputs
        ("middle", ctypes.c_void_p),  # of the bounds of each output; null: none has bounds
        ("half", ctypes.c_void_p),  # half their distance; infinite: an output without bounds
        ("part", Part * MAX_PARTS),
    )


class Terms(ctypes.Structure):
    """The data ``[N]`` and thresholds of a loss, see :class:`~headrace.ops.losses.LossTerms`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("advantage", "target", "behaviour")),
        *((name, ctypes.c_void_p) for name in ("old_log_prob", "old_value", "weight", "valid")),
        *((name, ctypes.c_double) for name in ("clip", "max_ratio")),  # clip -1: no clip
        *((name, ctypes.c_double) for name in ("epsilon", "value_clip")),  # -1: no clip
        *((name, ctypes.c_double) for name in ("kl_coef", "value_coef", "entropy_coef")),
        ("value_scale", ctypes.c_double),  # 0: the value head isn't trained
        ("bounds_coef", ctypes.c_double),  # weight of means beyond the bounds
    )


class Acting(ctypes.Structure):
    """Packed weights, and the inputs and results of steps in which a policy acts."""

    _fields_ = (
        ("packed", ctypes.c_void_p),  # layers one after another
        ("log_std", ctypes.c_void_p),
        ("is_double", ctypes.c_int64),  # observations are float64, otherwise float32
        ("is_wide", ctypes.c_int64),  # the center is float64
        ("mask", ctypes.c_void_p),  # [steps, num_mask], or null
        ("noise", ctypes.c_void_p),  # [steps, outputs]; null: no actions are chosen
        ("params", ctypes.c_void_p),  # [steps, outputs + free_params], or null
        ("log_prob", ctypes.c_void_p),  # [steps]
    )


class Optimizer(ctypes.Structure):
    """Settings of a step of Adam, or of RMSProp, whose decay is beta2."""

    _fields_ = tuple(
        (name, ctypes.c_double) for name in ("learning_rate", "beta1", "beta2", "eps", "step")
    )


class Update(ctypes.Structure):
    """The samples and the memory of an update's optimiser steps; ``dense.c`` describes them."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("steps", "most", "size", "parts", "bytes", "threads")
        ),
        *((name, ctypes.c_void_p) for name in ("order", "start", "x", "mask")),
        ("normalize", ctypes.c_int64),
        ("max_norm", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("gradient", "mean", "square", "memory", "sums")),
        ("outside", ctypes.c_int64),
        ("norm", ctypes.c_double),
    )


class Functions(NamedTuple):
    """The compiled functions for one precision; ``dense.c`` describes their arguments."""

    workspace: Callable[..., int]
    update_bytes: Callable[..., int]
    forward: Callable[..., None]
    score: Callable[..., int]
    backward: Callable[..., None]
    divide: Callable[..., float]
    descend: Callable[..., None]
    update: Callable[..., int]
    pack: Callable[..., int]
    act: Callable[..., int]


@functools.cache
def functions(dtype: torch.dtype, instruction_set: int | None = None) -> Functions | None:
    """Return the functions for a precision; None if there are none, or they weren't built.

    Args:
        instruction_set: 0, 1 (AVX2) or 2 (AVX-512); None: the best that this processor has.
    """
    library = built()
    if library is None or dtype not in (torch.float32, torch.float64):
        return None
    best = library.best_set()
    chosen = best if instruction_set is None else instruction_set
    return None if chosen > best else functions_of(library, dtype, chosen)


def functions_of(library: ctypes.CDLL, dtype: torch.dtype, instruction_set: int) -> Functions:
    """Return the functions of a loaded library."""
    made = [
        ctypes.CFUNCTYPE(*types)(
            library.function(number, int(dtype == torch.float32), instruction_set)
        )
        for number, types in enumerate(_FUNCTIONS.values())
    ]
    return Functions(library.workspace, library.update_bytes, *made)


@functools.cache
def built() -> ctypes.CDLL | None:
    """Load the library that was built with the package; None if there is none, or it is off."""
    if os.environ.get(SWITCH) == "0":
        return None
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:
        return None
    try:
        library = loaded(spec.origin)
    except (OSError, AttributeError):  # built for another machine, or from much older sources
        return None
    return library if is_current(library) else None


def is_current(library: ctypes.CDLL) -> bool:
    """Return False if a library was built from other sources, as after an update of a checkout.

    Its structures may have other fields, so a call could read and write other memory.
    """
    folder = Path(__file__).parent
    paths = sorted([*folder.glob("*.c"), *folder.glob("*.inc")])  # as in setup.py
    if not paths:  # installed without them
        return True
    return bool(library.sources() == zlib.crc32(b"".join(path.read_bytes() for path in paths)))


def loaded(path: str) -> ctypes.CDLL:
    """Load a library and declare the types of its functions."""
    library = ctypes.CDLL(path)
    for function in ("best_set", "sources", "workspace", "update_bytes"):
        getattr(library, function).restype = _N
    library.workspace.argtypes, library.update_bytes.argtypes = (_P, _N), (_P, _N, _N, _N)
    library.function.restype, library.function.argtypes = _P, (_N, _N, _N)
    return library
