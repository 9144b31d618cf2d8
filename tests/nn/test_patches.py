"""Convolutions of patches are those of images, in another order in memory."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from tries import examples

import headrace as hr
from headrace.nn import patches as module
from headrace.nn.image_precision import BFloat16Module
from headrace.nn.patches import PatchConv2d, patches
from headrace.ops.moments import moments

ATARI = Box(0, 255, (4, 84, 84), np.uint8)


def by_hand(x: torch.Tensor, side: int) -> torch.Tensor:
    """Compute patches pixel by pixel."""
    num, channels, height, width = x.shape
    rows, columns = height // side, width // side
    y = torch.empty(num, channels * side * side, rows, columns, dtype=x.dtype)
    for c, i, j, r, k in np.ndindex(channels, side, side, rows, columns):
        y[:, (c * side + i) * side + j, r, k] = x[:, c, r * side + i, k * side + j]
    return y


def check_patches(cut) -> None:
    for dtype, side in ((torch.uint8, 4), (torch.bfloat16, 4), (torch.bfloat16, 8)):
        x = torch.randint(0, 256, (3, 2, 18, 25), dtype=torch.uint8).to(dtype)
        for given_x in (x, x[1:], x.contiguous(memory_format=torch.channels_last)):
            found = cut(given_x, side)
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(found, by_hand(given_x, side))
    for offset in range(4):
        x = torch.randint(0, 256, (offset + 3 * 2 * 8 * 12,), dtype=torch.uint8)[offset:]
        assert torch.equal(cut(x.view(3, 2, 8, 12), 4), by_hand(x.view(3, 2, 8, 12), 4))
    one_of_three = torch.randint(0, 256, (2, 1, 8, 12, 3), dtype=torch.uint8)[..., 0]
    assert torch.equal(cut(one_of_three, 4), by_hand(one_of_three, 4))


def check_convolution(make, cut) -> None:
    torch.manual_seed(0)
    for kernel, stride, scale in ((8, 4, 1 / 255), (4, 4, 0.5), (12, 4, 1.0)):
        conv = make(3, 5, kernel, stride).to(torch.bfloat16)
        conv.scale = scale
        x = torch.randint(0, 256, (2, 3, 27, 30), dtype=torch.uint8)
        found = conv(cut(x, stride).to(torch.bfloat16))
        gradient = torch.randn_like(found)
        got = torch.autograd.grad(found, list(conv.parameters()), gradient)
        exact = [p.detach().double().requires_grad_() for p in conv.parameters()]
        expected = functional.conv2d(scale * x.double(), *exact, stride=stride)
        wanted = torch.autograd.grad(expected, exact, gradient.double())
        for a, b in zip((found, *got), (expected, *wanted), strict=True):
            error = 0.01 * float(b.detach().abs().max())
            torch.testing.assert_close(a.double(), b, rtol=0, atol=error)
        with torch.no_grad():
            whole = conv(x.to(torch.bfloat16))
        error = 0.01 * float(found.detach().abs().max())
        torch.testing.assert_close(whole, found.detach(), rtol=0, atol=error)


def test_a_patch_is_its_pixels_one_by_one():
    check_patches(patches)


def test_a_convolution_of_patches_and_its_gradient_are_those_of_the_image():
    check_convolution(PatchConv2d, patches)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("permute(0, 1, 3, 5, 2, 4)", "permute(0, 1, 5, 3, 2, 4)"),
        ("permute(0, 1, 3, 5, 2, 4)", "permute(0, 1, 3, 5, 4, 2)"),
        ("weight, self.bias)", "weight, None)"),
        ("x.dtype), self.bias)", "x.dtype), None)"),
        ("else weight * self.scale", "else weight"),
        ("self.weight.to(dtype)", "self.weight.to(dtype) * self.scale"),
        ("flat.storage_offset() * x.element_size() % run or ", ""),
        (" or not flat.is_contiguous()", ""),
        (".transpose(1, 2).reshape(-1)", ".transpose(1, 2).flip(1).reshape(-1)"),
        ("rows, side, columns).transpose(1, 2)", "side, rows, columns).movedim(3, 1)"),
    ],
)
def test_a_broken_copy_is_rejected(old, new):
    source = inspect.getsource(module)
    assert old in source
    broken = {"__name__": "headrace.nn.patches"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    with pytest.raises((AssertionError, RuntimeError)):
        check_patches(broken["patches"])
        check_convolution(broken["PatchConv2d"], broken["patches"])


@examples(30)
@given(
    sides=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    more=st.sampled_from([0, 4, 8]),
    num=st.integers(0, 3),
    offset=st.integers(0, 3),
)
def test_pictures_of_any_size_and_place_in_memory_can_be_cut(sides, more, num, offset):
    conv = PatchConv2d(2, 3, 4 + more, 4)
    sides = tuple(max(n, 4 + more) for n in sides)
    memory = torch.randint(0, 256, (offset + num * 2 * sides[0] * sides[1],), dtype=torch.uint8)
    x = memory[offset:].view(num, 2, *sides)
    with torch.no_grad():
        y = conv(patches(x, 4).float())
        expected = functional.conv2d(x.float(), conv.weight, conv.bias, 4)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "side"),
    [(8, 4, 0, 4), (4, 2, 0, 2), (3, 1, 0, 1), (4, 2, 1, 1), (6, 4, 0, 1), ((8, 6), (4, 3), 0, 1)],
)
def test_only_kernels_of_whole_patches_take_them(kernel, stride, padding, side):
    assert PatchConv2d(1, 1, kernel, stride, padding).side == side


def test_what_has_no_fast_way_stays_an_image():
    x = torch.zeros(1, 2, 24, 24)
    assert patches(x, 1) is x
    assert all(patches(y, 3) is y for y in (x, x.byte(), x.double()))
    assert patches(x, 4) is not x
    x.requires_grad_()  # views as another dtype have no gradient
    assert patches(x, 4) is x


class TestInAPolicy:
    """Patches are used in bfloat16 on CPUs."""

    def seen(self, space=ATARI, precision="bfloat16", num=5, **network):
        torch.manual_seed(0)
        self.policy = hr.Policy(space, Discrete(3), hr.Network(**network))
        self.policy.compute_in(precision)
        for normalizer in self.policy.normalizers:
            normalizer.take(moments(100 * torch.rand(9, normalizer.center.numel())))
        shapes: list[torch.Size] = []
        space.seed(0)
        self.obs = torch.as_tensor(np.stack([space.sample() for _ in range(num)]))
        given = self.obs.clone()
        with pytest.MonkeyPatch.context() as patch:
            convolve = BFloat16Module.__call__

            def looked_at(part: BFloat16Module, x: torch.Tensor) -> torch.Tensor:
                shapes.append(x.shape)
                return convolve(part, x)

            patch.setattr(BFloat16Module, "__call__", looked_at)
            self.learnt = self.policy.torso(self.obs)
            with torch.inference_mode(), self.policy.frozen_weights():
                self.acted = self.policy.torso(self.obs)
        assert torch.equal(self.obs, given)
        return [tuple(shape[1:]) for shape in shapes]

    @pytest.mark.parametrize("normalizes", [False, True])
    @pytest.mark.parametrize("conv", ["nature", "impala_shallow"])
    @pytest.mark.parametrize("num", [1, 16])
    def test_who_learns_is_given_patches_and_so_is_who_acts(self, conv, normalizes, num):
        seen = self.seen(num=num, conv=conv, normalize_images=normalizes)
        assert seen == [(64, 21, 21)] * 2
        error = 0.02 * float(self.acted.abs().max())
        torch.testing.assert_close(self.learnt.detach(), self.acted, rtol=0, atol=error)

    def test_the_learners_gradients_are_those_of_float32(self):
        self.seen(conv="nature")
        policy, gradients = self.policy, {}
        for precision in ("float32", "bfloat16"):
            policy.compute_in(precision)
            part = policy.torso.parts[0]
            with part.bfloat16_call.frozen_weights(learns=True):
                halves = dict(part.bfloat16_call.stand_ins())
                trained = [halves.get(p, p) for p in part.convolutions.parameters()]
                loss = policy.torso(self.obs).square().sum()
                gradients[precision] = torch.autograd.grad(loss, trained)
        for exact, half in zip(*gradients.values(), strict=True):
            away = (half.float() - exact).norm() / exact.norm()
            assert away < 0.05

    def test_in_an_image_with_its_channels_last(self):
        space = Box(0, 255, (85, 90, 3), np.uint8)
        assert self.seen(space, conv="nature") == [(48, 21, 22)] * 2
        error = 0.02 * float(self.acted.abs().max())
        torch.testing.assert_close(self.learnt.detach(), self.acted, rtol=0, atol=error)

    @pytest.mark.parametrize(
        "network",
        [{"precision": "float32", "conv": "nature"}, {"conv": "impala_deep"}, {"conv": "impact"}],
    )
    def test_nowhere_else(self, network):
        assert self.seen(**network) == [(4, 84, 84)] * 2

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
    @pytest.mark.parametrize("normalizes", [False, True])
    def test_of_images_of_other_numbers_that_are_left_alone(self, dtype, normalizes):
        space = Box(0, 100, (4, 84, 84), dtype)
        assert self.seen(space, conv="nature", normalize_images=normalizes) == [(64, 21, 21)] * 2
        self.seen(space, conv="nature", normalize_images=normalizes, precision="float32")
