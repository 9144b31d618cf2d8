"""Values of several tasks: statistics of each match a literal version, and outputs stay."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import headrace as hr
from headrace.learner.learner import Learner
from headrace.nn.task_values import TaskPopArt
from headrace.types import Batch

SPACE = Dict(observation=Box(-1, 1, (3,)), task=Discrete(3))
SHARE = 0.1


class Oracle:
    """Hessel et al. (2018), equation 6 and following, task by task and number by number.

    First and second moments are averages that weight the newest update by a tenth, divided by the
    sum of the weights.
    """

    def __init__(self, num_tasks: int) -> None:
        self.weight, self.first, self.second = (np.zeros(num_tasks) for _ in range(3))

    def update(self, targets: list[float], tasks: list[int]) -> None:
        for k in set(tasks):
            own = [x for x, task in zip(targets, tasks, strict=True) if task == k]
            self.weight[k] = (1 - SHARE) * self.weight[k] + SHARE
            self.first[k] = (1 - SHARE) * self.first[k] + SHARE * np.mean(own)
            self.second[k] = (1 - SHARE) * self.second[k] + SHARE * np.mean(np.square(own))

    def of(self, k: int) -> tuple[float, float]:
        """Return mean and scale of a task; 0, 0 without any targets."""
        if not self.weight[k]:
            return 0.0, 0.0
        mean, square = self.first[k] / self.weight[k], self.second[k] / self.weight[k]
        return mean, max(square - mean**2, 1e-6 * square) ** 0.5


def streams(generator: np.random.Generator, tasks: tuple[int, ...], shape=(4, 6)):
    """Return tasks, targets in very different units, and a mask of steps that count."""
    task = generator.choice(tasks, shape)
    target = generator.normal(size=shape) * 10.0 ** (3 * task) + 5.0 * 10.0 ** (3 * task)
    return task, target, generator.random(shape) < 0.8


def test_each_tasks_mean_and_scale_follow_its_own_targets():
    generator, popart, oracle = np.random.default_rng(0), TaskPopArt(3), Oracle(3)
    head = nn.Linear(2, 3)
    for i in range(30):
        task, target, valid = streams(generator, (0, 1) if i < 5 else (0, 2))
        inputs = {"task": torch.from_numpy(np.concatenate([task, task[:1]]))}
        units = popart.of(inputs, len(task))
        given = torch.from_numpy(np.where(valid, target, np.nan)).float()
        sums = units.sums(given, torch.from_numpy(valid))
        values = {name: float(x) for name, x in sums.items()} | {"other": 1.0}
        popart.note(values)
        assert values == {"other": 1.0}
        popart.shift(head)
        oracle.update(target[valid].tolist(), task[valid].tolist())
        for k in range(3):
            mean, scale = oracle.of(k)
            assert float(popart.mean[k]) == pytest.approx(mean, rel=1e-4, abs=1e-6)
            assert float(popart.scale[k]) == pytest.approx(scale, rel=1e-3, abs=1e-6)
    assert popart.scale[1] > 0


def test_statistics_fade_where_all_targets_are_zero():
    popart, head = TaskPopArt(1), nn.Linear(2, 1)
    task, valid = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1, dtype=torch.bool)

    def learn(targets: list[float]) -> None:
        units = popart.of({"task": torch.cat([task, task[:1]])}, 3)
        sums = units.sums(torch.tensor(targets)[:, None], valid)
        popart.note({name: float(x) for name, x in sums.items()})
        popart.shift(head)

    learn([0.0, 0.0, 0.0])
    assert popart.scale[0] == 0.0  # nothing is known yet
    learn([0.0, 0.0, 1.0])
    first = 1 / 3
    for i in range(200):
        learn([0.0, 0.0, 0.0])
        first *= 0.9
        assert float(popart.mean[0]) == pytest.approx(0.1 * first / (1 - 0.9 ** (i + 2)), abs=1e-6)
    assert 0 < float(popart.scale[0]) < 1e-3
    assert all(parameter.isfinite().all() for parameter in head.parameters())


def test_values_stay_what_they_were_when_statistics_move():
    generator, popart, head = np.random.default_rng(1), TaskPopArt(3), nn.Linear(4, 3)
    hidden = torch.randn(60, 4, dtype=torch.float64)
    inputs = {"task": torch.arange(60) % 3}
    head.double()

    def learn() -> None:
        task, target, valid = streams(generator, (0, 1, 2))
        units = popart.of({"task": torch.from_numpy(task)}, len(task))
        sums = units.sums(torch.from_numpy(target).float(), torch.from_numpy(valid))
        popart.note({name: float(x) for name, x in sums.items()})
        popart.shift(head)

    assert not popart(head(hidden), inputs).any()  # 0 in all units before there are any
    learn()
    before, scale = popart(head(hidden), inputs), popart.scale.clone()
    learn()
    assert (popart.scale != scale).all()
    after = popart(head(hidden), inputs)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


def test_what_is_learnt_is_in_the_units_of_a_steps_own_task():
    popart = TaskPopArt(2)
    popart.mean.copy_(torch.tensor([1.0, 100.0]))
    popart.scale.copy_(torch.tensor([2.0, 50.0]))
    units = popart.of({"task": torch.tensor([[0, 1], [1, 0]])}, 2)
    value = torch.tensor([[3.0, 150.0], [0.0, -3.0]])
    assert units.normalized(value).tolist() == [[1.0, 1.0], [-2.0, -2.0]]
    assert units.advantage(value).tolist() == [[1.5, 3.0], [0.0, -1.5]]
    popart.scale[1] = 0.0  # a task without targets so far
    units = popart.of({"task": torch.tensor([[1, 1]])}, 1)
    assert units.normalized(torch.tensor([[5.0, 7.0]])).tolist() == [[0.0, 0.0]]
    assert units.advantage(torch.tensor([[5.0, 7.0]])).tolist() == [[5.0, 7.0]]


def batch_of(policy: hr.Policy, tasks: torch.Tensor, rewards: torch.Tensor) -> Batch:
    """Return episodes of one step each in columns of these tasks."""
    steps, count = rewards.shape
    inputs = {
        "observation": {"observation": torch.randn(steps + 1, count, 3)},
        "task": tasks.expand(steps + 1, -1).clone(),
    }
    if policy.network.task_id:
        inputs["observation"]["task"] = inputs["task"]
    action = torch.randint(2, (steps, count))
    first = torch.zeros(steps + 1, count, dtype=torch.bool)
    log_prob = torch.full((steps, count), -np.log(2))
    ends = torch.ones(steps, count, dtype=torch.bool)
    return Batch(
        inputs, first, action, log_prob, rewards, ends, torch.ones_like(ends), (), {},
        version=torch.zeros(count, dtype=torch.int64),
    )  # fmt: skip


ALGOS = {
    "a2c": hr.A2C(),
    "ppo": hr.PPO(epochs=2),
    "impala": hr.IMPALA(),
    "whole": hr.IMPALA(epochs=1, minibatches=1),
    "appo": hr.APPO(epochs=2),
    "impact": hr.IMPACT(),
}


@pytest.mark.parametrize("algo", ALGOS.values(), ids=ALGOS)
@pytest.mark.parametrize("task_id", [False, True])
def test_a_learner_learns_values_in_each_tasks_units(algo, task_id):
    torch.manual_seed(0)
    network = hr.Network(per_task_values=True, normalize_values=True, task_id=task_id)
    policy = hr.Policy(SPACE, Discrete(2), network)
    learner = Learner(policy, algo)
    assert not learner.by_hand
    tasks = torch.arange(12) % 2  # the third task never comes
    for _ in range(3):
        rewards = torch.where(tasks == 0, 1.0, 1000.0) + torch.randn(16, 12)
        batch = batch_of(policy, tasks, rewards)
        metrics = learner.update(lambda one=batch: one, 1e-3)
        assert not [name for name in metrics if name.startswith("task_targets")]
    mean, scale = policy.popart.mean.tolist(), policy.popart.scale.tolist()
    assert mean[:2] == pytest.approx([1.0, 1000.0], rel=0.2)
    assert scale[0] == pytest.approx(1.0, rel=0.2)
    assert scale[1] < 10.0
    assert (mean[2], scale[2]) == (0.0, 0.0)
    value = policy.values(batch.obs, batch.first, ()).detach()
    learner.close()
    of_tasks = value[:, tasks == 0].mean(), value[:, tasks == 1].mean()
    assert abs(float(of_tasks[0])) < 10
    assert float(of_tasks[1]) == pytest.approx(1000.0, rel=0.1)


@pytest.mark.parametrize("algo", ALGOS.values(), ids=ALGOS)
def test_nothing_that_is_learnt_depends_on_the_units_of_a_tasks_rewards(algo):
    tasks, after = torch.arange(12) % 2, []
    for unit in (1.0, 1024.0):  # of the second task
        torch.manual_seed(0)
        network = hr.Network(per_task_values=True, normalize_values=True)
        policy = hr.Policy(SPACE, Discrete(2), network)
        policy.popart.mean.copy_(torch.tensor([0.5, 0.5 * unit, 0.0]))
        policy.popart.scale.copy_(torch.tensor([1.0, unit, 0.0]))
        learner = Learner(policy, replace(algo, normalize_advantage=True))
        for _ in range(2):  # whole batches are scaled by what was noted of earlier ones
            rewards = torch.randn(16, 12) * torch.where(tasks == 0, 1.0, unit)
            batch = batch_of(policy, tasks, rewards)
            learner.update(lambda one=batch: one, 1e-2)
        learner.close()
        after.append([x.detach().clone() for x in policy.parameters()])
    for one, other in zip(*after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_hidden_task_reaches_values_and_nothing_else():
    network = hr.Network(per_task_values=True, normalize_values=True)
    policy = hr.Policy(SPACE, Discrete(2), network)
    policy.popart.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    obs = {"observation": np.zeros((3, 3), np.float32), "task": np.arange(3)}
    first = np.ones(3, bool)
    inputs = policy.inputs.compose(obs, None, None, None, first)
    assert set(inputs) == {"observation", "task"}
    assert set(inputs["observation"]) == {"observation"}
    inputs = {"observation": {"observation": torch.randn(1, 1, 3).expand(1, 3, 3)}, "task":
              torch.arange(3).view(1, 3)}  # fmt: skip
    params, value, _ = policy(inputs, torch.from_numpy(first).view(1, 3), ())
    torch.testing.assert_close(params, params[:, :1].expand_as(params), rtol=0, atol=1e-6)
    assert len(set(value.flatten().tolist())) == 3
    action, _ = policy.predict(obs)
    assert action.shape == (3,)


def test_statistics_are_in_a_checkpoint(tiny, finish, tmp_path):
    tasks = ("CartPole-v1", "MountainCar-v0")
    network = hr.Network(per_task_values=True)
    config = tiny(tasks=tasks, num_actors=2, network=network, transport="serial")
    trainer, _ = finish(config)
    saved = copy.deepcopy(trainer.policy.state_dict())
    assert (saved["popart.scale"] > 0).all()
    for name, value in hr.load(tmp_path / "run").state_dict().items():
        assert torch.equal(value, saved[name]), name
