from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tries import examples

from headrace.nn.normalizer import ImageNormalizer, Normalizer
from headrace.nn.patches import patches
from headrace.ops.moments import moments, of_all, pack


def test_it_changes_nothing_before_the_first_update():
    x = torch.randn(4, 3)
    assert torch.equal(Normalizer(3)(x), x)


def test_what_it_has_seen_has_mean_zero_and_deviation_one():
    torch.manual_seed(0)
    normalizer, x = Normalizer(3), torch.tensor([1e4, 0.0, -3.0]) + 5 * torch.randn(1000, 3)
    for part in x.split(130):
        normalizer.update(part)
    y = normalizer(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(3), atol=2e-3, rtol=0)
    torch.testing.assert_close(y.std(0, unbiased=False), torch.ones(3), atol=2e-3, rtol=0)


def test_far_values_are_clipped_to_ten_deviations():
    normalizer = Normalizer(1)
    normalizer.update(torch.tensor([[-1.0], [1.0]]))
    assert normalizer(torch.tensor([[1e9], [-1e9]])).tolist() == [[10.0], [-10.0]]


def test_a_constant_input_becomes_zero():
    normalizer = Normalizer(1)
    normalizer.update(torch.full((8, 1), 7.0))
    assert normalizer(torch.full((2, 1), 7.0)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("make", [lambda: Normalizer(2), lambda: ImageNormalizer((1, 1, 2), 1.0)])
def test_all_of_its_state_is_in_the_state_dict(make):
    torch.manual_seed(0)
    one, other = make(), make()
    one.take(moments(torch.randn(9, 2)))
    other.load_state_dict(one.state_dict())
    more = moments(torch.randn(5, 2))
    one.take(more)
    other.take(more)
    for a, b in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)


def pixels(count: int) -> Tensor:
    """Return uint8 images ``[N, 2, 3, 4]`` with a constant pixel."""
    x = torch.randint(0, 256, (count, 2, 3, 4), dtype=torch.uint8)
    x[:, 1, 2, 0] = 200
    return x


def test_images_lose_each_pixels_mean_and_are_scaled_by_one_deviation():
    torch.manual_seed(0)
    normalizer, x = ImageNormalizer((2, 3, 4), 1 / 255), pixels(40)
    torch.testing.assert_close(normalizer(x.float()), x / 255)
    for part in x.split(13):
        normalizer.take(moments(part.flatten(1)))
    away = x.double() - x.double().mean(0)
    expected = away / away.square().mean().sqrt()
    torch.testing.assert_close(normalizer(x.float()), expected.float())
    assert expected.square().mean().item() == pytest.approx(1.0)
    assert not normalizer(x.float())[:, 1, 2, 0].any()
    halves = normalizer(x.bfloat16())
    assert halves.dtype == torch.bfloat16
    torch.testing.assert_close(halves.float(), expected.float(), atol=0.02, rtol=0.01)


@pytest.mark.parametrize("in_place", [False, True])
def test_patches_of_images_are_normalised_as_the_images_are(in_place):
    torch.manual_seed(0)
    normalizer = ImageNormalizer((3, 8, 12), 1 / 255)
    normalizer.take(moments(255 * torch.rand(9, 3 * 8 * 12)))
    x = (255 * torch.rand(5, 3, 8, 12)).bfloat16()
    expected, cut = patches(normalizer(x), 4), patches(x, 4)
    before = cut.clone()
    assert torch.equal(normalizer(cut, 4, in_place), expected)
    assert torch.equal(cut, expected if in_place else before)


def test_of_images_that_are_all_alike_nothing_is_left():
    normalizer = ImageNormalizer((1, 2, 2), 1 / 255)
    normalizer.take(moments(torch.full((5, 4), 9.0)))
    assert not normalizer(torch.full((1, 1, 2, 2), 9.0)).any()
    assert normalizer.scale == torch.tensor(1 / 255)


# -- several learners ---------------------------------------------------------------------------


def update_together(ranks: list[Normalizer], parts: list[Tensor]) -> None:
    """Update every rank with its part, with a gather that returns the parts of all."""
    sent: list[Tensor] = []
    for rank, part in enumerate(parts):

        def gather(vector: Tensor, rank: int = rank) -> Tensor:
            everyone = torch.stack([pack(moments(p)) for p in parts])
            assert torch.equal(everyone[rank], vector)
            assert (vector.dim(), vector.dtype) == (1, torch.float64)
            sent.append(vector)
            return everyone

        ranks[rank].take(*of_all([moments(part)], gather))
    assert len(sent) == len(parts)  # one exchange for each


def samples(seed: int, sizes: list[list[int]]) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for row in sizes:
        yield [torch.tensor([50.0, 3.0]) + 5 * torch.randn(n, 2, generator=generator) for n in row]


@examples(50)
@given(
    st.integers(1, 5).flatmap(
        lambda w: st.lists(
            st.lists(st.integers(0, 9), min_size=w, max_size=w), min_size=1, max_size=4
        )
    ),
    st.integers(0, 99),
)
def test_learners_that_exchange_moments_hold_those_of_all_samples_bit_for_bit_alike(sizes, seed):
    ranks, one = [Normalizer(2) for _ in sizes[0]], Normalizer(2)
    union = torch.zeros(0, 2)
    for parts in samples(seed, sizes):
        update_together(ranks, parts)
        union = torch.cat([union, *parts])
        one.update(torch.cat(parts))
    for rank in ranks:
        for x, y in zip(rank.buffers(), ranks[0].buffers(), strict=True):
            assert torch.equal(x, y)
    all_at_once, first = moments(union), ranks[0]
    assert first.count == one.count == len(union)
    assert first.count.dtype == torch.int64
    for theirs in (one, all_at_once):
        torch.testing.assert_close(first.mean, theirs.mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(first.square, theirs.square, rtol=1e-12, atol=1e-20)
    torch.testing.assert_close(first.center, one.center)
    torch.testing.assert_close(first.scale, one.scale)


@pytest.mark.parametrize("sizes", [[0, 3], [3, 0], [0, 0, 4, 0], [0, 0]])
def test_a_learner_without_samples_takes_those_of_the_others(sizes):
    ranks, one = [Normalizer(2) for _ in sizes], Normalizer(2)
    (parts,) = samples(0, [sizes])
    update_together(ranks, parts)
    one.update(torch.cat(parts))
    for rank in ranks:
        for x, y in zip(rank.buffers(), one.buffers(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=0)
    x = torch.randn(5, 2)
    assert torch.equal(ranks[0](x), x) == (sum(sizes) == 0)


def test_a_single_learner_that_gathers_has_what_one_that_does_not_has_bit_for_bit():
    one, other = Normalizer(2), Normalizer(2)
    for (part,) in samples(1, [[5], [0], [1], [9]]):
        one.update(part)
        update_together([other], [part])
    for x, y in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.equal(x, y)


def test_the_count_of_several_learners_stays_exact_where_float32_would_round():
    normalizer = Normalizer(1)
    normalizer.count.fill_(2**24)
    big = pack(moments(torch.ones(1, 1)))
    big[0] = 2**30 + 1
    normalizer.take(*of_all([moments(torch.ones(1, 1))], lambda own: torch.stack([own, big])))
    assert int(normalizer.count) == 2**24 + 1 + 2**30 + 1
