"""Precision of a run: chosen automatically, equal for acting and training, without loss."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path

import gymnasium
import pytest
import torch
from worlds import BrightQuarter, IdentityVectorEnv

import headrace as hr
from headrace.actors.collector import Collector, rollout_spec
from headrace.config import checks
from headrace.errors import ConfigError
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.processes import full_float32
from headrace.rundir.config_file import check_resumed, from_json
from headrace.trainer import auto_precision
from headrace.trainer.auto_precision import BFloat16Share, measured, settle
from headrace.transport.slab import Slab
from headrace.types import Rollout, SingleLearner

FAST, SLOW = BFloat16Share(0.6, 0.5, 0.52), BFloat16Share(2.5, 3.0, 2.9)
CONV = hr.Network(conv="impala_shallow")


def make_policy(env=BrightQuarter, network=CONV) -> hr.Policy:
    torch.manual_seed(0)
    envs = env(1)
    return hr.Policy(envs.single_observation_space, envs.single_action_space, network)


@pytest.fixture
def settled(monkeypatch):
    """Return the resolved precision, the policy and messages for a given speed of bfloat16."""

    def run(share=FAST, policy=None, **settings):
        def found(*_):
            assert share is not None, "something was measured"
            return share

        monkeypatch.setattr(auto_precision, "measured", found)
        policy, lines = policy or make_policy(), []
        config = settle(hr.Config("CartPole-v1", **settings), policy, SingleLearner(), lines.append)
        assert policy.precision == config.precision
        return config.precision, " ".join(lines)

    return run


def test_auto_takes_what_was_measured_to_be_faster_and_says_so(settled):
    assert settled(FAST) == (
        "bfloat16",
        "auto: bfloat16 for images (compared with float32, acting takes 0.60 of its time, "
        "learning 0.50)",
    )
    assert settled(SLOW) == (
        "float32",
        "auto: float32 for images (in bfloat16 acting takes 2.50 of its time, learning 3.00)",
    )


@pytest.mark.parametrize(
    "share",
    [BFloat16Share(0.9, 0.9, 0.9), BFloat16Share(1.2, 0.5, 0.6), BFloat16Share(0.5, 1.2, 0.8)],
)
def test_auto_needs_a_clear_gain_and_no_loss_in_either_part(settled, share):
    assert settled(share)[0] == "float32"


def test_bfloat16_is_taken_if_asked_for_with_a_warning_where_it_is_slower(settled):
    assert settled(FAST, precision="bfloat16") == ("bfloat16", "")
    taken, line = settled(SLOW, precision="bfloat16")
    assert taken == "bfloat16"
    assert line == (
        "warning: precision=bfloat16 is slower here than float32: acting takes 2.50 of its time, "
        "learning 3.00"
    )


def test_nothing_is_measured_where_nothing_depends_on_it(settled):
    assert settled(None, precision="float32") == ("float32", "")
    dense = make_policy(IdentityVectorEnv, hr.Network())
    assert settled(None, dense) == ("float32", "")
    taken, line = settled(None, dense, precision="bfloat16")
    assert taken == "float32"
    assert line == "warning: precision=bfloat16 has no effect: this network has no convolutions"
    taken, line = settled(None, deterministic=True, algo=hr.PPO())
    assert (taken, line) == (
        "float32",
        "auto: float32 for images (deterministic=True skips the measurement)",
    )
    own = make_policy(network=hr.Network(torso=lambda space: torch.nn.Flatten()))
    assert settled(None, own) == ("float32", "")


def test_an_own_torso_with_convolutions_is_measured(settled):
    def torso(space):
        return torch.nn.Sequential(ToFloat(), torch.nn.Conv2d(2, 3, 20), torch.nn.Flatten())

    assert settled(FAST, make_policy(network=hr.Network(torso=torso)))[0] == "bfloat16"


class ToFloat(torch.nn.Module):
    def forward(self, x):
        return x.float()


def test_the_measurement_compares_both_parts_and_leaves_the_policy_as_it_is():
    policy = make_policy()
    weights = copy.deepcopy(policy.state_dict())
    share = measured(policy, "cpu", passes=3.0)
    assert all(x > 0 for x in share)
    low, high = sorted((share.acting, share.learning))
    assert low <= share.both <= high
    assert policy.precision == "float32"
    assert all(torch.equal(x, weights[name]) for name, x in policy.state_dict().items())


@pytest.mark.parametrize(("halved", "turns"), [(0.5, 2), (0.8, 6), (1.5, 2)])
def test_the_measurement_ends_once_it_is_clear(halved, turns, monkeypatch):
    asked = []

    def seconds(policy, num, of):
        asked.append(of)
        return halved if of == "bfloat16" else 1.0

    monkeypatch.setattr(auto_precision, "act_s", seconds)
    monkeypatch.setattr(auto_precision, "learn_s", seconds)
    monkeypatch.setattr(auto_precision, "_ENOUGH_S", 1000.0)
    assert measured(make_policy(), "cpu") == (halved, halved, halved)
    assert len(asked) == 4 * turns


@pytest.mark.parametrize(
    ("actors", "passes", "both"),
    [(1, 1.0, 0.5), (1, 20.0, 1.25), (40, 1.0, 1.25), (4, 2.0, 1.0)],
)
def test_beside_a_gpu_that_learns_counts_what_takes_longer(actors, passes, both, monkeypatch):
    """An image costs 1 to act on, 0.5 in bfloat16, and 0.1 or 0.125 to train on."""
    images = []

    def act_s(policy, num, of):
        return num * (0.5 if of == "bfloat16" else 1.0)

    def learn_s(policy, num, of):
        images.append(num)
        return num * (0.125 if of == "bfloat16" else 0.1)

    monkeypatch.setattr(auto_precision, "act_s", act_s)
    monkeypatch.setattr(auto_precision, "learn_s", learn_s)
    share = measured(make_policy(), "meta", passes, 300, actors, at_once=True)
    assert share == pytest.approx((0.5, 1.25, both))
    assert set(images) == {300}
    in_turns = measured(make_policy(), "meta", passes, 300, actors)
    summed = (0.5 / actors + 0.125 * passes) / (1.0 / actors + 0.1 * passes)
    assert in_turns == pytest.approx((0.5, 1.25, summed))


SIZES = {"num_actors": 3, "envs_per_actor": 4, "fragment_length": 50, "batch_size": 1200}


@pytest.fixture
def gpu(monkeypatch):
    """Settings may name a precision."""
    monkeypatch.setattr(checks, "check_device", lambda device: None)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("share", "chosen"),
    [(BFloat16Share(0.3, 1.2, 0.4), "bfloat16"), (BFloat16Share(0.3, 1.2, 1.1), "float32")],
)
def test_on_a_gpu_a_part_that_loses_is_none_where_the_other_takes_longer(share, chosen, settled):
    taken, line = settled(share, device="cuda", **SIZES)
    assert taken == chosen
    assert line.endswith(f"learning 1.20, together {share.both:.2f})")


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_tried_with_as_many_images_as_it_will_learn_from(monkeypatch):
    asked = []
    monkeypatch.setattr(auto_precision, "measured", lambda *of: asked.append(of[2:]) or FAST)
    monkeypatch.setattr(auto_precision, "num_cores", lambda: 2)
    impala, ppo = hr.IMPALA(epochs=1, minibatches=1), hr.PPO(epochs=3, minibatches=4)
    for algo, transport in ((impala, "shm"), (impala, "serial"), (ppo, "shm")):
        config = hr.Config("CartPole-v1", algo, device="cuda", transport=transport, **SIZES)
        settle(config, make_policy(), SingleLearner(), lambda line: None)
    assert asked == [(1.0, 1024, 2, True), (1.0, 1024, 1, False), (3.0, 300, 2, False)]


@pytest.mark.parametrize(("device", "allowed"), [("cpu", True), ("cuda", False), ("cuda:1", False)])
def test_float32_is_kept_from_tf32_where_a_gpu_computes(device, allowed, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    full_float32(device)
    assert torch.backends.cudnn.allow_tf32 == allowed


def test_several_learners_take_what_rank_0_decides(monkeypatch):
    class Second(SingleLearner):
        rank, size = 1, 2

        def broadcast(self, value):
            return "bfloat16"

    monkeypatch.setattr(auto_precision, "measured", None)
    policy = make_policy()
    config = settle(hr.Config("CartPole-v1", num_learners=2), policy, Second(), print)
    assert (config.precision, policy.precision) == ("bfloat16", "bfloat16")


def test_a_run_keeps_its_precision(tiny, finish, monkeypatch):
    settings = {"env": BrightQuarter, "network": CONV, "transport": "serial", "total_steps": 64}
    monkeypatch.setattr(auto_precision, "measured", lambda *_: FAST)
    trainer, _ = finish(tiny(**settings))
    saved = json.loads((trainer.run_dir / "config.json").read_text())["config"]
    assert saved["precision"] == trainer.policy.precision == "bfloat16"
    assert trainer.source is not None
    monkeypatch.setattr(auto_precision, "measured", lambda *_: SLOW)
    again, _ = finish(tiny(**settings | {"total_steps": 128}, resume=True))
    assert again.policy.precision == "bfloat16"
    before, after = from_json(saved), tiny(**settings, resume=True)
    assert " with precision" not in check_resumed(before, after)


def test_a_precision_that_there_is_none_of_names_those_that_there_are():
    with pytest.raises(ConfigError, match=r"precision='bf16' must be .*'bfloat16'"):
        hr.Config(precision="bf16")


def acted(policy: hr.Policy) -> Rollout:
    """Return the policy's actions in 16 x 8 steps."""
    envs = BrightQuarter(8)
    collector = Collector(envs, policy, "quarters")
    collector.reset(3)
    slab = Slab(rollout_spec(policy, 16, 8), 1, 1)
    rollout = Rollout(**slab.trees[0])
    collector.fill(rollout, 0)
    return rollout


@pytest.mark.parametrize("core", [None, "lstm"])
@pytest.mark.parametrize("conv", ["impala_shallow", "impala_deep"])
def test_actor_and_learner_agree_on_policy_to_a_hundredth_in_bfloat16(conv, core):
    """|log pi - log mu| <= 0.01 for every step with the same weights: ratios of 0.99 to 1.01.

    In float32 it is 1e-5. Evaluating bfloat16 actions in float32 differs by more than 0.01.
    """
    policy = make_policy(network=hr.Network(conv=conv, core=core, core_size=16))
    before = acted(policy)
    with torch.no_grad():  # logits that differ by about 1.5
        params = policy(before.obs, before.first, policy.initial_core(8))[0]
        policy.policy_head.weight.mul_(1.5 / params.std(dim=(0, 1)).mean())
    policy.compute_in("bfloat16")
    batch = gather([acted(copy.deepcopy(policy))])
    probabilities = batch.log_prob.exp()
    assert probabilities.min() < 0.2 < 0.5 < probabilities.max()  # it has opinions
    learner = Learner(policy, hr.IMPALA(), num_threads=2)
    difference = learner.log_ratio(batch)[batch.valid].abs().max()
    policy.compute_in("float32")
    other = learner.log_ratio(batch)[batch.valid].abs().max()
    learner.close()
    print(f"{conv} {core}: {float(difference):.5f}, across {float(other):.5f}")
    assert difference <= 0.01 < other


def returns(tmp_path: Path, kind: str, seed: int) -> float:
    """Return the mean return of the last episodes of a run: 2 by chance, 8 at best."""
    config = hr.Config(
        BrightQuarter,
        hr.APPO(learning_rate=2e-3, epochs=2, minibatches=4),
        transport="serial",
        num_actors=1,
        envs_per_actor=16,
        fragment_length=16,
        total_steps=STEPS,
        network=CONV,
        auto_precision=kind,
        seed=seed,
        run_dir=str(tmp_path / f"{kind}{seed}"),
        eval_episodes=0,
        log_interval_s=0.1,
    )
    with contextlib.closing(hr.Trainer(config, notify=lambda line: None)) as trainer:
        results = list(trainer)
    return results[-1].episode_return


STEPS = 6_000


@pytest.mark.slow
def test_bfloat16_learns_to_see_as_float32_does(tmp_path):
    of = {kind: [returns(tmp_path, kind, s) for s in range(4)] for kind in ("float32", "bfloat16")}
    print(of)
    for kind, found in of.items():
        assert min(found) >= 7.0, (kind, found)
    means = [sum(found) / len(found) for found in of.values()]
    assert abs(means[0] - means[1]) <= 0.25


@pytest.mark.slow
def test_a_compiled_network_learns_what_the_plain_one_does(tiny, finish):
    weights = []
    for compiled in (False, True):
        algo = hr.PPO(epochs=1, minibatches=2)
        settings = {"env": BrightQuarter, "network": CONV, "transport": "serial", "algo": algo}
        settings |= {"total_steps": 192, "precision": "float32", "compile": compiled}
        trainer, _ = finish(tiny(**settings, run_dir=f"{tiny().run_dir}{compiled}"))
        assert (trainer.policy.torso._compiled_call_impl is not None) == compiled
        assert copy.deepcopy(trainer.policy).torso._compiled_call_impl is None
        weights.append(torch.cat([p.detach().flatten() for p in trainer.policy.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=2e-3)


def test_compiling_says_where_it_does_nothing_and_needs_a_compiler(tiny, monkeypatch):
    lines: list[str] = []
    hr.Trainer(tiny(compile=True), notify=lines.append).close()
    assert any(line.startswith("warning: compile=True has no effect with") for line in lines)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="compile=True must be False without a C\\+\\+ compiler"):
        tiny(compile=True)


def test_what_is_trained_predicts_in_float32_as_what_is_loaded_does(tmp_path):
    run_dir = str(tmp_path / "run")
    policy = hr.train(
        BrightQuarter, hr.PPO(epochs=1), network=CONV, precision="bfloat16", run_dir=run_dir,
        transport="serial", total_steps=64, envs_per_actor=4, num_actors=1, fragment_length=16,
        eval_episodes=4,
    )  # fmt: skip
    loaded = hr.load(run_dir, trust=True)
    assert policy.precision == loaded.precision == "float32"
    envs = BrightQuarter(16)
    obs, _ = envs.reset(seed=5)
    assert isinstance(policy.observation_space, gymnasium.spaces.Box)
    assert (policy.predict(obs)[0] == loaded.predict(obs)[0]).all()


def test_a_plan_measures_in_the_precision_that_the_run_would_have(monkeypatch):
    from headrace.studies.plan.parts import actor_spec

    monkeypatch.setattr(auto_precision, "measured", lambda *_: FAST)
    for wanted, found in (("auto", "bfloat16"), ("float32", "float32")):
        config = hr.Config(
            BrightQuarter, network=CONV, precision=wanted, num_actors=1, envs_per_actor=4,
            fragment_length=8, batch_size=32,
        )  # fmt: skip
        assert actor_spec(config).policy.precision == found
