"""A3C: actors apply their gradients to shared weights, and faults of actors don't stop them."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import signal
import threading

import psutil
import pytest
import torch
from patience import wait_until
from tries import few_of
from worlds import IdentityVectorEnv, SpaceIdentityVectorEnv

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.api import resume_config
from headrace.config import checks
from headrace.envs.names import resolve
from headrace.errors import ConfigError
from headrace.learner.batches import gather
from headrace.learner.hogwild import ActorLearner, SharedModel, own_metrics
from headrace.learner.learner import Learner
from headrace.learner.optimizer import Optimizer
from headrace.ops import tree
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.types import Rollout


def state_of(trainer: hr.Trainer) -> dict[str, torch.Tensor]:
    """Return copies of weights, buffers and the optimiser's state."""
    optimizer = trainer.learner.optimizer.memory
    return {k: v.clone() for k, v in (trainer.policy.state_dict() | optimizer).items()}


@pytest.fixture
def after(tiny, finish, tmp_path):
    """Return the state after some updates of a run in one process."""
    runs = iter(range(10))

    def train(algo, updates: int = 20, **settings) -> dict[str, torch.Tensor]:
        run_dir = str(tmp_path / f"run{next(runs)}")
        defaults = {"transport": "serial", "total_steps": 10**5, "run_dir": run_dir}
        defaults["scale_free"] = False  # A3C normalises neither values nor advantages
        config = tiny(algo=algo, **(defaults | settings))
        trainer, _ = finish(config, until=lambda result: result.updates == updates)
        assert trainer.updates == updates
        return state_of(trainer)

    return train


# -- what it computes ---------------------------------------------------------------------------

NETWORKS = {
    "plain": hr.Network((16,)),
    "normalised": hr.Network((16,), normalize_observations=True),
    "recurrent": hr.Network((16,), core="lstm", core_size=8, previous_action_reward=True),
}


PAIRS = [(network, optimizer) for network in NETWORKS for optimizer in ("rmsprop", "adam")]
FEW = [("normalised", "rmsprop"), ("recurrent", "adam")]


@pytest.mark.parametrize(("network", "optimizer"), few_of(PAIRS, FEW))
def test_with_one_actor_it_is_a2c(after, network, optimizer):
    hyper = {"optimizer": optimizer, "lr_schedule": "linear", "lam": 0.9, "entropy_coef": 0.1}
    hyper["entropy_schedule"] = "linear"
    settings = {"network": NETWORKS[network], "total_steps": 2000, "seed": 4}
    synchronous = after(hr.A2C(**hyper), **settings)
    hogwild = after(hr.A3C(learning_rate=hr.A2C().learning_rate, **hyper), **settings)
    assert synchronous["step"] == hogwild["step"] == 20
    for name, value in synchronous.items():
        torch.testing.assert_close(hogwild[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_nested_spaces_and_masks_with_one_actor_are_a2cs_too(after):
    kwargs = {"action_space": "dict", "mask": "info", "nested": True}
    settings = {"env": SpaceIdentityVectorEnv, "env_kwargs": kwargs, "network": hr.Network((16,))}
    a3c = hr.A3C()
    synchronous = after(
        hr.A2C(optimizer="rmsprop", learning_rate=a3c.learning_rate, lam=a3c.lam), **settings
    )
    hogwild = after(a3c, **settings)
    for name, value in synchronous.items():
        torch.testing.assert_close(hogwild[name], value, rtol=1e-5, atol=1e-6)


def test_one_seed_gives_the_same_weights_in_one_process(after):
    one, two = (after(hr.A3C(), num_actors=3) for _ in range(2))
    other = after(hr.A3C(), num_actors=3, seed=1)
    assert one["step"] == 60  # a gradient for each rollout of three actors
    for name, value in one.items():
        assert torch.equal(value, two[name]), name
    assert not torch.equal(one["flat"], other["flat"])


SMALL = hr.Network((8,), normalize_observations=True)


@pytest.fixture
def pair(tiny):
    """Return a shared model of two actors, a slot's experience, and the actors' learners."""
    config = tiny(algo=hr.A3C(), transport="serial", network=SMALL)
    trainer = hr.Trainer(config)
    env = resolve(config.env)
    source = RolloutSource(config.actor_spec(env, copy.deepcopy(trainer.policy)), print)
    source.publish(trainer.policy, 0, 0)
    [(_, _, rollout)] = source.take(1, lambda: False)
    rollout = Rollout(**tree.map_leaves(torch.clone, vars(rollout)))
    source.close()
    model = SharedModel(trainer.learner, num_actors=2, steps_per_update=1)
    policies = [hr.Policy(trainer.policy.observation_space, trainer.policy.action_space,
                          config.network) for _ in range(2)]  # fmt: skip
    buffer = model.opened(config.algo.learning_rate, {})
    actors = [ActorLearner(p, config.algo, i, 2, buffer) for i, p in enumerate(policies)]
    yield trainer.learner, model, rollout, policies, actors
    trainer.close()


def flat(policy: hr.Policy) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


def test_an_actor_changes_the_shared_weights_and_keeps_its_copy_until_it_pulls(pair):
    learner, model, rollout, policies, (actor, _) = pair
    model.opened(1e-2, {})
    before = flat(learner.policy)
    actor.pull()
    assert torch.equal(flat(policies[0]), before)
    statistics = [b.clone() for b in policies[0].buffers()]
    assert statistics
    actor.learn(rollout)
    for kept, value in zip(statistics, policies[0].buffers(), strict=True):
        assert torch.equal(kept, value)  # the trainer takes them from everybody's rollouts
    changed = flat(learner.policy)
    assert not torch.equal(changed, before)
    assert torch.equal(flat(policies[0]), before)
    actor.pull()
    assert torch.equal(flat(policies[0]), changed)


def test_the_gradient_is_of_the_copy_and_the_moments_are_everybodys(pair):
    learner, model, rollout, _, (one, two) = pair
    spaces = (learner.policy.observation_space, learner.policy.action_space)
    reference = Learner(hr.Policy(*spaces, SMALL), hr.A3C())
    reference.policy.load_state_dict(learner.policy.state_dict())
    batch = gather([rollout])
    gradient, _, count = reference.gradient(batch)
    gradient /= count
    gradient *= min(1.0, 0.5 / float(gradient.norm()))
    model.opened(1e-3, {})
    one.pull()
    two.pull()  # both copies are of the same parameters, so both gradients are the same
    one.learn(rollout)
    two.learn(rollout)
    for _ in range(2):
        reference.optimizer.step(gradient, 1e-3)
    for name, value in reference.optimizer.memory.items():
        torch.testing.assert_close(learner.optimizer.memory[name], value)


@pytest.mark.parametrize(("kind", "limit"), [("rmsprop", 10.0), ("adam", 32.0)])
def test_a_step_is_bounded_whatever_others_do_to_the_moments_meanwhile(kind, limit):
    owner = Optimizer(kind, torch.zeros(20_000), 1e-5)
    memory, mine = owner.memory, Optimizer(kind, torch.zeros(20_000), 1e-5)
    mine.use(memory, racing=True)
    stop = threading.Event()

    def forget() -> None:
        while not stop.is_set():
            memory["square"].zero_()

    other = threading.Thread(target=forget, daemon=True)
    other.start()
    try:
        for _ in range(300):
            before = memory["flat"].clone()
            mine.step(torch.full((20_000,), 0.3), 1e-3)
            assert (memory["flat"] - before).abs().max() <= limit * 1e-3 * 1.01
    finally:
        stop.set()
        other.join()


def test_the_learning_rate_is_the_one_that_the_trainer_wrote_last(pair):
    learner, model, rollout, _, (actor, _) = pair
    before = flat(learner.policy)
    actor.pull()
    model.opened(0.0, {})
    actor.learn(rollout)
    assert torch.equal(flat(learner.policy), before)


def test_the_lag_counts_the_gradients_of_others_since_the_pull(pair):
    _, _, rollout, _, (one, two) = pair
    one.pull()
    two.pull()
    assert two.learn(rollout) == 0
    two.pull()
    assert two.learn(rollout) == 0
    assert one.learn(rollout) == 2


def test_a_slot_reports_the_metrics_of_its_own_gradient_and_no_nan(pair):
    learner, _, rollout, _, (actor, _) = pair
    expected = Learner(learner.policy, hr.A3C()).train(lambda: gather([rollout]), 0.0)
    actor.pull()
    actor.learn(rollout)
    assert own_metrics(rollout) == [pytest.approx(expected)]
    rollout.terminated[:], rollout.reward[:] = True, 1.0  # constant targets explain no variance
    actor.learn(rollout)
    [metrics] = own_metrics(rollout)
    assert "explained_variance" not in metrics


# -- with actors as processes -------------------------------------------------------------------


def test_actors_learn_while_the_trainer_takes_no_step(tiny):
    config = tiny(algo=hr.A3C(), num_actors=2)
    with contextlib.closing(hr.Trainer(config)) as trainer:
        before = flat(trainer.policy)
        model, policy = trainer._loop.actors.shared, copy.deepcopy(trainer.policy)
        spec = config.actor_spec(resolve(config.env), policy)
        source = RolloutSource(spec, print, model.opened(1e-3, {}))
        source.publish(policy, 0, 0)
        try:
            slots = config.slots_per_actor * config.num_actors
            wait_until(lambda: int(model._views["applied"].sum()) == slots)
        finally:
            source.close()
        assert trainer.updates == 0
        assert not torch.equal(flat(trainer.policy), before)


@pytest.mark.parametrize("optimizer", ["rmsprop", pytest.param("adam", marks=pytest.mark.slow)])
def test_two_processes_solve_the_identity(tmp_path, optimizer):
    config = hr.Config(
        IdentityVectorEnv,
        hr.A3C(learning_rate=3e-3, optimizer=optimizer),
        num_actors=2,
        envs_per_actor=16,
        fragment_length=16,
        total_steps=200_000,
        network=hr.Network((32,)),
        run_dir=str(tmp_path / "run"),
        eval_episodes=0,
        log_interval_s=0.1,
    )
    results = []
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for result in trainer:
            results.append(result)
            solved = (result.episode_return or 0.0) > 7.95
            if solved and any(result.lag_max for result in results):  # both actors train
                trainer.stop()
    assert hr.evaluate(trainer.policy, IdentityVectorEnv, 50).mean >= 7.9  # of 8
    assert all(result.policy_loss is not None for result in results)
    assert max(result.lag_max for result in results) >= 1
    saved = hr.load(trainer.run_dir).state_dict()
    assert all(torch.equal(v, saved[k]) for k, v in trainer.policy.state_dict().items())


def test_killed_actors_are_replaced_and_the_others_go_on(tiny):
    network = hr.Network((512, 512))  # so that much of the time goes into applying gradients
    config = tiny(algo=hr.A3C(), num_actors=2, total_steps=10**9, network=network)
    with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer:
        for result in trainer:
            if result.updates >= 4 * (result.restarts + 1):
                if result.restarts == 3:
                    trainer.stop()
                else:  # unless it is dead already and a replacement isn't counted yet
                    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                        os.kill(trainer.source.pids()[result.restarts % 2], signal.SIGKILL)
                        wait_for_death(trainer, result.restarts % 2)
        assert result.restarts == 3
    assert all(torch.isfinite(p).all() for p in trainer.policy.parameters())


def wait_for_death(trainer, actor: int) -> None:
    process = psutil.Process(trainer.source.pids()[actor])
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


TRAINER = """
import headrace as hr

hr.train(
    "CartPole-v1", hr.A3C(), num_actors=2, envs_per_actor=4, fragment_length=8, run_dir="run",
    total_steps=10**9, log_interval_s=0.0, callbacks=[lambda result: print("UPDATE", flush=True)],
)
"""


def test_nothing_outlives_a_killed_trainer_and_its_memory_is_freed(start, gone):
    script = start("-c", TRAINER)
    script.wait_for("UPDATE")
    family = script.family()
    assert len(family) >= 4  # itself, the fork server, two actors
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert gone(family) == []
    ours = re.compile("|".join(rf"_{p.pid}_" for p in family))
    assert [name for name in os.listdir("/dev/shm") if ours.search(name)] == []


# -- checkpoints and settings -------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", few_of(["rmsprop", "adam"], ["adam"]))
def test_a_resumed_run_in_one_process_ends_where_an_uninterrupted_one_does(
    tiny, finish, tmp_path, optimizer
):
    algo = hr.A3C(optimizer=optimizer, lr_schedule="linear")
    settings = {"algo": algo, "transport": "serial", "num_actors": 2, "deterministic": True}
    settings |= {"total_steps": 2560, "checkpoint_interval": 512}
    whole, _ = finish(tiny(**settings))
    folder = sorted((whole.run_dir / "checkpoints").glob("step_*"), key=lambda p: int(p.name[5:]))
    checkpoint_writer.point("latest", folder[0])
    resumed, _ = finish(resume_config(whole.run_dir))
    assert resumed.learner.num_steps == whole.learner.num_steps == 2 * whole.updates
    expected = state_of(whole)
    assert all(torch.equal(value, expected[name]) for name, value in state_of(resumed).items())


def test_a_resumed_run_of_processes_continues_the_optimisers_state(tiny, finish):
    first, _ = finish(tiny(algo=hr.A3C(), num_actors=2, checkpoint_interval=64))
    before = state_of(first)
    longer = resume_config(first.run_dir, total_steps=1280, log_interval_s=0.0)
    with hr.Trainer(longer) as trainer:
        loaded = state_of(trainer)
    assert all(torch.equal(value, before[name]) for name, value in loaded.items())
    size = (checkpoint.find(first.run_dir) / "trainer.pt").stat().st_size
    assert size < 2 * before["flat"].nbytes + 20_000  # the moments alone, not the whole buffer
    second, after = finish(longer)
    assert after[-1].env_steps >= 1280
    assert second.learner.optimizer.memory["step"] > before["step"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, ["device", "a3c", "'cpu'"]),
        ({"max_policy_lag": 3}, ["max_policy_lag=3", "a3c", "None"]),
    ],
    ids=["device", "max_policy_lag"],
)
def test_settings_that_make_no_sense_are_refused_in_one_sentence(
    tiny, monkeypatch, settings, words
):
    monkeypatch.setattr(checks, "check_device", lambda device: None)
    with pytest.raises(ConfigError) as error:
        tiny(algo=hr.A3C(), **settings)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("hyper", [{"normalize_returns": True}, {"max_lag": 0}], ids=str)
def test_hyperparameters_that_make_no_sense_are_refused(hyper):
    with pytest.raises(ConfigError, match=f"{next(iter(hyper))}=.* must be"):
        hr.A3C(**hyper)
