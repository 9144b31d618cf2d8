"""A rollout holds the same data as stepping by hand."""

from __future__ import annotations

import tracemalloc

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn
from worlds import BrightQuarter

from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env.agent import pack_agent
from headrace.cluster_env.messages import Agent, Request, WorkerSetup
from headrace.cluster_env.worker import Worker
from headrace.envs.names import resolve
from tests.cluster_env.parts import Categorical, CountingAgent, DelayedCountingEnv, Returning

EPISODE = ["episode_return", "episode_length"]
FIELDS = ["obs", "first", "action", "log_prob", "reward", "terminated", *EPISODE]


def by_hand(envs, agent, num_steps: int, state: dict) -> dict[str, np.ndarray]:
    """Return the fields of a rollout, one step at a time with the agent's actions."""
    columns: dict[str, list] = {name: [] for name in FIELDS}
    columns["obs"].append(state["obs"])
    columns["first"].append(state["first"])
    for _ in range(num_steps):
        filler = state["done"]
        obs, reward, terminated, truncated, infos = envs.step(agent)
        state["returns"] = np.where(filler, 0.0, state["returns"] + reward)
        state["lengths"] = np.where(filler, 0, state["lengths"] + 1)
        done = terminated | truncated
        columns["obs"].append(obs)
        columns["first"].append(filler)
        columns["action"].append(infos["action"])
        columns["log_prob"].append(infos.get("log_prob", np.full(len(reward), np.nan)))
        columns["reward"].append(reward)
        columns["terminated"].append(terminated)
        columns["episode_return"].append(np.where(done, state["returns"], np.nan))
        columns["episode_length"].append(np.where(done, state["lengths"], np.nan))
        state |= {"obs": obs, "done": done, "first": filler}
    return {name: np.stack(values) for name, values in columns.items()}


def begun(obs) -> dict:
    """Return the state from which ``by_hand`` starts after a reset."""
    zero = np.zeros(len(obs))
    first = np.ones(len(obs), bool)
    return {"obs": obs, "first": first, "done": ~first, "returns": zero, "lengths": zero}


def alike(rollout, fields: dict[str, np.ndarray]) -> None:
    for name, expected in fields.items():
        found = getattr(rollout, name).numpy()
        np.testing.assert_array_equal(found, expected.astype(found.dtype), err_msg=name)


@pytest.mark.parametrize("agent", [CountingAgent, Categorical], ids=["certain", "random"])
def test_collect_is_stepping_by_hand(make, agent):
    fast, slow = (make(DelayedCountingEnv, envs_per_node=2) for _ in range(2))
    agent = agent()  # a random one draws the same: workers are seeded
    fast.reset(seed=100)
    state = begun(slow.reset(seed=100)[0])
    for num_steps in (5, 1, 7):
        alike(fast.collect(agent, num_steps), by_hand(slow, agent, num_steps, state))
    for _ in range(3):  # steps between rollouts
        fast.step(agent)
        by_hand(slow, agent, 1, state)
    alike(fast.collect(agent, 5), by_hand(slow, agent, 5, state))
    assert not state["first"][[0, 3]].any()  # so that the reset shows
    mask = np.array([True, False, False, True])
    fast.reset(options={"reset_mask": mask})
    state["obs"] = slow.reset(options={"reset_mask": mask})[0]
    state["first"] = state["first"] | mask
    state["done"] = state["done"] & ~mask
    state["returns"], state["lengths"] = (
        np.where(mask, 0, state[name]) for name in ("returns", "lengths")
    )
    rollout = fast.collect(agent, 9)
    alike(rollout, by_hand(slow, agent, 9, state))
    assert rollout.env_id.tolist() == [0, 1, 2, 3]
    assert rollout.version.tolist() == [0, 0, 0, 0]
    assert rollout.core == ()


def test_whatever_else_an_agent_returns_is_in_extras_and_info(make):
    envs = make(DelayedCountingEnv, envs_per_node=2)
    agent = Returning(
        lambda obs: {
            "action": obs[:, 0].long() % 3,
            "log_prob": -obs[:, 2],
            "seen": obs,  # the very memory that the next step overwrites
            "inner": {"pair": (obs[:, 0], obs[:, 2])},
        }
    )
    envs.reset(seed=100)
    rollout = envs.collect(agent, 6)
    np.testing.assert_array_equal(rollout.extras["seen"], rollout.obs[:-1])
    np.testing.assert_array_equal(rollout.extras["inner"]["pair"][1], rollout.obs[:-1, :, 2])
    np.testing.assert_array_equal(rollout.log_prob, -rollout.obs[:-1, :, 2])
    infos = envs.step(agent)[-1]
    np.testing.assert_array_equal(infos["seen"], rollout.obs[-1])
    assert infos["inner"]["pair"][0].shape == (4,)


# -- images ---------------------------------------------------------------------------------------


class Looking(nn.Module):
    """Acts by the brightest quarter, and requires images in their original format."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def act(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        assert obs.dtype == torch.uint8
        half = obs.shape[-1] // 2
        bright = obs.sum(1).unflatten(2, (2, half)).unflatten(1, (2, half)).sum((2, 4))
        return {"action": bright.flatten(1).argmax(1), "log_prob": torch.zeros(len(obs))}


def test_images_are_acted_on_and_come_back_as_they_are(make):
    kwargs = {"channels": 3, "side": 16}
    envs = make(BrightQuarter, env_kwargs=kwargs, envs_per_node=4, engine="auto")
    obs, _ = envs.reset(seed=0)
    assert (obs.dtype, obs.shape) == (np.uint8, (8, 3, 16, 16))
    rollout = envs.collect(agent := Looking(), 27)  # of 9 for an episode and its filler
    assert rollout.obs.dtype == torch.uint8
    assert rollout.obs.shape == (28, 8, 3, 16, 16)
    np.testing.assert_array_equal(rollout.obs[0], obs)
    assert rollout.reward.sum() == 8 * 24
    *_, infos = envs.step(agent)
    np.testing.assert_array_equal(infos["action"], agent.act(rollout.obs[-1])["action"])


def test_a_rollout_of_images_is_made_in_the_memory_that_it_takes():
    kwargs = {"channels": 4, "side": 84}
    worker = Worker(WorkerSetup(resolve(BrightQuarter), 4, "native", kwargs, 0, 0))
    packed = Agent(pack_agent(Looking()), SyncRule())
    worker.handle(Request("reset", (0, None)))
    collecting = Request("collect", (2,), version=0, agent=packed)
    worker.handle(collecting)
    tracemalloc.start()
    try:
        answer = worker.handle(Request("collect", (32,), version=0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        worker.close()
    size = answer.value["obs"].nbytes
    assert size == 33 * 4 * 4 * 84 * 84
    assert peak < 1.3 * size


# -- actions that environments change -----------------------------------------------------------


class Overwriting(gymnasium.Env):
    """Overwrites its action."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert (action == 0.5).all()
        action[:] = 9.0
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_an_environment_that_overwrites_its_action_does_not_change_the_rollout():
    worker = Worker(WorkerSetup(resolve(Overwriting), 2, "sync", {}, 0, 0))
    worker.handle(Request("reset", (0, None)))
    agent = Returning(lambda obs: {"action": torch.full((len(obs), 2), 0.5)})
    packed = Agent(pack_agent(agent), SyncRule())
    rollout = worker.handle(Request("collect", (4,), 0, packed)).value
    assert (rollout["action"] == 0.5).all()
    _, acted = worker.handle(Request("act", (), 0)).value
    assert (acted["action"] == 0.5).all()
    worker.close()
