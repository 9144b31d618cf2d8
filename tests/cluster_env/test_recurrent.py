"""Recurrent agents: workers keep a separate state per environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from worlds import CountingEnv, MemoryEnv

from headrace.errors import AgentFault
from headrace.ops.tree import leaves
from tests.cluster_env.parts import Returning

pytestmark = pytest.mark.filterwarnings("ignore:.* is recurrent, so its drift can't be measured")


class Counter(nn.Module):
    """Its action is the number of earlier observations of this episode, modulo 3."""

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.start, self.shift = start, nn.Parameter(torch.zeros(()))

    def initial_state(self, num_envs: int) -> dict[str, Any]:
        return {"seen": torch.full((num_envs, 1), self.start), "pair": (torch.zeros(num_envs, 2),)}

    def act(self, obs: Tensor, state: dict[str, Any]) -> Any:
        seen = state["seen"]
        state["pair"][0].add_(1.0)  # in place, as a user may
        action = (seen[:, 0] + self.shift.long()) % 3
        return (action, torch.zeros(len(obs))), {"seen": seen + 1, "pair": state["pair"]}


class Recalling:
    """Answers with the cue of the first observation, without knowing when that was."""

    def initial_state(self, num_envs: int) -> Tensor:
        return torch.full((num_envs,), -1)

    def act(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.where(state < 0, obs[:, :-1].argmax(1), state)
        return state, state

    def get_parameters(self) -> dict[str, Any]:
        return {}


def forgetting(obs: Tensor) -> Tensor:
    """Return the results of the same agent without a state."""
    return obs[:, :-1].argmax(1)


@pytest.fixture
def counting(make):
    """Two workers of three CountingEnvs, whose episodes have different lengths."""

    def create(**settings: Any):
        envs = make(
            CountingEnv, **({"envs_per_node": 3, "env_kwargs": {"episode_length": 3}} | settings)
        )
        envs.reset(seed=100)
        return envs

    return create


def steps_seen(obs: np.ndarray) -> list[int]:
    """Return the expected answer of a Counter, whose observation is the step of the episode."""
    return (obs[:, 2].astype(int) % 3).tolist()


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_state_is_kept_and_put_back_for_each_environment(counting, runs_ahead):
    envs, agent = counting(runs_ahead=runs_ahead), Counter()
    obs = envs.reset(seed=100)[0]
    ends = []
    for t in range(40):
        if t in (17, 18):  # a reset restarts everything
            obs = envs.reset()[0]
        new, _, terminated, truncated, infos = envs.step(agent)
        assert infos["action"].tolist() == steps_seen(obs)
        obs = new
        ends.append((terminated | truncated).tolist())
    assert any(any(row) and not all(row) for row in ends)  # not all of them at once


def test_a_reset_of_some_puts_only_theirs_back(counting):
    envs, agent = counting(), Counter()
    for _ in range(2):
        obs = envs.step(agent)[0]
    mask = np.array([True, False, False, False, True, False])
    obs = envs.reset(options={"reset_mask": mask})[0]
    assert steps_seen(obs) == [0, 2, 2, 2, 0, 2]
    for _ in range(8):
        new, *_, infos = envs.step(agent)
        assert infos["action"].tolist() == steps_seen(obs)
        obs = new


def unrolled(rollout: Any, seen: Tensor) -> Tensor:
    """Compare a rollout's actions with those that follow from a state; return the last state."""
    for t in range(len(rollout.reward)):
        seen = torch.where(rollout.first[t], 0, seen)
        assert rollout.action[t].tolist() == (seen % 3).tolist()
        seen = seen + 1
    return seen


def test_a_rollout_has_the_state_before_its_first_row(counting):
    envs, agent = counting(), Counter()
    seen = torch.zeros(6, dtype=torch.int64)
    some_began = False
    for num_steps in (5, 1, 7, 4, 6):
        rollout = envs.collect(agent, num_steps)
        assert rollout.core["seen"].shape == (6, 1)
        assert rollout.core["pair"][0].shape == (6, 2)
        assert rollout.core["pair"][0][:, 1].tolist() == seen.tolist()  # written in place since
        assert rollout.core["seen"][:, 0].tolist() == seen.tolist()
        assert rollout.core["seen"].dtype == torch.int64
        some_began |= bool((rollout.first[0] & (seen > 0)).any())  # that of the episode before
        seen = unrolled(rollout, rollout.core["seen"][:, 0])
    assert some_began
    parts = {}
    for rollout in envs.collect_async(agent, 3):
        worker = int(rollout.env_id[0]) // 3
        expected = parts.get(worker, seen[worker * 3 : worker * 3 + 3])
        assert rollout.core["seen"][:, 0].tolist() == expected.tolist()
        parts[worker] = unrolled(rollout, expected)
        if len(parts) == 2:
            break


@pytest.mark.parametrize("how", ["step", "collect"])
def test_a_cue_is_remembered_to_the_end_of_every_episode(make, how):
    kwargs = {"num_cues": 4, "delay": 5}
    envs = make(MemoryEnv, envs_per_node=4, env_kwargs=kwargs)
    envs.reset(seed=3)
    envs.reset(options={"reset_mask": np.arange(8) % 2 == 0})
    best, num_steps = Recalling(), 63  # of 7 for an episode and its filler
    if how == "collect":
        rollout = envs.collect(best, num_steps)
        returns = rollout.episode_return[~rollout.episode_return.isnan()].tolist()
        assert returns == [1.0] * 72
        return
    total = sum(envs.step(best)[1].sum() for _ in range(num_steps))
    assert total == 72
    worse = sum(envs.step(Returning(forgetting))[1].sum() for _ in range(num_steps))
    assert worse < 50


def test_weights_leave_a_state_alone_and_another_agent_begins_anew(counting):
    envs, agent = counting(env_kwargs={"episode_length": 30}), Counter()
    for _ in range(4):
        envs.step(agent)
    with torch.no_grad():
        agent.shift += 1
    infos = envs.step(agent)[-1]
    assert infos["action"].tolist() == [(4 + 1) % 3] * 6
    assert infos["policy_version"].tolist() == [1, 1]
    assert infos["measure"].tolist() == ["age", "age"]
    assert envs.collect(other := Counter(start=7), 2).core["seen"][:, 0].tolist() == [7] * 6
    assert envs.collect(other, 2).core["seen"][:, 0].tolist() == [9] * 6
    assert envs.collect(agent, 2).core["seen"][:, 0].tolist() == [0] * 6


def test_steps_with_actions_leave_a_state_alone(counting):
    envs, agent = counting(env_kwargs={"episode_length": 30}), Counter()
    for _ in range(4):
        envs.step(agent)
    envs.step(np.zeros(6, int))
    assert envs.step(agent)[-1]["action"].tolist() == [4 % 3] * 6


@pytest.mark.filterwarnings("ignore:worker .* died")
@pytest.mark.parametrize("dead", [[1], [0, 1]])
def test_a_dead_workers_part_begins_anew(counting, dead):
    envs, agent = counting(), Counter(start=5)
    envs.collect(agent, 4)
    for i in dead:
        envs._head.pool._nodes[i].child.process.kill()
    rollout = envs.collect(agent, 4)
    seen = rollout.core["seen"][:, 0].reshape(2, 3)
    assert all(seen[i].tolist() == [5] * 3 for i in dead)
    assert rollout.core["pair"][0].shape == (6, 2)
    assert envs.collect(agent, 4).core["seen"].reshape(2, 3)[dead[0]].tolist() == [5] * 3


class Elsewhere(Tensor):
    """Mimics a tensor on a GPU, which NumPy can't read without a copy."""

    def __array__(self, *_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self) -> Tensor:
        return self.as_subclass(Tensor)


class Learnt(Counter):
    """Starts with a trained state, on a GPU in the learner."""

    def __init__(self) -> None:
        super().__init__()
        self.begins, self.here = nn.Parameter(torch.zeros(1)), True

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"here": False}

    def initial_state(self, num_envs: int) -> Any:
        begins = nn.Parameter(self.begins.detach().repeat(num_envs, 1))
        return {"seen": begins.detach().as_subclass(Elsewhere) if self.here else begins}

    def act(self, obs: Tensor, state: Any) -> Any:
        return (state["seen"][:, 0].long() % 3, torch.zeros(len(obs))), {"seen": state["seen"] + 1}


class Arrays(Counter):
    """Keeps its state in NumPy arrays."""

    def initial_state(self, num_envs: int) -> Any:
        return np.zeros((num_envs, 1), np.int64)

    def act(self, obs: Tensor, state: np.ndarray) -> Any:
        assert isinstance(state, np.ndarray)
        return (state[:, 0] % 3, np.zeros(len(obs))), state + 1


@pytest.mark.filterwarnings("ignore:worker .* died")
@pytest.mark.parametrize("kind", [Learnt, Arrays])
def test_a_state_may_be_learnt_or_of_numpy_or_on_a_gpu(counting, kind):
    envs, agent = counting(), kind()
    obs = envs.reset(seed=100)[0]
    for _ in range(6):
        new, *_, infos = envs.step(agent)
        assert infos["action"].tolist() == steps_seen(obs)
        obs = new
    envs.collect(agent, 4)
    envs._head.pool._nodes[1].child.process.kill()
    rollout = envs.collect(agent, 4)
    (core,) = leaves(rollout.core)
    assert core.shape == (6, 1)
    assert core[3:].tolist() == [[0]] * 3
    assert not core.requires_grad


def test_a_recurrent_agent_is_told_that_it_is_not_measured(counting):
    with pytest.warns(UserWarning, match="^Counter is recurrent, so its drift can't be measured"):
        counting().step(Counter())


class Short(Counter):
    """Its state has another first dimension, as torch's LSTMs have."""

    def initial_state(self, num_envs: int) -> Any:
        return torch.zeros(1, num_envs)


class Alone(Counter):
    """Forgets to return its state."""

    def act(self, obs: Tensor, state: Any) -> Any:
        return torch.zeros(len(obs))


class Shrinking(Counter):
    """Loses rows."""

    def act(self, obs: Tensor, state: Any) -> Any:
        return torch.zeros(len(obs)), torch.zeros(2)


def test_a_state_that_is_not_one_for_each_environment_is_refused(counting):
    envs = counting()
    for agent, says in (
        (Short, r"initial_state\(3\) returned a state of shape \[1, 3\] for 3 environments"),
        (Alone, r"must return \(acted, state\)"),
        (Shrinking, r"act returned a state of shape \[2\] for 3 environments"),
    ):
        with pytest.raises(AgentFault, match=says):
            envs.step(agent())
        envs.reset(seed=0)
        with pytest.raises(AgentFault, match=says):
            envs.collect(agent(), 2)
        envs.reset(seed=0)
