from __future__ import annotations

import dataclasses
import io
from functools import partial

import gymnasium
import pytest
import torch

import headrace as hr
from headrace.algos import IMPACT
from headrace.algos.common import policy_outputs
from headrace.algos.minibatches import flatten
from headrace.algos.penalty import Penalty
from headrace.errors import ConfigError
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.ops.rewards import transformed
from headrace.types import Batch, SingleLearner
from tests.tries import few_named

WHOLE = {"epochs": 1, "minibatches": 1}
ALGOS = [
    hr.A2C(),
    hr.IMPALA(**WHOLE),
    hr.APPO(**WHOLE),
    hr.APPO(epochs=2, minibatches=3),
    hr.PPO(epochs=2, minibatches=3, kl_coef=0.1),
    IMPACT(buffer_size=3, passes=2, kl_coef=0.1, kl_target=1e-3),
    hr.IMPALA(**WHOLE, correction="one_step", replay_fraction=0.5, replay_capacity=70),
    hr.IMPALA(minibatches=3, replay_fraction=0.5, replay_capacity=70),
]
IDS = ["a2c", "impala", "appo", "appo-minibatches", "ppo", "impact", "impala-replay"]
IDS += ["impala-minibatches"]


def make_policy(dtype=torch.float32) -> Policy:
    torch.manual_seed(0)
    box = gymnasium.spaces.Box(-1, 1, (3,))
    return Policy(box, gymnasium.spaces.Discrete(4), Network((16,))).to(dtype)


def make_batch(rows: int = 12, columns: int = 40, dtype=torch.float32, seed: int = 5) -> Batch:
    g = torch.Generator().manual_seed(seed)
    first = torch.rand(rows + 1, columns, generator=g) < 0.15
    return Batch(
        obs=torch.randn(rows + 1, columns, 3, generator=g, dtype=dtype),
        first=first,
        action=torch.randint(4, (rows, columns), generator=g),
        log_prob=-1.4 + 0.2 * torch.randn(rows, columns, generator=g, dtype=dtype),
        reward=torch.randn(rows, columns, generator=g, dtype=dtype),
        terminated=torch.rand(rows, columns, generator=g) < 0.1,
        valid=~first[1:],
        core=(),
        targets={},
    )


def first_batch(learner: Learner, batch: Batch) -> Batch:
    return next(
        iter(
            learner.algorithm.batches(learner.policy, lambda: batch, learner.state, SingleLearner())
        )
    )


@pytest.mark.parametrize("algo", ALGOS, ids=IDS)
def test_cutting_a_batch_into_chunks_and_threads_leaves_its_gradient(algo):
    results = []
    for threads, chunk in ((1, 10**9), (1, 50), (3, 70)):
        learner = Learner(make_policy(torch.float64), algo, threads, chunk)
        part = first_batch(learner, make_batch(dtype=torch.float64))
        results.append(learner.gradient(part))
        learner.close()
    for gradient, sums, count in results[1:]:
        torch.testing.assert_close(gradient, results[0][0], rtol=1e-10, atol=1e-10)
        assert count == results[0][2]
        for name, value in sums.items():
            torch.testing.assert_close(value, results[0][1][name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", [hr.A2C, partial(hr.PPO, epochs=2, minibatches=2)])
def test_the_entropy_bonus_has_the_weight_that_an_update_is_given(kind, fused):
    def updated(coef: float, given: float | None) -> torch.Tensor:
        learner = Learner(make_policy(), kind(entropy_coef=coef, fused=fused))
        values = {} if given is None else {"entropy_coef": given}
        for _ in range(2):  # a weight holds until there is another
            learner.update(make_batch, 1e-2, values)
            values = {}
        learner.close()
        return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])

    assert torch.equal(updated(0.5, 0.1), updated(0.1, None))
    assert torch.equal(updated(0.5, 0.0), updated(0.0, None))
    assert not torch.equal(updated(0.5, None), updated(0.1, None))


@pytest.mark.parametrize("core", [None, "lstm"])
def test_the_log_ratio_is_that_of_the_loss_in_any_chunks_and_leaves_no_graph(core):
    torch.manual_seed(0)
    spaces = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(4)
    policy, batch = Policy(*spaces, Network((16,), core=core, core_size=8)), make_batch(columns=90)
    batch.core = tree.map_leaves(lambda x: x.expand(90, -1), policy.initial_core(1))
    for threads, chunk in ((1, 10**9), (1, 50), (3, 70)):
        learner = Learner(policy, hr.IMPALA(), threads, chunk)
        found = learner.log_ratio(batch)
        learner.close()
        expected = policy_outputs(policy, batch).log_prob - batch.log_prob
        assert not found.requires_grad
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "algo", few_named(dict(zip(IDS, ALGOS, strict=True)), ["ppo", "impact", "impala-replay"])
)
def test_threads_that_race_give_bit_identical_weights(algo):
    weights = []
    for _ in range(2):
        learner = Learner(make_policy(), algo, num_threads=4, chunk_steps=24)
        for _ in range(3):
            learner.update(lambda: make_batch(columns=120), 1e-3)
        weights.append([p.clone() for p in learner.policy.parameters()])
        learner.close()
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("algo", ALGOS, ids=IDS)
def test_nothing_on_a_filler_changes_the_gradient_or_the_metrics(algo):
    clean, dirty = make_batch(), make_batch()
    filler = ~dirty.valid
    assert filler.any()
    dirty.reward[filler] = float("nan")
    dirty.log_prob[filler] = float("nan")
    dirty.terminated[filler] = True
    learners = [Learner(make_policy(), algo) for _ in range(2)]
    parts = [first_batch(one, b) for one, b in zip(learners, (clean, dirty), strict=True)]
    (g0, s0, c0), (g1, s1, c1) = (
        one.gradient(part) for one, part in zip(learners, parts, strict=True)
    )
    assert torch.equal(g0, g1)
    assert c0 == c1 == int(parts[0].valid.sum())
    assert s0 == s1


@pytest.mark.parametrize("algo", ALGOS, ids=IDS)
def test_the_step_is_the_sum_divided_by_the_valid_count_and_clipped_to_the_norm(algo):
    algo = dataclasses.replace(algo, max_grad_norm=0.01, optimizer="rmsprop", optimizer_eps=1e3)
    learner = Learner(make_policy(), algo)
    before = torch.cat([p.detach().reshape(-1).clone() for p in learner.policy.parameters()])
    part = first_batch(learner, make_batch())
    gradient, _, count = learner.gradient(part)
    expected = gradient / count
    expected *= 0.01 / expected.norm()
    metrics = learner.step(part, algo.learning_rate)
    after = torch.cat([p.detach().reshape(-1) for p in learner.policy.parameters()])
    step = -algo.learning_rate * expected / ((0.01 * expected**2).sqrt() + 1e3)
    torch.testing.assert_close(after - before, step, rtol=0.05, atol=1e-8)
    assert metrics["grad_norm"] == pytest.approx(float((gradient / count).norm()), rel=1e-5)


def test_the_policy_loss_moves_no_value_weight_and_the_value_loss_no_policy_weight():
    for algo in (
        hr.A2C(value_coef=0.0),
        hr.IMPALA(**WHOLE, value_coef=0.0),
        hr.APPO(**WHOLE, value_coef=0.0),
    ):
        learner = Learner(make_policy(), algo)
        learner.gradient(make_batch())
        loss, _ = algo.loss(learner.policy, make_batch(), learner.state)
        value = [*learner.policy.value_torso.parameters(), *learner.policy.value_head.parameters()]
        grads = torch.autograd.grad(loss, value, allow_unused=True)
        assert all(g is None or not g.any() for g in grads)


def test_ppo_with_learning_rate_zero_has_the_same_loss_in_every_epoch_and_ratio_one():
    algo = hr.PPO(epochs=3, minibatches=1, normalize_advantage=False)
    learner = Learner(make_policy(), algo)
    batch = make_batch()
    with torch.no_grad():
        params, _, _ = learner.policy(batch.obs, batch.first, ())
        batch.log_prob = learner.policy.distribution.log_prob(params[:-1], batch.action)
    seen = []
    for part in algo.batches(learner.policy, lambda: batch, learner.state, SingleLearner()):
        seen.append(learner.step(part, 0.0))
    assert len(seen) == 3
    for metrics in seen:
        assert metrics["policy_loss"] == pytest.approx(seen[0]["policy_loss"], abs=1e-6)
        assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["clipfrac"] == 0.0


@pytest.mark.parametrize("cls", [hr.PPO, hr.APPO])
def test_epochs_visit_every_sample_once_each_and_never_recompute_the_targets(cls):
    algo = cls(epochs=2, minibatches=3, normalize_advantage=False)
    learner = Learner(make_policy(), algo)
    batch = make_batch()
    batch.reward = torch.arange(batch.num_steps, dtype=torch.float32).view(batch.valid.shape)
    advantages: list[dict[float, float]] = [{}, {}]
    for i, part in enumerate(
        algo.batches(learner.policy, lambda: batch, learner.state, SingleLearner())
    ):
        pairs = zip(part.reward[0].tolist(), part.targets["advantage"][0].tolist(), strict=True)
        advantages[i // 3].update(pairs)
        learner.step(part, 1e-3)
    assert len(advantages[0]) == batch.num_steps
    assert advantages[0] == advantages[1]


def test_ppo_stops_all_epochs_once_the_kl_is_too_large():
    algo = hr.PPO(epochs=5, minibatches=2, kl_stop=1e-9, learning_rate=0.1)
    learner = Learner(make_policy(), algo)
    learner.update(make_batch, 0.1)
    assert learner.num_steps == 1


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 2.0), (0.001, 0.5), (0.01, 1.0)])
def test_ppos_penalty_doubles_above_and_halves_below_its_target(kl, factor):
    algo = hr.PPO(epochs=4, minibatches=4, kl_coef=0.2, kl_target=0.01)
    learner = Learner(make_policy(), algo)
    for before in [9.0] * 12 + [kl] * 4:  # the last of 4 epochs of 4 minibatches counts
        algo.after_step(learner.policy, learner.state, {"approx_kl": before})
    next(iter(algo.batches(learner.policy, make_batch, learner.state, SingleLearner())))
    assert learner.state["penalty"].coef == pytest.approx(0.2 * factor)


def test_a_penalty_that_became_tiny_can_come_back():
    penalty = Penalty(1.0, 0.01, window=1)
    for kl in [0.0] * 2000 + [1.0] * 20:
        penalty.note(kl)
        penalty.adapt()
    assert penalty.coef >= 1.0


@pytest.mark.parametrize(("target", "expected"), [(None, 5.0), (0.01, 0.25)])
def test_a_resumed_penalty_goes_on_if_it_adapts_and_is_the_setting_if_not(target, expected):
    saved = Penalty(0.25, target, window=1).state_dict()
    resumed = Penalty(5.0, target, window=1)
    resumed.load_state_dict(saved)
    assert resumed.coef == expected


def test_adapting_to_a_kl_that_no_step_could_show_is_refused():
    with pytest.raises(ConfigError, match=r"kl_target=0.01 must be None where each update is"):
        hr.PPO(epochs=1, minibatches=1, kl_coef=1.0, kl_target=0.01)


def test_frozen_parameters_are_left_alone_and_the_others_learn():
    policy = make_policy()
    frozen = next(policy.torso.parameters()).requires_grad_(False)
    before = frozen.clone(), policy.policy_head.weight.clone()
    learner = Learner(policy, hr.PPO(learning_rate=0.1))
    learner.update(make_batch, 0.1)
    assert torch.equal(frozen, before[0])
    assert not torch.equal(policy.policy_head.weight, before[1])


def test_minibatch_targets_of_appo_are_those_that_its_single_pass_uses():
    whole, parts = hr.APPO(**WHOLE), hr.APPO(epochs=1, minibatches=2)
    learner, batch = Learner(make_policy(torch.float64), parts), make_batch(dtype=torch.float64)
    pieces = list(parts.batches(learner.policy, lambda: batch, learner.state, SingleLearner()))
    sums = [parts.loss(learner.policy, piece, learner.state)[0] for piece in pieces]
    expected, _ = whole.loss(learner.policy, batch, {})
    torch.testing.assert_close(sum(sums), expected, rtol=1e-9, atol=1e-9)


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_valid_samples():
    algo = hr.APPO(epochs=1, minibatches=2, normalize_advantage=True)
    learner = Learner(make_policy(), algo)
    for part in algo.batches(learner.policy, make_batch, learner.state, SingleLearner()):
        advantage = part.targets["advantage"][part.valid]
        assert not part.valid.all()
        assert advantage.mean().abs() < 1e-5
        assert advantage.std() == pytest.approx(1.0, abs=1e-5)


def test_a_reward_scale_is_the_same_as_scaled_rewards():
    weights = []
    for scale, factor in ((3.0, 1.0), (1.0, 3.0)):
        learner, batch = Learner(make_policy(), hr.IMPALA(reward_scale=scale)), make_batch()
        batch.reward *= factor
        learner.update(lambda batch=batch: batch, 1e-3)
        weights.append([p.clone() for p in learner.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("transform", ["abs_one", "soft_asymmetric"])
def test_a_reward_transform_is_the_same_as_transformed_rewards(transform):
    weights = []
    for inside in (True, False):
        algo = hr.IMPALA(reward_transform=transform if inside else "none", reward_scale=2.0)
        learner, batch = Learner(make_policy(), algo), make_batch()
        batch.reward *= 3.0
        if not inside:
            batch.reward = transformed(batch.reward, transform)
        learner.update(lambda batch=batch: batch, 1e-3)
        weights.append([p.clone() for p in learner.policy.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_reward_transform_beside_normalised_returns_is_refused():
    with pytest.raises(ConfigError, match="reward_transform='abs_one' must be 'none' with"):
        hr.PPO(reward_transform="abs_one", normalize_returns=True)


def test_flattening_drops_the_bootstrap_row_and_keeps_steps_together():
    batch = make_batch()
    flat = flatten(batch)
    assert flat.valid.shape == (1, batch.num_steps)
    torch.testing.assert_close(flat.obs[0], batch.obs[:-1].reshape(-1, 3))
    torch.testing.assert_close(flat.reward[0], batch.reward.reshape(-1))
    assert torch.equal(flat.action[0], batch.action.reshape(-1))


# -- checkpoints --------------------------------------------------------------------------------


def weights_after(learner: Learner, seeds: range) -> list[torch.Tensor]:
    """Return all trained values: parameters, and the target's if there is one."""
    batches = (make_batch(seed=seed) for seed in seeds)
    for _ in range(8):
        learner.update(lambda: next(batches), 1e-3)
    modules = [learner.policy, learner.state.get("target", learner.policy)]
    return [p.clone() for module in modules for p in module.parameters()]


@pytest.mark.parametrize("algo", ALGOS, ids=IDS)
def test_a_resumed_learner_continues_bit_for_bit(algo):
    first, second = Learner(make_policy(), algo), Learner(make_policy(), algo)
    batches = (make_batch(seed=seed) for seed in range(100, 120))
    for _ in range(5):  # in the middle of IMPACT's buffer
        first.update(lambda: next(batches), 1e-3)
    file = io.BytesIO()
    torch.save((first.state_dict(), first.own_state()), file)
    second.policy.load_state_dict(first.policy.state_dict())
    file.seek(0)
    shared, own = torch.load(file, weights_only=True)
    second.load_state_dict(shared)
    second.load_own_state([own])
    assert second.num_steps == first.num_steps
    pairs = zip(*(weights_after(one, range(200, 220)) for one in (first, second)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert first.state.get("penalty") == second.state.get("penalty")


def impact(buffer_size: int, passes: int) -> IMPACT:
    return IMPACT(buffer_size=buffer_size, passes=passes)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (impact(3, 2), impact(4, 2), "3 batches of 2 passes, not 4 of 2"),
        (impact(4, 5), impact(4, 2), "4 batches of 5 passes, not 4 of 2"),
        (
            hr.IMPALA(replay_fraction=0.5, replay_capacity=3),
            hr.IMPALA(replay_fraction=0.5, replay_capacity=5),
            "3 columns, not 5",
        ),
    ],
    ids=["size", "passes", "capacity"],
)
def test_a_buffer_of_another_size_is_refused(ours, theirs, words):
    saved = Learner(make_policy(), ours).own_state()
    with pytest.raises(ValueError, match=words):
        Learner(make_policy(), theirs).load_own_state([saved])
