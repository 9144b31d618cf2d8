"""Divergence of copies of the paper's minimal agent, estimated from the outputs of ``act``."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence
from worlds import CountingEnv

import headrace as hr
from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env.output_divergence import divergences, draws, is_repeatable, num_draws
from headrace.cluster_env.weight_sync import AgentSync

OBS = torch.randn(256, 4, generator=torch.Generator().manual_seed(0)).numpy()
START = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) / 2
STEP = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))


class Minimal:
    """The paper's agent: ``act`` and ``get_parameters``, and a distribution that it doesn't show.

    Args:
        size: distance of its weights from the first ones.
        kind: what ``act`` returns.
    """

    def __init__(self, size: float = 0.0, kind: str = "torch") -> None:
        self.weight, self.kind = START + size * STEP, kind

    def get_parameters(self) -> Tensor:
        return self.weight

    def act(self, obs: Tensor):
        logits = obs @ self.weight
        policy = Categorical(logits=logits)
        action, noise = policy.sample(), torch.randn(logits.shape)
        if self.kind == "numpy":
            chances = policy.probs.double().numpy()
            return np.array([np.random.choice(4, p=p / p.sum()) for p in chances])
        return {
            "torch": action,
            "log_prob": (action, policy.log_prob(action)),
            "logits": {"action": action, "logits": logits},
            "probs": {"action": action, "probs": policy.probs},
            "log_probs": {"action": action, "log_probs": policy.log_prob(action)[:, None]},
            "parts": {"action": logits + noise, "log_probs": Normal(0, 1).log_prob(noise)},
            "gaussian": logits + noise,
            "two": Categorical(logits=logits[:, :2]).sample(),
            "greedy": logits[:, :3].argmax(1),
            "mean": logits,
            "pair": {"action": {"left": action, "right": logits.argmax(1)}},
        }[self.kind]


class Private(Minimal):
    """Draws from a generator that every process seeds differently."""

    def act(self, obs: Tensor):
        return np.random.default_rng().integers(4, size=len(obs))


class Own(Minimal):
    """Draws from its own generator, which travels with it."""

    def __init__(self, size: float = 0.0) -> None:
        super().__init__(size)
        self.rng = np.random.default_rng(5)

    def act(self, obs: Tensor):
        chances = torch.softmax(obs @ self.weight, 1).numpy().cumsum(1)
        return (self.rng.random((len(obs), 1)) > chances).sum(1).clip(max=3)


def estimate(make, size: float) -> float:
    number = num_draws(len(OBS))
    old, new = (draws(lambda s=s: make(s), OBS, number) for s in (0.0, size))
    (value,) = divergences(old, new, [len(OBS)])
    return value


def categorical(size: float) -> float:
    obs = torch.from_numpy(OBS)
    pair = (Categorical(logits=obs @ (START + s * STEP)) for s in (0.0, size))
    return float(kl_divergence(*pair).mean())


def gaussian(size: float) -> float:
    obs = torch.from_numpy(OBS)
    pair = (Normal(obs @ (START + s * STEP), 1.0) for s in (0.0, size))
    return float(kl_divergence(*pair).sum(1).mean())


@pytest.mark.parametrize("size", [0.05, 0.2, 0.6])
@pytest.mark.parametrize(
    ("kind", "true", "low", "high"),
    [
        ("logits", categorical, 0.999, 1.001),
        ("probs", categorical, 0.999, 1.001),
        ("log_prob", categorical, 0.5, 1.01),  # a lower bound
        ("torch", categorical, 0.3, 3.0),
        ("numpy", categorical, 0.3, 3.0),
        ("gaussian", gaussian, 0.9, 1.15),
        # Log-probabilities of the taken actions, not of all actions.
        ("log_probs", categorical, 0.3, 3.0),
        ("parts", gaussian, 0.9, 1.15),
    ],
)
def test_the_estimate_is_close_to_the_kl(kind, true, low, high, size):
    value = estimate(lambda s: Minimal(s, kind), size)
    assert low <= value / true(size) <= high, (value, true(size))


@pytest.mark.parametrize(
    "kind", ["torch", "numpy", "log_prob", "gaussian", "greedy", "mean", "pair"]
)
def test_it_is_0_for_equal_policies_and_grows_with_their_distance(kind):
    values = [estimate(lambda s: Minimal(s, kind), size) for size in (0.0, 0.05, 0.2, 0.8)]
    assert values[0] == pytest.approx(0.0, abs=1e-9)
    assert values == sorted(set(values))


def test_actions_without_noise_are_compared_with_their_spread():
    old = [{"action": np.array([0.0, 1.0, 2.0, 3.0])}] * 2
    new = [{"action": np.array([1.0, 2.0, 3.0, 4.0])}] * 2
    assert divergences(old, new, [4]) == [pytest.approx(1.0 / (2 * np.var(range(4))))]
    assert divergences(old, old, [2, 2]) == [0.0, 0.0]
    still, moved = ([{"action": np.full(4, value)}] * 2 for value in (0.0, 1.0))
    assert divergences(still, moved, [4]) == [np.inf]
    assert divergences(still, still, [4]) == [0.0]


def test_workers_are_estimated_by_their_own_rows():
    old = [{"action": np.array([0, 0, 0, 0, 0, 0])}] * 2
    new = [{"action": np.array([0, 0, 1, 0, 1, 1])}] * 2
    assert divergences(old, new, [2, 4]) == [0.0, pytest.approx(2 * 0.75**2)]


def test_acting_for_an_estimate_leaves_random_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    draws(Minimal, OBS, 2)
    draws(lambda: Minimal(kind="numpy"), OBS, 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert is_repeatable(Minimal, OBS)
    assert is_repeatable(Own, OBS)
    assert not is_repeatable(Private, OBS)


# -- in ClusterEnv ---------------------------------------------------------------------------------


def followed(agent, threshold: float = 0.05) -> AgentSync:
    """Return the head's bookkeeping after a worker has acted with the agent."""
    sync = AgentSync(1, SyncRule(every=None, kl_threshold=threshold))
    sync.update(agent)
    sync.sent(0, sync.request(0, "act"))
    sync.acted(0, 0, OBS, np.zeros(len(OBS), int), None)
    return sync


@pytest.mark.parametrize("kind", ["torch", "logits", "gaussian"])
def test_an_update_of_a_minimal_agent_is_measured_on_recent_observations(kind):
    agent = Minimal(kind=kind)
    sync = followed(agent)
    assert sync.measure == "outputs"
    agent.weight += 0.2 * STEP
    sync.update(agent)
    version, value = sync.request(0, "act").measured
    assert version == 0
    assert value == pytest.approx(estimate(lambda s: Minimal(s, kind), 0.2), rel=1e-3)
    assert sorted(sync._copies._weights) == [0, 1]


@pytest.mark.parametrize("make", [Private, lambda: Failing()])
def test_without_repeatable_actions_weights_are_fetched_by_age(make):
    agent = make()
    sync = followed(agent)
    agent.weight += 1.0
    with pytest.warns(UserWarning, match="can't be repeated|ValueError: only on workers"):
        sync.update(agent)
    assert sync.measure == "age"
    assert sync.request(0, "act").agent.rule.every == 1  # it is sent again
    agent.weight += 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        sync.update(agent)


class Failing(Minimal):
    def act(self, obs: Tensor):
        raise ValueError("only on workers")


def test_the_papers_listing_fetches_weights_only_beyond_the_threshold(make):
    """Runs the loop of Listing 1 with Gymnasium's five values, and an agent that only acts."""
    hr.SlurmConfig(job_name="lunar_lander", nodes=4, gpus_per_node=2, partition="gpu")
    config = {"type": "gymnasium", "kl_threshold": 0.05, "env_name": "CartPole-v1"}
    env = make(**config, envs_per_node=32)
    env.launch()
    agent = Minimal(kind="two")
    obs = env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(12):
            agent.weight += (1e-4 if step < 8 else 0.5) * STEP
            obs, _reward, _terminated, _truncated, info = env.step(agent)
            if step == 7:
                small = info["weight_syncs"].tolist()
    assert obs.shape == (64, 4)
    assert small == [1, 1]  # the first copies
    assert info["measure"].tolist() == ["outputs", "outputs"]
    assert (info["weight_syncs"] >= 2).all()
    assert info["_divergence"].all()


def test_an_agent_that_never_changes_what_it_does_is_never_fetched_again(make):
    envs, agent = make(CountingEnv, envs_per_node=3), Minimal(kind="greedy")
    envs.reset(seed=5)
    for _ in range(3):
        envs.collect(agent, 30)
        agent.weight *= 2.0
    assert envs.sync_info["weight_syncs"].tolist() == [1, 1]
    assert envs.sync_info["divergence"].tolist() == [0.0, 0.0]
