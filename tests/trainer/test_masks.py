"""Action masks of environments of all kinds."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.actors.collector import Collector, rollout_spec
from headrace.envs.make import make_vec
from headrace.envs.probe import probe
from headrace.envs.step_cost import step_cost
from headrace.errors import EnvironmentFault
from headrace.nn.inputs import info_mask
from headrace.rundir import checkpoint
from headrace.transport.slab import Slab
from headrace.types import Rollout
from tests.worlds.games import CountingTurns

ONE, TWO = np.array([True, False]), np.array([False, True, True])
FORMS = {
    "array": (Discrete(3), TWO, [False, True, True]),
    "list": (Discrete(3), [0, 1, 1], [False, True, True]),
    "dict": (Dict(a=Discrete(2), b=Discrete(3)), {"a": ONE, "b": TWO}, [*ONE, *TWO]),
    "dict with a part": (Dict(a=Discrete(2), b=Discrete(3)), {"b": TWO}, [True, True, *TWO]),
    "tuple": (Tuple([Discrete(2), Discrete(3)]), (ONE, TWO), [*ONE, *TWO]),
    "choices": (MultiDiscrete([2, 3]), (ONE, TWO), [*ONE, *TWO]),
}


class Masked(gymnasium.Env):
    """Episodes of three steps with ``mask(step)`` in their infos."""

    observation_space = Box(-1, 1, (1,))

    def __init__(self, action_space, mask, in_reset=True):
        self.action_space, self._mask, self._in_reset = action_space, mask, in_reset

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return np.zeros(1, np.float32), self._info() if self._in_reset else {}

    def step(self, action):
        self._step += 1
        return np.zeros(1, np.float32), 0.0, self._step == 3, False, self._info()

    def _info(self):
        return {"action_mask": self._mask(self._step)}


class SameStep(VectorEnv):
    """Allows only the action ``step``, by infos; episodes of 3 or 4 steps."""

    def __init__(self, num_envs, mode=AutoresetMode.SAME_STEP):
        self.num_envs, self._mode = num_envs, mode
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = Box(0, 9, (1,)), Discrete(5)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._step, self._length = np.zeros(num_envs, int), 3 + np.arange(num_envs) % 2

    def reset(self, *, seed=None, options=None):
        self._step[(options or {}).get("reset_mask", slice(None))] = 0
        return self._obs(), self._infos()

    def step(self, actions):
        self._step += 1
        ended = self._step >= self._length
        final = self._obs()
        if self._mode is AutoresetMode.SAME_STEP:
            self._step[ended] = 0
        obs, infos = self._obs(), self._infos()
        if ended.any() and self._mode is AutoresetMode.SAME_STEP:
            infos |= {"final_obs": final, "_final_obs": ended}
        return obs, np.zeros(self.num_envs), ended, np.zeros(self.num_envs, bool), infos

    def _obs(self):
        return self._step[:, None].astype(np.float32)

    def _infos(self):
        everyone = np.ones(self.num_envs, bool)
        return {"action_mask": np.eye(5, dtype=np.int8)[self._step], "_action_mask": everyone}


def rollout_of(env, num_envs=3, num_steps=12, engine="auto", **kwargs) -> tuple:
    envs = make_vec(env, num_envs, engine, kwargs)
    _, infos = envs.reset(seed=0)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = hr.Policy(*spaces, info_mask="action_mask" in infos)
    slab = Slab(rollout_spec(policy, num_steps, num_envs), 1, 1)
    collector = Collector(envs, policy, "Masked")
    collector.reset(0)
    rollout = Rollout(**slab.trees[0])
    collector.fill(rollout, 0)
    return policy, rollout


@pytest.mark.parametrize(("space", "mask", "flat"), FORMS.values(), ids=FORMS.keys())
def test_every_form_of_mask_arrives_from_a_plain_environment(space, mask, flat):
    policy, rollout = rollout_of(lambda: Masked(space, lambda step: mask))
    assert rollout.obs["action_mask"].tolist() == [[flat] * 3] * 13
    obs = np.zeros(1, np.float32)
    action, _ = policy.predict(obs, action_mask=mask)
    assert space.contains(action)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_mask_after_a_reset_is_the_resets_own_in_every_autoreset_mode(mode):
    _, rollout = rollout_of(SameStep, mode=mode)
    step = rollout.obs["observation"][..., 0].long()
    used = torch.cat([~rollout.first[1:], torch.ones(1, 3, dtype=torch.bool)])  # acted in
    shown = rollout.obs["action_mask"].float().argmax(-1)
    assert rollout.first[1:].any()
    assert torch.equal(shown[used][:-3], step[used][:-3])
    valid = ~rollout.first[1:]
    assert torch.equal(rollout.action[valid], step[:-1][valid])


def test_rows_whose_environment_shows_no_mask_allow_everything():
    shown = np.array([[True, False], [False, False]])  # Gymnasium fills what is missing with zeros
    infos = {"action_mask": shown, "_action_mask": np.array([True, False])}
    assert info_mask(infos).tolist() == [[True, False], [True, True]]
    parts = {"a": shown, "_a": np.array([True, False])}
    infos = {"action_mask": parts, "_action_mask": np.array([True, True])}
    assert info_mask(infos)["a"].tolist() == [[True, False], [True, True]]


def test_a_mask_that_reset_does_not_show_is_an_error_and_not_ignored():
    def make():
        return Masked(Discrete(3), lambda step: [1, 0, 0], in_reset=False)

    with pytest.raises(EnvironmentFault, match="in the info of a later step but"):
        rollout_of(make)


def test_a_mask_that_forbids_every_action_names_the_environment_and_the_row():
    def make():
        return Masked(Discrete(3), lambda step: [step != 2] * 3)

    with pytest.raises(EnvironmentFault, match=r"forbids every action.*environment 0.*row 2"):
        rollout_of(make)


class Strict(Masked):
    """Shows its mask from a step on, and rejects forbidden actions."""

    def __init__(self, shown_from=0):
        super().__init__(Discrete(3), lambda step: [0, 1, 1])
        self._from = shown_from

    def step(self, action):
        if "action_mask" in self._info():
            assert action != 0
        return super().step(action)

    def _info(self):
        return super()._info() if self._step >= self._from else {}


@pytest.mark.parametrize("shown_from", [0, 1])
def test_a_mask_that_only_the_first_step_shows_is_applied(shown_from, tiny, finish):
    config = tiny(env=Strict, env_kwargs={"shown_from": shown_from}, transport="serial")
    _, results = finish(config)
    assert results[-1].env_steps >= config.total_steps
    assert checkpoint.read_config(Path(config.run_dir))["info_mask"]


def test_what_a_step_costs_is_found_by_actions_that_masks_allow():
    assert step_cost(Strict, "sync", {}, 0) is not None


class SomeMask(CountingTurns):
    """The first two moves, or all moves of the first game, have no mask."""

    def __init__(self, late=False):
        super().__init__(mask="info")
        self._late = late

    def last(self, observe=True):
        *seen, info = super().last(observe)
        first = seen[0][2] == 0 if self._late else seen[0][5] < 2
        return *seen, {} if first else info


def test_a_mask_that_one_agent_of_several_shows_is_found():
    assert probe(CountingTurns, "sync", {"mask": "info"}, 0).info_mask
    assert probe(SomeMask, "sync", {}, 0).info_mask
    assert not probe(CountingTurns, "sync", {}, 0).info_mask


def test_a_mask_that_comes_later_in_turns_is_told_of(tiny, finish):
    config = tiny(env=SomeMask, env_kwargs={"late": True}, transport="serial", envs_per_actor=6)
    with pytest.raises(
        EnvironmentFault, match="SomeMask returns an action_mask in the info of a l"
    ):
        finish(config)


def test_taxi_which_masks_in_its_infos_is_never_driven_into_a_wall():
    policy, rollout = rollout_of("Taxi-v4", num_envs=4, num_steps=64, engine="sync")
    assert policy.inputs.mask == "info"
    valid = ~rollout.first[1:]
    allowed = rollout.obs["action_mask"][:-1]
    chosen = allowed.gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)
    assert chosen[valid].all()
    assert not allowed.all()


def test_a_nan_reward_is_named_as_such_also_where_it_is_an_input():
    class NaN(Masked):
        def step(self, action):
            obs, _, terminated, truncated, _ = super().step(action)
            return obs, float("nan"), terminated, truncated, {}

    with pytest.raises(EnvironmentFault, match="nan as its reward"):
        network = hr.Network(previous_action_reward=True)
        envs = make_vec(lambda: NaN(Discrete(2), lambda step: [1, 1], in_reset=False), 2)
        policy = hr.Policy(envs.single_observation_space, envs.single_action_space, network)
        slab = Slab(rollout_spec(policy, 5, 2), 1, 1)
        collector = Collector(envs, policy, "NaN")
        collector.reset(0)
        collector.fill(Rollout(**slab.trees[0]), 0)


def test_a_loaded_policy_still_applies_the_mask_of_infos(tiny, finish):
    env, kwargs = "worlds:SpaceIdentityVectorEnv", {"mask": "info"}
    config = tiny(env=env, env_kwargs=kwargs, transport="serial")
    finish(config)
    policy = hr.load(config.run_dir)
    obs = np.zeros((50, 4), np.float32)
    for allowed in range(4):
        mask = np.tile(np.arange(4) == allowed, (50, 1))
        action, _ = policy.predict(obs, action_mask=mask, deterministic=False)
        assert set(action) == {allowed}
