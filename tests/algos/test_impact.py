"""IMPACT against Algorithm 1 and its equations; its settings."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.algos import IMPACT, impact
from headrace.errors import ConfigError
from headrace.learner.learner import Learner
from headrace.nn import Policy
from headrace.types import Batch, SingleLearner
from tests.algos.test_identity import final_return
from tests.learner.test_learner import make_batch, make_policy
from tests.ops.oracles import random_stream, vtrace_oracle
from tests.ops.test_mutants import mutate

LR = 1e-2


def log_prob_of(policy: Policy, batch: Batch) -> Tensor:
    with torch.no_grad():
        params, _, _ = policy(batch.obs, batch.first, ())
        return policy.distribution.log_prob(params[:-1], batch.action)


def float64_batch(seed: int) -> Batch:
    return make_batch(rows=7, columns=9, dtype=torch.float64, seed=seed)


def steps(algo: IMPACT, learner: Learner, count: int, rate: float = LR) -> Iterator[Batch]:
    """Yield each batch just before its optimiser step; new ones come from the seeds 0, 1, 2 …"""
    fresh = (float64_batch(seed) for seed in range(10_000))
    while count > 0:
        for batch in algo.batches(
            learner.policy, lambda: next(fresh), learner.state, SingleLearner()
        ):
            yield batch
            algo.after_step(learner.policy, learner.state, learner.step(batch, rate))
            count -= 1


def weights(module: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in (*module.parameters(), *module.buffers())]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


# -- Algorithm 1 --------------------------------------------------------------------------------


def literal_visits(size: int, passes: int, count: int) -> list[tuple[int, int, int]]:
    """Check slot, batch and number of earlier passes, by lines 6 and 10."""
    buffer: list[dict[str, int] | None] = [None] * size
    visits, arrived = [], 0
    for t in range(count):
        slot = t % size
        if buffer[slot] is None:
            buffer[slot] = {"batch": arrived, "k": 0}
            arrived += 1
        visits.append((slot, buffer[slot]["batch"], buffer[slot]["k"]))
        buffer[slot]["k"] += 1
        if buffer[slot]["k"] == passes:
            buffer[slot] = None
    return visits


def check_visits(module: ModuleType) -> None:
    for size, passes in [(1, 1), (1, 2), (4, 2), (3, 5)]:
        for t_frequency in (1, 3):
            algo = module.IMPACT(buffer_size=size, passes=passes, t_frequency=t_frequency)
            learner = Learner(make_policy(torch.float64), algo)
            first = [float64_batch(seed).reward[0, 0].item() for seed in range(48)]
            times_seen: dict[int, int] = {}
            ours = []
            for t, batch in enumerate(steps(algo, learner, 48)):
                number = first.index(batch.reward[0, 0].item())
                times_seen[number] = times_seen.get(number, -1) + 1
                ours.append((t % size, number, times_seen[number]))
            assert ours == literal_visits(size, passes, 48)
            more = algo.batches(
                learner.policy, lambda: float64_batch(0), learner.state, SingleLearner()
            )
            assert len(list(more)) == t_frequency


def check_targets(module: ModuleType) -> None:
    """Check that targets are constant over passes, and change with the target network."""
    for t_target in (None, 5, 13):
        algo = module.IMPACT(buffer_size=3, passes=4, t_target=t_target)
        policy = make_policy(torch.float64)
        policy.register_buffer("mark", torch.zeros(()))
        learner = Learner(policy, algo)
        snapshot, version = copy.deepcopy(policy), 0
        evaluated: dict[float, tuple[int, Tensor, dict[str, Tensor]]] = {}
        versions = []
        for t, batch in enumerate(steps(algo, learner, 60)):
            due = t > 0 and t % (t_target or 12) == 0
            if due:
                snapshot, version = copy.deepcopy(policy), version + 1
            assert same(weights(learner.state["target"]), weights(snapshot))
            policy.mark += 1.0
            key = batch.reward[0, 0].item()
            if key not in evaluated:
                kept = {name: x.clone() for name, x in batch.targets.items()}
                evaluated[key] = version, log_prob_of(snapshot, batch), kept
            versions.append(evaluated[key][0])
            assert torch.equal(batch.targets["log_prob"], evaluated[key][1])
            assert all(torch.equal(x, evaluated[key][2][k]) for k, x in batch.targets.items())
        assert len(set(versions)) >= 4
        assert versions == [evaluated_at(t, 3, 4) // (t_target or 12) for t in range(60)]


def evaluated_at(t: int, size: int, passes: int) -> int:
    """Return the iteration in which the batch of iteration t was new."""
    visits = literal_visits(size, passes, t + 1)
    return next(i for i, visit in enumerate(visits) if visit[1] == visits[-1][1])


def check_advantage(module: ModuleType) -> None:
    """Compute V-trace-GAE of the target network as literal sums."""
    algo = module.IMPACT(gamma=0.9, lam=0.8, rho_bar=1.3, c_bar=0.7)
    policy, batch = make_policy(torch.float64), make_batch(11, 6, torch.float64)
    state = algo.init(policy)
    with torch.no_grad():
        for p in policy.parameters():  # what learns is not what evaluates
            p += 0.3
    stream = random_stream(3, 11, 6)
    target = state["target"]
    batch = dataclasses.replace(
        batch, first=stream.first, valid=~stream.first[1:], reward=stream.reward,
        terminated=stream.terminated, log_prob=log_prob_of(target, batch) - stream.log_ratio,
    )  # fmt: skip
    with torch.no_grad():
        value = target(batch.obs, batch.first, ())[1]
    vs, _, _ = vtrace_oracle(dataclasses.replace(stream, value=value), 0.9, 0.8, 1.3, 0.7, 1.0)
    (found,) = algo.batches(policy, lambda: batch, state, SingleLearner())
    torch.testing.assert_close(found.targets["vs"], vs, rtol=1e-10, atol=1e-10)
    advantage = vs - value[:-1]
    torch.testing.assert_close(found.targets["advantage"], advantage, rtol=1e-10, atol=1e-10)


def check_loss(module: ModuleType) -> None:
    """Compute line 8 for each ratio as a sum over steps, and its gradient."""
    for ratio in ("R1", "R2", "R3"):
        algo = module.IMPACT(
            ratio=ratio, rho=1.5, clip=0.25, kl_coef=0.7, value_coef=0.6, entropy_coef=0.05
        )
        policy, state = make_policy(torch.float64), None
        state = algo.init(policy)
        batch = make_batch(9, 8, torch.float64)
        batch.log_prob = batch.log_prob + 0.4 * torch.randn_like(batch.log_prob)
        (batch,) = algo.batches(policy, lambda batch=batch: batch, state, SingleLearner())
        with torch.no_grad():
            policy.policy_head.weight += 0.2 * torch.randn_like(policy.policy_head.weight)
        params, value, _ = policy(batch.obs, batch.first, ())
        with torch.no_grad():
            old = state["target"](batch.obs, batch.first, ())[0]
        p, p_target = params[:-1].softmax(-1), old[:-1].softmax(-1)
        expected, higher = 0.0, 0
        for t, b in batch.valid.nonzero().tolist():
            a = int(batch.action[t, b])
            pi, pi_target, mu = p[t, b, a], p_target[t, b, a], batch.log_prob[t, b].exp()
            denominator = {"R1": pi_target, "R2": mu, "R3": max(pi_target, mu / 1.5)}[ratio]
            higher += int(mu / 1.5 > pi_target)
            r, advantage = pi / denominator, batch.targets["advantage"][t, b]
            clipped = min(max(r, torch.tensor(0.75)), torch.tensor(1.25))
            surrogate = min(r * advantage, clipped * advantage)
            kl = (p_target[t, b] * (p_target[t, b] / p[t, b]).log()).sum()
            entropy = -(p[t, b] * p[t, b].log()).sum()
            error = value[t, b] - batch.targets["vs"][t, b]
            expected = expected - surrogate + 0.7 * kl + 0.3 * error**2 - 0.05 * entropy
        assert 5 < higher < batch.valid.sum() - 5
        loss, _ = algo.loss(policy, batch, state)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9, check_dtype=False)
        parameters = list(policy.parameters())
        for x, y in zip(
            torch.autograd.grad(loss, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


CHECKS = (check_visits, check_targets, check_advantage, check_loss)
KL = 'distribution.kl(targets["params"], outputs.params)'


@pytest.mark.filterwarnings("ignore:t_target")
@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__[6:])
def test_it_is_algorithm_1_literally(check):
    check(impact)


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_loss, KL, 'distribution.kl(outputs.params, targets["params"])'),
        (check_loss, KL, KL.replace('targets["params"]', "outputs.params.detach()")),
        (check_loss, "self.ratio, self.rho", '"R3", self.rho'),
        (check_loss, "self.ratio, self.rho", "self.ratio, 2.0"),
        (check_loss, 'targets["log_prob"], behaviour', 'behaviour, targets["log_prob"]'),
        (check_loss, 'targets["vs"], self.clip', 'targets["advantage"], self.clip'),
        (check_advantage, "returns.vs - outputs.value[:-1]", "returns.advantage"),
        (check_advantage, "returns.vs - outputs.value[:-1]", "returns.pg_advantage"),
        (check_advantage, "outputs.log_prob - batch.log_prob,\n            *batch.stream",
         "batch.log_prob - outputs.log_prob,\n            *batch.stream"),
        (check_advantage, "lam=self.lam", "lam=1.0"),
        (check_advantage, "rho_bar=self.rho_bar", "rho_bar=1.0"),
        (check_advantage, "self._with_targets(target,", "self._with_targets(policy,"),
        (check_targets, "self._with_targets(target,", "self._with_targets(policy,"),
        (check_targets, "self.resolved_t_target == 0", "self.resolved_t_target == 1"),
        (check_targets, "% self.resolved_t_target", "% (self.buffer_size * self.passes)"),
        (check_targets, "copy.deepcopy(policy)", "policy"),
        (check_visits, 'state["steps"], lambda', '0 * state["steps"], lambda'),
        (check_visits, "CircularBuffer(self.buffer_size, self.passes",
         "CircularBuffer(self.buffer_size, self.passes + 1"),
        (check_visits, "range(self.t_frequency)", "range(1)"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:t_target")
def test_a_broken_impact_is_caught(check, old, new):
    broken = mutate(impact, "IMPACT", old, new)
    with pytest.raises((AssertionError, RuntimeError, ConfigError)):
        check(broken)


def test_a_target_that_keeps_its_buffers_is_caught():
    broken = mutate(impact, "copy_module", "*module.buffers()", "")
    with pytest.raises(AssertionError):
        check_targets(broken)


def test_with_learning_rate_zero_every_pass_over_a_batch_has_the_same_loss():
    algo = IMPACT(buffer_size=2, passes=4, t_target=5, kl_coef=0.5)
    learner, seen = Learner(make_policy(torch.float64), algo), {}
    for batch in steps(algo, learner, 32, rate=0.0):
        loss, metrics = algo.loss(learner.policy, batch, learner.state)
        values = [loss.item(), *(x.item() for x in metrics.values())]
        seen.setdefault(batch.reward[0, 0].item(), []).append(values)
        assert metrics["target_kl"].item() == pytest.approx(0.0, abs=1e-12)
    assert [len(passes) for passes in seen.values()] == [4] * 8
    assert all(values == passes[0] for passes in seen.values() for values in passes)


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 2.0), (0.001, 0.5), (0.01, 1.0)])
def test_the_penalty_adapts_only_when_the_target_is_updated(kl, factor):
    algo = IMPACT(buffer_size=3, passes=2, kl_coef=0.2, kl_target=0.01)
    learner = Learner(make_policy(), algo)
    for before in (9.0, 9.0, 9.0, kl, kl):  # the last of two passes over three batches counts
        algo.after_step(learner.policy, learner.state, {"target_kl": before})
        assert learner.state["penalty"].coef == 0.2
    algo.after_step(learner.policy, learner.state, {"target_kl": kl})
    assert learner.state["penalty"].coef == pytest.approx(0.2 * factor)


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"t_target": 0}, "t_target=0 must be 1 or more"),
        ({"rho": 0.5}, r"rho=0.5 must be 1 or more \(nearest: 1.0\)"),
        ({"ratio": "R4"}, "ratio='R4' must be 'R1', 'R2' or 'R3'"),
        ({"buffer_size": 0}, "buffer_size=0 must be 1 or more"),
        ({"passes": 0}, "passes=0 must be 1 or more"),
        ({"t_frequency": 0}, "t_frequency=0 must be 1 or more"),
        ({"clip": 0.0}, "clip=0.0 must be above 0"),
        ({"kl_target": 0.01}, "kl_target=0.01 must be above 0 and needs kl_coef > 0"),
        ({"max_lag": 0}, "max_lag=0 must be 1 or more"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(settings, words):
    with pytest.raises(ConfigError, match=words):
        IMPACT(**settings)


@pytest.mark.parametrize("t_target", [1, 4])
def test_a_target_that_follows_too_closely_is_warned_of(t_target):
    with pytest.warns(UserWarning, match=f"t_target={t_target}: in the paper training failed"):
        IMPACT(t_target=t_target)


@pytest.mark.parametrize(
    "settings",
    [{}, {"t_target": 5}, {"buffer_size": 1}],
)
def test_other_targets_are_not_warned_of(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IMPACT(**settings)


def test_the_discrete_identity_is_solved(tmp_path):
    algo = IMPACT(learning_rate=5e-3, lam=0.95)
    assert final_return(algo, tmp_path, continuous=False) >= 7.9  # of 8


def test_the_discrete_identity_is_solved_with_replay_and_one_step_corrections(tmp_path):
    algo = hr.IMPALA(learning_rate=1e-2, correction="one_step", replay_fraction=0.5)
    assert final_return(algo, tmp_path, continuous=False) >= 7.9
