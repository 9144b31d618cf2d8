"""Divergence of a worker's copy from the agent: the exact KL of the paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from worlds import CountingEnv

from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env import weight_sync
from tests.cluster_env.parts import EverythingEnv, Numpy, Plain, Revealing

# -- agents whose policy depends on what they see -------------------------------------------------


class Softmax(nn.Module):
    """One of three actions, with probabilities that depend on environment and step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.3, -0.2, 0.1], [0.05, 0.0, -0.4]]))

    def logits(self, obs: Tensor) -> Tensor:
        return obs[:, [0, 2]] @ self.weight

    def distribution(self, obs: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Categorical(logits=self.logits(obs))

    def act(self, obs: Tensor) -> Tensor:
        return self.distribution(obs).sample()


class Bell(nn.Module):
    """Two numbers whose distribution depends on an image."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def moments(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        bright = obs["image"].float().mean((1, 2, 3))[:, None] / 255
        return self.shift * bright, (self.scale * bright).exp()

    def distribution(self, obs: dict[str, Tensor]) -> torch.distributions.Normal:
        return torch.distributions.Normal(*self.moments(obs))

    def act(self, obs: dict[str, Tensor]) -> Tensor:
        return self.distribution(obs).sample()


class Shows(Plain):
    """Provides act, parameters and distribution without a torch module."""

    def distribution(self, obs: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(torch.full((len(obs),), float(self.choice[0])), 1.0)

    def act(self, obs: Tensor) -> np.ndarray:
        return np.full(len(obs), int(self.choice[0]))


class Uncommon(Softmax):
    """A distribution without a formula for its KL, like mixtures."""

    def distribution(self, obs: Tensor) -> torch.distributions.Distribution:
        one = torch.distributions.Categorical(torch.ones(len(obs), 1))
        parts = torch.distributions.Categorical(logits=self.logits(obs)[:, None])
        return torch.distributions.MixtureSameFamily(one, parts)


# -- what the KL is, by hand ----------------------------------------------------------------------


def kl_of_softmax(mine: Tensor, its: Tensor) -> float:
    """Compute the mean over rows of the sum over actions of p log(p / q); logits ``[n, 3]``."""
    total = 0.0
    for row_p, row_q in zip(mine.double().tolist(), its.double().tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row_p)) for x in row_p]
        q = [math.exp(x) / sum(map(math.exp, row_q)) for x in row_q]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(mine)


def kl_of_bells(mine: tuple[Tensor, Tensor], its: tuple[Tensor, Tensor]) -> float:
    """Compute the closed form of the KL, a mean over rows and sum over dimensions."""
    (m, s), (n, t) = ([x.double() for x in pair] for pair in (mine, its))
    each = (t / s).log() + (s.square() + (m - n).square()) / (2 * t.square()) - 0.5
    return float(each.sum(1).mean())


@torch.no_grad()
def learn(agent: nn.Module, seed: int = 0) -> None:
    """Return another policy."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in agent.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=rng)


def seen(rollout, worker: int, size: int) -> Any:
    """Return the observations on which a worker acted in a rollout, ``obs[:-1]``."""
    mine = slice(worker * size, (worker + 1) * size)
    obs = rollout.obs["image"] if isinstance(rollout.obs, dict) else rollout.obs
    rows = obs[:-1, mine].flatten(0, 1)
    return {"image": rows} if isinstance(rollout.obs, dict) else rows


# -- the tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "agent", "shown", "closed_form"),
    [
        (CountingEnv, Softmax, "logits", kl_of_softmax),
        (EverythingEnv, Bell, "moments", kl_of_bells),
    ],
    ids=["categorical", "normal"],
)
@torch.no_grad()
def test_an_agent_that_shows_its_distribution_is_measured_exactly(
    make, env, agent, shown, closed_form
):
    envs, agent = make(env, envs_per_node=3, kl_threshold=0.0), agent()
    envs.reset(seed=5)
    rollout = envs.collect(agent, 30)
    for version in range(2):  # the second is measured against the copy that was fetched
        assert rollout.version.tolist() == [version] * 6
        rows = [seen(rollout, worker, 3) for worker in range(2)]
        before = [getattr(agent, shown)(obs) for obs in rows]
        learn(agent, seed=version)
        after = [getattr(agent, shown)(obs) for obs in rows]
        expected = [closed_form(*pair) for pair in zip(before, after, strict=True)]
        reverse = [closed_form(*pair) for pair in zip(after, before, strict=True)]
        rollout = envs.collect(agent, 30)
        np.testing.assert_allclose(envs.sync_info["divergence"], expected, rtol=1e-5, atol=2e-7)
        assert not np.allclose(expected, reverse, rtol=1e-2)
        assert not np.isclose(*expected, rtol=1e-3)  # each worker has its own observations
        assert envs.sync_info["measure"].tolist() == ["kl", "kl"]


@torch.no_grad()
def test_workers_with_different_copies_are_each_measured_against_their_own():
    agent, followed = Softmax(), weight_sync.AgentSync(3, SyncRule(every=None, kl_threshold=0.1))
    obs = [np.random.default_rng(i).normal(size=(20, 4)).astype(np.float32) for i in range(3)]
    copies = []
    for version in range(3):  # worker i gets this version as its first, and keeps it
        followed.update(agent)
        assert followed.version == version
        followed.sent(version, followed.request(version, "act"))
        copies.append([agent.logits(torch.from_numpy(rows)) for rows in obs])
        for i in range(version + 1):
            followed.acted(i, i, obs[i], np.zeros(20, int), np.zeros(20))
        learn(agent, version)
    followed.update(agent)
    for i in range(3):
        now = agent.logits(torch.from_numpy(obs[i]))
        expected = i, pytest.approx(kl_of_softmax(copies[i][i], now), rel=1e-5)
        assert followed.request(i, "act").measured == expected
    kept = followed._copies._weights
    assert sorted(kept) == [0, 1, 2]
    followed.sent(0, followed.granted(0, followed.request(0, "act")))
    followed.acted(0, 3, obs[0], np.zeros(20, int), np.zeros(20))
    learn(agent)
    followed.update(agent)
    assert sorted(followed._copies._weights) == [1, 2, 3]  # no worker acts with version 0


@pytest.mark.parametrize("num_steps", [7, 2000])
def test_what_is_measured_is_the_rollout_or_rows_all_over_it(num_steps):
    recent = weight_sync.RecentSteps()
    for first in (0, 10_000):
        rows = np.arange(first, first + num_steps)
        recent.add(0, rows, rows, np.zeros(num_steps))
        obs, action, log_prob = recent.measured()
        assert obs.tolist() == action.tolist()
        assert len(log_prob) == len(obs)
    expected = [*range(7), *range(10_000, 10_007)]  # of fewer than 64 the latest 64
    if num_steps == 2000:
        expected = np.linspace(10_000, 11_999, 1024).astype(int).tolist()
    assert obs.tolist() == expected
    recent.add(1, rows[:1], rows[:1], np.zeros(1))
    assert recent.measured()[0].tolist() == [10_000]  # what another version did says nothing


def test_steps_between_two_measurements_are_all_measured():
    recent = weight_sync.RecentSteps()
    for step in range(100):
        recent.add(0, np.full(8, step), np.zeros(8), np.zeros(8))
    assert recent.measured()[0].tolist() == np.repeat(range(100), 8).tolist()
    recent.add(0, np.full(8, 100), np.zeros(8), np.zeros(8))
    assert recent.measured()[0].tolist() == np.repeat(range(93, 101), 8).tolist()


@pytest.mark.parametrize(("steps", "size"), [(129, 8), (1000, 8), (5000, 1), (40, 300), (7, 4000)])
def test_of_a_long_stretch_rows_all_over_it_are_measured(steps, size):
    recent, rng = weight_sync.RecentSteps(), np.random.default_rng(0)
    for _ in range(2):
        for step in range(steps):
            rows = np.arange(size) + step * size
            recent.add(0, rows, rows, rng.normal(size=size))
        obs = recent.measured()[0]
        assert len(obs) == 1024
        assert (np.diff(obs) > 0).all()
        assert obs[0] == 0
        shares = np.histogram(obs, 8, (0, steps * size))[0] / 1024
        assert (abs(shares - 1 / 8) < 0.06).all()  # an eighth of each eighth
        assert len(set(obs % size)) == min(size, 1024) or size > 8  # of each environment
    recent.add(0, rows[:3], rows[:3], np.zeros(3))
    assert len(recent.measured()[0]) == 64


@torch.no_grad()
def test_a_distribution_without_a_formula_is_estimated(make):
    envs, agent = make(CountingEnv, envs_per_node=3, kl_threshold=1e9), Uncommon()
    envs.reset(seed=5)
    rollout = envs.collect(agent, 20)
    learn(agent)
    infos = envs.step(agent)[-1]
    assert infos["measure"].tolist() == ["estimate", "estimate"]
    rows = rollout.obs[:-1].flatten(0, 1)
    now = agent.distribution(rows).log_prob(rollout.action.flatten())
    log_ratio = (now - rollout.log_prob.flatten()).double().reshape(20, 2, 3)
    expected = (log_ratio.expm1() - log_ratio).mean((0, 2))
    np.testing.assert_allclose(infos["divergence"], expected, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("agent", "settings", "measure", "learn_by", "syncs"),
    [
        (Softmax, {}, "kl", "weight", 1),  # updated, with a divergence below the threshold
        (Revealing, {}, "estimate", "note", 1),
        (Softmax, {"weight_sync": "every-2"}, "age", "weight", 2),
        (Numpy, {}, "estimate", "", 1),
    ],
    ids=["distribution", "log_prob", "fixed", "numpy"],
)
def test_sync_info_says_what_is_measured(make, agent, settings, measure, learn_by, syncs):
    envs, agent = make(CountingEnv, **({"kl_threshold": 1e9} | settings)), agent()
    assert envs.sync_info["measure"].tolist() == ["age", "age"]  # there is no agent
    envs.reset(seed=5)
    for _ in range(3):
        envs.step(agent)
        if learn_by:
            getattr(agent, learn_by).add_(1.0)
    assert envs.sync_info["measure"].tolist() == [measure, measure]
    assert envs.sync_info["weight_syncs"].tolist() == [syncs, syncs]


@torch.no_grad()
def test_an_agent_that_only_acts_is_measured_by_its_actions_and_exactly_once_it_shows_more(make):
    envs, agent = make(CountingEnv, kl_threshold=1e9), Plain()
    envs.reset(seed=5)
    envs.step(agent)
    agent.choice[0] = 1
    assert envs.step(agent)[-1]["action"].tolist() == [0, 0]  # its threshold is far away
    assert envs.sync_info["measure"].tolist() == ["outputs", "outputs"]
    assert envs.sync_info["divergence"].tolist() == [2.0, 2.0]  # every action changed
    shows = Shows()
    envs.step(shows)
    shows.choice[0] = 1.0
    infos = envs.step(shows)[-1]
    assert infos["measure"].tolist() == ["kl", "kl"]
    np.testing.assert_allclose(infos["divergence"], 0.5, rtol=1e-6)  # of N(0, 1) to N(1, 1)
    assert infos["action"].tolist() == [0, 0]
