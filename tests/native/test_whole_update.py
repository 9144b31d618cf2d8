"""Whole updates in one call give the same weights as single steps, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from native.test_dense import compiled, random_case

import headrace as hr
from headrace.errors import NonFinite
from headrace.learner import native
from headrace.learner.learner import Learner
from headrace.learner.whole_update import WholeUpdate, has_fixed_terms
from headrace.native import library
from headrace.nn import Network, Policy

pytestmark = pytest.mark.skipif(
    library.functions(torch.float32) is None, reason="the compiled functions weren't built"
)


def pair(seed: int, algo=None, threads=1, **changes):
    """Return a learner that takes updates at once, one that doesn't, and a batch for both."""
    policy, random_algo, batch = random_case(seed)
    algo = algo or dataclasses.replace(random_algo, **changes)
    learners = []
    for one in (policy, copy.deepcopy(policy)):
        torch.manual_seed(seed)  # of the generator of minibatches
        learners.append(Learner(one, algo, threads))
    learners[1]._whole_update = None
    return *learners, batch


def count_calls(monkeypatch) -> list[int]:
    calls: list[int] = []
    original = WholeUpdate.steps

    def steps(self, *args):
        calls.append(1)
        return original(self, *args)

    monkeypatch.setattr(WholeUpdate, "steps", steps)
    return calls


def check(seed: int) -> None:
    """Train on the same data in both ways, with one to three threads."""
    kind, threads = random.Random(seed).choice(("adam", "rmsprop")), 1 + seed % 3
    at_once, one_by_one, batch = pair(seed, optimizer=kind, threads=threads)
    at_once._whole_update._parts = lambda algo, size: min(threads, size)
    at_once._chunks.min_steps = one_by_one._chunks.min_steps = 1
    for rate in (1e-3, 3e-4):
        metrics, expected = (x.train(lambda: batch, rate) for x in (at_once, one_by_one))
        assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)
        for name, tensor in one_by_one.optimizer.memory.items():
            assert torch.equal(at_once.optimizer.memory[name], tensor), (seed, name)
    assert at_once.num_steps == one_by_one.num_steps
    for own, other in zip(at_once.own, one_by_one.own, strict=True):
        assert own == pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True)
    for one in (at_once, one_by_one):
        one.close()


def test_updates_at_once_are_those_of_single_steps(monkeypatch):
    calls = count_calls(monkeypatch)
    for seed in range(30):
        check(seed)
    assert len(calls) > 15  # two per learner with minibatches


def test_parts_of_synchronous_updates_depend_on_the_size_alone():
    sizes = (1, 127, 128, 511, 512, 2048, 10_000)
    for threads in (1, 3):
        learner, _, _ = pair(3, hr.PPO(), threads=threads)
        parts = [learner._whole_update._parts(learner.algorithm, size) for size in sizes]
        assert parts == [1, 1, 2, 2, 4, 8, 8]
        learner.close()
    learner, _, _ = pair(3, hr.APPO(), threads=3)
    assert learner._whole_update._parts(learner.algorithm, 511) == 1
    assert learner._whole_update._parts(learner.algorithm, 10_000) == 3
    learner.close()


def test_the_number_of_threads_does_not_change_synchronous_updates(monkeypatch):
    monkeypatch.setattr("headrace.learner.whole_update._PER_PART", 1)
    calls = count_calls(monkeypatch)
    for seed in range(8):
        weights = []
        for threads in (1, 2, 3):
            learner, other, batch = pair(seed, hr.PPO(epochs=2, minibatches=2), threads=threads)
            learner.train(lambda: batch, 1e-3)  # noqa: B023
            weights.append(learner.optimizer.memory["flat"].clone())
            learner.close()
            other.close()
        assert torch.equal(weights[0], weights[1])
        assert torch.equal(weights[0], weights[2])
    assert len(calls) > 12


MUTANTS = [
    ("to + r * size, (const char *)from + order[r] * stride", "to + r * size, (const char *)from"),
    ("count += valid[at] != 0;\n        total", "count += 1;\n        total"),
    ("(count > 2 ? count - 1 : 1)", "count"),
    ("at[i] = any && !mask[i] ? -(real)INFINITY : at[i];", ""),
    ("any && !mask[i]", "!mask[i]"),
    ("(int64_t k = 1; k < job->update->parts", "(int64_t k = 2; k < job->update->parts"),
    ("sums[i] += job->shares[k].sums[i];", "sums[i] = job->shares[k].sums[i];"),
    ("if (norm > max_norm)", "if (norm > 2 * max_norm)"),
    ("optimizer->step + (double)before", "optimizer->step"),
    ("flat[i] -= rate * g / (SQRT(square[i]) + eps);", "flat[i] -= rate * g;"),
    ("square[i] = keep * square[i] + take * g * g;", "square[i] = take * g * g;"),
]  # fmt: skip


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """Returns the unchanged functions, compiled as changed ones are."""
    same = "/* Return whether a step", "/* Return if a step"
    return library.loaded(str(compiled(tmp_path_factory.mktemp("right"), *same)))


@pytest.mark.parametrize(("old", "new"), MUTANTS[::5])
def test_a_changed_step_is_seen(old, new, right, tmp_path, monkeypatch):
    check_mutant(old, new, right, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_every_changed_step_is_seen(old, new, right, tmp_path, monkeypatch):
    check_mutant(old, new, right, tmp_path, monkeypatch)


def check_mutant(old: str, new: str, right, tmp_path: Path, monkeypatch) -> None:
    changed = library.loaded(str(compiled(tmp_path, old, new)))
    functions, plain = (library.functions_of(x, torch.float32, 0) for x in (changed, right))
    mixed = plain._replace(update=functions.update)  # single steps stay right
    monkeypatch.setattr(native, "functions", lambda dtype: mixed)
    monkeypatch.setattr("headrace.learner.optimizer.functions", lambda dtype: plain)
    with pytest.raises((AssertionError, NonFinite)):
        for seed in range(120):
            check(seed)


# -- what is left to single steps -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stopping(hr.PPO):
    """Stops after two steps."""

    def after_step(self, policy, state, metrics):
        state["penalty"].note(0.0)
        state["steps"] = state.get("steps", 0) + 1
        return state["steps"] == 2


@dataclasses.dataclass(frozen=True)
class OwnTerms(hr.APPO):
    """Has terms that depend on the outputs of the policy."""

    def terms(self, outputs, batch, state):
        terms = super().terms(outputs, batch, state)
        return terms._replace(advantage=terms.advantage + outputs.entropy)


@pytest.mark.parametrize("kind", [Stopping, OwnTerms])
def test_algorithms_that_change_a_step_take_single_ones(kind, monkeypatch):
    calls = count_calls(monkeypatch)
    algo = kind(epochs=2, minibatches=2)
    assert algo.has_fixed_terms
    assert not has_fixed_terms(algo)
    learner, _, batch = pair(3, algo)
    learner.train(lambda: batch, 1e-3)
    assert not calls
    assert learner.num_steps == (2 if kind is Stopping else 4)
    learner.close()


@dataclasses.dataclass(frozen=True)
class Renamed(hr.PPO):
    """Changes a default only."""

    clip: float = 0.1


@pytest.mark.parametrize(
    ("algo", "is_fixed"),
    [
        (Renamed(), True),
        (hr.PPO(kl_stop=0.1), False),
        (hr.APPO(epochs=1, minibatches=1), False),
        (hr.IMPALA(), True),
        (hr.IMPACT(), False),
        (hr.A2C(), False),
    ],
)
def test_which_algorithms_have_fixed_terms(algo, is_fixed):
    assert has_fixed_terms(algo) == is_fixed


@dataclasses.dataclass(frozen=True)
class WithMetric(hr.PPO):
    """Adds a metric to its terms."""

    @property
    def has_fixed_terms(self) -> bool:
        return True

    def terms(self, outputs, batch, state):
        total = batch.targets["advantage"].abs().where(batch.valid, 0.0).sum()
        return super().terms(outputs, batch, state)._replace(sums={"size": total})

    def after_step(self, policy, state, metrics):
        return super().after_step(policy, state, metrics)


@pytest.mark.parametrize(
    ("algo", "is_whole"),
    [
        (hr.IMPALA(epochs=2, minibatches=3, normalize_advantage=True), True),
        (hr.APPO(clip_around="learner", normalize_advantage=True), True),
        (hr.APPO(pg_rho_bar=1.5, normalize_advantage=True), True),
        (WithMetric(epochs=2, minibatches=3), False),
    ],
)
def test_weights_and_metrics_of_terms_are_those_of_minibatches(algo, is_whole, monkeypatch):
    calls = count_calls(monkeypatch)
    for seed in (4, 9):
        at_once, one_by_one, batch = pair(seed, algo)
        fresh = partial(copy.copy, batch)
        metrics, expected = (x.train(fresh, 1e-3) for x in (at_once, one_by_one))
        assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-6)
        flat = at_once.optimizer.memory["flat"]
        assert torch.equal(flat, one_by_one.optimizer.memory["flat"])
        for one in (at_once, one_by_one):
            one.close()
    assert len(calls) == 2 * is_whole


def test_frozen_parameters_and_large_minibatches_take_single_steps(monkeypatch):
    calls = count_calls(monkeypatch)
    algo = hr.PPO(epochs=1, minibatches=2)
    learner, _, batch = pair(3, algo)
    learner.policy.policy_head.bias.requires_grad_(False)
    learner.train(lambda: batch, 1e-3)
    learner.policy.policy_head.bias.requires_grad_(True)
    learner._chunks.max_steps = 1
    assert not learner._whole_update.fits(
        algo.batches(learner.policy, lambda: batch, learner.state, learner.group),
        algo,
        learner.state,
    )
    assert not calls
    learner.close()


# -- errors ---------------------------------------------------------------------------------------


def test_a_step_that_is_not_finite_is_not_taken():
    torch.manual_seed(0)
    policy = Policy(Box(-1, 1, (3,)), Discrete(2), Network((8,)))
    algo = hr.PPO(epochs=2, minibatches=4, normalize_advantage=False, max_grad_norm=math.inf)
    _, _, batch = random_case(1)
    batch = dataclasses.replace(
        batch, obs=torch.zeros(*batch.first.shape, 3), action=torch.zeros_like(batch.valid).long()
    )
    batch.reward[0, 0] = math.inf
    learner = Learner(policy, algo, 1)
    before = learner.optimizer.memory["flat"].clone()
    with pytest.raises(NonFinite, match=r"was not taken: value targets"):
        for _ in range(2):
            learner.train(lambda: batch, 1e-3)
    taken = learner.num_steps
    assert taken < 8
    assert float(learner.optimizer.memory["step"]) == taken
    assert torch.isfinite(learner.optimizer.memory["flat"]).all()
    assert torch.equal(before, learner.optimizer.memory["flat"]) == (taken == 0)
    learner.close()


def test_choices_out_of_range_are_an_error():
    policy = Policy(Box(-1, 1, (3,)), Discrete(2), Network((8,)))
    _, _, batch = random_case(1)
    batch = dataclasses.replace(
        batch,
        obs=torch.zeros(*batch.first.shape, 3),
        action=torch.full(batch.valid.shape, 2),
        log_prob=torch.zeros(batch.valid.shape),
    )
    learner = Learner(policy, hr.PPO(), 1)
    with pytest.raises(IndexError, match=r"choices of a batch's actions are out of range"):
        learner.train(lambda: batch, 1e-3)
    learner.close()
