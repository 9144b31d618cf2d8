"""Distributions against torch.distributions, literal oracles and their own samples."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from headrace.ops import distributions, tree
from headrace.ops.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)

assert_equal = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
Pair = tuple[Any, Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(kind: str, params: Tensor, nvec: tuple[int, ...] = ()) -> list[Any]:
    """Return the independent torch distributions of a distribution of this class's name."""
    if kind == "Categorical":
        return [TorchCategorical(logits=params)]
    if kind == "MultiCategorical":
        return [TorchCategorical(logits=logits) for logits in params.split(nvec, -1)]
    if kind == "Bernoulli":
        return [TorchBernoulli(logits=logit) for logit in params.unbind(-1)]
    mean, log_std = params.chunk(2, -1)
    return [Independent(Normal(mean, log_std.exp()), 1)]


def assert_same_with_gradients(pairs: list[Pair], inputs: tuple[Tensor, ...]) -> None:
    weight = normal(5, 4, seed=3)
    for result, expected in pairs:
        assert_equal(result, expected)
        grads = [
            torch.autograd.grad((x * weight).sum(), inputs, allow_unused=True, retain_graph=True)
            for x in (result, expected)
        ]
        for ours, theirs in zip(*grads, strict=True):
            if theirs is not None:
                assert_equal(ours, theirs)


# The checks take the module so that test_mutants can hand them a broken one.


def check_distribution(distribution: Any) -> None:
    """Check values and gradients of everything except the noise, for ``[5, 4]`` actions."""
    kind, nvec = type(distribution).__name__, getattr(distribution, "nvec", ())
    p = normal(5, 4, distribution.num_params, seed=1).requires_grad_()
    q = normal(5, 4, distribution.num_params, seed=2).requires_grad_()
    parts_p, parts_q = parts(kind, p, nvec), parts(kind, q, nvec)
    torch.manual_seed(0)
    samples = [part.sample() for part in parts_q]
    many = kind in ("MultiCategorical", "Bernoulli")
    action = torch.stack(samples, -1) if many else samples[0]
    action = action.to(torch.int8) if kind == "Bernoulli" else action
    log_prob = sum(part.log_prob(a) for part, a in zip(parts_p, samples, strict=True))
    pairs = [
        (distribution.log_prob(p, action), log_prob),
        (distribution.entropy(p), sum(part.entropy() for part in parts_p)),
        (distribution.kl(p, q), sum(map(kl_divergence, parts_p, parts_q))),
    ]
    assert_same_with_gradients(pairs, (p, q))
    modes = [part.mode for part in parts_p]
    mode = distribution.mode(p)
    assert mode.dtype == action.dtype
    assert_equal(mode, (torch.stack(modes, -1) if many else modes[0]).to(mode.dtype))


def check_categorical(module: ModuleType) -> None:
    check_distribution(module.Categorical(6))


def check_gaussian(module: ModuleType) -> None:
    check_distribution(module.DiagGaussian(3))


def check_multi_categorical(module: ModuleType) -> None:
    check_distribution(module.MultiCategorical((3, 1, 4, 2)))
    check_distribution(module.MultiCategorical((3, 3)))
    one_hot = module.MultiCategorical((3, 2)).features(torch.tensor([[2, 0], [1, 1]]))
    assert one_hot.tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]]


def check_bernoulli(module: ModuleType) -> None:
    check_distribution(module.Bernoulli(3))


def squashed_entropy(params: Tensor) -> Tensor:
    """Compute ``-E[log p(tanh(u))]`` of one dimension on a fine grid of standard normals."""
    mean, log_std = params.unbind(-1)
    grid = torch.linspace(-9.0, 9.0, 20_001, dtype=params.dtype)
    weight = (-0.5 * grid.square()).exp()
    u = mean + log_std.exp() * grid
    log_p = Normal(mean, log_std.exp()).log_prob(u) - torch.log(torch.cosh(u) ** -2)
    return -(log_p * weight).sum() / weight.sum()


def check_squashed(module: ModuleType) -> None:
    """Check density, entropy and its gradients, divergence and mode, for ``[5, 4]`` actions."""
    distribution = module.SquashedGaussian(3)
    p = normal(5, 4, 6, seed=1).requires_grad_()
    q = normal(5, 4, 6, seed=2).requires_grad_()
    gaussian_p, gaussian_q = parts("DiagGaussian", p)[0], parts("DiagGaussian", q)[0]
    u = normal(5, 4, 3, seed=4)
    log_prob = gaussian_p.log_prob(u) - (1.0 - torch.tanh(u).square()).log().sum(-1)
    pairs = [
        (distribution.log_prob(p, u), log_prob),
        (distribution.kl(p, q), kl_divergence(gaussian_p, gaussian_q)),
    ]
    assert_same_with_gradients(pairs, (p, q))
    assert_equal(distribution.mode(p), p[..., :3])
    assert_equal(distribution.features(u), u.float())
    narrow = torch.tensor([0.3, -1.5, 2.0, -0.2, -1.0, -0.5], dtype=torch.float64).requires_grad_()
    exact = sum(squashed_entropy(narrow[i::3]) for i in range(3))
    entropy = distribution.entropy(narrow)
    torch.testing.assert_close(entropy, exact, rtol=0, atol=1e-5)
    (ours,), (theirs,) = (torch.autograd.grad(x, narrow) for x in (entropy, exact))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    far = torch.tensor([[40.0], [-40.0]])  # where tanh is 1 in float32, and 1 - tanh^2 is 0
    expected = Normal(0.0, 1.0).log_prob(far)[:, 0] + 80.0 - 2.0 * math.log(2.0)
    torch.testing.assert_close(
        module.SquashedGaussian(1).log_prob(torch.zeros(2, 2), far), expected
    )


def check_composite(module: ModuleType) -> None:
    """Compare with the parts on manual slices: outputs 3, 2, 5, 1, then log stds 2, 1."""
    move, arm = module.Categorical(3), module.DiagGaussian(2)
    grip, turn = module.MultiCategorical((2, 3)), module.SquashedGaussian(1)
    whole = module.Composite({"move": move, "arm": (arm, grip, turn)})
    sizes = ("outputs", "free", "params", "noise", "mask", "features")
    assert [getattr(whole, f"num_{s}") for s in sizes] == [11, 3, 14, 11, 8, 11]
    p, q = normal(5, 4, 14, seed=1), normal(5, 4, 14, seed=2)

    def cut(x: Tensor) -> list[Pair]:
        free = x[..., 11:]
        return [
            (move, x[..., :3]),
            (arm, torch.cat((x[..., 3:5], free[..., :2]), -1)),
            (grip, x[..., 5:10]),
            (turn, torch.cat((x[..., 10:11], free[..., 2:]), -1)),
        ]

    noise = whole.noise((5, 4), torch.Generator().manual_seed(0))
    noises = noise.split((3, 2, 5, 1), -1)
    samples = [d.sample(x, n) for (d, x), n in zip(cut(p), noises, strict=True)]
    action = whole.sample(p, noise)
    assert list(action) == ["move", "arm"]
    assert isinstance(action["arm"], tuple)
    for ours, theirs in zip(tree.leaves(action), samples, strict=True):
        assert_equal(ours, theirs)
    modes = [d.mode(x) for d, x in cut(p)]
    for ours, theirs in zip(tree.leaves(whole.mode(p)), modes, strict=True):
        assert_equal(ours, theirs)
    log_prob = sum(d.log_prob(x, a) for (d, x), a in zip(cut(p), samples, strict=True))
    assert_equal(whole.log_prob(p, action), log_prob)
    assert_equal(whole.entropy(p), sum(d.entropy(x) for d, x in cut(p)))
    both = zip(cut(p), cut(q), strict=True)
    assert_equal(whole.kl(p, q), sum(d.kl(x, y) for (d, x), (_, y) in both))
    features = [d.features(a) for (d, _), a in zip(cut(p), samples, strict=True)]
    assert_equal(whole.features(action), torch.cat(features, -1))


def check_masks(module: ModuleType) -> None:
    """Forbidden logits become -inf in components that keep a choice; nothing else changes."""
    cases = [
        (module.Categorical(3), [(0, 3)]),
        (module.MultiCategorical((3, 1, 2)), [(0, 3), (3, 4), (4, 6)]),
        (module.MultiCategorical((2, 2)), [(0, 2), (2, 4)]),
        (
            module.Composite(
                (module.MultiCategorical((2,)), module.Categorical(3), module.DiagGaussian(1))
            ),
            [(0, 2), (2, 5)],
        ),
    ]
    for distribution, spans in cases:
        p = normal(60, distribution.num_params, seed=1).requires_grad_()
        size = distribution.num_mask
        mask = torch.rand(60, size, generator=torch.Generator().manual_seed(2)) < 0.4
        expected, bit = p.detach().clone(), 0
        forbidden = torch.zeros_like(p, dtype=torch.bool)
        for start, end in spans:
            for row in range(60):
                bits = mask[row, bit : bit + end - start]
                if bits.any():
                    forbidden[row, start:end] = ~bits
            bit += end - start
        assert bit == size
        expected[forbidden] = -math.inf
        masked = distribution.apply_mask(p, mask)
        assert torch.equal(masked, expected)
        noise = distribution.noise((60,), torch.Generator().manual_seed(3))
        total = distribution.log_prob(masked, distribution.sample(masked, noise))
        total = total + distribution.entropy(masked) + distribution.kl(masked, masked.detach())
        (grad,) = torch.autograd.grad(total.sum(), p)
        assert grad.isfinite().all()
        assert (grad[forbidden] == 0.0).all()
        everything = torch.ones(60, size, dtype=torch.bool)
        assert torch.equal(distribution.apply_mask(p, everything), p)


def check_bernoulli_masks(module: ModuleType) -> None:
    """A bit is certain if one value is allowed, and unchanged if both or none are."""
    distribution = module.Bernoulli(4)
    allowed = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=torch.bool)
    mask = allowed.flatten().expand(500, 8)
    p = 3.0 * normal(500, 4, seed=1).requires_grad_()
    masked = distribution.apply_mask(p, mask)
    assert torch.equal(masked[:, [0, 3]], p[:, [0, 3]])
    noise = distribution.noise((500,), torch.Generator().manual_seed(3))
    before = distribution.sample(p, noise)
    for action, unmasked in (
        (distribution.sample(masked, noise), before),
        (distribution.mode(masked), distribution.mode(p)),
    ):
        assert torch.equal(action[:, [0, 3]], unmasked[:, [0, 3]])
        assert (action[:, 1] == 0).all()
        assert (action[:, 2] == 1).all()
    action = distribution.sample(masked, noise)
    free = module.Bernoulli(2)
    total = distribution.log_prob(masked, action)
    left = p[:, [0, 3]]
    assert_equal(total, free.log_prob(left, action[:, [0, 3]]))
    assert_equal(distribution.entropy(masked), free.entropy(left))
    total = total + distribution.entropy(masked) + distribution.kl(masked, masked.detach())
    (grad,) = torch.autograd.grad(total.sum(), p)
    assert grad.isfinite().all()
    assert (grad[:, [1, 2]] == 0.0).all()


def check_categorical_samples(module: ModuleType) -> None:
    """Frequencies of 20,000 samples lie within 4.5 standard errors of the probabilities."""
    distribution, count = module.Categorical(4), 20_000
    logits = torch.tensor([1.0, -0.5, 0.3, -3.0])
    noise = distribution.noise((count,), torch.Generator().manual_seed(1))
    action = distribution.sample(logits.expand(count, 4), noise)
    assert action.dtype == torch.int64
    assert_frequencies(action, logits.softmax(-1))


def assert_frequencies(action: Tensor, p: Tensor) -> None:
    frequency = torch.bincount(action.long(), minlength=len(p)) / len(action)
    assert ((frequency - p).abs() < 4.5 * (p * (1 - p) / len(action)).sqrt()).all()


def check_multi_categorical_samples(module: ModuleType) -> None:
    """Frequencies of pairs: the choices are independent."""
    distribution, count = module.MultiCategorical((2, 3)), 20_000
    logits = torch.tensor([1.0, -0.5, 0.3, -1.0, 0.9])
    noise = distribution.noise((count,), torch.Generator().manual_seed(1))
    action = distribution.sample(logits.expand(count, 5), noise)
    assert action.dtype == torch.int64
    p = logits[:2].softmax(-1)[:, None] * logits[2:].softmax(-1)
    assert_frequencies(3 * action[:, 0] + action[:, 1], p.flatten())


def check_bernoulli_samples(module: ModuleType) -> None:
    """Frequencies of pairs of bits: they are independent."""
    distribution, count = module.Bernoulli(2), 20_000
    logits = torch.tensor([1.0, -1.6])
    noise = distribution.noise((count,), torch.Generator().manual_seed(1))
    action = distribution.sample(logits.expand(count, 2), noise)
    assert action.dtype == torch.int8
    p, q = logits.sigmoid(), (-logits).sigmoid()
    pairs = torch.stack((q[0] * q[1], q[0] * p[1], p[0] * q[1], p[0] * p[1]))
    assert_frequencies(2 * action[:, 0] + action[:, 1], pairs)


def check_gaussian_samples(module: ModuleType) -> None:
    """Mean and standard deviation of 20,000 samples lie within 4.5 standard errors."""
    count = 20_000
    mean, log_std = torch.tensor([0.5, -2.0]), torch.tensor([-1.0, 0.7])
    for distribution in (module.DiagGaussian(2), module.SquashedGaussian(2)):
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


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
CHECKS.remove(check_distribution)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__[6:])
def test_the_distribution_passes(check: Callable[[ModuleType], None]) -> None:
    check(distributions)


EACH = pytest.mark.parametrize(
    "distribution",
    [
        Categorical(5),
        MultiCategorical((2, 4, 3)),
        MultiCategorical((3, 3)),
        Bernoulli(3),
        DiagGaussian(3),
        SquashedGaussian(3),
        Composite({"a": Categorical(3), "b": (Bernoulli(2), DiagGaussian(1))}),
        Composite((SquashedGaussian(2), {"x": MultiCategorical((2, 3))})),
    ],
    ids=str,
)
MASKABLE = pytest.mark.parametrize(
    "distribution",
    [
        Categorical(4),
        MultiCategorical((2, 4, 3)),
        Composite({"a": Categorical(3), "b": (SquashedGaussian(1), MultiCategorical((2, 2)))}),
    ],
    ids=str,
)


@EACH
def test_a_fragment_s_noise_row_by_row_gives_the_samples_of_the_whole(
    distribution: Distribution,
) -> None:
    params = normal(6, 4, distribution.num_params).float()
    noise = distribution.noise((6, 4), torch.Generator().manual_seed(0))
    again = distribution.noise((6, 4), torch.Generator().manual_seed(0))
    assert torch.equal(noise, again)
    assert noise.dtype == torch.float32
    assert noise.shape == (6, 4, distribution.num_noise)
    whole = distribution.sample(params, noise)
    rows = [distribution.sample(params[t], noise[t]) for t in range(6)]
    stacked = tree.map_leaves(lambda *x: torch.stack(x), *rows)
    tree.map_leaves(lambda x, y: torch.testing.assert_close(x, y, rtol=0, atol=0), whole, stacked)
    assert distribution.log_prob(params, whole).shape == (6, 4)
    features = distribution.features(whole)
    assert features.shape == (6, 4, distribution.num_features)
    assert features.dtype == torch.float32


@EACH
def test_one_action_without_leading_dimensions_works(distribution: Distribution) -> None:
    params = torch.zeros(distribution.num_params)
    action = distribution.sample(params, distribution.noise((), None))
    assert distribution.log_prob(params, action).shape == ()
    layouts = [
        [(leaf.shape, leaf.dtype) for leaf in tree.leaves(x)]
        for x in (action, distribution.mode(params))
    ]
    assert layouts[0] == layouts[1]
    assert distribution.entropy(params).shape == distribution.kl(params, params).shape == ()
    assert distribution.features(action).shape == (distribution.num_features,)
    mask = torch.ones(distribution.num_mask, dtype=torch.bool)
    assert torch.equal(distribution.apply_mask(params, mask), params)


@EACH
def test_kl_is_zero_for_equal_and_positive_for_different_parameters(
    distribution: Distribution,
) -> None:
    p = normal(50, distribution.num_params, seed=1)
    q = normal(50, distribution.num_params, seed=2)
    torch.testing.assert_close(distribution.kl(p, p), torch.zeros(50, dtype=torch.float64))
    assert (distribution.kl(p, q) > 0).all()


@EACH
def test_entropy_and_kl_are_the_means_over_samples(distribution: Distribution) -> None:
    count = 200_000
    p = 0.5 * normal(distribution.num_params, seed=1)
    q = 0.5 * normal(distribution.num_params, seed=2)
    many_p, many_q = p.expand(count, -1), q.expand(count, -1)
    noise = distribution.noise((count,), torch.Generator().manual_seed(3))
    action = distribution.sample(many_p, noise)
    log_p, log_q = distribution.log_prob(many_p, action), distribution.log_prob(many_q, action)
    cases = [(-log_p, distribution.entropy(p)), (log_p - log_q, distribution.kl(p, q))]
    for samples, expected in cases:
        error = float(samples.std()) / math.sqrt(count)
        assert abs(float(samples.mean() - expected)) < 4.5 * error


@EACH
def test_float32_agrees_with_float64(distribution: Distribution) -> None:
    p = normal(40, distribution.num_params, seed=1)
    q = normal(40, distribution.num_params, seed=2)
    action = distribution.sample(p.float(), distribution.noise((40,), None))
    pairs = [
        (distribution.log_prob(p.float(), action), distribution.log_prob(p, action)),
        (distribution.entropy(p.float()), distribution.entropy(p)),
        (distribution.kl(p.float(), q.float()), distribution.kl(p, q)),
    ]
    for single, double in pairs:
        assert single.dtype == torch.float32
        assert double.dtype == torch.float64
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@EACH
def test_a_distribution_is_a_value_that_hashes_pickles_and_copies(
    distribution: Distribution,
) -> None:
    with torch.inference_mode():  # what was used for acting first must still train
        params = torch.zeros(3, distribution.num_params)
        action = distribution.sample(params, distribution.noise((3,), None))
    for twin in (
        distribution,
        pickle.loads(pickle.dumps(distribution)),
        copy.deepcopy(distribution),
    ):
        assert twin == distribution
        assert hash(twin) == hash(distribution)
        params = torch.zeros(3, distribution.num_params, requires_grad=True)
        mask = torch.ones(3, twin.num_mask, dtype=torch.bool)
        own = tree.map_leaves(torch.clone, action)
        twin.log_prob(twin.apply_mask(params, mask), own).sum().backward()
        assert params.grad is not None


@EACH
def test_parameters_are_outputs_and_free_ones(distribution: Distribution) -> None:
    assert distribution.num_params == distribution.num_outputs + distribution.num_free


@MASKABLE
def test_a_masked_action_is_never_sampled_nor_the_mode(distribution: Distribution) -> None:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(2000, distribution.num_mask, generator=generator) < 0.5
    one_each = distribution.mode(torch.randn(2000, distribution.num_params, generator=generator))
    mask |= maskable_features(distribution, one_each)  # leaves something in every component
    params = 3.0 * torch.randn(2000, distribution.num_params, generator=generator)
    masked = distribution.apply_mask(params, mask)
    noise = distribution.noise((2000,), generator)
    for action in (distribution.sample(masked, noise), distribution.mode(masked)):
        assert not (maskable_features(distribution, action) & ~mask).any()
        assert distribution.log_prob(masked, action).isfinite().all()
    action = distribution.sample(params, noise)
    forbidden = (maskable_features(distribution, action) & ~mask).any(-1)
    assert forbidden.any()
    assert torch.equal(distribution.log_prob(masked, action) == -math.inf, forbidden)


def maskable_features(distribution: Any, action: Any) -> Tensor:
    """Return ``[..., num_mask]`` bool: the bits of the mask that an action needs."""
    if not isinstance(distribution, Composite):
        return distribution.features(action).bool()[..., : distribution.num_mask]
    pairs = zip(distribution.parts, distribution.each_action(action), strict=True)
    return torch.cat([maskable_features(part, a) for part, a in pairs], -1)


@pytest.mark.parametrize("distribution", [MultiCategorical((2, 3)), Bernoulli(3)], ids=str)
def test_logits_of_minus_infinity_have_finite_values_and_gradients(
    distribution: Distribution,
) -> None:
    logits = torch.zeros(1, distribution.num_params)
    logits[0, 1], logits[0, 2] = -math.inf, 0.7
    params = logits.requires_grad_()
    action = distribution.mode(params)
    results = [
        distribution.entropy(params),
        distribution.kl(params, params.detach()),
        distribution.kl(params.detach(), params),
        distribution.log_prob(params, action),
    ]
    for result in results:
        (grad,) = torch.autograd.grad(result.sum(), params)
        assert result.isfinite().all()
        assert grad.isfinite().all()
        assert grad[0, 1] == 0.0
    impossible = action.clone()
    impossible[0, 0 if isinstance(distribution, MultiCategorical) else 1] = 1
    log_prob = distribution.log_prob(params, impossible)
    assert log_prob.item() == -math.inf
    assert torch.autograd.grad(log_prob.sum(), params)[0].isfinite().all()
    assert distribution.kl(torch.zeros_like(params), params).item() == math.inf
    noise = distribution.noise((1000, 1), torch.Generator().manual_seed(0))
    samples = distribution.sample(params.expand(1000, 1, -1), noise)
    assert distribution.log_prob(params.expand(1000, 1, -1), samples).isfinite().all()


def test_the_quadrature_s_error_is_what_its_docstring_says() -> None:
    distribution = SquashedGaussian(1)
    for std, bound in ((0.3, 1e-5), (1.0, 1e-5), (2.0, 2e-3), (5.0, 0.1)):
        for mean in np.linspace(-3.0, 3.0, 13):
            params = torch.tensor([mean, math.log(std)], dtype=torch.float64)
            error = distribution.entropy(params) - squashed_entropy(params)
            assert abs(error) < bound, (std, mean)


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


def test_the_other_distributions_check_shape_dtype_and_structure() -> None:
    multi, bits = MultiCategorical((2, 1)), Bernoulli(3)
    pair = Composite({"a": multi, "b": bits})
    logits = torch.zeros(5, 3)
    with pytest.raises(ValueError, match="action must be"):
        multi.log_prob(logits, torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="noise must be"):
        multi.sample(logits, torch.zeros(3))
    with pytest.raises(TypeError, match="int8"):
        bits.log_prob(logits, torch.zeros(5, 3))
    with pytest.raises(ValueError, match="params must be"):
        bits.entropy(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="params must be"):
        SquashedGaussian(2).entropy(logits)
    with pytest.raises(TypeError, match="mask must be bool"):
        multi.apply_mask(logits, torch.ones(5, 3))
    with pytest.raises(ValueError, match="mask must be"):
        bits.apply_mask(logits, torch.ones(5, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="noise must be"):
        pair.sample(torch.zeros(5, 6), torch.zeros(5, 7))
    with pytest.raises(ValueError, match="keys"):
        pair.log_prob(torch.zeros(5, 6), {"a": torch.zeros(5, 2)})
    with pytest.raises(ValueError, match="tuple of 1"):
        Composite((bits,)).log_prob(logits, torch.zeros(5, 3, dtype=torch.int8))
    with pytest.raises(ValueError, match="at least one part"):
        Composite(())
