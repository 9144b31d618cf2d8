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
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

Precision: TypeAlias = Literal["float32", "bfloat16"]
_MANY = 16  # images from which on patches are worth their cutting without a gradient


class Halved:
    """Calls a module, in bfloat16 if asked, and returns its output in its weights' dtype.

    It is no module itself: it has no weights and no place in a ``state_dict``.

    Args:
        module: called with tensors ``[N, ...]``.
        plain: the module may be copied with all its weights in bfloat16. Otherwise it is called
            under autocast always, which decides operation by operation.
    """

    def __init__(self, module: nn.Module, plain: bool) -> None:
        self.enabled = False
        self._module, self._plain = module, plain
        self._copy: nn.Module | None = None
        self._still = False  # the copy has the module's weights

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_copy": None, "_still": False}  # copies travel without a half

    @property
    def dtype(self) -> torch.dtype:
        """What inputs are best given in."""
        return torch.bfloat16 if self.enabled else self._own_dtype

    @property
    def _own_dtype(self) -> torch.dtype:
        weight = next(self._module.parameters(), None)
        return torch.float32 if weight is None else weight.dtype

    def __call__(self, x: Any) -> Any:
        if not self.enabled:
            return self._module(x)
        if self._still and self._copy is not None:
            return self._copy(x).to(self._own_dtype)
        device = next(self._module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            y = self._module(x)
        return y.to(self._own_dtype) if isinstance(y, Tensor) and y.is_floating_point() else y

    @contextlib.contextmanager
    def still(self, learns: bool = False) -> Iterator[None]:
        """Inside, the weights don't change: they are cast once, not at every call.

        Args:
            learns: gradients are asked for, of :meth:`stand_ins`.
        """
        if not self.enabled or not self._plain or self._still:
            yield
            return
        with torch.inference_mode(False), torch.no_grad():
            self._copy_weights(learns)
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def stand_ins(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights, and what stands for each of them as long as they don't change."""
        if self._still and self._copy is not None:
            yield from zip(self._module.parameters(), self._copy.parameters(), strict=True)

    def _copy_weights(self, learns: bool) -> None:
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


def by_patches(dtype: torch.dtype, device: torch.device, num: int) -> bool:
    """Whether images are given as patches (``headrace/nn/patches.py``) to who can take them.

    To learn from Atari's frames takes a quarter to a third less time so; to compute targets, or to
    act on many images at a time, a tenth to a quarter less; to act on a few as long as otherwise.
    ``torch.compile`` is left to its own ways.

    Args:
        num: of images.
    """
    if dtype != torch.bfloat16 or device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return torch.is_grad_enabled() or num >= _MANY


def halved(module: nn.Module) -> list[Halved]:
    """All that a module's parts call through a :class:`Halved`."""
    found = (getattr(part, "halved", None) for part in module.modules())
    return [part for part in found if isinstance(part, Halved)]
