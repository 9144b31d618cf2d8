"""Unknown activations, layers, distributions and normalisers: every path matches the modules.

The reference of every check is the modules themselves, called with gradients enabled.
"""

from __future__ import annotations

import copy
import dataclasses
import runpy
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

import headrace as hr
from headrace.games import frozen_opponents
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.league_folder import Snapshot
from headrace.learner.fused import can_fuse
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy, activations
from headrace.nn.activations import ACTIVATIONS, Activation
from headrace.nn.encoder import Encoder
from headrace.nn.image import Image
from headrace.nn.image_precision import bfloat16_modules
from headrace.nn.normalizer import ImageNormalizer, Normalizer
from headrace.nn.packed_weights import can_pack
from headrace.ops.distributions import Categorical
from headrace.types import Batch

ROW, CHOICE = Box(-1, 1, (5,), np.float32), Discrete(3)
ROWS = (1, 4, 5000)


@pytest.fixture
def gelu(monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "gelu", Activation(nn.GELU))


def shaped(activation: str, **values: Any) -> Network:
    """A network with an activation that its annotation doesn't list."""
    network = Network((16, 8), **values)
    object.__setattr__(network, "activation", activation)
    return network


def make(network: Network, space=ROW) -> Policy:
    torch.manual_seed(0)
    policy = Policy(space, CHOICE, network)
    with torch.no_grad():
        for p in policy.parameters():
            p += 0.3 * torch.randn_like(p)
    return policy


def reference(policy: Policy, inputs: Tensor) -> Tensor:
    """Compute the parameters of the action distribution with the modules alone."""
    with torch.no_grad():
        return policy.finished(policy.policy_head(policy.torso(inputs)), inputs)


def check_acting(policy: Policy) -> None:
    for num in ROWS:
        inputs, first = torch.randn(num, 5), torch.ones(num, dtype=torch.bool)
        expected = reference(policy, inputs)
        with torch.inference_mode(), policy.frozen_weights():
            torch.testing.assert_close(policy.act(inputs, first, ())[0], expected)


def make_batch(policy: Policy) -> Batch:
    rows, columns = 4, 6
    obs = torch.randn(rows + 1, columns, 5)
    first = torch.zeros(rows + 1, columns, dtype=torch.bool)
    with torch.no_grad():
        params = policy(obs, first, ())[0][:-1]
        action = policy.distribution.mode(params)
        log_prob = policy.distribution.log_prob(params, action)
    done = torch.zeros(rows, columns, dtype=torch.bool)
    reward = torch.randn(rows, columns)
    return Batch(obs, first, action, log_prob, reward, done, ~done, core=(), targets={})


def check_learning(policy: Policy) -> None:
    """Check that the learner's gradient equals autograd's through the policy."""
    algorithm = hr.A2C(entropy_coef=0.1)
    batch = make_batch(policy)
    twin = copy.deepcopy(policy)
    loss, _ = algorithm.loss(twin, batch, {})
    expected = torch.autograd.grad(loss, list(twin.parameters()), materialize_grads=True)
    learner = Learner(policy, algorithm)
    found, _, _ = learner.gradient(batch)
    learner.close()
    torch.testing.assert_close(found, torch.cat([g.flatten() for g in expected]))


def check_opponent(policy: Policy) -> None:
    """Several frozen copies act as the policy does."""
    opponents = FrozenOpponents(lambda path: copy.deepcopy(policy), (ROW, CHOICE), 4)
    players = [Snapshot(name, Path(name), "run", 0) for name in ("a", "b")]
    for player in players:
        opponents.policy(player)
    inputs = torch.randn(4, 5)
    loaded = list(opponents._players.values())
    with torch.inference_mode():
        parts = inputs, torch.ones(4, dtype=torch.bool)
        found = frozen_opponents._evaluate_each(loaded, [2, 2], np.arange(4), parts)
    torch.testing.assert_close(found, reference(policy, inputs))
    opponents.close()


def test_the_table_lists_the_activations_that_a_network_may_have():
    hint = typing.get_type_hints(Network)["activation"]
    assert set(typing.get_args(hint)) == set(ACTIVATIONS)


@pytest.mark.parametrize("check", [check_acting, check_learning, check_opponent])
@pytest.mark.parametrize("values", [{}, {"shared": True}, {"normalize_observations": True}])
def test_an_unknown_activation_is_left_to_its_module(check, values, gelu):
    check(make(shaped("gelu", **values)))


@pytest.mark.parametrize("form", ["in_place", "backward", "compiled"])
@pytest.mark.parametrize("check", [check_acting, check_learning, check_opponent])
def test_an_activation_without_one_of_its_forms_is_too(check, form, monkeypatch):
    for name in ("tanh", "relu"):
        kind = dataclasses.replace(ACTIVATIONS[name], **{form: None})
        monkeypatch.setitem(ACTIVATIONS, name, kind)
        check(make(Network((16, 8), activation=name)))


def replaced_layer(policy: Policy) -> None:
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    policy.torso.mlp[0].__class__ = Doubled


def hooked(policy: Policy) -> None:
    policy.torso.mlp[0].register_forward_hook(lambda module, args, y: y.sin())


def hooked_torso(policy: Policy) -> None:
    policy.torso.register_forward_hook(lambda module, args, y: y.sin())


def hooked_before(policy: Policy) -> None:
    policy.torso.mlp[2].register_forward_pre_hook(lambda module, args: (args[0].sin(),))


def replaced_forward(policy: Policy) -> None:
    policy.torso.mlp[1].forward = torch.sin


def another_alpha(policy: Policy) -> None:
    policy.torso.mlp[1] = nn.ELU(alpha=0.3)


def another_activation(policy: Policy) -> None:
    policy.torso.mlp[3] = nn.Softplus()


def one_more_layer(policy: Policy) -> None:
    policy.torso.mlp.append(nn.LayerNorm(8))


def one_more_activation(policy: Policy) -> None:
    policy.torso.mlp.insert(1, nn.ELU())


def one_activation_less(policy: Policy) -> None:
    del policy.torso.mlp[3]


def replaced_head(policy: Policy) -> None:
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    policy.policy_head.__class__ = Doubled


def parametrized(policy: Policy) -> None:
    nn.utils.parametrizations.weight_norm(policy.torso.mlp[0])


def another_normalizer(policy: Policy) -> None:
    class Squared(Normalizer):
        def forward(self, x):
            return super().forward(x).square()

    policy.torso.normalizer.__class__ = Squared


CHANGES = [
    replaced_layer,
    hooked,
    hooked_torso,
    hooked_before,
    replaced_forward,
    another_alpha,
    another_activation,
    one_more_layer,
    one_more_activation,
    one_activation_less,
    replaced_head,
    parametrized,
    another_normalizer,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("check", [check_acting, check_learning])
def test_a_changed_module_is_called_itself(check, change):
    policy = make(Network((16, 8), activation="elu", normalize_observations=True))
    change(policy)
    check(policy)
    policy = make(Network((16, 8), activation="relu", normalize_observations=True))
    change(policy)
    check(policy)


def test_value_torsos_that_differ_are_learnt_by_autograd():
    """Return policies with different statistics, without any, and with another activation."""
    network = Network((16, 8), normalize_observations=True)
    policy = make(network)
    policy.take(policy.moments(torch.randn(20, 3, 5)))
    assert can_fuse(policy)
    check_learning(policy)
    policy.value_torso.normalizer.take(policy.moments(3.0 + torch.randn(20, 3, 5))[0])
    check_learning(policy)
    policy = make(network)
    policy.take(policy.moments(torch.randn(20, 3, 5)))
    policy.value_torso.normalizer = None
    check_learning(policy)
    policy = make(Network((16, 8)))
    policy.value_torso = Encoder(policy.inputs, Network((16, 8), activation="relu"))
    check_learning(policy)


def test_statistics_that_differ_from_one_update_on_are_used_from_that_update_on():
    trained = []
    for changes_first in (True, False):
        policy = make(Network((16, 8), normalize_observations=True))
        other = policy.moments(3.0 + torch.randn(20, 3, 5, generator=torch.manual_seed(1)))[0]
        if changes_first:
            policy.value_torso.normalizer.take(other)
        learner = Learner(policy, hr.A2C())
        if not changes_first:
            policy.value_torso.normalizer.take(other)
        batch = make_batch(policy)
        learner.train(lambda batch=batch: batch, 1e-2)
        learner.close()
        trained.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    torch.testing.assert_close(*trained)


def test_layers_that_both_torsos_share_are_learnt_by_autograd():
    policy = make(Network((16, 8)))
    policy.value_torso.mlp[0] = policy.torso.mlp[0]
    check_learning(policy)


class Tempered(Categorical):
    """Less certain than its logits."""

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(params / 3, action)

    def entropy(self, params: Tensor) -> Tensor:
        return super().entropy(params / 3)


@pytest.mark.parametrize("check", [check_acting, check_learning, check_opponent])
def test_an_unknown_distribution_is_asked_itself(check):
    policy = make(Network((16, 8)))
    policy.distribution = Tempered(3)
    check(policy)


IMAGE = Box(0, 255, (4, 44, 44), np.uint8)


def unknown_layer(layers: nn.Sequential) -> None:
    layers[1] = nn.GELU()


def pooling(layers: nn.Sequential) -> None:
    layers[1] = nn.MaxPool2d(3, 1, 1)


def hooked_layer(layers: nn.Sequential) -> None:
    layers[1].register_forward_hook(lambda module, args, y: y.sin())


def padded_otherwise(layers: nn.Sequential) -> None:
    layers[4] = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular")
    layers[-2] = nn.Linear(1024, 512)


@pytest.mark.parametrize("change", [unknown_layer, pooling, hooked_layer, padded_otherwise])
def test_images_in_half_precision_pass_unknown_layers(change):
    torch.manual_seed(0)
    policy = Policy(IMAGE, CHOICE, Network(conv="nature"))
    change(policy.torso.parts[0].convolutions.layers)
    policy.compute_in("bfloat16")
    obs, first = torch.randint(0, 256, (3, 4, 44, 44), dtype=torch.uint8), torch.ones(3).bool()
    with torch.no_grad():
        expected = policy.torso(obs)
    with torch.inference_mode(), policy.frozen_weights():
        assert all(part.packed is None for part in bfloat16_modules(policy))
        hidden = (policy._fast_image or policy.torso)(obs)
        torch.testing.assert_close(hidden, expected, rtol=0.05, atol=0.02)
        params, _ = policy.act(obs, first, ())
    assert params.shape == (3, 3)


def replaced_normalizer(part: Image) -> None:
    class Squared(ImageNormalizer):
        def forward(self, x, side=1, in_place=False):
            return super().forward(x, side, in_place).square()

    part.normalizer.__class__ = Squared


def hooked_convolutions(part: Image) -> None:
    part.convolutions.register_forward_hook(lambda module, args, y: y.sin())


def hooked_image(part: Image) -> None:
    part.register_forward_hook(lambda module, args, y: y.sin())


@pytest.mark.parametrize("change", [replaced_normalizer, hooked_convolutions, hooked_image])
def test_changed_parts_around_convolutions_are_called_themselves(change):
    torch.manual_seed(0)
    policy = Policy(IMAGE, CHOICE, Network(conv="nature", normalize_images=True))
    policy.compute_in("bfloat16")
    change(policy.torso.parts[0])
    obs = torch.randint(0, 256, (3, 4, 44, 44), dtype=torch.uint8)
    with torch.inference_mode():
        expected = policy.torso(obs)
        with policy.frozen_weights():
            hidden = (policy._fast_image or policy.torso)(obs)
    torch.testing.assert_close(hidden, expected, rtol=0.05, atol=0.02 * float(expected.abs().max()))


def test_the_same_images_are_packed_without_a_change():
    policy = Policy(IMAGE, CHOICE, Network(conv="nature"))
    policy.compute_in("bfloat16")
    with policy.frozen_weights():
        assert all(
            (part.packed is not None) == can_pack(policy.device)
            for part in bfloat16_modules(policy)
        )


def test_activations_can_be_imported_under_another_default_device():
    """Scripts may call ``torch.set_default_device`` before anything imports them."""
    with torch.device("meta"):
        forms = runpy.run_path(activations.__file__)["ACTIVATIONS"]
    for name, form in forms.items():
        x = torch.randn(3, 4)
        expected = torch.tanh(x) if name == "tanh" else form.module()(x)
        assert torch.allclose(form.in_place(form.factor * x), expected, atol=1e-6), name
