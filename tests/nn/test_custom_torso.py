from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from torch import nn

import headrace as hr
from headrace.errors import ConfigError
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.ops import tree

VECTOR = Box(-1.0, 1.0, (4,))
NAMED = """
import torch
from torch import nn


def double(observation_space):
    return nn.Sequential(nn.Linear(observation_space.shape[0], 8), nn.Tanh())


class Towers:
    wide = nn.Linear(4, 16)


def broken(observation_space):
    raise KeyError("no such sensor")


number = 7
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Return the name of an importable module with torsos."""
    (tmp_path / "torsos_of_a_test.py").write_text(NAMED)
    monkeypatch.syspath_prepend(tmp_path)
    return "torsos_of_a_test"


def make_torso(observation_space):
    return nn.Linear(observation_space.shape[0], 5)


def policy_with(torso, space=VECTOR, **network) -> Policy:
    return Policy(space, Discrete(2), Network(torso=torso, **network))


class Echo(nn.Module):
    """Records observations; ``make(obs)`` returns its features."""

    def __init__(self, make=lambda obs: torch.zeros(len(tree.leaves(obs)[0]), 3)) -> None:
        super().__init__()
        self.make, self.seen = make, []

    def forward(self, obs):
        self.seen.append(obs)
        return self.make(obs)


def test_two_policies_do_not_share_a_module_that_was_given_to_both():
    module = nn.Linear(4, 6)
    one, two = policy_with(module), policy_with(module)
    parameters = [p.torso.module.weight for p in (one, two)]
    assert torch.equal(*parameters)
    assert torch.equal(parameters[0], module.weight)
    with torch.no_grad():
        parameters[0].add_(1.0)
    assert not torch.equal(*parameters)
    assert torch.equal(parameters[1], module.weight)


def test_a_module_that_is_named_is_copied_too(named):
    one, two = (policy_with(f"{named}:Towers.wide") for _ in range(2))
    assert one.torso.num_outputs == 16
    assert one.torso.module.weight is not two.torso.module.weight


def test_policy_and_value_share_an_own_torso_unless_told_otherwise():
    assert policy_with(make_torso).value_torso is None
    apart = policy_with(make_torso, shared=False)
    assert apart.value_torso.module is not apart.torso.module
    module = policy_with(nn.Linear(4, 5), shared=False)
    assert module.value_torso.module.weight is not module.torso.module.weight


@pytest.mark.parametrize("core", [None, "lstm"])
def test_a_factory_is_given_the_observation_space_and_its_features_reach_the_heads(core):
    seen = []

    def make(space):
        seen.append(space)
        return make_torso(space)

    policy = policy_with(make, core=core, core_size=7)
    assert seen == [VECTOR]
    assert policy.torso.num_outputs == 5
    assert policy.policy_head.in_features == (5 if core is None else 7)
    x, first = torch.randn(3, 2, 4), torch.zeros(3, 2, dtype=torch.bool)
    params, values, _ = policy(x, first, policy.initial_core(2))
    assert params.shape == (3, 2, 2)
    (params.sum() + values.sum()).backward()
    assert policy.torso.module.weight.grad.abs().sum() > 0


def test_a_torso_sees_observations_as_they_are_without_mask_and_previous_inputs():
    space = Dict(
        {
            "action_mask": MultiBinary(2),
            "camera": Box(0, 255, (8, 8), np.uint8),
            "pair": Tuple([Discrete(3, start=5), VECTOR]),
        }
    )
    policy = policy_with(Echo(), space, previous_action_reward=True)
    assert policy.torso.num_outputs == 3 + 2 + 1
    made = policy.torso.module.seen.pop()
    assert set(made) == {"camera", "pair"}
    assert ((made["pair"][0] >= 5) & (made["pair"][0] < 8)).all(), "not an observation"
    obs = space.sample()
    policy.predict(obs)
    seen = policy.torso.module.seen.pop()
    assert set(seen) == {"camera", "pair"}
    assert seen["camera"].dtype == torch.uint8
    assert np.array_equal(seen["camera"][0].numpy(), obs["camera"])
    assert seen["pair"][0].tolist() == [obs["pair"][0]]


def test_the_previous_action_and_reward_are_appended_to_the_features():
    policy = policy_with(Echo(), previous_action_reward=True)
    inputs = {
        "observation": torch.zeros(2, 4),
        "previous_action": torch.tensor([1, 0]),
        "previous_reward": torch.tensor([-7.0, 0.5]),
    }
    expected = [[0.0, 0.0, 0.0, 0.0, 1.0, -1.0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.5]]
    assert policy.torso(inputs).tolist() == expected


WRONG = {
    "a number": (7, "torso=7 must be a torch.nn.Module, a callable that returns one"),
    "no module": (lambda space: 7, "torso returned a int; it must return a torch.nn.Module"),
    "no callable": ("{named}:number", "torso='{named}:number' is a int; it must be a"),
    "raises": ("{named}:broken", r"torso='{named}:broken' returns no module .*no such sensor"),
    "no file": (
        "nowhere_at_all:make",
        "torso='nowhere_at_all:make' can't be .*PYTHONPATH",
    ),
    "no function": ("{named}:gone", "torso='{named}:gone' can't be imported .*has no .*'gone'"),
    "no colon": ("{named}", "torso='{named}' can't be imported .*'module:name'"),
    "empty": ("", "torso='' must be .*'module:function'"),
    "rank": (Echo(lambda x: x.sum()), r"2 observations to features of shape \(2, F\), got \(\)"),
    "rows": (Echo(lambda x: x[:1]), r"features of shape \(2, F\), got \(1, 4\)"),
    "no tensor": (Echo(lambda x: {"y": x}), r"features of shape \(2, F\), got dict"),
    "float64": (
        nn.Linear(4, 8).double(),
        r"parameter 'weight' is torch.float64; headrace trains in float32: call .float\(\)",
    ),
    "width": (nn.Linear(3, 8), "the custom torso fails on two observations: .*shapes cannot be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_torso_is_named_in_one_sentence(case, named):
    torso, message = WRONG[case]
    if isinstance(torso, str):
        torso = torso.replace("{named}", named)
    with pytest.raises(ConfigError, match=message.replace("{named}", named)) as caught:
        policy_with(torso)
    assert "\n" not in str(caught.value)


def test_a_run_with_a_named_torso_trains_and_loads_by_that_name(named, tiny, finish):
    network = Network(torso=f"{named}:double")
    config = tiny(network=network, transport="serial")
    trainer, results = finish(config)
    fresh = policy_with(network.torso)
    assert results
    assert trainer.policy.torso.module[0].weight.shape == fresh.torso.module[0].weight.shape
    loaded = hr.load(config.run_dir)
    assert loaded.network == trainer.policy.network
    assert_equal(trainer.policy, loaded)


def assert_equal(one, two):
    ours, theirs = one.state_dict(), two.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_training_changes_an_own_torso_and_leaves_the_given_module_alone(tiny, finish):
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    before = module[0].weight.detach().clone()
    config = tiny(network=Network(torso=module), transport="serial")
    trainer, _ = finish(config)
    assert torch.equal(module[0].weight, before)
    assert not torch.equal(trainer.policy.torso.module[0].weight, before)
    with pytest.raises(ConfigError, match="give it the network that it was trained with"):
        hr.load(config.run_dir)
    assert_equal(trainer.policy, hr.load(config.run_dir, network=Network(torso=module)))


class Masked(nn.Linear):
    """Has an infinite buffer, as attention has for later positions."""

    def __init__(self) -> None:
        super().__init__(4, 8)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))


def test_infinite_buffers_of_a_torso_are_saved_and_loaded(tiny, finish):
    network = Network(torso=Masked())
    config = tiny(network=network, transport="serial", total_steps=128)
    trainer, _ = finish(config)
    assert_equal(trainer.policy, hr.load(config.run_dir, network=network))


def test_a_torso_without_a_name_needs_the_network_to_load(tiny, finish):
    network = Network(torso=lambda space: make_torso(space))
    config = tiny(network=network, transport="serial")
    trainer, _ = finish(config)
    with pytest.raises(ConfigError, match=r"can't be found by its name"):
        hr.load(config.run_dir)
    assert_equal(trainer.policy, hr.load(config.run_dir, network=network))


def test_the_config_file_holds_the_name_of_a_torso():
    for torso in (make_torso, nn.Linear(4, 2), "some.module:make"):
        values = Network(torso=torso).to_json()
        name = {"make_torso": f"{__name__}:make_torso"}.get(getattr(torso, "__name__", ""))
        name = name or (torso if isinstance(torso, str) else "torch.nn.modules.linear:Linear")
        assert values["torso"] == name
        assert Network(**values).torso == name


def test_float64_observations_that_a_torso_does_not_convert_are_named():
    with pytest.raises(ConfigError, match=r"here torch.float64; convert them"):
        policy_with(make_torso, Box(-1, 1, (4,), np.float64))


def test_float64_features_of_a_float32_torso_reach_the_heads_as_float32():
    class Wide(nn.Linear):
        def forward(self, obs):
            return super().forward(obs.float()).double()

    policy = policy_with(Wide(4, 5), Box(-1, 1, (4,), np.float64))
    assert policy.predict(np.zeros(4))[0] in (0, 1)
    inputs = torch.zeros(2, 3, 4, dtype=torch.float64)
    policy(inputs, torch.ones(2, 3, dtype=torch.bool), ())[1].sum().backward()
    assert policy.torso.module.weight.grad is not None
