"""Gaussian distributions: diagonal, and squashed by tanh."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headrace.ops.distributions.checks import Unmasked, check_last, check_shape, device_of

LOG_2, LOG_2PI = math.log(2.0), math.log(2.0 * math.pi)
NUM_NODES = 20  # of the quadrature in SquashedGaussian.entropy


@dataclass(frozen=True)
class DiagGaussian(Unmasked):
    """Independent normals in ``dim`` dimensions; actions ``[..., dim]``, unbounded.

    Parameters ``[..., 2 * dim]`` are the means, then the logs of the standard deviations.
    """

    dim: int

    @property
    def num_params(self) -> int:
        """Length of the parameters' last dimension."""
        return 2 * self.dim

    @property
    def num_outputs(self) -> int:
        """Number of means, which is also that of log standard deviations, noise and features."""
        return self.dim

    num_free = num_noise = num_features = num_outputs

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Normal noise ``[*shape, dim]`` float32 on the generator's device (None: CPU, global)."""
        return torch.randn(*shape, self.dim, generator=generator, device=device_of(generator))

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """``mean + std * noise`` ``[..., dim]``."""
        mean, log_std = self._split("params", params)
        check_shape("noise", noise, mean.shape)
        return torch.addcmul(mean, log_std.exp(), noise)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self._split("params", params)
        check_shape("action", action, mean.shape)
        z = (action - mean) * torch.exp(-log_std)
        return -(0.5 * z.square() + log_std).sum(-1) - 0.5 * self.dim * LOG_2PI

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy ``[...]`` in nats."""
        _, log_std = self._split("params", params)
        return log_std.sum(-1) + 0.5 * self.dim * (1.0 + LOG_2PI)

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        mean_p, log_std_p = self._split("params_p", params_p)
        mean_q, log_std_q = self._split("params_q", params_q)
        log_scale = log_std_p - log_std_q
        z = (mean_p - mean_q) * torch.exp(-log_std_q)
        return (0.5 * (torch.expm1(2.0 * log_scale) + z.square()) - log_scale).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The mean ``[..., dim]``."""
        return self._split("params", params)[0]

    def features(self, action: Tensor) -> Tensor:
        """The action itself ``[..., dim]`` float32."""
        check_last("action", action, self.dim)
        return action.float()

    def _split(self, name: str, params: Tensor) -> tuple[Tensor, Tensor]:
        check_last(name, params, self.num_params)
        return params[..., : self.dim], params[..., self.dim :]


@dataclass(frozen=True)
class SquashedGaussian(DiagGaussian):
    """A :class:`DiagGaussian` ``u`` in ``dim`` dimensions, for actions ``tanh(u)`` in (-1, 1).

    Actions ``[..., dim]`` are stored as ``u``, which loses no digit near the bounds; densities and
    entropies are those of ``tanh(u)`` (Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290,
    appendix C). Samples, features and :meth:`mode` are unsquashed, and ``KL(p || q)`` is that of
    the Gaussians: a bijection changes no divergence.
    """

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """``log p(tanh(action))`` ``[...]``: ``log N(u) - sum log(1 - tanh(u)^2)``."""
        return super().log_prob(params, action) - _log_slope(action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy of ``tanh(u)`` ``[...]`` in nats, differentiable.

        ``H(u) + E[sum log(1 - tanh(u)^2)]``, the expectation by Gauss-Hermite quadrature. Its error
        per dimension is below 1e-5 for standard deviations up to 1, 2e-3 up to 2, 0.1 up to 5.
        """
        normal = super().entropy(params)
        mean, std = params[..., : self.dim], params[..., self.dim :].exp()
        x, weight = (torch.from_numpy(v).to(params) for v in _gauss_hermite(NUM_NODES))
        u = mean.unsqueeze(-1) + std.unsqueeze(-1) * x
        return normal + (_log_slope(u) @ weight).sum(-1)


def _log_slope(u: Tensor) -> Tensor:
    """``log(1 - tanh(u)^2)``, exact where tanh rounds to 1."""
    return 2.0 * (LOG_2 - u + F.logsigmoid(2.0 * u))


@functools.cache
def _gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature nodes and weights for the mean over a standard normal variable."""
    x, weight = np.polynomial.hermite_e.hermegauss(count)
    return x, weight / weight.sum()
