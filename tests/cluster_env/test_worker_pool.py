"""Worker pool and policy divergence alone, with a backend that runs nothing."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch
from torch import nn

from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env import weight_sync as drift_module
from headrace.cluster_env.agent import act
from headrace.cluster_env.backends.local import LocalConfig
from headrace.cluster_env.messages import Answer, Request, WorkerFault, WorkerSetup
from headrace.cluster_env.weight_sync import AgentSync
from headrace.cluster_env.worker_pool import WorkerPool
from headrace.errors import WorkerFailed


class Node:
    """Answers at once, or hangs."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.name, self.hangs = f"worker {setup.index}.{setup.generation}", False
        self.killed = False

    def send(self, request: Request) -> None:
        self.hangs = request.method == "hang"

    def receive(self) -> Answer:
        return Answer(self.name, -1, None)

    def kill(self) -> None:
        self.killed = True


class Place:
    """Backend that records where workers are."""

    def start(self, setup: WorkerSetup) -> Node:
        return Node(setup)

    def wait(self, nodes, timeout_s):
        return [node for node in nodes if not node.hangs]

    def close(self, nodes) -> None:
        pass


class Nowhere(LocalConfig):
    def open(self):
        return Place()


@pytest.mark.filterwarnings("ignore:worker 0.0. gave no answer")
def test_a_hung_worker_is_found_while_another_answers_all_the_time():
    setups = [WorkerSetup(None, 1, "sync", {}, None, i, 0) for i in range(2)]
    crew = WorkerPool(Nowhere(nodes=2, timeout_s=0.05, start_timeout_s=0.01), setups)
    for i in range(2):
        crew.send(i, Request("describe"))
        assert crew.receive() == (i, Answer(f"worker {i}.0", -1, None))
    hung = crew._nodes[0]
    crew.send(0, Request("hang"))
    give_up = time.monotonic() + 20.0
    while time.monotonic() < give_up:
        crew.send(1, Request("describe"))
        index, answer = crew.receive()
        if isinstance(answer, WorkerFault):
            break
        assert index == 1
    assert index == 0
    assert answer.reason == "worker 0.0: gave no answer in 0.05 s"
    assert hung.killed
    assert crew.waiting == {1}
    assert crew.receive()[0] == 1


@pytest.mark.filterwarnings("ignore:worker 0.* gave no answer")
def test_who_is_new_has_the_time_to_come_up_and_a_replacement_that_to_answer_too():
    setups = [WorkerSetup(None, 1, "sync", {}, None, 0, 0)]
    config = Nowhere(nodes=1, timeout_s=300.0, start_timeout_s=0.05)
    crew = WorkerPool(config, setups)
    crew.send(0, Request("hang"))
    with pytest.raises(WorkerFailed, match=r"gave no answer in 0\.05 s; it never came up"):
        crew.receive()
    crew = WorkerPool(dataclasses.replace(config, timeout_s=0.1), setups)
    crew.send(0, Request("describe"))
    crew.receive()
    for reason in ("gave no answer in 0.1 s", "gave no answer in 0.15 s"):
        crew.send(0, Request("hang"))
        assert crew.receive()[1].reason.endswith(reason)


@pytest.mark.filterwarnings("ignore:worker 0.0. was interrupted")
def test_a_worker_that_was_cut_off_before_it_was_asked_is_awaited_and_replaced(monkeypatch):
    crew = WorkerPool(Nowhere(timeout_s=1.0), [WorkerSetup(None, 1, "sync", {}, None, 0, 0)])
    crew.send(0, Request("describe"))
    crew.receive()

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("headrace.cluster_env.worker_pool.time.monotonic", interrupt)
        crew.send(0, Request("describe"))
    assert crew.waiting == {0}
    index, fault = crew.receive()
    assert (index, fault.reason) == (0, "worker 0.0: was interrupted in the middle of a message")
    crew.send(0, Request("describe"))
    assert crew.receive() == (0, Answer("worker 0.1", -1, None))


class Normalising(nn.Module):
    """A Gaussian of one number with log-probabilities ``[B, 1]``, behind a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mean = nn.BatchNorm1d(1), nn.Parameter(torch.zeros(1))

    def distribution(self, obs):
        return torch.distributions.Normal(self.mean + 0.0 * self.norm(obs), 1.0)

    def act(self, obs):
        distribution = self.distribution(obs)
        action = distribution.sample()
        return action, distribution.log_prob(action)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_log_probability_for_each_dimension_is_measured_as_one(shift, exact, monkeypatch):
    monkeypatch.setattr(drift_module, "has_distribution", lambda agent: exact)
    torch.manual_seed(0)
    agent, obs = Normalising(), np.random.default_rng(0).normal(size=(64, 1)).astype(np.float32)
    acted, _ = act(agent, obs)
    assert acted["log_prob"].shape == (64,)
    drift = AgentSync(1, SyncRule(every=None, kl_threshold=0.1))
    drift.update(agent)
    drift.sent(0, drift.request(0, "act"))
    drift.acted(0, 0, obs, acted["action"], acted["log_prob"])
    with torch.no_grad():
        agent.mean += shift + 1e-6
    drift.update(agent)
    ((version, nats),) = [drift.request(0, "act").measured]
    assert version == 0
    if exact:
        assert nats == pytest.approx(shift**2 / 2, abs=1e-5)
        return
    log_ratio = torch.from_numpy(acted["action"])[:, 0] * shift - shift**2 / 2
    assert nats == pytest.approx(float((log_ratio.exp() - 1 - log_ratio).mean()), abs=1e-5)


def test_measuring_an_agent_changes_nothing_in_it():
    agent, obs = Normalising(), np.ones((8, 1), np.float32)
    acted, _ = act(agent, obs)
    drift = AgentSync(1, SyncRule(every=None, kl_threshold=0.1))
    drift.update(agent)
    drift.sent(0, drift.request(0, "act"))
    drift.acted(0, 0, obs, acted["action"], acted["log_prob"])
    with torch.no_grad():
        agent.mean += 1.0
    for _ in range(3):
        drift.update(agent)
        assert drift.version == 1
    assert agent.training
    assert agent.norm.training


@pytest.mark.parametrize("action", [torch.zeros(3), torch.zeros(())])
def test_an_action_for_others_is_the_agents_fault(action):
    class Short:
        def act(self, obs):
            return action

    with pytest.raises(TypeError, match="for 4 observations"):
        act(Short(), np.zeros((4, 2), np.float32))
