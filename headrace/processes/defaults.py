"""Isolates training from defaults of torch and NumPy that scripts and environments change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

T = TypeVar("T")
_NUMPY: Any = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


@contextlib.contextmanager
def library_defaults() -> Iterator[None]:
    """Use the defaults of torch and NumPy inside the block, then restore the caller's.

    Tensors are created as float32 on the CPU, gradients are recorded, and NumPy warns of
    floating-point errors.
    """
    import numpy as np
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(**_NUMPY))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.callback(torch.set_default_dtype, dtype)
        restore_torch_defaults()
        if torch.get_default_device().type != "cpu":  # inside ``with torch.device(...)``
            stack.enter_context(torch.device("cpu"))
        elif device.type != "cpu":
            stack.callback(torch.set_default_device, device)
        stack.callback(restore_torch_defaults)
        yield


def _torch_defaults() -> tuple[Any, Any]:
    import torch

    return torch.get_default_dtype(), torch.get_default_device()


def _set_torch_defaults(defaults: tuple[Any, Any]) -> None:
    import torch

    dtype, device = defaults
    torch.set_default_dtype(dtype)
    torch.set_default_device(None if device.type == "cpu" else device)


def torch_defaults_kept(call: Callable[[], T]) -> T:
    """Return ``call()``, and restore torch's defaults and grad mode afterwards."""
    import torch

    before, grad = _torch_defaults(), torch.is_grad_enabled()
    try:
        return call()
    finally:
        if _torch_defaults() != before:
            _set_torch_defaults(before)
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)


def restore_torch_defaults() -> None:
    """Reset torch's default dtype to float32, its device to the CPU, and enable gradients."""
    import torch

    if torch.get_default_dtype() != torch.float32:
        torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device(None)
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)


def keep_torch_defaults_apart(envs: Any) -> None:
    """Apply changes that environments made to torch's defaults only while these environments run.

    If the defaults are unchanged, this does nothing and later steps cost nothing.

    Args:
        envs: a vector environment that was just made or reset.
    """
    import torch

    own = _torch_defaults()
    if own == (torch.float32, torch.device("cpu")) or hasattr(envs.step, "apart"):
        restore_torch_defaults()
        return

    def apart(method: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **kwargs: Any) -> Any:
            nonlocal own
            _set_torch_defaults(own)
            try:
                return method(*args, **kwargs)
            finally:
                own = _torch_defaults()

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch_defaults_kept(lambda: inside(*args, **kwargs))

        call.apart = True  # type: ignore[attr-defined]
        return call

    envs.reset, envs.step = apart(envs.reset), apart(envs.step)
    restore_torch_defaults()


def resumed_in(
    context: Callable[[], AbstractContextManager[object]], items: Iterator[T]
) -> Iterator[T]:
    """Yield a generator's items; the generator runs inside ``context()``, its consumer outside."""
    none = object()
    try:
        while True:
            with context():
                item: Any = next(items, none)
            if item is none:
                return
            yield item
    finally:
        with context():
            items.close()  # type: ignore[attr-defined]
