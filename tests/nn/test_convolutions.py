from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from tries import examples

from headrace.errors import ConfigError
from headrace.nn import convolutions as module
from headrace.nn.convolutions import CONVOLUTIONS, ImageTorso, min_side
from headrace.nn.text import TextEncoder


def conv(kernel, num_in, num_out):
    return kernel * kernel * num_in * num_out + num_out


def dense(num_in, num_out):
    return num_in * num_out + num_out


def section(num_in, num_out):
    return conv(3, num_in, num_out) + 4 * conv(3, num_out, num_out)


# Name, image, features, parameters by hand.
BY_HAND = [
    # 84 -> 20 -> 9
    (
        "impala_shallow",
        (4, 84, 84),
        256,
        conv(8, 4, 16) + conv(4, 16, 32) + dense(9 * 9 * 32, 256),
    ),
    # DeepMind Lab's 72 x 96: 72 -> 17 -> 7, 96 -> 23 -> 10
    (
        "impala_shallow",
        (3, 72, 96),
        256,
        conv(8, 3, 16) + conv(4, 16, 32) + dense(7 * 10 * 32, 256),
    ),
    # 84 -> 42 -> 21 -> 11
    (
        "impala_deep",
        (4, 84, 84),
        256,
        section(4, 16) + section(16, 32) + section(32, 32) + dense(11 * 11 * 32, 256),
    ),
    # 72 -> 36 -> 18 -> 9, 96 -> 48 -> 24 -> 12
    (
        "impala_deep",
        (3, 72, 96),
        256,
        section(3, 16) + section(16, 32) + section(32, 32) + dense(9 * 12 * 32, 256),
    ),
    # 84 -> 20 -> 9 -> 7
    (
        "nature",
        (4, 84, 84),
        512,
        conv(8, 4, 32) + conv(4, 32, 64) + conv(3, 64, 64) + dense(7 * 7 * 64, 512),
    ),
    # 36 -> 8 -> 3 -> 1, 52 -> 12 -> 5 -> 3
    (
        "nature",
        (1, 36, 52),
        512,
        conv(8, 1, 32) + conv(4, 32, 64) + conv(3, 64, 64) + dense(1 * 3 * 64, 512),
    ),
    # 10 -> 8, the network of MinAtar
    ("minatar", (6, 10, 10), 128, conv(3, 6, 16) + dense(8 * 8 * 16, 128)),
    ("minatar", (3, 7, 5), 128, conv(3, 3, 16) + dense(5 * 3 * 16, 128)),
    # 28 -> 14 -> 7, 19 -> 10 -> 5
    ("small", (3, 28, 19), 128, conv(3, 3, 16) + conv(3, 16, 32) + dense(7 * 5 * 32, 128)),
    # 42 -> 21 -> 10 -> 11 -> 1
    (
        "impact",
        (4, 42, 42),
        256,
        conv(4, 4, 16) + conv(4, 16, 32) + conv(4, 32, 64) + conv(11, 64, 256),
    ),
    # 48 -> 24 -> 12 -> 13 -> 3
    (
        "impact",
        (4, 42, 48),
        3 * 256,
        conv(4, 4, 16) + conv(4, 16, 32) + conv(4, 32, 64) + conv(11, 64, 256),
    ),
]
IDS = [f"{name}-{'x'.join(map(str, shape))}" for name, shape, *_ in BY_HAND]
NUM_CONVOLUTIONS = {
    "impala_shallow": 2,
    "impala_deep": 15,
    "nature": 3,
    "impact": 4,
    "minatar": 1,
    "small": 2,
}
MIN_SIDE = {
    "impala_shallow": 20,
    "impala_deep": 1,
    "nature": 36,
    "impact": 40,
    "minatar": 3,
    "small": 1,
}


@pytest.mark.parametrize(("name", "shape", "num_outputs", "by_hand"), BY_HAND, ids=IDS)
def test_shape_and_number_of_parameters_are_those_counted_by_hand(
    name, shape, num_outputs, by_hand
):
    torso = ImageTorso(name, *shape)
    assert torso.num_outputs == num_outputs
    assert torso(torch.rand(2, *shape)).shape == (2, num_outputs)
    assert count(torso) == by_hand


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "millions"), [("impala_shallow", 1.2), ("impala_deep", 1.6)])
def test_the_whole_agent_has_as_many_parameters_as_figure_3_says(name, millions):
    # On DeepMind Lab's 72 x 96 with 9 actions: an LSTM of 256 that also reads the text, the last
    # reward and action, then both heads.
    parts = [
        ImageTorso(name, 3, 72, 96),
        TextEncoder(1000),
        nn.LSTMCell(256 + 64 + 1 + 9, 256),
        nn.Linear(256, 9 + 1),
    ]
    assert round(sum(map(count, parts)) / 1e6, 1) == millions


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_number_of_convolutions_is_the_papers(name):
    layers = [m for m in ImageTorso(name, 4, 84, 84).modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == NUM_CONVOLUTIONS[name]


@pytest.mark.parametrize(("name", "shape"), [case[:2] for case in BY_HAND], ids=IDS)
def test_the_gradient_reaches_every_parameter_and_every_pixel(name, shape):
    torch.manual_seed(0)
    torso = ImageTorso(name, *shape).double()
    x = torch.randn(8, *shape, dtype=torch.float64, requires_grad=True)
    y = torso(x)
    y.backward(torch.randn_like(y))
    assert all(p.grad.abs().sum() > 0 for p in torso.parameters())
    unseen = (x.grad.abs().sum((0, 1)) == 0).nonzero().tolist()
    if name in ("impala_deep", "impact"):
        assert not unseen
    else:  # without padding, fewer than a stride of rows and columns are left over at the end
        steps = math.prod(window.stride for window in CONVOLUTIONS[name].windows)
        assert all(shape[1] - r < steps or shape[2] - c < steps for r, c in unseen)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_works_at_its_smallest_side_and_on_no_smaller_one(name):
    side = min_side(name)
    assert side == MIN_SIDE[name]
    for shape in ((1, side, side), (2, side, side + 9), (3, side + 9, side)):
        torso = ImageTorso(name, *shape)
        assert torso(torch.rand(2, *shape)).shape == (2, torso.num_outputs)
    for shape in ((1, side - 1, side), (1, side, side - 1), (3, side - 1, side - 1)):
        with pytest.raises(ConfigError, match="height and width must be at least"):
            ImageTorso(name, *shape)


@examples(30)
@given(
    name=st.sampled_from(list(CONVOLUTIONS)),
    channels=st.integers(1, 5),
    more=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    num_images=st.integers(0, 3),
)
def test_any_image_that_is_large_enough_gives_the_promised_features(
    name, channels, more, num_images
):
    shape = (channels, min_side(name) + more[0], min_side(name) + more[1])
    torso = ImageTorso(name, *shape)
    with torch.no_grad():
        y = torso(torch.rand(num_images, *shape))
    assert y.shape == (num_images, torso.num_outputs)
    assert (y >= 0).all()


def test_the_error_names_the_torso_the_image_the_smallest_side_and_what_would_work():
    with pytest.raises(ConfigError) as raised:
        ImageTorso("nature", 4, 35, 84)
    text = str(raised.value)
    for words in ("'nature'", "channels=4, height=35, width=84", "at least 36"):
        assert words in text
    assert "impala_shallow, impala_deep, minatar, small would work" in text
    with pytest.raises(ConfigError, match="no other would work"):
        ImageTorso("impala_deep", 4, 0, 84)
    with pytest.raises(ConfigError, match="it has no channel"):
        ImageTorso("impala_deep", 0, 84, 84)
    with pytest.raises(ConfigError, match=r"'natur'.*Did you mean 'nature'"):
        min_side("natur")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_start_orthogonal_with_gain_sqrt_2_and_biases_at_zero(name):
    for layer in ImageTorso(name, 4, 44, 44).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            rows = layer.weight.detach().double().flatten(1)
            rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
            torch.testing.assert_close(
                rows @ rows.T, 2 * torch.eye(len(rows)).double(), rtol=0, atol=1e-4
            )
            assert not layer.bias.any()


def by_hand_deep(parameters, x):
    """Compute Figure 3, right, as one list of operations."""
    f = nn.functional
    weights = iter(parameters)

    def conv3(x):
        return f.conv2d(x, next(weights), next(weights), padding=1)

    for _ in range(3):
        x = f.max_pool2d(conv3(x), 3, 2, 1)
        for _ in range(2):
            x = x + conv3(conv3(x.relu()).relu())
    return f.linear(x.relu().flatten(1), next(weights), next(weights)).relu()


def by_hand_plain(strides_and_paddings, num_dense):
    def run(parameters, x):
        weights = iter(parameters)
        for stride, padding in strides_and_paddings:
            x = nn.functional.conv2d(x, next(weights), next(weights), stride, padding).relu()
        x = x.flatten(1)
        for _ in range(num_dense):
            x = nn.functional.linear(x, next(weights), next(weights)).relu()
        return x

    return run


ORACLES = {
    "impala_shallow": by_hand_plain([(4, 0), (2, 0)], 1),
    "impala_deep": by_hand_deep,
    "nature": by_hand_plain([(4, 0), (2, 0), (1, 0)], 1),
    "minatar": by_hand_plain([(1, 0)], 1),
    "small": by_hand_plain([(2, 1), (2, 1)], 1),
    "impact": by_hand_plain([(2, 1), (2, 1), (1, 2), (1, 0)], 0),
}


def check(name, make):
    torch.manual_seed(0)
    torso = make(name, 3, 44, 52).double()
    for parameter in torso.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter)
    x = torch.randn(2, 3, 44, 52, dtype=torch.float64)
    before = x.clone()
    y = torso(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(y, ORACLES[name](torso.parameters(), x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_features_equal_the_papers_operations_one_by_one(name):
    check(name, ImageTorso)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("impala_deep", "return x + self.layers(x)", "return self.layers(x)"),
        ("impala_deep", "nn.Sequential(nn.ReLU(), first", "nn.Sequential(first"),
        ("impala_deep", "nn.Sequential(nn.ReLU(),", "nn.Sequential(nn.ReLU(inplace=True),"),
        ("impala_deep", "layers.append(nn.ReLU())", "pass"),
        ("impala_deep", "_Window(3, 2, 1)", "_Window(3, 2, 0)"),
        (
            "impala_shallow",
            "nn.Linear(self.num_outputs, units), nn.ReLU(inplace=True)]",
            "nn.Linear(self.num_outputs, units)]",
        ),
        ("nature", "*window), nn.ReLU(inplace=True)]", "*window)]"),
        ("nature", "_Window(4, 2), _Window(3, 1)", "_Window(4, 2), _Window(3, 2)"),
        ("impact", "_Window(4, 1, 2)", "_Window(4, 1, 3)"),
    ],
)
def test_a_broken_copy_is_rejected(name, old, new):
    source = inspect.getsource(module)
    assert old in source
    broken = {"__name__": "headrace.nn.convolutions"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    with pytest.raises((AssertionError, RuntimeError, StopIteration)):
        check(name, broken["ImageTorso"])
