from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.ops.moments import Moments, merge, moments, of_all, pack, unpack


def empty(num: int) -> Moments:
    return moments(torch.empty(0, num))


@examples(50)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.floats(-1e4, 1e4))
def test_merged_moments_are_those_of_all_samples_together_in_any_partition(sizes, offset):
    torch.manual_seed(sum(sizes))
    parts = [offset + torch.randn(n, 3, dtype=torch.float64) for n in sizes]
    total = empty(3)
    for part in parts:
        total = merge(total, moments(part))
    everything = torch.cat(parts)
    assert total.count == len(everything)
    if len(everything):
        torch.testing.assert_close(total.mean, everything.mean(0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            total.variance, everything.var(0, unbiased=False), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("shape", [(3, 28_224), (64, 28_224), (2, 1 << 19), (4000, 200)])
def test_samples_of_many_numbers_that_are_summed_in_parts_have_the_same_moments(shape):
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    found, whole = moments(x), x.double()
    assert found.count == len(x)
    torch.testing.assert_close(found.mean, whole.mean(0), rtol=1e-12, atol=0)
    square = len(x) * whole.var(0, unbiased=False)
    torch.testing.assert_close(found.square, square, rtol=1e-9, atol=1e-9)


def test_merging_is_the_same_in_either_order():
    torch.manual_seed(0)
    a, b = moments(torch.randn(5, 2)), moments(3 + torch.randn(9, 2))
    for x, y in zip(vars(merge(a, b)).values(), vars(merge(b, a)).values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_the_count_goes_on_beyond_what_float32_holds():
    big = Moments(torch.tensor(2**24), torch.zeros(1).double(), torch.ones(1).double())
    assert merge(big, moments(torch.ones(1, 1))).count == 2**24 + 1


def test_no_samples_have_variance_one():
    assert torch.equal(empty(2).variance, torch.ones(2).double())


def test_a_wrong_rank_is_an_error():
    with pytest.raises(ValueError, match=r"\[N, F\], got \(3,\)"):
        moments(torch.zeros(3))


def test_moments_survive_packing_bit_for_bit_with_counts_that_float32_would_round():
    torch.manual_seed(0)
    some = moments(torch.randn(7, 3))
    for count in (0, 2**24 + 1, 2**53):
        sent = Moments(torch.tensor(count), some.mean, some.square)
        vector = pack(sent)
        assert (vector.shape, vector.dtype) == ((7,), torch.float64)
        for x, y in zip(vars(unpack(vector)).values(), vars(sent).values(), strict=True):
            assert torch.equal(x, y)
            assert x.dtype == y.dtype


@pytest.mark.parametrize("shape", [(4,), (0,), (1, 3)])
def test_unpacking_what_was_not_packed_is_an_error(shape):
    with pytest.raises(ValueError, match=r"vector must be \[1 \+ 2 F\]"):
        unpack(torch.zeros(shape).double())


def test_several_streams_in_one_exchange_are_bit_for_bit_what_each_is_by_itself():
    sizes = ((3, 5), (0, 1), (4, 7))  # samples of two streams, by learner
    brought = [[moments(torch.randn(n, width)) for n, width in zip(own, (1, 4), strict=True)]
               for own in sizes]  # fmt: skip
    sent = []

    def gather(vector):
        sent.append(vector)
        return torch.stack([torch.cat([pack(part) for part in own]) for own in brought])

    joined = of_all(brought[1], gather)
    assert torch.equal(torch.cat([pack(part) for part in brought[1]]), *sent)
    for i, found in enumerate(joined):
        (alone,) = of_all(
            [brought[1][i]], lambda _, i=i: torch.stack([pack(own[i]) for own in brought])
        )
        assert torch.equal(pack(found), pack(alone))
        assert int(found.count) == sum(own[i] for own in sizes)
    assert of_all([], gather) == []
    assert len(sent) == 1
