"""Training doesn't depend on the units of actions; one setting restores the papers' form."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tries import few_of

import headrace as hr
from headrace.errors import ConfigError

BOUNDS = [(-1.0, 1.0), (0.0, 1000.0), (-5.0, 100.0), (1e-4, 1e-2)]


class Aim(gymnasium.Env):
    """Rewards actions whose relative position between the bounds is near an observed target."""

    observation_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, low=-1.0, high=1.0, nested=False):
        self.low, self.width = np.float64(np.float32(low)), np.float64(np.float32(high))
        self.width -= self.low
        box = Box(low, high, (1,), np.float32)
        self.action_space = Dict(move=box, press=Discrete(2)) if nested else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def _observe(self):
        self.target = self.np_random.uniform(-0.8, 0.8)
        return np.array([self.target], np.float32)

    def step(self, action):
        assert self.action_space.contains(action)
        move = action["move"] if isinstance(action, dict) else action
        place = 2 * (float(move[0]) - self.low) / self.width - 1
        reward, self.t = -((place - self.target) ** 2), self.t + 1
        return self._observe(), float(np.float32(reward)), self.t == 16, False, {}


def weights(tiny, finish, folder, bounds, algo, nested=False, **settings):
    low, high = bounds
    kwargs = {"env": Aim, "env_kwargs": {"low": low, "high": high, "nested": nested}}
    sizes = {"transport": "serial", "total_steps": 256, "run_dir": str(folder)}
    trainer, _ = finish(tiny(algo=algo, **kwargs, **sizes | settings))
    return dict(trainer.policy.state_dict())


CASES = {
    "ppo": (hr.PPO(epochs=2, minibatches=2), {}),
    "appo": (hr.APPO(epochs=1, minibatches=1), {}),
    "impact": (hr.IMPACT(buffer_size=4, passes=2), {}),
    "recurrent": (
        hr.A2C(),
        {"network": hr.Network((16,), core="lstm", core_size=8, previous_action_reward=True)},
    ),
    "squashed": (hr.A2C(), {"network": hr.Network((16,), squash_actions=True)}),
    "nested": (hr.A2C(), {"nested": True}),
}


@pytest.mark.parametrize("case", few_of(list(CASES), ["recurrent", "nested"]))
def test_bounds_in_other_units_give_the_same_policy(tiny, finish, tmp_path, case):
    algo, settings = CASES[case]
    one, *others = (
        weights(tiny, finish, tmp_path / str(i), bounds, algo, **settings)
        for i, bounds in enumerate(BOUNDS)
    )
    for other in others:
        for name, weight in other.items():
            torch.testing.assert_close(weight, one[name], rtol=2e-3, atol=2e-4, msg=name)


def test_in_the_literal_form_they_do_not(tiny, finish, tmp_path):
    one, other = (
        weights(tiny, finish, tmp_path / str(i), bounds, hr.A2C(), scale_free=False)
        for i, bounds in enumerate([(-1.0, 1.0), (0.0, 1000.0)])
    )
    assert not torch.allclose(one["policy_head.weight"], other["policy_head.weight"], 0.01)


def test_the_run_decides_unless_the_network_does(tiny):
    assert tiny().settled.network.scale_actions is True
    assert tiny(scale_free=False).settled.network.scale_actions is False
    for value in (True, False):
        network = hr.Network(scale_actions=value)
        assert tiny(scale_free=not value, network=network).settled.network.scale_actions is value


@pytest.mark.parametrize("scale", [True, False])
def test_a_loaded_policy_acts_in_the_units_it_was_trained_in(tiny, finish, tmp_path, scale):
    kwargs = {"env": Aim, "env_kwargs": {"low": 10.0, "high": 30.0}, "transport": "serial"}
    trainer, _ = finish(tiny(**kwargs, scale_free=scale, run_dir=str(tmp_path / "run")))
    obs = np.array([[0.1], [-0.3]], np.float32)
    for policy in (
        hr.load(tmp_path / "run"),
        hr.load(tmp_path / "run", network=hr.Network()),
    ):
        action, _ = policy.predict(obs)
        expected, _ = trainer.policy.predict(obs)
        np.testing.assert_allclose(action, expected, rtol=1e-6)
        assert (np.abs(action - (20.0 if scale else 10.0)) < 5.0).all()
    assert hr.evaluate(policy, Aim, 2, env_kwargs=kwargs["env_kwargs"]).episodes == 2


def test_a_run_can_only_begin_with_a_policy_of_the_same_units(tiny, finish, tmp_path):
    for high, refused in ((1.0, False), (3.0, True)):
        first, second = str(tmp_path / f"first{high}"), str(tmp_path / f"second{high}")
        kwargs = {"env": Aim, "env_kwargs": {"low": -1.0, "high": high}, "transport": "serial"}
        finish(tiny(**kwargs, run_dir=first))
        network = hr.Network(scale_actions=False)
        config = tiny(**kwargs, init_from=first, run_dir=second, network=network)
        if refused:
            with pytest.raises(ConfigError, match=r"scale_actions=True, .*scale_actions=False"):
                hr.Trainer(config)
        else:
            finish(config)
