"""Workers that start the next step before it is requested: effects and limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patience import wait_until
from worlds import CountingEnv

from headrace.errors import AgentFault, ConfigError
from tests.cluster_env.parts import (
    Categorical,
    CountingAgent,
    DelayedCountingEnv,
    Failing,
    Revealing,
    Stepwise,
    follows,
)


class LivingEnv(CountingEnv):
    """Observes its number of steps, also writes them to a file, and fails once at a given one."""

    def __init__(self, file: str = "", fail_at: int = 0) -> None:
        super().__init__(episode_length=3)
        self._life, self._file, self._fail_at = 0, file, fail_at

    def step(self, action: Any) -> Any:
        self._life += 1
        if self._file:
            with open(self._file, "a") as file:
                file.write(f"{self._life}\n")
        if self._life == self._fail_at:
            raise RuntimeError("LivingEnv failed, as asked")
        *step, infos = super().step(action)
        return *step, infos | {"life": self._life}


class FailingLater(Failing):
    """Acts once in each worker, and creates the file that makes it fail."""

    def __init__(self, while_there: Path, calls: Path) -> None:
        super().__init__(while_there)
        self.calls, self.acted = calls, False

    def act(self, obs: Any) -> Any:
        with self.calls.open("a") as file:
            file.write("called\n")
        if not self.acted:
            self.acted = True
            return CountingAgent.act(self, obs)
        self.while_there.touch()
        return super().act(obs)


@pytest.fixture
def ahead(make):
    """Two workers that run ahead, of two environments each."""

    def create(env: Any = CountingEnv, config: Any = None, **settings: Any):
        envs = make(env, config, **({"envs_per_node": 2, "runs_ahead": True} | settings))
        envs.reset(seed=100)
        return envs

    return create


def set_to(agent: Revealing, action: int) -> None:
    """Let the agent take another action from now on."""
    with torch.no_grad():
        agent.choice.fill_(action)


def wait_for(file: Path, lines: int) -> None:
    """Wait until the file has this number of lines."""
    wait_until(lambda: len(file.read_text().split()) >= lines)


def test_weights_arrive_exactly_one_step_later(ahead):
    envs, agent = ahead(weight_sync="every"), Revealing()
    seen, versions = [], []
    for action in (0, 1, 2, 2, 1, 0):
        set_to(agent, action)
        infos = envs.step(agent)[-1]
        assert len(set(infos["action"].tolist())) == 1
        seen.append(int(infos["action"][0]))
        versions.append(infos["policy_version"].tolist())
    assert seen == [0, 0, 1, 2, 2, 1]
    assert versions == [[v, v] for v in (0, 0, 1, 2, 2, 3)]
    assert envs.sync_info["weight_syncs"].tolist() == [5, 5]
    envs.reset()  # nothing has begun
    set_to(agent, 2)
    assert envs.step(agent)[-1]["action"].tolist() == [2] * 4
    envs.reset()
    set_to(agent, 0)
    assert envs.step(agent)[-1]["action"].tolist() == [0] * 4


def test_another_agent_arrives_a_step_later_too(ahead):
    envs, one, other = ahead(), Revealing(), Revealing()
    set_to(other, 2)
    actions = [envs.step(agent)[-1]["action"].tolist() for agent in (one, other, other, one, one)]
    assert actions == [[a] * 4 for a in (0, 0, 2, 2, 0)]


def test_the_next_step_is_taken_before_it_is_asked_for(ahead, tmp_path):
    file = tmp_path / "steps"
    kwargs = {"file": str(file)}
    envs = ahead(LivingEnv, envs_per_node=1, env_kwargs=kwargs)
    envs.step(CountingAgent())
    wait_for(file, lines=4)  # two of each worker
    time.sleep(0.1)
    assert len(file.read_text().split()) == 4  # and no third
    envs.step(CountingAgent())
    wait_for(file, lines=6)


def test_an_agent_that_does_not_learn_does_what_it_does_otherwise(ahead, make):
    fast, slow = ahead(DelayedCountingEnv), make(DelayedCountingEnv, envs_per_node=2)
    slow.reset(seed=100)
    agent = Categorical()  # draws the same: workers are seeded
    for t in range(30):
        if t in (11, 12, 17):
            seed = 100 + t
            np.testing.assert_array_equal(fast.reset(seed=seed)[0], slow.reset(seed=seed)[0])
        *mine, my_infos = fast.step(agent)
        *its, its_infos = slow.step(agent)
        for a, b in zip(mine, its, strict=True):
            np.testing.assert_array_equal(a, b)
        for name in ("action", "log_prob"):
            np.testing.assert_array_equal(my_infos[name], its_infos[name])


def test_steps_arrive_once_and_in_their_rows_whatever_the_workers_pace(ahead):
    envs = ahead(DelayedCountingEnv, env_kwargs={"delay_s": 0.003})
    obs, ended = envs.reset(seed=100)[0], np.zeros(4, bool)
    for _ in range(40):
        chosen = obs[:, :3].sum(1).astype(int) % 3
        new, reward, terminated, truncated, infos = envs.step(CountingAgent())
        assert infos["action"].tolist() == chosen.tolist()
        for i in range(4):
            expected = follows(obs[i], int(chosen[i]), bool(ended[i]))
            assert (new[i].tolist(), reward[i], terminated[i], truncated[i]) == expected
        obs, ended = new, terminated | truncated


def test_a_reset_counts_what_it_throws_away(ahead):
    envs, delivered = ahead(LivingEnv), np.zeros(2, int)
    assert envs.sync_info["steps_discarded"].tolist() == [0, 0]
    for num_steps in (1, 2, 3, 4, 5, 6, 9, 0):  # also where some of the step's are fillers
        ended = np.zeros(4, bool)
        for _ in range(num_steps):
            _, _, terminated, truncated, infos = envs.step(CountingAgent())
            delivered += (~ended).reshape(2, 2).sum(1)
            ended = terminated | truncated
        if num_steps:
            life = np.where(infos["_life"], infos["life"], 0).reshape(2, 2)
            discarded = envs.sync_info["steps_discarded"]
            if infos["_life"].all():
                assert (delivered + discarded).tolist() == life.sum(1).tolist()
        envs.reset()
        assert (envs.sync_info["steps_discarded"] >= discarded).all()
    assert (envs.sync_info["steps_discarded"] > 7).all()
    assert (envs.sync_info["steps_discarded"] < 14).all()  # without fillers


REFUSED = [
    (lambda envs: envs.step(np.zeros(4, int)), r"^step\(actions\) can't .* use step\(agent\)"),
    (lambda envs: envs.collect(CountingAgent(), 2), "^collect can't .*runs_ahead=True"),
    (lambda envs: envs.collect_async(CountingAgent(), 2), "^collect_async can't"),
    (
        lambda envs: envs.reset(options={"reset_mask": np.arange(4) < 2}),
        "reset_mask.* can't be used with runs_ahead=True.*reset all environments",
    ),
]


def test_what_cannot_know_of_a_step_that_was_begun_is_refused(ahead):
    envs, agent, ended = ahead(), CountingAgent(), np.zeros(4, bool)
    obs = envs.step(agent)[0]
    for call, says in REFUSED:
        with pytest.raises(ConfigError, match=says):
            call(envs)
        chosen = obs[:, :3].sum(1).astype(int) % 3
        new, _, terminated, truncated, _ = envs.step(agent)
        expected = [follows(obs[i], int(chosen[i]), bool(ended[i]))[0] for i in range(4)]
        assert new.tolist() == expected
        obs, ended = new, terminated | truncated


@pytest.mark.parametrize("in_reset", [False, True])
def test_an_environment_that_fails_ahead_is_told_when_it_is_asked(ahead, in_reset):
    envs = ahead(LivingEnv, envs_per_node=1, env_kwargs={"fail_at": 2}, seed=None)
    assert "fault" not in envs.step(CountingAgent())[-1]
    told = pytest.warns(RuntimeWarning, match="LivingEnv failed, as asked")
    if in_reset:
        with told:
            obs, _ = envs.reset(seed=3)
        assert obs[:, 0].tolist() == [3, 4]
    else:
        with told:
            _, _, _, truncated, infos = envs.step(CountingAgent())
        assert truncated.tolist() == infos["_fault"].tolist() == [True, True]
    assert sorted(envs.faults) == [0, 1]
    assert not envs.step(CountingAgent())[3].any()


def test_an_agent_that_fails_ahead_is_told_when_it_is_asked(ahead, tmp_path):
    envs, file = ahead(), tmp_path / "there"
    agent = Failing(file)
    envs.step(agent)
    file.touch()
    with pytest.raises(AgentFault, match="Failing failed, as asked"):
        for _ in range(3):  # what was begun before the file was there is delivered
            envs.step(agent)
    file.unlink()
    envs.reset(seed=4)
    assert envs.step(agent)[0][:, 0].tolist() == [4, 5, 6, 7]


def test_a_reset_after_an_agent_failed_ahead_throws_that_away_too(ahead, tmp_path):
    file, calls = tmp_path / "there", tmp_path / "calls"
    envs, agent = ahead(envs_per_node=1), FailingLater(file, calls)
    envs.step(agent)
    wait_for(calls, lines=4)
    assert envs.reset(seed=4)[0][:, 0].tolist() == [4, 5]
    assert sorted(envs.faults) == [0, 1]
    with pytest.raises(AgentFault, match="Failing failed, as asked"):
        for _ in range(2):  # new copies of it act once, too
            envs.step(agent)
    file.unlink()
    envs.reset(seed=6)
    assert envs.step(agent)[0][:, 0].tolist() == [6, 7]


def test_actions_are_measured_in_the_observations_that_they_were_taken_in(ahead):
    envs, agent = ahead(kl_threshold=1e9), Stepwise()
    for _ in range(7):
        envs.step(agent)
    with torch.no_grad():
        agent.note += 1
    infos = envs.step(agent)[-1]
    assert infos["_divergence"].all()
    assert infos["divergence"].tolist() == [0.0, 0.0]


def test_what_an_older_copy_did_is_not_held_against_a_newer_one(ahead):
    envs, agent = ahead(kl_threshold=0.1), Revealing()
    envs.step(agent)
    with torch.no_grad():
        agent.logit += 1.0
    for version in (0, 1):  # it fetches in the first, and the step that it had begun is version 0's
        assert envs.step(agent)[-1]["policy_version"].tolist() == [version] * 2
        with torch.no_grad():
            agent.logit += 1e-3
    infos = envs.step(agent)[-1]
    assert infos["policy_version"].tolist() == [1, 1]
    assert (infos["divergence"] < 1e-5).all()
    assert infos["weight_syncs"].tolist() == [2, 2]
