"""Rollouts that are cut short lose no step, and their padding changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from torch import Tensor
from worlds import CountingEnv, SpaceIdentityVectorEnv

import headrace as hr
from headrace.actors.collector import Collector, rollout_spec
from headrace.algos import IMPACT
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.ops.returns import gae, vtrace
from headrace.transport.slab import Slab
from headrace.types import Batch, Rollout
from tests.learner.test_learner import first_batch

T, B, GAMMA = 9, 4, 0.9


class OneAction(CountingEnv):
    """Counts equally for any policy, because there is only one action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(1)


class After:
    """Return a function that is True from its ``steps``-th call on."""

    def __init__(self, steps: int) -> None:
        self.steps, self.asked = steps, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked >= self.steps


Fill = Callable[..., Rollout]


def filler(env, network=None, num_steps=T, **env_kwargs) -> tuple[Policy, Fill]:
    """Return a policy with random weights, and a function that fills a poisoned slot."""
    envs = make_vec(env, B, "auto", env_kwargs)
    _, infos = envs.reset(seed=0)
    torch.manual_seed(1)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = Policy(*spaces, network, "action_mask" in infos)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    slab = Slab(rollout_spec(policy, num_steps, B, GAMMA), 1, 1)
    collector = Collector(envs, policy, "TestEnv", GAMMA)
    collector.reset(3)

    def fill(cut: Callable[[], bool] | None = None) -> Rollout:
        slab.poison(0)
        slab.trees[0]["first"].fill_(False)  # or what is left out looks like padding
        valid_steps = collector.fill(Rollout(**slab.trees[0]), 7, cut)
        rollout = Rollout(**tree.map_leaves(torch.clone, slab.trees[0]))
        assert valid_steps == (~rollout.first[1:]).sum()
        assert torch.equal(rollout.version, torch.full((B,), 7))
        return rollout

    return policy, fill


def start(rollout: Rollout, n: int) -> Rollout:
    """Return the fragment of the first ``n`` steps."""
    rows = {"obs": n + 1, "first": n + 1, "core": None, "version": None}
    parts = {
        f.name: tree.map_leaves(lambda x, f=f: x[: rows.get(f.name, n)], getattr(rollout, f.name))
        for f in fields(Rollout)
    }
    return Rollout(**parts)


STEP = ("action", "reward", "terminated", "episode_return", "episode_length", "discounted_return")


def transitions(rollouts: list[Rollout], b: int) -> dict[str, np.ndarray]:
    """Return the data of the valid steps of column ``b`` in succession."""
    parts: dict[str, list[Tensor]] = {name: [] for name in (*STEP, "obs", "first", "next_obs")}
    for rollout in rollouts:
        valid = ~rollout.first[1:, b]
        for name in STEP:
            parts[name].append(getattr(rollout, name)[valid, b])
        parts["obs"].append(rollout.obs[:-1][valid, b])
        parts["first"].append(rollout.first[:-1][valid, b])
        parts["next_obs"].append(rollout.obs[1:][valid, b])
    return {name: torch.cat(part).numpy() for name, part in parts.items()}


CUTS = [lambda rng: rng.randint(1, T + 2), lambda rng: 1, lambda rng: rng.choice([2, 6, T])]


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.full) for s in (1, 2, 3))])
@pytest.mark.parametrize("steps", CUTS, ids=["anywhere", "each-step", "few-places"])
def test_cut_anywhere_the_valid_steps_are_those_of_an_uncut_run(steps, seed):
    rng = random.Random(seed)
    _, fill = filler(OneAction)
    cut = [fill(After(steps(rng))) for _ in range(60)]
    _, fill = filler(OneAction)
    uncut = [fill() for _ in range(60)]
    for b in range(B):
        ours, theirs = transitions(cut, b), transitions(uncut, b)
        count = len(ours["reward"])
        assert count >= 40
        assert ours["terminated"].any()
        ends = ~np.isnan(ours["episode_return"])
        assert ends.sum() > ours["terminated"].sum()  # some episodes were truncated
        for name, values in ours.items():
            exact = name != "discounted_return"  # summed up in another order
            rtol = 0.0 if exact else 1e-6
            np.testing.assert_allclose(values, theirs[name][:count], rtol=rtol, err_msg=name)


def test_the_rows_that_were_done_are_those_of_an_uncut_run_with_its_fillers():
    _, fill = filler(OneAction)
    rng = random.Random(5)
    steps = [rng.randint(1, T) for _ in range(40)]
    cut = [start(fill(After(n)), n) for n in steps]
    _, fill = filler(OneAction)
    uncut = [fill() for _ in range(40)]
    for name in ("first", "reward", "terminated", "episode_return", "episode_length"):
        ours, theirs = (
            torch.cat([getattr(r, name)[: len(r.reward)] for r in rollouts])[: sum(steps)]
            for rollouts in (cut, uncut)
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("n", [1, 4, T - 1])
def test_what_was_not_done_is_padded_with_legal_fillers(n):
    network = Network((16,), core="lstm", core_size=12, previous_action_reward=True)
    _, fill = filler(SpaceIdentityVectorEnv, network, action_space="dict", mask="info")
    fill(After(6))
    rollout = fill(After(n))
    assert len(rollout.reward) == T
    assert rollout.first[n + 1 :].all()
    assert not rollout.first[1 : n + 1].all()
    for leaf in tree.leaves(rollout.obs):
        assert torch.isfinite(leaf.double()).all()
        assert torch.equal(leaf[n + 1 :], leaf[n].expand_as(leaf[n + 1 :]))
    assert rollout.obs["action_mask"][n + 1 :].any(-1).all()
    for leaf in tree.leaves(rollout.action):
        assert torch.equal(leaf[n:], leaf[n - 1].expand_as(leaf[n:]))
    for rows in (rollout.log_prob, rollout.reward, rollout.terminated, rollout.discounted_return):
        assert not rows[n:].any()
    assert rollout.episode_return[n:].isnan().all()
    assert rollout.episode_length[n:].isnan().all()


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_the_next_rollout_begins_with_the_row_and_the_state_after_the_last_step(core):
    network = Network((16,), core=core, core_size=12, previous_action_reward=True)
    policy, fill = filler(SpaceIdentityVectorEnv, network, mask="obs", episode_length=3)
    rng, begun = random.Random(0), set()
    for _ in range(20):
        n = rng.randint(1, T)
        before, after = fill(After(n)), fill(After(rng.randint(1, T)))
        for ours, theirs in zip(tree.leaves(after.obs), tree.leaves(before.obs), strict=True):
            assert torch.equal(ours[0], theirs[n])
        assert torch.equal(after.first[0], before.first[n])
        begun.add(bool(after.first[0, 0]))
        rows = tree.map_leaves(lambda x, n=n: x[:n], before.obs)
        with torch.no_grad():
            _, _, end = policy(rows, before.first[:n], before.core)
        for name, leaf in end.items():
            torch.testing.assert_close(after.core[name], leaf, atol=1e-5, rtol=0)
    assert begun == {False, True}


CORES = (None, "lstm", "gru")
PAIRS = [(core, mask) for core in CORES for mask in (None, "obs", "info")]


@pytest.mark.parametrize(
    ("core", "mask"),  # each core and each mask; make test-full has all pairs
    [pytest.param(*pair, marks=[pytest.mark.slow] * (number % 4 > 0))
     for number, pair in enumerate(PAIRS)],
)  # fmt: skip
def test_log_probabilities_agree_on_every_valid_step_when_rollouts_were_cut(core, mask):
    network = Network((16,), core=core, core_size=12, previous_action_reward=True)
    policy, fill = filler(SpaceIdentityVectorEnv, network, mask=mask)
    rng = random.Random(1)
    for _ in range(12):
        batch = gather([fill(After(rng.randint(1, T)))])
        with torch.no_grad():
            log_prob = policy_outputs(policy, batch).log_prob
        assert batch.valid.any()
        assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= 1e-5


def test_it_is_asked_after_each_step_and_a_fragment_that_is_never_cut_is_as_without():
    _, fill = filler(CountingEnv)
    _, plain = filler(CountingEnv)
    for steps in (T + 1, T, 99):  # asked for the T-th time there is nothing left to cut
        cut = After(steps)
        ours, theirs = fill(cut), plain()
        assert cut.asked == T
        for f in fields(Rollout):
            pairs = zip(*(tree.leaves(getattr(r, f.name)) for r in (ours, theirs)), strict=True)
            for x, y in pairs:
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    for steps in (1, 3):
        cut = After(steps)
        fill(cut)
        assert cut.asked == steps


# -- what learns from it ------------------------------------------------------------------------


def noise(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check_equal_and_neutral(ours: Tensor, theirs: Tensor, neutral: Tensor | float) -> None:
    n = len(theirs)
    torch.testing.assert_close(ours[:n], theirs, rtol=1e-12, atol=1e-12)
    padding = torch.as_tensor(neutral, dtype=ours.dtype).expand_as(ours[n:])
    torch.testing.assert_close(ours[n:], padding, rtol=0, atol=0)


@pytest.mark.parametrize("n", range(1, T))
@pytest.mark.parametrize("skipped", [0, 3, 4, 5])
def test_targets_of_a_cut_fragment_are_those_of_a_short_one(n, skipped):
    _, fill = filler(CountingEnv)
    if skipped:
        fill(After(skipped))  # so that episodes end at all places
    whole = fill(After(n))
    short = start(whole, n)
    value, log_ratio = noise(T + 1, B, seed=n), noise(T, B, seed=n + 100)
    results = []
    for rollout in (whole, short):
        steps = len(rollout.reward)
        stream = (
            rollout.reward.double() / 1000,
            value[: steps + 1],
            rollout.terminated,
            rollout.first,
        )
        bars = {"rho_bar": 1.2, "c_bar": 0.8, "pg_rho_bar": 1.1}
        targets = vtrace(log_ratio[:steps], *stream, gamma=0.95, lam=0.9, **bars)
        results.append((*gae(*stream, gamma=0.95, lam=0.9), *targets))
    v = value[n:-1]
    for ours, theirs, neutral in zip(*results, (0.0, v, v, 0.0, 0.0), strict=True):
        check_equal_and_neutral(ours, theirs, neutral)


ALGOS = [
    hr.A2C(entropy_coef=0.01),
    hr.PPO(epochs=1, minibatches=1, kl_coef=0.1),
    hr.APPO(epochs=1, minibatches=1),
    hr.IMPALA(epochs=1, minibatches=1),
    hr.IMPALA(epochs=1, minibatches=1, correction="epsilon"),
    IMPACT(kl_coef=0.1, ratio="R1"),
    IMPACT(kl_coef=0.1),
]


def double(batch: Batch) -> Batch:
    def convert(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    return Batch(
        **{f.name: tree.map_leaves(convert, getattr(batch, f.name)) for f in fields(Batch)}
    )


@pytest.mark.parametrize("core", [None, "lstm"])
@pytest.mark.parametrize("algo", ALGOS, ids=lambda a: type(a).__name__)
def test_the_gradient_of_a_cut_fragment_is_that_of_a_short_one(algo, core):
    network = Network((16,), core=core, core_size=12, previous_action_reward=True)
    kwargs = {"action_space": "multidiscrete", "mask": "obs"}
    policy, fill = filler(SpaceIdentityVectorEnv, network, **kwargs)
    rollouts = [(fill(After(n)), n) for n in (3, 5, 7, 1, 8)]
    policy.double()
    forbidden = False
    for rollout, n in rollouts:
        results = []
        for part in (rollout, start(rollout, n)):
            learner = Learner(policy, algo)
            batch = double(gather([part]))
            forbidden |= bool(policy_outputs(policy, batch).log_prob.isneginf().any())
            batch = first_batch(learner, batch)
            results.append(learner.gradient(batch))
            learner.close()
        (gradient, sums, count), (expected, expected_sums, expected_count) = results
        assert count == expected_count > 0
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)
        for name, value in sums.items():
            torch.testing.assert_close(value, expected_sums[name], rtol=1e-9, atol=1e-9)
    assert forbidden  # in some padding the repeated action is
