"""Adam and RMSProp on one flat vector, with torch's functional optimisers.

The classes of ``torch.optim`` import torch's compiler at first use, which adds about a second and
70 MB to every start.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from headrace.native.library import Optimizer as Settings
from headrace.native.library import functions

_ADAM_BETAS = (0.9, 0.999)
_RMSPROP_ALPHA = 0.99


def flatten_parameters(policy: torch.nn.Module, flat: Tensor | None = None) -> Tensor:
    """Move all parameters into one flat tensor that they are views of, and return it.

    Args:
        flat: destination ``[N]``; None allocates it.
    """
    parameters = list(policy.parameters())
    values = torch.cat([p.detach().reshape(-1) for p in parameters])
    flat = values if flat is None else flat.copy_(values)
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view(p.shape)
        offset += p.numel()
    if flat.is_cuda:  # where a core's are copied into a buffer of cuDNN's at each call: 1 MB
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
    return flat


class Optimizer:
    """Updates one flat tensor in place.

    Args:
        kind: ``adam`` (Kingma & Ba 2015) or ``rmsprop`` without momentum, with decay 0.99 (IMPALA,
            Table D.1).
        flat: ``[N]``, the optimised parameters.
        eps: added to the denominator.
        fused: compute a step in a compiled function, or Adam in one operation where there is none,
            on the CPU; both round differently.

    Attributes:
        compiled: the compiled functions; None without them, or where they don't apply.
    """

    def __init__(self, kind: str, flat: Tensor, eps: float, fused: bool = False) -> None:
        self._kind, self._flat, self.eps = kind, flat, eps
        self._fused = fused and kind == "adam" and flat.device.type == "cpu"
        self.compiled = functions(flat.dtype) if fused and flat.device.type == "cpu" else None
        betas = _ADAM_BETAS if kind == "adam" else (0.0, _RMSPROP_ALPHA)
        self._settings = Settings(beta1=betas[0], beta2=betas[1])
        names = ("mean", "square") if kind == "adam" else ("square",)
        self._state = {name: torch.zeros_like(flat) for name in names}
        self._state["step"] = torch.zeros(())
        # The moments that divide a step must include its own gradient, or the step is unbounded.
        # Racing processes could overwrite them, so each step works on copies of the moments. They
        # are read in the order mean, square and written in the opposite order.
        self._shared: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Apply one update with ``gradient`` ``[N]``."""
        state = self._state
        for name, value in self._shared.items():
            state[name].copy_(value)
        if self.compiled is not None:
            self._compiled_step(gradient, learning_rate)
        else:
            self._torch_step(gradient, learning_rate)
        for name, value in reversed(self._shared.items()):
            value.copy_(state[name])

    def divide(self, gradient: Tensor, count: int) -> float:
        """Divide a summed gradient ``[N]`` by ``count`` in place; returns the norm of the mean."""
        if self.compiled is not None:
            return self.compiled.divide(gradient.data_ptr(), gradient.numel(), max(count, 1))
        with torch.inference_mode():  # as a decorator it takes twice as long
            gradient /= max(count, 1)
            norm = float(torch.linalg.vector_norm(gradient))
            if math.isinf(norm):  # squares overflow in float32
                norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        return norm

    def clipped_step(
        self, gradient: Tensor, norm: float, max_norm: float, learning_rate: float
    ) -> None:
        """Clip a gradient ``[N]`` of this norm to ``max_norm`` in place, and take a step."""
        if norm > max_norm:
            with torch.inference_mode():
                gradient *= max_norm / norm
        self.step(gradient, learning_rate)

    def _torch_step(self, gradient: Tensor, learning_rate: float) -> None:
        state = self._state
        common: Any = {"lr": learning_rate, "eps": self.eps}
        common |= {"weight_decay": 0.0, "maximize": False}
        if self._kind == "adam":
            moments: Any = [state["mean"]], [state["square"]], [], [state["step"]]
            common |= {"amsgrad": False, "beta1": _ADAM_BETAS[0], "beta2": _ADAM_BETAS[1]}
            if self._fused:
                state["step"] += 1
                torch._fused_adam_([self._flat], [gradient], *moments, **common)
            else:
                adam([self._flat], [gradient], *moments, **common | {"foreach": False})
        else:
            rmsprop(
                [self._flat], [gradient], [state["square"]], [], [], [state["step"]],
                foreach=False, alpha=_RMSPROP_ALPHA, momentum=0.0, centered=False, **common,
            )  # fmt: skip

    def _compiled_step(self, gradient: Tensor, learning_rate: float) -> None:
        assert self.compiled is not None
        gradient, settings = gradient.contiguous(), self.compiled_settings(learning_rate)
        addresses = self._flat.data_ptr(), gradient.data_ptr(), *self.moments
        self.compiled.descend(
            self._flat.numel(), *addresses, 0.0, math.inf, 0, ctypes.addressof(settings)
        )
        self._state["step"] += 1

    def compiled_settings(self, learning_rate: float) -> Settings:
        """Return the settings of the next step for compiled functions."""
        self._settings.learning_rate, self._settings.eps = learning_rate, self.eps
        self._settings.step = float(self._state["step"]) + 1
        return self._settings

    @property
    def moments(self) -> tuple[int | None, int]:
        """Return the addresses of the mean, None with RMSProp, and of the mean square."""
        mean = self._state.get("mean")
        return None if mean is None else mean.data_ptr(), self._state["square"].data_ptr()

    def trains_alone(self, flat: Tensor) -> bool:
        """Return True if compiled functions may take steps on this tensor, without other steps."""
        same = self._flat.data_ptr() == flat.data_ptr()
        return self.compiled is not None and same and not self._shared

    def counted(self, num_steps: int) -> None:
        """Count steps that were taken by a compiled function with :attr:`moments`."""
        self._state["step"] += num_steps

    @property
    def memory(self) -> dict[str, Tensor]:
        """Return every tensor that a step changes: ``flat``, the moments and the step count."""
        return {"flat": self._flat, **self._state}

    def use(self, memory: dict[str, Tensor], racing: bool = False) -> None:
        """Adopt tensors with the layout of :attr:`memory`, and their values.

        Args:
            racing: other processes update the same tensors without locks.
        """
        self._flat = memory["flat"]
        if racing:
            self._shared = {name: memory[name] for name in self._state}
        else:
            self._state = {name: memory[name] for name in self._state}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of moments and step count."""
        return {"kind": self._kind, **{k: v.clone() for k, v in self._state.items()}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            ValueError: it belongs to another optimiser or another network.
        """
        if saved["kind"] != self._kind:
            raise ValueError(f"the state is of {saved['kind']}, not of {self._kind}")
        for name, value in self._state.items():
            if saved[name].shape != value.shape:
                sizes = saved[name].numel(), value.numel()
                raise ValueError(f"the state has {sizes[0]} weights, not {sizes[1]}")
            value.copy_(saved[name])
