"""A rollout holds what stepping by hand would have seen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cluster.parts import Categorical, CountingAgent, DelayedCountingEnv, Returning

pytestmark = pytest.mark.filterwarnings("ignore:.* has neither log_prob")

EPISODE = ["episode_return", "episode_length"]
FIELDS = ["obs", "first", "action", "log_prob", "reward", "terminated", *EPISODE]


def by_hand(envs, agent, num_steps: int, state: dict) -> dict[str, np.ndarray]:
    """The fields of a rollout, one step at a time with the agent's actions."""
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
    """What ``by_hand`` starts from after a reset."""
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
