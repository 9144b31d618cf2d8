from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.errors import ConfigError
from headrace.nn import text as module
from headrace.nn.text import TextEncoder

TEXTS = [[3, 1, 2], [], [4], [3, 1, 2], [9, 9, 9, 9, 9], [1, 0, 2], []]


def padded(texts, length):
    return torch.tensor([text + [0] * (length - len(text)) for text in texts])


def make(cls=TextEncoder):
    torch.manual_seed(0)
    encoder = cls(10).double()
    torch.nn.init.normal_(encoder.lstm.bias_hh_l0)
    return encoder


def one_by_one(encoder, tokens):
    """Encode each text alone, token by token."""
    rows, weights = [], list(encoder.lstm.parameters())
    for text in tokens.tolist():
        while text and text[-1] == 0:
            text.pop()
        h = c = torch.zeros(1, encoder.num_outputs, dtype=torch.float64)
        for token in text:
            x = encoder.embedding.weight[token].unsqueeze(0)
            h, c = torch.lstm_cell(x, (h, c), *weights)
        rows.append(h)
    return torch.cat(rows)


def gradients(encoder, y):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(y.shape, generator=generator, dtype=y.dtype)
    return torch.autograd.grad((y * weight).sum(), list(encoder.parameters()))


def check(cls):
    encoder, tokens = make(cls), padded(TEXTS, 7)
    y, want = encoder(tokens), one_by_one(encoder, tokens)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-12)
    got, expected = gradients(encoder, y), list(gradients(encoder, want))
    expected[0][0] = 0.0  # padding isn't trained
    for g, w in zip(got, expected, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-11)
    assert not y[1].any()


def test_features_and_gradients_equal_reading_each_text_alone():
    check(TextEncoder)


@examples(50)
@given(
    texts=st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=8),
    more=st.integers(1, 9),
)
def test_more_padding_changes_no_bit(texts, more):
    encoder = make().float()
    length = max(map(len, texts))
    y = encoder(padded(texts, length).long())
    longer = encoder(padded(texts, length + more))
    assert torch.equal(y, longer)
    if y.any():
        for a, b in zip(gradients(encoder, y), gradients(encoder, longer), strict=True):
            assert torch.equal(a, b)


def test_an_empty_text_gives_zeros_and_teaches_nothing():
    encoder = make()
    for tokens in (torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, 0, dtype=torch.int64)):
        y = encoder(tokens)
        assert y.shape == (3, 64)
        assert not y.any()
    y = encoder(torch.zeros(3, 4, dtype=torch.int64))
    assert all(not g.any() for g in gradients(encoder, y))
    assert encoder(torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 64)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_any_integer_type_is_read(dtype):
    encoder, tokens = make(), padded(TEXTS, 6)
    assert torch.equal(encoder(tokens.to(dtype)), encoder(tokens))


def test_the_number_of_parameters_is_the_one_counted_by_hand():
    count = sum(p.numel() for p in TextEncoder(1000).parameters())
    assert count == 1000 * 20 + 4 * 64 * (20 + 64) + 2 * 4 * 64
    encoder = TextEncoder(7, embedding=3, units=5)
    assert encoder(torch.tensor([[1, 6]])).shape == (1, encoder.num_outputs) == (1, 5)


@pytest.mark.parametrize("token", [10, 255, -1])
def test_a_token_outside_the_vocabulary_is_named(token):
    tokens = padded(TEXTS, 6)
    tokens[2, 0] = token
    with pytest.raises(IndexError, match=rf"token {token} is outside the vocabulary of 10\b"):
        make()(tokens)


def test_tokens_that_are_not_integers_are_refused():
    with pytest.raises(TypeError, match=r"must be integers, not torch\.float32"):
        make()(torch.zeros(2, 3))


@pytest.mark.parametrize("sizes", [(0, 20, 64), (10, 0, 64), (10, 20, 0)])
def test_a_size_below_1_is_named(sizes):
    name = ("vocabulary", "embedding", "units")[sizes.index(0)]
    with pytest.raises(ConfigError, match=f"{name}=0 of a text encoder must be at least 1"):
        TextEncoder(*sizes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(place * (texts != 0)).amax(1)", "(texts != 0).sum(1)"),
        ("(place * (texts != 0)).amax(1)", "(place * (texts >= 0)).amax(1)"),
        ("torch.where(length.unsqueeze(1) > 0, last[0], 0.0)", "last[0]"),
        ("last[0], 0.0)[number]", "last[0], 0.0)[number.flip(0)]"),
        (", padding_idx=0", ""),
        ("torch.arange(1, texts.shape[1] + 1", "torch.arange(texts.shape[1]"),
    ],
)
def test_a_broken_copy_is_rejected(old, new):
    source = inspect.getsource(module)
    assert old in source
    broken = {"__name__": "broken"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    with pytest.raises((AssertionError, RuntimeError)):
        check(broken["TextEncoder"])
