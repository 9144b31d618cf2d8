"""Distributions of actions, as functions of the parameters that a network puts out.

Noise is drawn apart from sampling, so that an actor draws it once for a whole fragment and a
sample is then a function of its arguments. Parameters and actions may have any leading dimensions;
log-probabilities, entropies and divergences are sums over the dimensions of one action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from torch import Tensor

from headrace.errors import ConfigError

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Categorical:
    """One of ``n`` actions; parameters are logits ``[..., n]``, actions ``[...]`` int64.

    A logit of -inf forbids its action and is safe in every method. Methods raise ValueError for
    a wrong shape and TypeError for actions that are not int64.
    """

    n: int

    @property
    def num_params(self) -> int:
        """Length of the parameters' last dimension."""
        return self.n

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Gumbel noise ``[*shape, n]`` float32 on the generator's device (None: CPU, global)."""
        x = torch.empty(*shape, self.n, device=_device(generator))
        x.exponential_(generator=generator).clamp_min_(torch.finfo(x.dtype).tiny)
        return x.log_().neg_()  # minus the log of an exponential variable is Gumbel

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The action ``[...]`` that noise ``[..., n]`` picks: argmax of logits + noise."""
        _check_last("params", params, self.n)
        if noise.shape != params.shape:
            raise ValueError(f"noise must be {tuple(params.shape)}, got {tuple(noise.shape)}")
        return (params + noise).argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """``log p(action)`` ``[...]``."""
        _check_last("params", params, self.n)
        if action.dtype != torch.int64:
            raise TypeError(f"action must be int64, got {action.dtype}")
        if action.shape != params.shape[:-1]:
            raise ValueError(
                f"action must be {tuple(params.shape[:-1])}, got {tuple(action.shape)}"
            )
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """``-sum_a p(a) log p(a)`` ``[...]`` in nats, with 0 log 0 = 0."""
        _check_last("params", params, self.n)
        log_p = params.log_softmax(-1)
        # exp(-1000) is 0 in float64 too, so the clamp only turns 0 * -inf into 0.
        return -(log_p.exp() * log_p.clamp_min(-1000.0)).sum(-1)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """``KL(p || q)`` ``[...]``; inf where p allows an action that q forbids."""
        _check_last("params_p", params_p, self.n)
        _check_last("params_q", params_q, self.n)
        log_p, log_q = params_p.log_softmax(-1), params_q.log_softmax(-1)
        p = log_p.exp()
        return (p * torch.where(p > 0.0, log_p - log_q, 0.0)).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest action ``[...]``."""
        _check_last("params", params, self.n)
        return params.argmax(-1)


@dataclass(frozen=True)
class DiagGaussian:
    """Independent normals in ``dim`` dimensions; actions ``[..., dim]``, unbounded.

    Parameters ``[..., 2 * dim]`` are the means, then the logs of the standard deviations. Methods
    raise ValueError for a wrong shape.
    """

    dim: int

    @property
    def num_params(self) -> int:
        """Length of the parameters' last dimension."""
        return 2 * self.dim

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Normal noise ``[*shape, dim]`` float32 on the generator's device (None: CPU, global)."""
        return torch.randn(*shape, self.dim, generator=generator, device=_device(generator))

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """``mean + std * noise`` ``[..., dim]``."""
        mean, log_std = self._split("params", params)
        if noise.shape != mean.shape:
            raise ValueError(f"noise must be {tuple(mean.shape)}, got {tuple(noise.shape)}")
        return torch.addcmul(mean, log_std.exp(), noise)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """``log p(action)`` ``[...]``, the sum over dimensions."""
        mean, log_std = self._split("params", params)
        if action.shape != mean.shape:
            raise ValueError(f"action must be {tuple(mean.shape)}, got {tuple(action.shape)}")
        z = (action - mean) * torch.exp(-log_std)
        return -(0.5 * z.square() + log_std).sum(-1) - 0.5 * self.dim * LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy ``[...]`` in nats."""
        _, log_std = self._split("params", params)
        return log_std.sum(-1) + 0.5 * self.dim * (1.0 + LOG_2PI)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """``KL(p || q)`` ``[...]``."""
        mean_p, log_std_p = self._split("params_p", params_p)
        mean_q, log_std_q = self._split("params_q", params_q)
        log_scale = log_std_p - log_std_q
        z = (mean_p - mean_q) * torch.exp(-log_std_q)
        return (0.5 * (torch.expm1(2.0 * log_scale) + z.square()) - log_scale).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The mean ``[..., dim]``."""
        return self._split("params", params)[0]

    def _split(self, name: str, params: Tensor) -> tuple[Tensor, Tensor]:
        _check_last(name, params, self.num_params)
        return params[..., : self.dim], params[..., self.dim :]


Distribution: TypeAlias = Categorical | DiagGaussian


def distribution_for(action_space: gymnasium.Space[Any]) -> Distribution:
    """The distribution whose actions fit ``action_space`` (Discrete: up to its ``start``).

    Raises:
        ConfigError: the space is neither Discrete nor a floating Box of rank 1.
    """
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return Categorical(int(action_space.n))
    if (
        isinstance(action_space, gymnasium.spaces.Box)
        and len(action_space.shape) == 1
        and np.issubdtype(action_space.dtype, np.floating)
    ):
        return DiagGaussian(action_space.shape[0])
    raise ConfigError(
        f"action space {action_space} is not supported: use Discrete, or Box of shape (n,) with "
        f"a floating dtype (wrap the environment to flatten or convert its actions)"
    )


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _check_last(name: str, params: Tensor, size: int) -> None:
    if params.dim() == 0 or params.shape[-1] != size:
        raise ValueError(f"{name} must be [..., {size}], got {tuple(params.shape)}")
