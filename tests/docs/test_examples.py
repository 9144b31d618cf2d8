"""The examples run and log; their arithmetic is that of headrace's tested ops."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import warm
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import headrace as hr
from headrace.ops.returns import gae
from headrace.types import Rollout
from tests.tries import few_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "ppo": "--total-steps 600 --num-envs 4 --num-steps 64 --env-id CartPole-v1",
    "ppo --nodes 2": "--total-steps 600 --num-envs 4 --num-steps 64 --env-id CartPole-v1",
    "clusterenv_dqn": "--total-steps 600 --envs-per-node 2 --learning-starts 200",
}
LOGGED = {
    "ppo": {"charts/episodic_return", "charts/SPS", "losses/policy_loss", "losses/value_loss"},
    "clusterenv_dqn": {"charts/episodic_return", "charts/SPS", "charts/epsilon", "losses/td_loss"},
}
LOGGED["ppo --nodes 2"] = LOGGED["ppo"]


@pytest.fixture
def example(monkeypatch):
    """Imports an example by name, so that its worker processes can do the same."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in ("ppo", "clusterenv_dqn"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", few_of(list(TINY), ["ppo", "clusterenv_dqn"]))
def test_each_example_runs_to_its_evaluation_and_leaves_no_process(name, start, gone, tmp_path):
    file, *flags = name.split()
    flags += [*TINY[name].split(), "--eval-episodes", "2"]
    several = name == "ppo --nodes 2"  # with its own fork server, in its session
    script = start(str(EXAMPLES / f"{file}.py"), *flags, shared=not several)
    script.wait_for(" steps  return")
    assert script.wait() == 0, script.output
    assert "Evaluation: return" in script.output
    assert not gone(session_of(script))
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert str(run_dir.relative_to(tmp_path)) in script.output
    events = EventAccumulator(str(run_dir)).Reload()
    logged = set(events.Tags()["scalars"])
    assert logged >= LOGGED[name]
    if name != "ppo":
        assert logged >= {"charts/weight_syncs", "charts/divergence"}
        assert events.Scalars("charts/weight_syncs")[-1].value >= 2  # each of two workers has one
        assert "weight syncs [" in script.output
    assert events.Scalars("charts/SPS")[-1].step >= 600


def session_of(script) -> list[psutil.Process]:
    """Return all processes of a script's session."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == script.process.pid:
                processes.append(process)
    return processes


@pytest.mark.parametrize("name", ["ppo", "clusterenv_dqn"])
def test_each_example_explains_its_settings(name, start):
    script = start(str(EXAMPLES / f"{name}.py"), "--help", shared=True)
    assert script.wait() == 0
    assert "--total-steps" in script.output


def test_spreading_ppo_out_takes_a_handful_of_lines():
    words = r"\bhr\.|nodes|\bray\b|kl_threshold|\bsync\b|sync_info|stepped\b|_fault|sent_kb"
    lines = (EXAMPLES / "ppo.py").read_text().splitlines()
    assert 10 < sum(re.search(words, line) is not None for line in lines) <= 25


def test_ppo_estimates_advantages_as_headrace_does(example):
    reward, value, terminated, first = stream()
    expected, _ = gae(reward, value, terminated, first, gamma=0.97, lam=0.9)
    found = example("ppo").gae(reward, value, terminated, ~first[1:], 0.97, 0.9)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("nodes", [0, 2])
def test_ppo_learns_from_no_step_that_only_resets(nodes, learnt):
    rows = learnt(nodes, num_envs=4)
    x, angle = rows["obs"][:, 0].abs(), rows["obs"][:, 2].abs()
    assert (x <= 2.4).all()  # a filler is taken in an episode's last observation
    assert (angle <= 0.2095).all()
    assert 200 < len(rows["obs"]) < 256


def test_ppo_learns_from_no_row_of_a_worker_that_died(learnt, monkeypatch):
    step = hr.ClusterEnv.step

    def step_of_a_broken_worker(self, agent):
        *others, info = step(self, agent)
        return *others, info | {"_fault": np.array([True, False])}

    monkeypatch.setattr(hr.ClusterEnv, "step", step_of_a_broken_worker)
    assert 40 < len(learnt(2, num_envs=2)["obs"]) < 64


@pytest.fixture
def learnt(example, monkeypatch, tmp_path):
    """Return the training data of the PPO example in one update of 64 steps."""
    monkeypatch.chdir(tmp_path)

    def run(nodes: int, num_envs: int) -> dict[str, torch.Tensor]:
        module, seen = example("ppo"), []
        monkeypatch.setattr(
            module, "learn", lambda agent, optimizer, data, args: seen.append(data) or {}
        )
        settings = {"total_steps": 1, "num_envs": num_envs, "num_steps": 64, "eval_episodes": 1}
        module.main(module.Args(env_id="CartPole-v1", nodes=nodes, **settings))
        (rows,) = seen
        return rows

    return run


def stream(num_steps=40, num_envs=6):
    """Return random steps with both kinds of ends, followed by reset steps."""
    generator = torch.Generator().manual_seed(3)
    reward = torch.randn(num_steps, num_envs, generator=generator)
    value = torch.randn(num_steps + 1, num_envs, generator=generator)
    kind = torch.rand(num_steps, num_envs, generator=generator)
    terminated, truncated = kind < 0.1, kind > 0.9
    first = torch.zeros(num_steps + 1, num_envs, dtype=torch.bool)
    for t in range(1, num_steps):  # the step behind an end is a filler, and ends nothing
        first[t + 1] = terminated[t - 1] | truncated[t - 1]
        terminated[t] &= ~first[t + 1]
        truncated[t] &= ~first[t + 1]
    return reward, value, terminated, first


def test_dqn_bootstraps_after_a_truncation_only_and_never_stores_a_filler(example):
    dqn = example("clusterenv_dqn")
    # Step 0 terminates in column 0 and is truncated in column 1, so step 1 is their filler.
    first = torch.zeros(4, 3, dtype=torch.bool)
    first[2, :2] = True
    terminated = torch.zeros(3, 3, dtype=torch.bool)
    terminated[0, 0] = True
    reward = torch.arange(9.0).view(3, 3)
    obs = torch.arange(12.0).view(4, 3, 1)
    rollout = Rollout(
        obs=obs,
        first=first,
        action=torch.zeros(3, 3, dtype=torch.int64),
        log_prob=torch.zeros(3, 3),
        reward=reward,
        terminated=terminated,
        core=(),
        version=torch.zeros(3, dtype=torch.int64),
        episode_return=torch.zeros(3, 3),
        episode_length=torch.zeros(3, 3),
    )
    stored = dqn.transitions(rollout)
    replay = dqn.ReplayBuffer(5, 1)  # room for the latest five of seven
    replay.add(stored)
    assert replay.size == 5
    assert stored[0].flatten().tolist() == [0, 1, 2, 5, 6, 7, 8]  # not 3 and 4, the fillers
    assert stored[3].flatten().tolist() == [3, 4, 5, 8, 9, 10, 11]
    assert stored[4].tolist() == [True] + 6 * [False]

    class Linear(dqn.QNetwork):
        """A network whose two action values are the observation times a weight."""

        def __init__(self):
            super().__init__(1, 2)
            self.weight = torch.nn.Parameter(torch.tensor(0.0))

        def forward(self, obs):
            return (self.weight * obs).expand(-1, 2)

    online, target = Linear(), Linear()
    with torch.no_grad():
        target.weight.fill_(0.1)
    loss = [
        dqn.td_loss(online, target, tuple(column[i : i + 1] for column in stored), 0.5).item()
        for i in range(len(stored[0]))
    ]
    goal = stored[2] + 0.5 * 0.1 * stored[3].squeeze(1) * ~stored[4]
    torch.testing.assert_close(torch.tensor(loss), goal.square())  # the online value is 0
    assert loss[0] == 0.0  # reward 0, and nothing behind a terminated step
    assert loss[1] > 1.0  # reward 1, and the value behind a truncated one


def test_dqns_buffer_keeps_the_latest_rows(example):
    dqn = example("clusterenv_dqn")
    replay = dqn.ReplayBuffer(5, 1)
    for i in range(4):
        value = torch.tensor([2.0 * i, 2.0 * i + 1])
        replay.add((value[:, None], value.long(), value, value[:, None], value > 100))
    torch.manual_seed(0)
    obs, action, reward, next_obs, _ = replay.sample(200)
    assert set(reward.tolist()) == {3.0, 4.0, 5.0, 6.0, 7.0}
    assert torch.equal(obs, next_obs)
    assert torch.equal(action.float(), reward)


def test_dqns_policy_explores_with_its_epsilon(example):
    network = example("clusterenv_dqn").QNetwork(4, 3)
    network.epsilon.fill_(0.3)
    probabilities = network.distribution(torch.randn(5, 4)).probs
    torch.testing.assert_close(probabilities.max(-1).values, torch.full((5,), 0.8))
    torch.testing.assert_close(probabilities.min(-1).values, torch.full((5,), 0.1))
    assert "epsilon" in network.state_dict()  # so that it travels with the weights


def test_the_page_on_clusterenv_runs_from_top_to_bottom(tmp_path):
    page = (EXAMPLES.parent / "docs/clusterenv.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 10
    output = warm.run(tmp_path, "-c", "\n".join(blocks))
    assert "torch.Size([65, 32, 4])" in output
    assert "torch.Size([32, 8])" in output  # a recurrent agent's states
    assert "weight_syncs" in output
