"""Changes of an agent's parameters are detected, with a fast path where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.cluster_env import parameter_fingerprint
from headrace.cluster_env.parameter_fingerprint import ParameterFingerprint


class Net(nn.Module):
    """A module with every kind of content."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Sequential())
        self.scale = nn.Parameter(torch.ones(()))
        self.register_parameter("none", None)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def act(self, obs: Any) -> Any:
        return obs


class Extra(Net):
    """Has a state that isn't a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.note = 0

    def get_extra_state(self) -> int:
        return self.note

    def set_extra_state(self, state: int) -> None:
        self.note = state


class Own(Net):
    """Returns a state with an extra number."""

    number = 1.0

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs) | {"number": self.number}


def hooked() -> Net:
    """A hook adds data that the module lacks."""
    net = Net()
    net.aside = torch.zeros(1)
    net.body[0]._register_state_dict_hook(
        lambda _, state, prefix, __: state.update(a=net.aside + 1)
    )
    return net


def instance() -> Net:
    """The state depends on an attribute of a submodule."""
    net = Net()
    net.aside, own = torch.zeros(1), net.body.state_dict
    net.body.state_dict = lambda *a, **k: own(*a, **k)
    net.body._save_to_state_dict = lambda state, prefix, _: state.update(a=net.aside + 1)
    return net


def _rename(net: Any) -> None:
    net.body[0]._parameters["w"] = net.body[0]._parameters.pop("weight")
    net.body[0]._parameters["b"] = net.body[0]._parameters.pop("bias")


def _optimise(net: Any) -> None:
    net.scale.grad = torch.ones(())
    torch.optim.Adam([net.scale]).step()


LEARNT = {
    "in place": lambda net: net.body[0].weight.data.add_(1),
    "data": lambda net: setattr(net.scale, "data", torch.zeros(())),
    "dtype": lambda net: setattr(net.scale, "data", net.scale.data.double()),
    "shape": lambda net: setattr(net.scale, "data", torch.ones(1)),
    "optimiser": _optimise,
    "through numpy": lambda net: net.count.numpy().fill(2),
    "buffer": lambda net: net.body(torch.randn(4, 3)),
    "other buffer": lambda net: setattr(net, "count", torch.ones(2)),
    "other parameter": lambda net: setattr(net, "scale", nn.Parameter(torch.zeros(()))),
    "first parameter": lambda net: setattr(net, "none", nn.Parameter(torch.zeros(()))),
    "other module": lambda net: setattr(net.body, "0", nn.Linear(3, 2)),
    "one more": lambda net: net.body[2].append(nn.Linear(1, 1)),
    "one less": lambda net: delattr(net, "count"),
    "renamed": _rename,
    "all replaced": lambda net: net.__dict__.update(Net().__dict__),
    "NaN": lambda net: net.count.fill_(torch.nan),
}


@pytest.mark.parametrize("learn", LEARNT.values(), ids=LEARNT.keys())
def test_a_module_that_changed_is_seen(learn):
    net = Net()
    before = ParameterFingerprint(net)
    assert before.is_of(net)
    learn(net)
    assert not before.is_of(net)


@pytest.mark.parametrize(
    ("make", "learn"),
    [
        (Extra, lambda net: setattr(net, "note", 1)),
        (Own, lambda net: setattr(net, "number", 2.0)),
        (hooked, lambda net: net.aside.add_(1)),
        (instance, lambda net: net.aside.add_(1)),
    ],
    ids=["extra state", "state_dict", "hook", "attribute"],
)
def test_what_only_a_state_dict_shows_is_seen(make, learn):
    net = make()
    before = ParameterFingerprint(net)
    assert before.is_of(net)
    learn(net)
    assert not before.is_of(net)


def test_what_no_state_dict_shows_is_no_learning():
    net = Net()
    before = ParameterFingerprint(net)
    net.cache.add_(1)
    net.other = 3
    assert before.is_of(net)
    net.cache, net.count = torch.ones(2), net.count.clone()
    assert before.is_of(net)


def test_a_state_dict_is_collected_once_for_many_looks(monkeypatch):
    net = Net()
    before = ParameterFingerprint(net)
    monkeypatch.setattr(parameter_fingerprint, "parameters", None)
    assert before.is_of(net)
    assert before.is_of(net)


@pytest.mark.parametrize("values", [{"a": np.zeros(2)}, [np.zeros(2), 1], [torch.zeros(2), "x"]])
def test_an_agent_with_parameters_of_its_own_is_compared_by_them(values):
    class Agent:
        def act(self, obs: Any) -> Any:
            return obs

        def get_parameters(self) -> Any:
            return values

    agent = Agent()
    before = ParameterFingerprint(agent)
    assert before.is_of(agent)
    (values["a"] if isinstance(values, dict) else values[0])[0] = 1
    assert not before.is_of(agent)
