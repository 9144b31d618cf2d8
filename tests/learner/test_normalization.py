"""Running statistics: exact over actors, frozen within an update, saved, and applied by predict."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace as Namespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from worlds.stacks import Stacks

import headrace as hr
from headrace.learner.learner import Learner
from headrace.trainer.batch_collector import BatchCollector


def trained(tiny, **settings):
    """Return a trainer at the end of its run, with all its batches and results."""
    batches = []

    class Recording(BatchCollector):
        def fresh(self):
            batches.append(super().fresh())
            return batches[-1]

    settings = {"network": hr.Network((16,), normalize_observations=True)} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.trainer.training_loop.BatchCollector", Recording)
        with contextlib.closing(hr.Trainer(tiny(**settings), notify=lambda text: None)) as trainer:
            trainer.results = list(trainer)
    trainer.batches = batches
    return trainer


def test_statistics_are_those_of_all_rows_of_all_actors_each_counted_once(tiny):
    trainer = trained(tiny, num_actors=2)
    rows = torch.cat([b.obs[:-1].flatten(0, 1) for b in trainer.batches]).double()
    for torso in (trainer.policy.torso, trainer.policy.value_torso):
        normalizer = torso.normalizer
        assert normalizer.count == len(rows)
        torch.testing.assert_close(normalizer.mean, rows.mean(0), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(
            normalizer.square / normalizer.count, rows.var(0, unbiased=False), rtol=1e-6, atol=1e-9
        )


def test_they_are_in_the_checkpoint_and_predict_applies_them(tiny):
    trainer = trained(tiny)
    loaded = hr.load(trainer.run_dir)
    mine, theirs = trainer.policy.torso.normalizer, loaded.torso.normalizer
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b)
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    with torch.no_grad():
        before, _ = loaded.act(torch.from_numpy(obs), torch.ones(50, dtype=torch.bool), ())
        theirs.load_state_dict(type(theirs)(4).state_dict())
        after, _ = loaded.act(torch.from_numpy(obs), torch.ones(50, dtype=torch.bool), ())
    assert not torch.allclose(before, after)
    features, _ = trainer.policy.act(torch.from_numpy(obs), torch.ones(50, dtype=torch.bool), ())
    assert trainer.policy.predict(obs)[0].tolist() == features.argmax(-1).tolist()


def test_a_resumed_run_goes_on_with_the_same_statistics(tiny):
    algo = hr.PPO(epochs=1, minibatches=2, normalize_returns=True)
    trainer = trained(tiny, algo=algo)
    saved = trainer.learner.returns.state_dict()
    assert saved["count"] > 0
    again = hr.Trainer(tiny(algo=algo, resume=True, network=trainer.config.network))
    for name, value in again.learner.returns.state_dict().items():
        assert torch.equal(value, saved[name])
    again.close()


def test_rewards_are_divided_by_the_deviation_of_discounted_returns(tiny):
    algo = hr.PPO(epochs=1, minibatches=1, normalize_returns=True, gamma=0.9)
    trainer = trained(tiny, algo=algo, total_steps=64)
    (batch,) = trainer.batches
    deviation = batch.discounted_return[batch.valid].std(unbiased=False)
    learner = Learner(hr.Policy(*spaces(trainer)), algo)
    seen = []
    original = hr.PPO._with_targets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hr.PPO, "_with_targets", lambda *args: seen.append(args[2]) or original(*args)
        )
        learner.update(lambda: batch, 1e-3)
    torch.testing.assert_close(seen[0].reward, batch.reward / deviation, rtol=1e-4, atol=1e-6)


def spaces(trainer):
    return trainer.policy.observation_space, trainer.policy.action_space


def test_statistics_stand_still_until_the_last_step_of_an_update(tiny):
    algo = hr.PPO(epochs=2, minibatches=2, learning_rate=1e-9)
    trainer = trained(tiny, algo=algo, total_steps=640)
    # With weights that hardly move, only moving statistics could part learner from actor.
    losses = [result.approx_kl for result in trainer.results]
    assert len(losses) >= 5
    assert max(losses) < 1e-8


def test_a_rare_reward_after_nothing_but_zeros_is_bounded():
    learner = Learner(hr.Policy(Box(-1, 1, (1,)), Discrete(2)), hr.PPO(normalize_returns=True))
    zeros = torch.zeros(1000, 1)
    reward = zeros.clone()
    reward[500] = 1.0
    for rewards, returns in ((zeros, zeros), (reward, reward)):
        batch = Namespace(
            reward=rewards, discounted_return=returns, valid=torch.ones(1000, 1, dtype=torch.bool)
        )
        learner.returns.take(*learner._statistics(batch))
        scaled = learner._scaled(batch)
    assert scaled.max() == 10.0


def test_without_normalisation_no_discounted_return_travels(tiny):
    trainer = trained(tiny, total_steps=64)
    assert trainer.batches[0].discounted_return == ()


@pytest.mark.parametrize("begins", ["mixed", pytest.param("black", marks=pytest.mark.full)])
def test_images_have_the_same_statistics_whether_stacks_are_held_whole_or_as_pictures(
    tiny, begins, tmp_path
):
    network = hr.Network(conv="impala_shallow", normalize_images=True)
    settings = {"env": Stacks, "env_kwargs": {"begins": begins}, "network": network}
    settings |= {"transport": "serial", "total_steps": 256}
    whole, once = (
        trained(tiny, **settings, stacked_frames=how, run_dir=str(tmp_path / how))
        for how in ("whole", "once")
    )
    assert isinstance(whole.batches[0].obs, torch.Tensor)
    assert isinstance(once.batches[0].obs, dict)
    assert not once.batches[0].valid.all()
    ours, theirs = (x.policy.torso.normalizers[0].state_dict() for x in (whole, once))
    assert ours["count"] > 0
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, msg=name)
    rows = torch.cat([batch.obs[:-1].flatten(0, 1) for batch in whole.batches]).double()
    center, scale = ours["center"].double(), ours["scale"].double()
    assert ((rows - center) * scale).square().mean().sqrt().item() == pytest.approx(1.0, abs=0.1)
