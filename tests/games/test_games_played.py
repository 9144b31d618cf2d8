"""Evaluations and videos of games with changing agents."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from worlds import CountingGame, CountingTurns, Matching, counting_length, game_reward
from worlds.restless import Restless, RestlessTurns, RestlessVector, ledger

import headrace as hr
from headrace.envs import step_cost as costs
from headrace.envs.make import make_vec
from headrace.envs.probe import probe
from headrace.envs.step_cost import StepCost, step_cost, timed
from headrace.errors import ConfigError
from headrace.games.league_folder import Snapshot
from headrace.games.vector import agents_of
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl
from headrace.rundir.video import record_video
from headrace.studies.league import matches
from headrace.studies.plan import parts
from headrace.studies.plan.parts import ActorBenchmark, actor_spec
from headrace.studies.scores.references import random_returns


class Native(VectorEnv):
    """Two agents per game, natively vectorised; the second one is absent in every other game."""

    agents = ("here", "seldom")
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Box(0, 9, (1,)), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._second = np.arange(num_envs) % 2 == 1

    def reset(self, *, seed=None, options=None):
        self._step, self._game = 0, 0
        return self._obs(), {"absent": self._second.copy()}

    def _obs(self):
        return np.full((self.num_envs, 1), self._step, np.float32)

    def step(self, actions):
        none = np.zeros(self.num_envs, bool)
        absent = self._second & (self._game % 2 == 0)
        if self._step == 3:
            self._step, self._game = 0, self._game + 1
            absent = self._second & (self._game % 2 == 0)
            return self._obs(), np.zeros(self.num_envs), absent, none, {}
        self._step += 1
        over = none | (self._step == 3)
        return self._obs(), np.where(absent, 0.0, 1.0), over | absent, none, {}


POLICY = partial(hr.Policy, Box(0, 9, (1,)), Discrete(2))


def test_a_native_game_has_an_absent_agent_from_reset_on():
    found = hr.evaluate(POLICY(), Native, 3)
    assert found.agents["here"].lengths == found.agents["seldom"].lengths == (3, 3, 3)
    assert found.mean == 3.0
    assert found.episodes == 6
    assert probe(Native, "auto", {}, 0).agents == ("here", "seldom")


@pytest.mark.parametrize("env", [CountingGame, CountingTurns])
def test_an_evaluation_is_of_each_agents_episodes(env):
    found = probe(env, "auto", {"mask": "obs"}, 0)
    policy = hr.Policy(
        found.observation_space, found.action_space, hr.Network((8,), core="gru", core_size=8)
    )
    played = hr.evaluate(policy, env, 5, seed=11, env_kwargs={"mask": "obs"})
    assert list(played.agents) == list(found.agents)
    assert played.episodes == 15
    for i, one in enumerate(played.agents.values()):
        assert one.episodes == 5
        if env is CountingGame:  # five games, each agent's first episode in each
            assert sorted(one.lengths) == sorted(
                counting_length(11 + g + i, 0, 3) for g in range(5)
            )
            least = [game_reward(i, 0, 0, 0) * n for n in one.lengths]
            assert all(a <= b for a, b in zip(least, one.returns, strict=True))
        elif i == 0:
            assert set(one.lengths) == {CountingTurns.lives(0)}
    total = sum(one.mean for one in played.agents.values())
    assert played.mean == pytest.approx(total / 3)


@pytest.mark.parametrize("env", [Restless, RestlessTurns, RestlessVector])
def test_an_evaluation_is_of_the_first_episode_of_each_agent_in_each_game(env):
    """Return results of joining and leaving agents, by a literal loop over the games."""
    found = probe(env, "auto", {}, 0)
    policy = hr.Policy(found.observation_space, found.action_space)
    played = hr.evaluate(policy, env, 3, seed=11)

    def action(seen):
        return int(policy.predict(np.array([seen], np.float32), deterministic=True)[0][0])

    for i, one in enumerate(played.agents.values()):
        firsts = []
        for g in range(3):
            games = ledger(env is RestlessTurns, 11 + g, 8, action)
            steps = [step for game in games for step in game[i]]
            length = 1 + next(k for k, step in enumerate(steps) if any(step.ends))
            firsts.append((sum(step.reward for step in steps[:length]), length))
        assert sorted(zip(one.returns, one.lengths, strict=True)) == sorted(firsts)


@pytest.mark.parametrize("env", [CountingGame, CountingTurns])
def test_a_video_shows_one_whole_game(env, tmp_path):
    found = probe(env, "auto", {}, 0)
    policy = hr.Policy(found.observation_space, found.action_space)
    path = record_video(policy, env, tmp_path, seed=0)
    brightness = [float(np.mean(picture)) for picture in imageio.mimread(path)]
    if env is CountingTurns:
        assert len(brightness) == CountingTurns.moves(0) + 1
    assert 6 <= len(brightness) <= 12
    assert all(a < b for a, b in itertools.pairwise(brightness))


class Revived(CountingTurns):
    """0 ends after its move, 1 before any; then 0 returns, and moves 5 times more."""

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agent_selection, self._cumulative_rewards = 0, self._sums

    def step(self, action):
        self._moves += action is not None
        if self._moves == 1:
            self.agents, self.agent_selection = ([0], 0) if action is None else ([1], 1)
            self.terminations[1] = True
        if self._moves == 6:
            self.agents = []


def test_a_video_goes_on_though_all_who_have_moved_are_out(tmp_path):
    found = probe(Revived, "auto", {"num_agents": 2}, 0)
    policy = hr.Policy(found.observation_space, found.action_space)
    path = record_video(policy, partial(Revived, 2), tmp_path, seed=0)
    assert np.mean(imageio.mimread(path)[-1]) == pytest.approx(20 * 6, abs=3)


def test_a_match_counts_a_game_once_though_all_who_have_moved_are_out():
    kept, spaces = [], probe(Revived, "auto", {"num_agents": 2}, 0)

    def make():
        kept.append(Revived(2))
        return kept[-1]

    def load(path):
        return hr.Policy(spaces.observation_space, spaces.action_space, hr.Network((4,)))

    with contextlib.closing(make_vec(make, 1, "sync")) as envs:
        players = tuple(Snapshot(name, Path(name), "run", 0) for name in "ab")
        match = matches.play(envs, players, 6, 0, load)
    assert match.games == 6
    assert kept[-1]._game == 5, "six games were begun"


class Alone(Matching):
    """Its right agent never joins."""

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        self.agents = ["left"]
        return {"left": obs["left"]}, infos

    def step(self, actions):
        return super().step({"right": 0} | actions)


def test_an_evaluation_ends_though_an_agent_never_comes():
    found = probe(Alone, "sync", {}, 0)
    policy = hr.Policy(found.observation_space, found.action_space, hr.Network((4,)))
    played = hr.evaluate(policy, partial(Alone, length=2), 3)
    assert list(played.agents) == ["left"]
    assert played.episodes == played.agents["left"].episodes == 3


class Instance(Native):
    """Declares its columns only after its construction."""

    agents = property(lambda self: ("here", "seldom"))


def test_what_says_its_agents_too_late_is_told():
    for entry in (Instance, lambda num_envs, **_: Native(num_envs)):
        spec = EnvSpec("Late-v0", vector_entry_point=entry)
        with pytest.raises(ConfigError, match=r"its agents are here, seldom, of which 3 columns"):
            make_vec(spec, 3, "native")
    assert agents_of(Instance) == ()
    for agents in (5, "two", [1, 2], None):
        assert agents_of(type("Env", (), {"agents": agents})) == ()
    assert agents_of(type("Env", (), {"agents": ["a", "b"]})) == ("a", "b")


def test_random_returns_of_a_game_are_refused():
    with pytest.raises(ConfigError, match="must be an environment of one agent"):
        random_returns("worlds:Matching", 2)


class Clock:
    """Continues when it is asked to."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_step_of_a_game_in_turns_costs_what_a_move_costs(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(costs.time, "perf_counter", clock)
    monkeypatch.setattr(costs.time, "process_time", clock)

    def slower(envs):
        step = envs.games.step

        def timed_step(actions):
            clock.now += 0.006
            return step(actions)

        envs.games.step = timed_step
        return envs

    for env, columns in ((CountingGame, 6), (CountingTurns, 2)):
        envs = slower(make_vec(env, 2, "sync", {"mask": "obs"}))
        assert timed(envs, envs.reset(seed=0)).seconds == pytest.approx(0.006 / columns)
        envs.close()
    monkeypatch.undo()
    assert step_cost(CountingTurns, "sync", {"mask": "obs"}, 0) is not None


class Duel(Matching):
    """Zero-sum game in which the left player has an advantage."""

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        left = 1.0 + rewards["left"] - rewards["right"]
        return obs, {"left": left, "right": -left}, *rest


def test_best_is_the_latest_where_returns_add_up_to_0(tiny):
    told = []
    evaluated = {"eval_episodes": 4, "eval_interval": 256, "transport": "serial"}
    config = tiny(env=Duel, total_steps=1024, **evaluated)
    with contextlib.closing(hr.Trainer(config, notify=told.append)) as trainer:
        list(trainer)
    best = checkpoint.read_config(checkpoint.find(config.run_dir, "best"))
    assert best["evaluation"]["mean"] == 0.0
    lines = read_jsonl(Path(config.run_dir) / "evaluations.jsonl")
    assert [line["return_mean"] for line in lines] == [0.0] * 4
    best, latest = (checkpoint.find(config.run_dir, which) for which in ("best", "latest"))
    assert best.name.split("_")[1] == latest.name.split("_")[1] == "1024"
    assert sum("best is the latest" in line for line in told) == 1


def test_what_a_game_in_turns_costs_a_plan_is_of_legal_moves(tiny, monkeypatch):
    spec = actor_spec(tiny(env=CountingTurns, env_kwargs={"mask": "obs"}, envs_per_actor=6))
    acting = ActorBenchmark(spec)
    with contextlib.closing(acting):
        monkeypatch.setattr(parts, "timed", lambda envs, shown, seconds: StepCost(0.5, 1.0))
        assert acting.env_step_s(0.01) == 3.0, "a row of 6 columns"
        monkeypatch.undo()
        assert acting.env_step_s(0.01) > 0
