"""Product of several independent distributions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headrace.ops.distributions.checks import check_last, check_mask, check_shape
from headrace.ops.distributions.gaussian import DiagGaussian


def _sum(name: str) -> cached_property[int]:
    """Create a cached property: the sum of an attribute over all parts."""
    return cached_property(lambda self: sum(self._sizes(name)))


@dataclass(frozen=True)
class Composite:
    """Independent parts; actions are dicts (with ``keys``) or tuples of the parts' actions.

    Parameters are all parts' outputs, then all parts' free parameters; noise, masks and features
    are the parts' ones after another. Log-probabilities, entropies and divergences are sums.

    Args:
        parts: a tuple, or a dict, which is kept as its values and ``keys``; dicts and tuples in it
            become Composites.

    Raises:
        ValueError: there is no part.
    """

    parts: tuple[Any, ...]  # distributions
    keys: tuple[str, ...] | None = None

    num_outputs, num_free = _sum("num_outputs"), _sum("num_free")
    num_noise, num_mask, num_features = _sum("num_noise"), _sum("num_mask"), _sum("num_features")

    def __post_init__(self) -> None:
        parts: Any = self.parts
        if isinstance(parts, dict):
            object.__setattr__(self, "keys", tuple(parts))
            parts = tuple(parts.values())
        parts = tuple(Composite(p) if type(p) in (dict, tuple) else p for p in parts)
        object.__setattr__(self, "parts", parts)
        if not parts or (self.keys is not None and len(self.keys) != len(parts)):
            raise ValueError(f"need at least one part and a key for each, got {self}")

    @cached_property
    def num_params(self) -> int:
        """Length of the parameters' last dimension."""
        return self.num_outputs + self.num_free

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """The parts' noise ``[*shape, num_noise]`` float32, drawn part by part."""
        return torch.cat([part.noise(shape, generator) for part in self.parts], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Any:
        check_shape("noise", noise, (*params.shape[:-1], self.num_noise))
        noises = noise.split(self._sizes("num_noise"), -1)
        each = zip(self.parts, self._split("params", params), noises, strict=True)
        return self._tree([part.sample(p, x) for part, p, x in each])

    def log_prob(self, params: Tensor, action: Any) -> Tensor:
        split = self._split("params", params)
        each = zip(self.parts, split, self.each_action(action), strict=True)
        return _total([part.log_prob(p, a) for part, p, a in each])

    def entropy(self, params: Tensor) -> Tensor:
        each = zip(self.parts, self._split("params", params), strict=True)
        return _total([part.entropy(p) for part, p in each])

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        split_p, split_q = self._split("params_p", params_p), self._split("params_q", params_q)
        each = zip(self.parts, split_p, split_q, strict=True)
        return _total([part.kl(p, q) for part, p, q in each])

    def mode(self, params: Tensor) -> Any:
        each = zip(self.parts, self._split("params", params), strict=True)
        return self._tree([part.mode(p) for part, p in each])

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Each part's parameters under its bits of ``mask`` ``[..., num_mask]`` bool."""
        check_mask(mask, self.num_mask)
        masks = mask.split(self._sizes("num_mask"), -1)
        each = zip(self.parts, self._split("params", params), masks, strict=True)
        split = [part.apply_mask(p, m) for part, p, m in each]
        pairs = list(zip(self.parts, split, strict=True))
        outputs = [p[..., : part.num_outputs] for part, p in pairs]
        return torch.cat([*outputs, *(p[..., part.num_outputs :] for part, p in pairs)], -1)

    def features(self, action: Any) -> Tensor:
        each = zip(self.parts, self.each_action(action), strict=True)
        return torch.cat([part.features(a) for part, a in each], -1)

    def _sizes(self, name: str) -> list[int]:
        return [getattr(part, name) for part in self.parts]

    def _split(self, name: str, params: Tensor) -> list[Tensor]:
        """The parameters of each part."""
        check_last(name, params, self.num_params)
        if not self.num_free:
            return list(params.split(self._sizes("num_outputs"), -1))
        outputs = params[..., : self.num_outputs].split(self._sizes("num_outputs"), -1)
        frees = params[..., self.num_outputs :].split(self._sizes("num_free"), -1)
        return [
            torch.cat((output, free), -1) if free.shape[-1] else output
            for output, free in zip(outputs, frees, strict=True)
        ]

    def _tree(self, values: list[Any]) -> Any:
        if self.keys is None:
            return tuple(values)
        return dict(zip(self.keys, values, strict=True))

    def each_action(self, action: Any) -> list[Any]:
        """The parts' actions in the order of ``parts``."""
        if self.keys is None:
            if not isinstance(action, tuple) or len(action) != len(self.parts):
                raise ValueError(f"action must be a tuple of {len(self.parts)}, got {action}")
            return list(action)
        if not isinstance(action, dict) or set(action) != set(self.keys):
            raise ValueError(f"action must be a dict with the keys {self.keys}, got {action}")
        return [action[key] for key in self.keys]


def gaussian_places(distribution: Any, start: int = 0) -> Iterator[int]:
    """Yield the indices of Gaussian elements in a distribution's noise."""
    if isinstance(distribution, Composite):
        for part in distribution.parts:
            yield from gaussian_places(part, start)
            start += part.num_noise
    elif isinstance(distribution, DiagGaussian):
        yield from range(start, start + distribution.num_noise)


def _total(terms: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)
