"""Distributions against torch.distributions and against their own samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from headrace.errors import ConfigError
from headrace.ops import distributions
from headrace.ops.distributions import Categorical, DiagGaussian, Distribution, distribution_for

assert_equal = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(distribution: Any, params: Tensor) -> torch.distributions.Distribution:
    if hasattr(distribution, "n"):
        return TorchCategorical(logits=params)
    mean, log_std = params.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


# The checks take the module so that test_mutants can hand them a broken one.


def check_distribution(distribution: Any) -> None:
    """Values and gradients of everything but the noise, for ``[5, 4]`` actions."""
    p = normal(5, 4, distribution.num_params, seed=1).requires_grad_()
    q = normal(5, 4, distribution.num_params, seed=2).requires_grad_()
    reference_p, reference_q = reference(distribution, p), reference(distribution, q)
    action = reference_q.sample()
    pairs = [
        (distribution.log_prob(p, action), reference_p.log_prob(action)),
        (distribution.entropy(p), reference_p.entropy()),
        (distribution.kl(p, q), kl_divergence(reference_p, reference_q)),
    ]
    weight = normal(5, 4, seed=3)
    for result, expected in pairs:
        assert_equal(result, expected)
        grads = [
            torch.autograd.grad((x * weight).sum(), (p, q), allow_unused=True, retain_graph=True)
            for x in (result, expected)
        ]
        for ours, theirs in zip(*grads, strict=True):
            if theirs is not None:
                assert_equal(ours, theirs)
    assert_equal(distribution.mode(p), reference_p.mode)


def check_categorical(module: ModuleType) -> None:
    check_distribution(module.Categorical(6))


def check_gaussian(module: ModuleType) -> None:
    check_distribution(module.DiagGaussian(3))


def check_categorical_samples(module: ModuleType) -> None:
    """Frequencies of 20,000 samples lie within 4.5 standard errors of the probabilities."""
    distribution, count = module.Categorical(4), 20_000
    logits = torch.tensor([1.0, -0.5, 0.3, -3.0])
    noise = distribution.noise((count,), torch.Generator().manual_seed(1))
    action = distribution.sample(logits.expand(count, 4), noise)
    assert action.dtype == torch.int64
    p = logits.softmax(-1)
    frequency = torch.bincount(action, minlength=4) / count
    assert ((frequency - p).abs() < 4.5 * (p * (1 - p) / count).sqrt()).all()


def check_gaussian_samples(module: ModuleType) -> None:
    """Mean and standard deviation of 20,000 samples lie within 4.5 standard errors."""
    distribution, count = module.DiagGaussian(2), 20_000
    mean, log_std = torch.tensor([0.5, -2.0]), torch.tensor([-1.0, 0.7])
    noise = distribution.noise((count,), torch.Generator().manual_seed(2))
    action = distribution.sample(torch.cat((mean, log_std)).expand(count, 4), noise)
    assert action.dtype == torch.float32
    error = 4.5 / math.sqrt(count)
    assert ((action.mean(0) - mean).abs() < error * log_std.exp()).all()
    assert ((action.std(0).log() - log_std).abs() < error).all()


def check_forbidden_action(module: ModuleType) -> None:
    """A logit of -inf: finite entropy, KL and gradients, and the action is never sampled."""
    distribution = module.Categorical(3)
    params = torch.tensor([[0.5, -math.inf, 0.1]], requires_grad=True)
    allowed = torch.tensor([[0.5, 0.1]])
    other = torch.tensor([[0.2, -math.inf, 0.4]])
    entropy, kl = distribution.entropy(params), distribution.kl(params, other)
    torch.testing.assert_close(entropy, TorchCategorical(logits=allowed).entropy())
    expected = kl_divergence(
        TorchCategorical(logits=allowed), TorchCategorical(logits=other[:, ::2])
    )
    torch.testing.assert_close(kl, expected)
    (grad,) = torch.autograd.grad((100.0 * entropy + kl).sum(), params)
    assert grad.isfinite().all()
    assert distribution.kl(torch.zeros(1, 3), other).item() == math.inf
    noise = distribution.noise((1000, 1), torch.Generator().manual_seed(0))
    assert not (distribution.sample(params.expand(1000, 1, 3), noise) == 1).any()


CHECKS = (
    check_categorical,
    check_gaussian,
    check_categorical_samples,
    check_gaussian_samples,
    check_forbidden_action,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__[6:])
def test_the_distribution_passes(check: Callable[[ModuleType], None]) -> None:
    check(distributions)


@pytest.mark.parametrize("distribution", [Categorical(5), DiagGaussian(3)])
def test_a_fragment_s_noise_row_by_row_gives_the_samples_of_the_whole(
    distribution: Distribution,
) -> None:
    params = normal(6, 4, distribution.num_params).float()
    noise = distribution.noise((6, 4), torch.Generator().manual_seed(0))
    again = distribution.noise((6, 4), torch.Generator().manual_seed(0))
    assert torch.equal(noise, again)
    assert noise.dtype == torch.float32
    whole = distribution.sample(params, noise)
    rows = torch.stack([distribution.sample(params[t], noise[t]) for t in range(6)])
    assert torch.equal(whole, rows)
    assert distribution.log_prob(params, whole).shape == (6, 4)


@pytest.mark.parametrize("distribution", [Categorical(5), DiagGaussian(3)])
def test_one_action_without_leading_dimensions_works(distribution: Distribution) -> None:
    params = torch.zeros(distribution.num_params)
    action = distribution.sample(params, distribution.noise((), None))
    assert distribution.log_prob(params, action).shape == ()
    assert action.shape == distribution.mode(params).shape
    assert distribution.entropy(params).shape == distribution.kl(params, params).shape == ()


@pytest.mark.parametrize("distribution", [Categorical(5), DiagGaussian(3)])
def test_kl_is_zero_for_equal_and_positive_for_different_parameters(
    distribution: Distribution,
) -> None:
    p = normal(50, distribution.num_params, seed=1)
    q = normal(50, distribution.num_params, seed=2)
    torch.testing.assert_close(distribution.kl(p, p), torch.zeros(50, dtype=torch.float64))
    assert (distribution.kl(p, q) > 0).all()


def test_a_wrong_shape_or_dtype_is_an_error() -> None:
    categorical, gaussian = Categorical(3), DiagGaussian(2)
    logits, params = torch.zeros(5, 3), torch.zeros(5, 4)
    with pytest.raises(ValueError, match="params must be"):
        categorical.entropy(torch.zeros(5, 4))
    with pytest.raises(ValueError, match="noise must be"):
        categorical.sample(logits, torch.zeros(3))
    with pytest.raises(ValueError, match="action must be"):
        categorical.log_prob(logits, torch.zeros(5, 1, dtype=torch.int64))
    with pytest.raises(TypeError, match="int64"):
        categorical.log_prob(logits, torch.zeros(5))
    with pytest.raises(ValueError, match="params must be"):
        gaussian.mode(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="action must be"):
        gaussian.log_prob(params, torch.zeros(5))
    with pytest.raises(ValueError, match="noise must be"):
        gaussian.sample(params, torch.zeros(2))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(4), Categorical(4)),
        (spaces.Discrete(3, start=-1), Categorical(3)),
        (spaces.Box(-1.0, 1.0, (6,)), DiagGaussian(6)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), DiagGaussian(2)),
    ],
)
def test_discrete_and_flat_float_boxes_have_a_distribution(
    space: gymnasium.Space[Any], expected: Distribution
) -> None:
    assert distribution_for(space) == expected


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-1.0, 1.0, ()),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Dict(a=spaces.Discrete(2)),
    ],
)
def test_other_action_spaces_are_a_config_error_that_names_what_works(
    space: gymnasium.Space[Any],
) -> None:
    with pytest.raises(ConfigError, match="Discrete, or Box") as info:
        distribution_for(space)
    assert str(space) in str(info.value)
