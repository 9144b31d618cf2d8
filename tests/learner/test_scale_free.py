"""Training doesn't depend on the units of rewards; one setting restores the papers' form."""

from __future__ import annotations

import dataclasses

import gymnasium
import pytest
import torch
from tries import few_of
from worlds import IdentityEnv

import headrace as hr
from headrace.algos.minibatches import normalized, shuffled
from headrace.errors import ConfigError
from headrace.learner.learner import Learner
from headrace.ops.moments import MovingMoments
from headrace.types import SingleLearner
from tests.learner.test_learner import make_batch

ALGOS = {
    "a2c": hr.A2C(),
    "ppo": hr.PPO(epochs=2, minibatches=2),
    "ppo-value-clip": hr.PPO(epochs=2, minibatches=2, value_clip=0.2),
    "impala": hr.IMPALA(epochs=1, minibatches=1),
    "impala-minibatches": hr.IMPALA(epochs=2, minibatches=2),
    "appo": hr.APPO(epochs=1, minibatches=1),
    "appo-minibatches": hr.APPO(epochs=2, minibatches=2),
    "appo-decoupled": hr.APPO(epochs=2, minibatches=2, clip_around="learner"),
    "impact": hr.IMPACT(buffer_size=4, passes=2),
}


class Scaled(gymnasium.Wrapper):
    """CartPole with rewards in other units."""

    def __init__(self, factor: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.factor = factor

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward * self.factor, *rest


def trained(tiny, finish, algo, factor: float, folder, **settings) -> hr.Trainer:
    settings = {"transport": "serial", "total_steps": 500, "run_dir": str(folder)} | settings
    config = tiny(env=Scaled, env_kwargs={"factor": factor}, algo=algo, **settings)
    trainer, results = finish(config)
    trainer.results = results
    return trainer


FEW = ["ppo", "impact"]


@pytest.mark.parametrize("name", few_of(list(ALGOS), FEW))
def test_rewards_in_other_units_give_the_same_policy(tiny, finish, name, tmp_path):
    one, *others = (
        trained(tiny, finish, ALGOS[name], factor, tmp_path / str(factor))
        for factor in (1.0, 128.0, 1 / 64)
    )
    before = hr.Trainer(dataclasses.replace(one.config, run_dir=str(tmp_path / "n"))).policy
    assert not torch.equal(one.policy.policy_head.weight, before.policy_head.weight)
    for other in others:
        for part, weight in other.policy.named_parameters():
            ours = one.policy.get_parameter(part)
            torch.testing.assert_close(weight, ours, rtol=2e-3, atol=2e-4, msg=part)


def test_in_the_literal_form_they_do_not(tiny, finish, tmp_path):
    one, other = (
        trained(tiny, finish, hr.A2C(), factor, tmp_path / str(factor), scale_free=False)
        for factor in (1.0, 128.0)
    )
    assert not torch.allclose(one.policy.policy_head.weight, other.policy.policy_head.weight, 0.01)


def test_one_setting_decides_and_each_can_be_given(tiny):
    on, off = tiny().settled, tiny(scale_free=False).settled
    assert (on.network.normalize_observations, on.network.normalize_values) == (True, True)
    assert (off.network.normalize_observations, off.network.normalize_values) == (False, False)
    for algo, normalizes in ((hr.APPO(), True), (hr.A2C(), True), (hr.A3C(), False)):
        assert tiny(algo=algo).settled.algo.normalize_advantage is normalizes
        assert tiny(algo=algo, scale_free=False).settled.algo.normalize_advantage is False
    assert off.algo.normalize_advantage is True  # PPO's own, which it always had
    assert tiny(algo=hr.A3C()).settled.network.normalize_values is False
    given = tiny(scale_free=False, network=hr.Network(normalize_values=True)).settled
    decided = {"normalize_observations": False, "normalize_values": True, "scale_actions": False}
    assert given.network == hr.Network((64, 64), **decided)
    assert given.settled == given


def test_statistics_are_saved_and_resumed(tiny, finish, tmp_path):
    algo = hr.APPO(epochs=1, minibatches=1, lr_schedule="constant")
    settings = {"transport": "serial", "algo": algo, "deterministic": True, "env": IdentityEnv}
    whole, _ = finish(tiny(**settings, total_steps=1280, checkpoint_interval=640))
    half, _ = finish(tiny(**settings, run_dir=str(tmp_path / "half")))
    config = dataclasses.replace(half.config, total_steps=1280, resume=True)
    resumed, _ = finish(config)
    assert resumed.learner.targets.state_dict() == whole.learner.targets.state_dict()
    ours, theirs = resumed.learner.state["advantage"], whole.learner.state["advantage"]
    assert ours.state_dict() == theirs.state_dict()
    assert ours.deviation > 0
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, resumed.policy.state_dict()[name]), name


def test_values_are_in_the_rewards_units_and_explain_the_returns(tiny, finish, tmp_path):
    algo = hr.PPO(learning_rate=1e-3, epochs=4, minibatches=4)
    sizes = {"envs_per_actor": 16, "fragment_length": 32, "total_steps": 20_000}
    trainer = trained(tiny, finish, algo, 1000.0, tmp_path / "run", **sizes)
    assert 5000 < float(trainer.policy.popart.mean) < 100_000  # of at most 1000 / (1 - gamma)
    explained = [r.explained_variance for r in trainer.results[-10:]]
    assert max(explained) > 0.3
    assert trainer.results[-1].value_loss < 1  # in units of the targets' deviation


def test_the_first_update_has_no_value_loss_because_values_have_no_units_yet(
    tiny, finish, tmp_path
):
    algo = hr.PPO(epochs=1, minibatches=1)
    trainer = trained(tiny, finish, algo, 1.0, tmp_path / "run", total_steps=500)
    first, second = trainer.results[:2]
    assert (first.updates, first.value_loss, first.explained_variance) == (1, None, None)
    assert first.policy_loss is not None
    assert second.value_loss > 0
    assert second.explained_variance is not None


def test_the_advantage_of_a_lone_valid_step_is_0_and_those_of_a_batch_are_normal():
    batch = make_batch(columns=4)
    valid = batch.valid
    advantage = torch.randn(valid.shape) * 50 + 7
    batch = dataclasses.replace(batch, targets={"advantage": advantage})
    scaled = normalized(batch, SingleLearner()).targets["advantage"][valid]
    assert float(scaled.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(scaled.std()) == pytest.approx(1.0, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    parts = list(shuffled(batch, 1, valid.numel(), generator, SingleLearner()))
    assert min(part.valid.numel() for part in parts) == 2  # of which one may be a filler
    lone = [x.targets["advantage"][x.valid].item() for x in parts if x.valid.sum() == 1]
    assert set(lone) == {0.0}


@pytest.mark.parametrize("name", ["a2c", "appo", "impala"])
def test_running_moments_are_those_of_the_batches_before(name):
    policy = hr.Policy(
        gymnasium.spaces.Box(-9, 9, (3,)), gymnasium.spaces.Discrete(4), hr.Network((8,))
    )
    algo = dataclasses.replace(ALGOS[name], normalize_advantage=True, learning_rate=1e-9)
    learner = Learner(policy, algo)
    batch = make_batch(columns=6)
    metrics = [learner.update(lambda: batch, 1e-9) for _ in range(2)]
    assert metrics[0]["policy_loss"] == 0.0  # no moments are known
    assert metrics[1]["policy_loss"] != 0.0
    assert not any(name.startswith("advantage") for name in metrics[1])
    saved = learner.state_dict()["state"]["advantage"]
    assert saved["weight"] == pytest.approx(1 - 0.9**2)
    learner.close()


@pytest.mark.parametrize("name", ["normalize_observations", "normalize_images"])
def test_an_own_torso_normalises_itself(name):
    with pytest.raises(ConfigError, match=f"{name}=True is for the built-in torsos"):
        hr.Network(torso="some:torso", **{name: True})
    assert (
        hr.Config(network=hr.Network(torso="a:b")).settled.network.normalize_observations is False
    )


def test_a_center_of_several_learners_is_nothing_to_a_lone_one():
    policy = hr.Policy(
        gymnasium.spaces.Box(-9, 9, (3,)),
        gymnasium.spaces.Discrete(4),
        hr.Network((8,), normalize_values=True),
    )
    learner = Learner(policy, hr.A2C())
    batch = make_batch(columns=6)
    learner.update(lambda: batch, 1e-9)
    mean = learner.targets.moments.mean
    learner.load_state_dict(learner.state_dict() | {"center": 100.0})
    learner.update(lambda: batch, 1e-9)
    assert abs(learner.targets.moments.mean - mean) < 10
    learner.close()


def test_a_run_goes_on_with_settings_that_need_less_state():
    policy = hr.Policy(
        gymnasium.spaces.Box(-9, 9, (3,)), gymnasium.spaces.Discrete(4), hr.Network((8,))
    )
    whole, split = (
        Learner(policy, hr.IMPALA(epochs=n, minibatches=n, normalize_advantage=True))
        for n in (1, 2)
    )
    assert whole.state.keys() != split.state.keys()
    whole.load_state_dict(split.state_dict())
    split.load_state_dict(whole.state_dict())
    whole.close()
    split.close()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 0.0])
def test_a_batch_that_tells_nothing_leaves_the_moments(broken):
    running = MovingMoments(0.1)
    running.note(1.0, 3.0)
    running.note(broken, broken)
    assert (running.mean, running.deviation) == (1.0, 2**0.5)


def test_a3c_refuses_what_its_actors_have_no_statistics_for():
    with pytest.raises(ConfigError, match="normalize_values=True must be None or False with a3c"):
        hr.Config(algo=hr.A3C(), network=hr.Network(normalize_values=True))
    with pytest.raises(ConfigError, match="normalize_advantage=True must be False with A3C"):
        hr.A3C(normalize_advantage=True)
