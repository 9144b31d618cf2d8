"""Transfers of weights to workers: times, sizes, and effect on actions."""

from __future__ import annotations

import copy
import math
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from worlds import CountingEnv

from headrace.cluster_env import LocalConfig, weight_sync
from headrace.cluster_env.agent import pack_weights, with_weights
from headrace.cluster_env.backends.local import LocalWorker
from tests.cluster_env.parts import (
    Categorical,
    CountingAgent,
    Gaussian,
    Numpy,
    Plain,
    Revealing,
    Stepwise,
    Watching,
)


@pytest.fixture
def sent(monkeypatch):
    """Return all requests of the head with the worker's name."""
    requests, send = [], LocalWorker.send

    def record(node, request):
        requests.append((node.name, request))
        send(node, request)

    monkeypatch.setattr(LocalWorker, "send", record)
    return requests


@pytest.fixture
def counting(make):
    """Two workers of three CountingEnvs, after a reset."""

    def create(**settings):
        envs = make(CountingEnv, **({"envs_per_node": 3} | settings))
        envs.reset(seed=0)
        return envs

    return create


def change(parameter: torch.Tensor, by: float = 1.0) -> None:
    """Update the weights as an optimiser does."""
    with torch.no_grad():
        parameter += by


# -- how often ------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [Categorical, CountingAgent, Numpy])
def test_an_agent_that_does_not_learn_travels_once(counting, sent, agent):
    envs, agent = counting(kl_threshold=0.0), agent()
    infos = envs.step(agent)[-1]
    assert (infos["weight_bytes"] > 0).all()
    assert sum(bool(request.agent) for _, request in sent) == 2
    sent.clear()
    for _ in range(30):
        envs.step(agent)
    envs.collect(agent, 20)
    iterator = envs.collect_async(agent, 5)
    for _ in range(6):
        next(iterator)
    assert envs.sync_info["weight_bytes"].tolist() == infos["weight_bytes"].tolist()
    assert envs.sync_info["weight_syncs"].tolist() == [1, 1]
    assert len(sent) >= 68
    for _, request in sent:
        assert request.agent is request.weights is request.measured is None


def syncs(envs, agent, num_versions: int, parameter, use: str = "step") -> list[int]:
    """Return the fetches of worker 0 until each of several versions, one request each."""
    counts = []
    for _ in range(num_versions):
        envs.step(agent) if use == "step" else envs.collect(agent, 2)
        fetched = envs.sync_info["weight_syncs"]
        assert fetched[0] == fetched[1]
        counts.append(int(fetched[0]))
        change(parameter)
    return counts


OFTEN = {
    "every": ({"weight_sync": "every"}, "step", [1, 2, 3, 4, 5, 6, 7, 8]),
    "every-3": ({"weight_sync": "every-3"}, "collect", [1, 1, 1, 2, 2, 2, 3, 3]),
    "never": ({"kl_threshold": 1e9, "max_policy_lag": None}, "step", [1] * 8),
    "lag": ({"kl_threshold": 1e9, "max_policy_lag": 4}, "collect", [1, 1, 1, 1, 2, 2, 2, 2]),
    "any-drift": ({"kl_threshold": 0.0, "max_policy_lag": None}, "step", [1, 2, 3, 4, 5, 6, 7, 8]),
}


@pytest.mark.parametrize("name", OFTEN)
def test_weights_are_fetched_as_often_as_the_settings_say(counting, name):
    settings, use, expected = OFTEN[name]
    agent = Revealing()
    assert syncs(counting(**settings), agent, 8, agent.logit, use) == expected


def test_learning_that_leaves_the_policy_as_it_was_is_not_fetched(counting):
    envs, agent = counting(kl_threshold=0.0, max_policy_lag=None), Revealing()
    assert syncs(envs, agent, 4, agent.note) == [1] * 4
    info = envs.sync_info
    assert info["policy_version"].tolist() == [0, 0]
    assert info["divergence"].tolist() == [0.0, 0.0]
    assert info["_divergence"].all()


def test_bytes_are_those_of_what_travelled(counting, sent):
    envs, agent = counting(weight_sync="every"), Revealing(size=50_000)
    for _ in range(3):
        envs.step(agent)
        change(agent.logit)
    total = [0, 0]
    for name, request in sent:
        worker = int(name.split()[1])
        total[worker] += len(request.weights or b"")
        total[worker] += len(request.agent.pickled) if request.agent else 0
    assert envs.sync_info["weight_bytes"].tolist() == total
    assert 600_000 < total[0] < 660_000  # three times 50,000 float32


def test_a_view_travels_without_what_it_is_a_view_of():
    agent = Revealing()
    agent.register_buffer("view", torch.zeros(10, 10_000)[:, :2])
    agent.register_buffer("narrow", torch.linspace(0, 1, 5, dtype=torch.bfloat16))
    packed = pack_weights(agent)
    assert len(packed) < 2_000
    other = Revealing()
    other.register_buffer("view", torch.ones(10, 2))
    other.register_buffer("narrow", torch.zeros(5, dtype=torch.bfloat16))
    with_weights(other, packed)
    assert torch.equal(other.view, agent.view)
    assert torch.equal(other.narrow, agent.narrow)


# -- what workers do with them --------------------------------------------------------------------


def test_workers_act_with_what_they_fetched_and_only_then(counting):
    envs, agent = counting(weight_sync="every-2"), Revealing()
    seen = []
    for _ in range(6):
        infos = envs.step(agent)[-1]
        assert len(set(infos["action"].tolist())) == 1
        seen.append(int(infos["action"][0]))
        assert infos["policy_version"].tolist() == [2 * (len(seen) - 1) // 2 // 2 * 2] * 2
        with torch.no_grad():
            agent.choice.copy_(torch.tensor(float(len(seen) % 3)))
    assert seen == [0, 0, 2, 2, 1, 1]


WAYS_TO_LEARN = {
    "data": lambda agent: agent.choice.data.add_(1),
    "buffer": lambda agent: agent.note.add_(1),
    "numpy": lambda agent: agent.logit.detach().numpy().__iadd__(1),
    "load": lambda agent: agent.load_state_dict({k: v + 1 for k, v in agent.state_dict().items()}),
    "another": lambda agent: setattr(agent, "choice", nn.Parameter(torch.ones(()))),
}


def test_learning_is_noticed_however_it_was_done(counting):
    envs, agent = counting(weight_sync="every"), Revealing()
    envs.step(agent)
    for version, (how, learn) in enumerate(WAYS_TO_LEARN.items()):
        assert envs.step(agent)[-1]["policy_version"].tolist() == [version] * 2, how
        learn(agent)
        assert envs.step(agent)[-1]["policy_version"].tolist() == [version + 1] * 2, how


def test_another_agent_is_sent_at_once_and_the_first_again(counting):
    envs, one, other = counting(kl_threshold=1e9), Revealing(), Revealing()
    change(other.choice, 2)
    for agent, action in [(one, 0), (other, 2), (one, 0), (one, 0)]:
        assert envs.step(agent)[-1]["action"].tolist() == [action] * 6
        assert envs.collect(agent, 2).action.unique().tolist() == [action]
    assert envs.sync_info["weight_syncs"].tolist() == [3, 3]
    assert envs.sync_info["policy_version"].tolist() == [2, 2]


def test_an_agent_without_torch_travels_as_a_whole(counting):
    envs, agent = counting(), Plain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert envs.step(agent)[-1]["action"].tolist() == [0] * 6
        agent.choice[0] = 2
        for _ in range(3):
            assert envs.step(agent)[-1]["action"].tolist() == [2] * 6
    assert envs.sync_info["weight_syncs"].tolist() == [2, 2]
    assert "log_prob" not in envs.step(agent)[-1]
    assert envs.collect(agent, 2).log_prob.isnan().all()


def test_an_agents_own_methods_get_what_they_gave(counting):
    envs, agent = counting(kl_threshold=0.0), Numpy()
    envs.step(agent)
    agent.weights[:] = 1, -0.5  # in place
    agent.log.append(2.0)
    assert envs.step(agent)[-1]["action"].tolist() == [1] * 6
    assert envs.sync_info["policy_version"].tolist() == [1, 1]


# -- divergence -----------------------------------------------------------------------------------


def k3(log_ratio: float) -> float:
    """Return the estimate for one ratio."""
    return math.expm1(log_ratio) - log_ratio


def test_a_divergence_is_of_what_the_worker_did_and_is_sent_once(counting, sent):
    envs, agent = counting(kl_threshold=1e9), Revealing()
    envs.step(agent)
    expected = []
    for by in (0.5, -1.5, 0.25):
        change(agent.logit, by)
        expected.append(k3(agent.logit.item()))
        sent.clear()
        for _ in range(3):
            infos = envs.step(agent)[-1]
            np.testing.assert_allclose(infos["divergence"], np.mean(expected), rtol=1e-6)
        notes = [request.measured for _, request in sent]
        assert [note is None for note in notes] == [False, False, True, True, True, True]
        assert [version for version, _ in notes[:2]] == [0, 0]
    assert infos["policy_version"].tolist() == [0, 0]


def test_what_was_measured_before_a_fetch_says_nothing_after_it(counting):
    envs, agent = counting(kl_threshold=0.1), Revealing()
    envs.step(agent)
    change(agent.logit, 1.0)
    infos = envs.step(agent)[-1]
    assert infos["policy_version"].tolist() == [1, 1]
    np.testing.assert_allclose(infos["divergence"], k3(1.0), rtol=1e-3)  # why it fetched
    envs.step(agent)
    change(agent.logit, 0.01)
    infos = envs.step(agent)[-1]
    assert infos["policy_version"].tolist() == [1, 1]
    np.testing.assert_allclose(infos["divergence"], k3(0.01), rtol=1e-3)


@pytest.mark.parametrize("before", ["step", "collect", "left iteration", "restart"])
def test_each_worker_gets_the_divergence_on_its_own_observations(counting, before):
    envs, agent = counting(kl_threshold=1e9), Watching()
    envs.step(agent)
    if before == "collect":
        envs.collect(agent, 9)
    if before == "left iteration":
        next(envs.collect_async(agent, 7))
        envs.step(agent)
    if before == "restart":
        envs._head.pool._nodes[0].child.process.kill()
        with pytest.warns(RuntimeWarning, match="died"):
            envs.step(agent)
        envs.step(agent)
    change(agent.logit, 0.5)
    divergence = envs.step(agent)[-1]["divergence"]
    labels = [1.0 if before == "restart" else 0.5, 1.0]  # a replacement's are above 3
    np.testing.assert_allclose(divergence, [k3(x) for x in labels], rtol=1e-6)


@pytest.mark.parametrize("how", ["step", "collect", "left iteration", "restart"])
def test_actions_are_measured_in_the_observations_that_they_were_taken_in(counting, how):
    envs, agent = counting(kl_threshold=1e9), Stepwise()
    for _ in range(4):
        envs.step(agent)
    if how == "collect":
        envs.collect(agent, 9)
        envs.step(agent)
    if how == "left iteration":
        iterator = envs.collect_async(agent, 7)
        next(iterator), next(iterator)
        del iterator
        envs.step(agent)
    if how == "restart":
        envs._head.pool._nodes[1].child.process.kill()
        with pytest.warns(RuntimeWarning, match="died"):
            envs.step(agent)
        envs.step(agent)
    change(agent.note)
    assert envs.step(agent)[-1]["divergence"].tolist() == [0.0, 0.0]


class Pushed(gymnasium.Env):
    """Has two parameters and no cost."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Estimated(nn.Module):
    """Returns log-probabilities without a distribution."""

    def __init__(self, agent: nn.Module) -> None:
        super().__init__()
        self.agent = agent

    def act(self, obs):
        return self.agent.act(obs)

    def log_prob(self, obs, action):
        return self.agent.distribution(obs).log_prob(action)


@pytest.mark.slow
def test_the_estimate_is_within_5_percent_of_the_kl_of_categoricals(make, monkeypatch):
    monkeypatch.setattr(weight_sync, "MAX_OBSERVATIONS", 10**6)
    envs = make(CountingEnv, envs_per_node=64, kl_threshold=1e9)
    envs.reset(seed=0)
    agent = Categorical()
    envs.collect(estimated := Estimated(agent), 300)
    before = agent.distribution(torch.zeros(1))
    with torch.no_grad():
        agent.logits += torch.tensor([0.3, -0.2, 0.4])
    exact = torch.distributions.kl_divergence(before, agent.distribution(torch.zeros(1)))
    infos = envs.step(estimated)[-1]
    assert set(infos["measure"]) == {"estimate"}
    np.testing.assert_allclose(infos["divergence"], exact.item(), rtol=0.05)


def test_the_estimate_is_within_5_percent_of_the_kl_of_gaussians(make, monkeypatch):
    monkeypatch.setattr(weight_sync, "MAX_OBSERVATIONS", 10**6)
    envs = make(Pushed, LocalConfig(nodes=2), envs_per_node=64, kl_threshold=1e9)
    envs.reset(seed=0)
    agent = Gaussian()
    envs.collect(estimated := Estimated(agent), 100)
    with torch.no_grad():
        before = copy.deepcopy(agent).distribution(torch.zeros(1))
        agent.mean += torch.tensor([0.1, -0.2])
        agent.log_std += torch.tensor([0.05, -0.1])
        after = agent.distribution(torch.zeros(1))
        exact = torch.distributions.kl_divergence(before, after).sum()
    infos = envs.step(estimated)[-1]
    assert set(infos["measure"]) == {"estimate"}
    np.testing.assert_allclose(infos["divergence"], exact.item(), rtol=0.05)
