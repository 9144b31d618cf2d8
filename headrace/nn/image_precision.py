"""Precision and memory layout of image layers.

Convolutions, and the dense layers between them and the torso's output, may compute in bfloat16:
float32's range with 8 bits of precision (Kalamkar et al. 2019, arXiv 1905.12322). Processors and
GPUs that support it multiply about twice as fast. Weights, sums of gradients, cores, heads, losses
and the optimiser stay float32 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1). With
float32's range no loss has to be scaled.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from headrace.nn.convolutions import ImageTorso
from headrace.nn.exact_modules import is_exactly
from headrace.nn.packed_weights import PackedNetwork, can_pack, can_pack_layers

Precision: TypeAlias = Literal["float32", "bfloat16"]


class BFloat16Module:
    """Calls a module in bfloat16 if enabled, and returns the output in the dtype of its weights.

    It isn't a module itself: it has no weights and no entry in a ``state_dict``.

    Args:
        module: called with tensors ``[N, ...]``.
        plain: the module may be copied with all its weights in bfloat16. Otherwise it is always
            called under autocast, which decides for each operation.
    """

    def __init__(self, module: nn.Module, plain: bool) -> None:
        self.enabled = False
        self.compiled = False  # the module was compiled with ``torch.compile``
        self._module, self._plain = module, plain
        self._copy: nn.Module | None = None
        self._frozen: nn.Module | PackedNetwork | None = (
            None  # the copy that has the module's weights
        )

    def __getstate__(self) -> dict[str, Any]:  # copies don't include bfloat16 weights
        nothing = {"_copy": None, "_frozen": None, "compiled": False}
        return vars(self) | nothing

    @property
    def dtype(self) -> torch.dtype:
        """Return the preferred dtype of inputs."""
        return torch.bfloat16 if self.enabled else self.own_dtype

    @property
    def own_dtype(self) -> torch.dtype:
        """Return the dtype of the module's weights and of the output."""
        weight = next(self._module.parameters(), None)
        return torch.float32 if weight is None else weight.dtype

    def __call__(self, x: Any) -> Any:
        if not self.enabled:
            return self._module(x)
        if (frozen := self._frozen) is not None:
            return frozen(x).to(self.own_dtype)
        device = next(self._module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            y = self._module(x)
        return y.to(self.own_dtype) if isinstance(y, Tensor) and y.is_floating_point() else y

    @contextlib.contextmanager
    def frozen_weights(self, learns: bool = False) -> Iterator[None]:
        """Return a context with constant weights, which are cast once instead of at every call.

        Args:
            learns: gradients of :meth:`stand_ins` are computed inside.
        """
        assert not (learns and isinstance(self._frozen, PackedNetwork)), (
            "packed weights have no gradients"
        )
        if not self.enabled or not self._plain or self._frozen is not None:
            yield
            return
        if not learns and self._packs:
            self._frozen = self._pack()
        else:
            with torch.inference_mode(False), torch.no_grad():
                self._frozen = self._copy_weights(learns)
        try:
            yield
        finally:
            self._frozen = None

    @property
    def packed(self) -> PackedNetwork | None:
        """Return the packed network used while weights are constant, or None."""
        return self._frozen if isinstance(self._frozen, PackedNetwork) else None

    def stand_ins(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each weight with its bfloat16 copy while weights are constant."""
        if isinstance(self._frozen, nn.Module):
            yield from zip(self._module.parameters(), self._frozen.parameters(), strict=True)

    @property
    def _packs(self) -> bool:
        """Return True if packed weights are faster.

        With images as patches they save a fifth to a third after a few steps. IMPALA's deep network
        saves less than packing costs, and IMPACT's is slower because of its kernel of 11x11.
        """
        device = next(self._module.parameters()).device
        if self.compiled or not is_exactly(self._module, ImageTorso):
            return False
        torso = cast(ImageTorso, self._module)
        return torso.patch_side > 1 and can_pack(device) and can_pack_layers(torso.layers)

    def _pack(self) -> PackedNetwork:
        packed = PackedNetwork(cast(ImageTorso, self._module).layers)
        packed.pack()
        return packed

    def _copy_weights(self, learns: bool) -> nn.Module:
        theirs = list(self._module.parameters())
        if self._copy is None:  # avoids a temporary float32 copy
            halves = (nn.Parameter(torch.empty_like(x, dtype=torch.bfloat16)) for x in theirs)
            memo = {id(x): half for x, half in zip(theirs, halves, strict=True)}
            self._copy = copy.deepcopy(self._module, memo)
        order = torch.contiguous_format if learns else torch.channels_last  # the faster layouts
        self._copy.to(theirs[0].device, torch.bfloat16)
        convert_conv2d_weight_memory_format(self._copy, order)
        for ours, other in zip(self._copy.parameters(), theirs, strict=True):
            ours.requires_grad_(learns and other.requires_grad).copy_(other)
        return self._copy


def memory_format(dtype: torch.dtype, device: torch.device, residual: bool) -> torch.memory_format:
    """Return the memory layout of images for convolutions: channels last where that is faster.

    On a CPU that is in residual torsos (by half and more), and in float32 training but not
    inference; on a GPU in bfloat16.
    """
    learns = torch.is_grad_enabled()
    if device.type == "cpu":
        last = residual or (learns and dtype != torch.bfloat16)
    else:
        last = dtype == torch.bfloat16
    return torch.channels_last if last else torch.contiguous_format


def by_patches(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if convolutions should get images as patches (``headrace/nn/patches.py``).

    Training on Atari frames takes a quarter to a third less time, and packed weights need patches.
    Compiled torsos don't use them.
    """
    return dtype == torch.bfloat16 and device.type == "cpu" and not torch.compiler.is_compiling()


def bfloat16_modules(module: nn.Module) -> list[BFloat16Module]:
    """Return every :class:`BFloat16Module` of a module's parts."""
    parts = (vars(part).get("bfloat16_call") for part in module.modules())  # getattr is slow
    return [part for part in parts if isinstance(part, BFloat16Module)]
