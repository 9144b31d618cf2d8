from __future__ import annotations

import torch
from torch import nn

from headrace.nn.activations import DenseTanh


def pair(dtype=torch.float64):
    torch.manual_seed(0)
    fast = DenseTanh(5, 7).to(dtype)
    plain = nn.Linear(5, 7).to(dtype)
    plain.load_state_dict(fast.state_dict())
    return fast, plain


def test_the_layer_and_all_its_gradients_equal_linear_then_tanh():
    fast, plain = pair()
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 7, dtype=torch.float64)
    y, expected = fast(x), torch.tanh(plain(x))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    got = torch.autograd.grad((y * weight).sum(), [x, *fast.parameters()])
    want = torch.autograd.grad((expected * weight).sum(), [x, *plain.parameters()])
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-11)


def test_with_and_without_gradients_the_output_is_the_same_to_the_bit():
    fast, _ = pair(torch.float32)
    x = 30 * torch.randn(64, 5)
    with torch.inference_mode():
        silent = fast(x)
    assert torch.equal(silent, fast(x).detach())
    assert (silent - torch.tanh(nn.functional.linear(x, fast.weight, fast.bias))).abs().max() < 1e-6
    assert silent.abs().max() <= 1.0
