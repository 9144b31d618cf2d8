"""Spaces in ``config.json`` are restored, with the keys of a Dict in their order."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import headrace as hr
from headrace.spaces.json import alike, space_from_json, space_to_json

ARM = Dict(target=Box(-1, 1, (2,)), joints=Box(-2, 2, (3,)))  # keyword arguments keep their order


class Arm(gymnasium.Env):
    """A reward for the first joint; it ends after five steps."""

    observation_space = ARM
    action_space = Dict(right=Discrete(2), left=Box(-1, 1, (1,)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return {"target": np.zeros(2, np.float32), "joints": np.ones(3, np.float32)}, {}

    def step(self, action):
        self.steps += 1
        obs = {"target": np.zeros(2, np.float32), "joints": np.ones(3, np.float32)}
        return obs, float(action["right"]), self.steps >= 5, False, {}


def test_the_order_of_keys_is_kept():
    again = space_from_json(space_to_json(ARM))
    assert alike(again, ARM)
    assert list(again) == list(ARM) == ["target", "joints"]
    nested = Tuple((Discrete(2), Dict(b=ARM, a=Discrete(3))))
    assert alike(space_from_json(space_to_json(nested)), nested)
    assert not alike(ARM, Dict(target=Box(-1, 1, (2,)), joints=Box(-2, 3, (3,))))
    assert not alike(ARM, Dict(target=Box(-2, 2, (3,)), joints=Box(-1, 1, (2,))))


def test_a_saved_policy_is_evaluated_in_its_environment(tmp_path):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    run = {"total_steps": 64, "eval_episodes": 0, "run_dir": tmp_path / "run"}
    policy = hr.train(Arm, "ppo", **sizes, **run)
    loaded = hr.load(tmp_path / "run", trust=True)
    obs = {"target": np.zeros(2, np.float32), "joints": np.ones(3, np.float32)}
    actions = [one.predict(obs)[0] for one in (policy, loaded)]
    assert actions[0].keys() == actions[1].keys()
    assert actions[0]["right"] == actions[1]["right"]
    np.testing.assert_allclose(actions[0]["left"], actions[1]["left"], rtol=1e-5)
    means = [hr.evaluate(one, Arm, 3, seed=1).mean for one in (policy, loaded)]
    assert means[0] == means[1]
