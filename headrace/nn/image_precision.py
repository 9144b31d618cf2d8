"""In which numbers, and in which order in memory, images are computed.

Convolutions, and dense layers behind them up to the torso's output, may compute in bfloat16:
float32's range with 8 bits of precision (Kalamkar et al. 2019, arXiv 1905.12322), which processors
and GPUs that know it multiply about twice as fast. Weights and their sums of gradients, cores,
heads, losses and the optimiser stay float32 (Micikevicius et al. 2018, arXiv 1710.03740, section
3.1); with such a range no loss has to be scaled.
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
    """Calls a module, in bfloat16 if asked, and returns its output in its weights' dtype.

    It is no module itself: it has no weights and no place in a ``state_dict``.

    Args:
        module: called with tensors ``[N, ...]``.
        plain: the module may be copied with all its weights in bfloat16. Otherwise it is called
            under autocast always, which decides operation by operation.
    """

    def __init__(self, module: nn.Module, plain: bool) -> None:
        self.enabled = False
        self.compiled = False  # the module is called by what ``torch.compile`` made
        self._module, self._plain = module, plain
        self._copy: nn.Module | None = None
        self._still: nn.Module | PackedNetwork | None = (
            None  # the copy that has the module's weights
        )

    def __getstate__(self) -> dict[str, Any]:  # copies travel without a half
        nothing = {"_copy": None, "_still": None, "compiled": False}
        return vars(self) | nothing

    @property
    def dtype(self) -> torch.dtype:
        """What inputs are best given in."""
        return torch.bfloat16 if self.enabled else self.own_dtype

    @property
    def own_dtype(self) -> torch.dtype:
        """Of the module's weights, and so of what is returned."""
        weight = next(self._module.parameters(), None)
        return torch.float32 if weight is None else weight.dtype

    def __call__(self, x: Any) -> Any:
        if not self.enabled:
            return self._module(x)
        if (still := self._still) is not None:
            return still(x).to(self.own_dtype)
        device = next(self._module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            y = self._module(x)
        return y.to(self.own_dtype) if isinstance(y, Tensor) and y.is_floating_point() else y

    @contextlib.contextmanager
    def still(self, learns: bool = False) -> Iterator[None]:
        """Inside, the weights don't change: they are cast once, not at every call.

        Args:
            learns: gradients are asked for, of :meth:`stand_ins`.
        """
        assert not (learns and isinstance(self._still, PackedNetwork)), (
            "what is packed has no gradients"
        )
        if not self.enabled or not self._plain or self._still is not None:
            yield
            return
        if not learns and self._packs:
            self._still = self._pack()
        else:
            with torch.inference_mode(False), torch.no_grad():
                self._still = self._copy_weights(learns)
        try:
            yield
        finally:
            self._still = None

    @property
    def packed(self) -> PackedNetwork | None:
        """What acts in the module's place while its weights stand still, packed; None: nothing."""
        return self._still if isinstance(self._still, PackedNetwork) else None

    def stand_ins(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights, and what stands for each of them as long as they don't change."""
        if isinstance(self._still, nn.Module):
            yield from zip(self._module.parameters(), self._still.parameters(), strict=True)

    @property
    def _packs(self) -> bool:
        """Whether packed weights are faster.

        They are where images come as patches, by a fifth to a third, once a few steps are done with
        them. IMPALA's deep network gains less than packing takes, and IMPACT's loses by its kernel
        of 11x11.
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
        if self._copy is None:  # without a float32 copy of the weights on its way
            halves = (nn.Parameter(torch.empty_like(x, dtype=torch.bfloat16)) for x in theirs)
            known = {id(x): half for x, half in zip(theirs, halves, strict=True)}
            self._copy = copy.deepcopy(self._module, known)
        order = torch.contiguous_format if learns else torch.channels_last  # each is faster so
        self._copy.to(theirs[0].device, torch.bfloat16)
        convert_conv2d_weight_memory_format(self._copy, order)
        for ours, other in zip(self._copy.parameters(), theirs, strict=True):
            ours.requires_grad_(learns and other.requires_grad).copy_(other)
        return self._copy


def memory_format(dtype: torch.dtype, device: torch.device, residual: bool) -> torch.memory_format:
    """The order in memory of images that convolutions are given: where it wins, channels last.

    On a processor it does in residual torsos, which are slow otherwise (by half and more), and with
    float32 in learning, but not in acting; on a GPU with bfloat16.
    """
    learns = torch.is_grad_enabled()
    if device.type == "cpu":
        last = residual or (learns and dtype != torch.bfloat16)
    else:
        last = dtype == torch.bfloat16
    return torch.channels_last if last else torch.contiguous_format


def by_patches(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether images are given as patches (``headrace/nn/patches.py``) to who can take them.

    To learn from Atari's frames takes a quarter to a third less time so; what acts with packed
    weights is made for them. ``torch.compile`` is left to its own ways.
    """
    return dtype == torch.bfloat16 and device.type == "cpu" and not torch.compiler.is_compiling()


def halved(module: nn.Module) -> list[BFloat16Module]:
    """All that a module's parts call through a :class:`BFloat16Module`."""
    found = (getattr(part, "halved", None) for part in module.modules())
    return [part for part in found if isinstance(part, BFloat16Module)]
