"""Discrete distributions: categorical, several categoricals, and independent bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headrace.ops.distributions.checks import (
    check_int64,
    check_last,
    check_mask,
    check_shape,
    device_of,
)


@dataclass(frozen=True)
class Categorical:
    """One of ``n`` actions; parameters are logits ``[..., n]``, actions ``[...]`` int64."""

    n: int

    num_free: ClassVar[int] = 0

    @property
    def num_params(self) -> int:
        """Size of the last dimension of parameters, mask, noise and features."""
        return self.n

    num_outputs = num_noise = num_mask = num_features = num_params

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Gumbel noise ``[*shape, n]`` float32 on the generator's device (None: CPU, global)."""
        x = torch.empty(*shape, self.n, device=device_of(generator))
        x.exponential_(generator=generator).clamp_min_(torch.finfo(x.dtype).tiny)
        return x.log_().neg_()  # minus the log of an exponential variable is Gumbel

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return the action ``[...]`` for noise ``[..., n]``: argmax of logits + noise."""
        check_last("params", params, self.n)
        check_shape("noise", noise, params.shape)
        return (params + noise).argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        check_last("params", params, self.n)
        check_int64(action)
        check_shape("action", action, params.shape[:-1])
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """``-sum_a p(a) log p(a)`` ``[...]`` in nats, with 0 log 0 = 0."""
        check_last("params", params, self.n)
        log_p = params.log_softmax(-1)
        # exp(-1000) is 0 in float64 too, so the clamp only turns 0 * -inf into 0.
        return -(log_p.exp() * log_p.clamp_min(-1000.0)).sum(-1)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        check_last("params_p", params_p, self.n)
        check_last("params_q", params_q, self.n)
        log_p, log_q = params_p.log_softmax(-1), params_q.log_softmax(-1)
        p = log_p.exp()
        return (p * torch.where(p > 0.0, log_p - log_q, 0.0)).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        check_last("params", params, self.n)
        return params.argmax(-1)

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Set logits to -inf where ``mask`` ``[..., n]`` bool is False.

        A mask that is False everywhere has no effect, so the mask of a filler can't cause NaN.
        """
        check_last("params", params, self.n)
        check_mask(mask, self.n)
        return params.masked_fill(~mask & mask.any(-1, keepdim=True), -math.inf)

    def features(self, action: Tensor) -> Tensor:
        """One-hot ``[..., n]`` float32."""
        check_int64(action)
        zeros = torch.zeros(*action.shape, self.n, device=action.device)
        return zeros.scatter_(-1, action.unsqueeze(-1), 1.0)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, the i-th one of ``nvec[i]``; actions ``[..., len(nvec)]`` int64.

    Parameters ``[..., sum(nvec)]`` are the choices' logits, one after another.
    """

    nvec: tuple[int, ...]
    num_free: ClassVar[int] = 0

    @property
    def num_params(self) -> int:
        """Size of the last dimension of parameters, mask, noise and features."""
        return sum(self.nvec)

    num_outputs = num_noise = num_mask = num_features = num_params

    @cached_property
    def _choice(self) -> Categorical:
        return Categorical(max(self.nvec))

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *self.nvec[:-1]])

    @cached_property
    def _index(self) -> np.ndarray:
        """Position of each logit of each padded choice; the index after the last is the pad."""
        column = np.arange(max(self.nvec))
        inside = column < np.array(self.nvec)[:, None]
        return np.where(inside, self._starts[:, None] + column, self.num_params).ravel()

    def _rows(self, values: Tensor, pad: float) -> Tensor:
        """Reshape ``[..., sum(nvec)]`` to ``[..., len(nvec), max(nvec)]`` with padding."""
        size = (len(self.nvec), max(self.nvec))
        if size[0] * size[1] > self.num_params:
            # A cached tensor could have been created in inference mode.
            index = torch.from_numpy(self._index).to(values.device)
            values = F.pad(values, (0, 1), value=pad).index_select(-1, index)
        return values.unflatten(-1, size)

    def _logits(self, name: str, params: Tensor) -> Tensor:
        check_last(name, params, self.num_params)
        return self._rows(params, -math.inf)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        return Categorical(self.num_params).noise(shape, generator)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        check_shape("noise", noise, params.shape)
        return self._logits("params", params + noise).argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self._choice.log_prob(self._logits("params", params), action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return self._choice.entropy(self._logits("params", params)).sum(-1)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        p, q = self._logits("params_p", params_p), self._logits("params_q", params_q)
        return self._choice.kl(p, q).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        return self._logits("params", params).argmax(-1)

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """:meth:`Categorical.apply_mask` for each choice; ``mask`` is ``[..., sum(nvec)]`` bool."""
        check_last("params", params, self.num_params)
        check_mask(mask, self.num_params)
        allowed = self._rows(mask, False).any(-1)
        owner = torch.from_numpy(np.repeat(np.arange(len(self.nvec)), self.nvec)).to(mask.device)
        return params.masked_fill(~mask & allowed.index_select(-1, owner), -math.inf)

    def features(self, action: Tensor) -> Tensor:
        """The choices' one-hots, one after another: ``[..., sum(nvec)]`` float32."""
        check_int64(action)
        check_last("action", action, len(self.nvec))
        zeros = torch.zeros(*action.shape[:-1], self.num_params, device=action.device)
        return zeros.scatter_(-1, action + torch.from_numpy(self._starts).to(action.device), 1.0)


_CERTAIN = 1e4  # logit of a bit that is always 1: exp(-1e4) is 0 even in float64


@dataclass(frozen=True)
class Bernoulli:
    """``n`` independent bits; parameters are logits ``[..., n]``, actions ``[..., n]`` int8."""

    n: int
    num_free: ClassVar[int] = 0

    @property
    def num_params(self) -> int:
        """Size of the last dimension of parameters, noise and features."""
        return self.n

    num_outputs = num_noise = num_features = num_params

    @property
    def num_mask(self) -> int:
        """Length of a mask: two entries per bit, whether 0 and whether 1 is allowed."""
        return 2 * self.n

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Logistic noise ``[*shape, n]`` float32 on the generator's device (None: CPU, global)."""
        x = torch.empty(*shape, self.n, device=device_of(generator))
        return x.uniform_(generator=generator).clamp_min_(torch.finfo(x.dtype).tiny).logit_()

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Return 1 where the logit exceeds ``noise``, ``[..., n]`` int8."""
        check_last("params", params, self.n)
        check_shape("noise", noise, params.shape)
        return (params > noise).to(torch.int8)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        if action.dtype != torch.int8:
            raise TypeError(f"action must be int8, got {action.dtype}")
        return Categorical(2).log_prob(self._pairs("params", params), action.long()).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return Categorical(2).entropy(self._pairs("params", params)).sum(-1)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        p, q = self._pairs("params_p", params_p), self._pairs("params_q", params_q)
        return Categorical(2).kl(p, q).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """Return 1 where 1 is more likely than 0, ``[..., n]`` int8."""
        check_last("params", params, self.n)
        return (params > 0.0).to(torch.int8)

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Make bits certain where ``mask`` ``[..., 2 * n]`` bool allows only one value.

        A bit is unchanged if neither value is allowed.
        """
        check_last("params", params, self.n)
        check_mask(mask, self.num_mask)
        zero, one = mask.unflatten(-1, (self.n, 2)).unbind(-1)
        params = params.masked_fill(zero & ~one, -math.inf)
        return params.masked_fill(one & ~zero, _CERTAIN)

    def features(self, action: Tensor) -> Tensor:
        """The bits ``[..., n]`` float32."""
        check_last("action", action, self.n)
        return action.float()

    def _pairs(self, name: str, params: Tensor) -> Tensor:
        """Return logits of each bit as a choice between 0 and 1: ``[..., n, 2]``."""
        check_last(name, params, self.n)
        return torch.stack((torch.zeros_like(params), params), -1)
