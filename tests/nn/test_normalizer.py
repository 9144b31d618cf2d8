from __future__ import annotations

import torch

from headrace.nn.normalizer import Normalizer


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


def test_all_of_its_state_is_in_the_state_dict():
    torch.manual_seed(0)
    one, other = Normalizer(2), Normalizer(2)
    one.update(torch.randn(9, 2))
    other.load_state_dict(one.state_dict())
    more = torch.randn(5, 2)
    one.update(more)
    other.update(more)
    for a, b in zip(one.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)
