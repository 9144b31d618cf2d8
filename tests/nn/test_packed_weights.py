"""Packed networks match their modules, with the weights at the time of packing."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import headrace as hr
from headrace.nn import encoder, image
from headrace.nn import packed_weights as module
from headrace.nn.convolutions import ImageTorso
from headrace.nn.image import FastImage
from headrace.nn.image_precision import bfloat16_modules
from headrace.nn.packed_weights import PackedNetwork, _works, can_pack
from headrace.nn.patches import patches
from headrace.trainer.auto_precision import measured

CPU = torch.device("cpu")
HALF = torch.bfloat16
NAMES = ["nature", "impala_shallow"]
able = pytest.mark.skipif(not can_pack(CPU), reason="this processor has no bfloat16")


def lost(monkeypatch, error: Exception) -> None:
    """Disable packing."""

    def fail(_) -> None:
        raise error

    monkeypatch.setattr(module._Dense, "pack", fail)
    _works.cache_clear()


def torso(name: str) -> ImageTorso:
    torch.manual_seed(0)
    made = ImageTorso(name, 4, 84, 84, 1 / 255)
    with torch.no_grad():
        for x in made.parameters():
            x += 0.05 * torch.randn_like(x)  # biases, too
    return made


def exact(made: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Compute with weights and images in bfloat16 and sums in float64."""
    return copy.deepcopy(made).to(HALF).double()(images.double())


def check(kind) -> None:
    """Check that packed networks match their description."""
    for name in NAMES:
        made = torso(name)
        weights = copy.deepcopy(made.state_dict())
        one = kind(made.layers)
        for factor in (1.0, 0.5):  # packed again, with other weights
            with torch.no_grad():
                made.layers[-2].weight.mul_(factor)
                made.layers[0].bias.mul_(factor)
            one.pack()
            for num in (1, 66):
                images = torch.randint(0, 256, (num, 4, 84, 84), dtype=torch.uint8)
                with torch.no_grad():
                    found = one(patches(images, 4).to(HALF))
                    wanted = exact(made, images)
                    whole = one(images.to(HALF))
                assert torch.equal(found, whole)  # images are cut
                assert found.dtype == HALF
                error = 0.02 * float(wanted.max())
                torch.testing.assert_close(found.double(), wanted, rtol=0, atol=error)
            some = patches(images, 4).to(HALF)
            before = one(some)
            with torch.no_grad():
                made.layers[-2].weight.add_(1.0)
            assert torch.equal(one(some), before)  # until it is packed again
            with torch.no_grad():
                made.layers[-2].weight.sub_(1.0)
        assert list(made.state_dict()) == list(weights)
        assert sum(type(x) is nn.ReLU for x in made.modules()) == len(made.layers) // 2


@able
def test_packed_networks_say_what_their_modules_say():
    check(PackedNetwork)


@able
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("conv.of_patches if self._side", "conv.of_images if self._side"),
        ("(1, 1) if self._side", "(2, 2) if self._side"),
        ("conv.bias.to(torch.bfloat16, copy=True)", "0 * conv.bias.to(torch.bfloat16)"),
        ("layer.bias.to(torch.bfloat16, copy=True)", "None"),
        ("patches(x.detach(), self._side)", "x"),
        ('self._parts[-1].then = "relu"', "pass"),
        ('self._parts[-1].then = "relu"', 'self._parts[0].then = "relu"'),
        ("self._steps.append(_flat)", "pass"),
        ("            for part in self._parts:\n", "            for part in self._parts[1:]:\n"),
        ("weight = layer.weight.to(", "weight = layer.weight.flip(0).to("),
    ],
)
def test_a_broken_copy_is_rejected(old, new):
    source = inspect.getsource(module)
    assert old in source
    broken = {"__name__": "headrace.nn.packed_weights"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    with pytest.raises((AssertionError, RuntimeError, AttributeError, TypeError)):
        check(broken["PackedNetwork"])


def test_nothing_is_packed_elsewhere_or_without_the_operations(monkeypatch):
    assert not can_pack(torch.device("meta"))
    assert not can_pack(torch.device("cuda"))
    before = torch.get_rng_state()
    lost(monkeypatch, AttributeError("no such operation"))
    assert not can_pack(CPU)
    lost(monkeypatch, RuntimeError("this processor has no bfloat16"))
    assert not can_pack(CPU)
    monkeypatch.undo()
    _works.cache_clear()
    can_pack(CPU)
    assert torch.equal(torch.get_rng_state(), before)


class TestInAPolicy:
    """The policy acts on packed weights only while its weights are frozen."""

    SPACE = Box(0, 255, (4, 44, 44), np.uint8)

    def policy(self, conv="nature") -> hr.Policy:
        torch.manual_seed(0)
        made = hr.Policy(self.SPACE, Discrete(3), hr.Network(conv=conv))
        made.compute_in("bfloat16")
        return made

    def kinds(self, policy: hr.Policy, **how) -> set[str]:
        with policy.frozen_weights(**how):
            return {type(part._frozen).__name__ for part in bfloat16_modules(policy)}

    def seen(self, policy: hr.Policy, num: int = 3) -> torch.Tensor:
        """Observations."""
        policy.observation_space.seed(0)
        return torch.as_tensor(np.stack([policy.observation_space.sample() for _ in range(num)]))

    def check_same(self, policy: hr.Policy, obs: torch.Tensor) -> None:
        """Check that the fast path, if there is one, is bit for bit equal to the other."""
        before = obs.clone()
        with torch.inference_mode():
            if policy._fast_image is not None:
                assert torch.equal(policy._fast_image(obs), policy.torso(obs))
        assert torch.equal(obs, before)

    def check_acting(self, policy: hr.Policy) -> None:
        """Check that results stay the same while weights are frozen, for any caller."""
        obs, first = self.seen(policy), torch.zeros(3, dtype=torch.bool)
        with torch.inference_mode():
            unpacked, (params, _) = policy.torso(obs), policy.act(obs, first, ())
            with policy.frozen_weights():
                acted, (fast, _) = policy.torso(obs), policy.act(obs, first, ())
                self.check_same(policy, obs)
        for found, wanted in ((acted, unpacked), (fast, params)):
            assert found.dtype == wanted.dtype
            error = 0.02 * float(wanted.abs().max())
            torch.testing.assert_close(found, wanted, rtol=0, atol=error)

    @able
    @pytest.mark.parametrize("conv", NAMES)
    def test_who_acts_is_packed_and_who_learns_is_not(self, conv):
        policy = self.policy(conv)
        self.check_acting(policy)
        assert self.kinds(policy) == {"PackedNetwork"}
        assert self.kinds(policy, learns=True) == {"ImageTorso"}
        assert self.kinds(policy) == {"PackedNetwork"}

    @pytest.mark.parametrize("conv", ["impala_deep", "impact"])
    def test_who_gains_nothing_is_not_packed(self, conv):
        assert self.kinds(self.policy(conv)) == {"ImageTorso"}

    @able
    def test_a_compiled_policy_is_not_packed_but_its_copies_are(self):
        policy = self.policy()
        policy.compile_torsos()
        assert self.kinds(policy) == {"ImageTorso"}
        assert self.kinds(copy.deepcopy(policy)) == {"PackedNetwork"}

    def test_float32_is_never_packed(self):
        policy = self.policy()
        policy.compute_in("float32")
        assert self.kinds(policy) == {"NoneType"}

    def test_without_the_operations_weights_are_cast_only(self, monkeypatch):
        lost(monkeypatch, AttributeError("no such operation"))
        assert self.kinds(self.policy()) == {"ImageTorso"}
        monkeypatch.undo()
        _works.cache_clear()

    @pytest.mark.parametrize("conv", NAMES)
    def test_symbols_that_are_no_patches_are_acted_on_too(self, conv):
        space = Box(0, 5, (40, 44), np.uint8)
        torch.manual_seed(0)
        policy = hr.Policy(space, Discrete(3), hr.Network(conv=conv, one_hot=("obs",)))
        measured(policy, "cpu")  # as a run does at its start
        policy.compute_in("bfloat16")
        self.check_acting(policy)

    @able
    def test_nobody_learns_from_what_is_packed(self):
        policy = self.policy()
        with (
            policy.frozen_weights(),
            pytest.raises(AssertionError),
            policy.frozen_weights(learns=True),
        ):
            pass

    @able
    @pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_who_acts_on_bytes_alone_is_quick(self, layout, normalize):
        shape = (4, 44, 40) if layout == "channels_first" else (44, 40, 4)
        network = hr.Network(conv="nature", normalize_images=normalize, image_layout=layout)
        torch.manual_seed(0)
        policy = hr.Policy(Box(0, 255, shape, np.uint8), Discrete(3), network)
        policy.compute_in("bfloat16")
        for _ in range(2):  # with other weights and statistics, too
            self.check_acting(policy)
            with policy.frozen_weights():
                assert type(policy._fast_image) is FastImage
                for other in (torch.int64, torch.float64):
                    self.check_same(policy, self.seen(policy).to(other))
            policy.take(policy.moments(self.seen(policy, 9).unsqueeze(0)))
            with torch.no_grad():
                policy.torso.parts[0].convolutions.layers[0].weight.mul_(3)

    @able
    @pytest.mark.parametrize("space", [
        Box(0, 1, (4, 44, 44), np.float32),
        Dict({"a": Box(0, 255, (4, 44, 44), np.uint8)}),
        Dict({"a": Box(0, 255, (4, 44, 44), np.uint8), "b": Box(-1, 1, (2,))}),
    ])  # fmt: skip
    def test_others_act_as_before(self, space):
        torch.manual_seed(0)
        policy = hr.Policy(space, Discrete(3), hr.Network(conv="nature"))
        policy.compute_in("bfloat16")
        with policy.frozen_weights():
            assert policy._fast_image is None

    @able
    def test_who_learns_does_not_take_the_quick_way(self):
        policy = self.policy()
        with policy.frozen_weights(learns=True):
            assert policy._fast_image is None

    @pytest.mark.parametrize("space", [SPACE, Box(-1, 1, (3,))])
    def test_the_weights_of_copies_do_not_stand_still(self, space):
        policy = hr.Policy(space, Discrete(3))
        policy.compute_in("bfloat16")
        with policy.frozen_weights():
            assert can_pack(CPU) == (policy._fast_image is not None) or space is not self.SPACE
            for copied in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
                assert copied._fast_image is None
        assert policy._fast_image is None


@able
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if self._normalize is not None", "if False"),
        ("normalize = None if norm is None", "normalize = None if True"),
        ("x = self._channels_first(x)\n        if", "if"),
        ("self._layers(x).to(self._dtype)", "self._layers(x)"),
        ("if x.dtype != torch.uint8", "if False"),
        ("self._space.dtype != np.uint8", "False"),
        ("in_place(torch.bfloat16, side)", "in_place(torch.bfloat16, 1)"),
        ("packed is None or self._symbols", "packed is None"),
    ],
)
def test_a_broken_quick_way_is_rejected(old, new, monkeypatch):
    assert old in inspect.getsource(image)
    with pytest.raises((AssertionError, RuntimeError, AttributeError, TypeError)):
        check_quick(old, new, monkeypatch)


@able
def test_the_quick_way_itself_is_not_rejected(monkeypatch):
    check_quick("", "", monkeypatch)


def check_quick(old: str, new: str, monkeypatch) -> None:
    """Run these tests with another source of images."""
    source = inspect.getsource(image)
    broken = {"__name__": "headrace.nn.image"}
    exec(compile(source.replace(old, new), "broken.py", "exec"), broken)
    monkeypatch.setattr(encoder, "Image", broken["Image"])
    monkeypatch.setattr(sys.modules[__name__], "FastImage", broken["FastImage"])
    tests = TestInAPolicy()
    for layout, normalize in (("channels_first", False), ("channels_last", True)):
        tests.test_who_acts_on_bytes_alone_is_quick(layout, normalize)
    tests.test_others_act_as_before(Box(0, 1, (4, 44, 44), np.float32))
    tests.test_symbols_that_are_no_patches_are_acted_on_too("nature")
