"""Checks shapes and dtypes of the arguments of distributions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor


def check_last(name: str, params: Tensor, size: int) -> None:
    if params.dim() == 0 or params.shape[-1] != size:
        raise ValueError(f"{name} must be [..., {size}], got {tuple(params.shape)}")


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(x.shape)}")


def check_int64(action: Tensor) -> None:
    if action.dtype != torch.int64:
        raise TypeError(f"action must be int64, got {action.dtype}")


def check_mask(mask: Tensor, size: int) -> None:
    check_last("mask", mask, size)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, got {mask.dtype}")


class Unmasked:
    """Mixin for distributions without action masks."""

    num_mask: ClassVar[int] = 0

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Return ``params`` unchanged; ``mask`` is ``[..., 0]``."""
        check_mask(mask, 0)
        return params


def device_of(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device
