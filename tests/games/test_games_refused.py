"""Invalid games raise a one-sentence error, and no game continues without need."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from worlds import CountingGame, CountingTurns, Matching

import headrace as hr
from headrace.envs.make import make_vec, opened
from headrace.envs.names import resolve
from headrace.envs.probe import probe
from headrace.errors import ConfigError, EnvironmentFault
from headrace.games import turn_based_game
from headrace.trainer.auto_sizes import choose


def test_a_package_that_is_missing_is_told_with_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[games\]'"):
        resolve("pettingzoo:classic/rps_v2")


class Unequal(Matching):
    def action_space(self, agent):
        return Discrete(3) if agent == "left" else Box(0, 1, (3,))


class Talking(Matching):
    def observation_space(self, agent):
        return Dict({"said": Text(5)})


class Nameless(Matching):
    possible_agents = ()


class Twins(Matching):
    possible_agents = (7, "7")


class Wrong(Matching):
    def _shown(self):
        return super()._shown() | {"right": np.zeros(4, np.float32)}


class Blind(Matching):
    def _shown(self):
        return super()._shown() | {"right": None} if self._steps else super()._shown()


class Priceless(Matching):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, rewards | {"left": float("nan")}, *rest


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            Unequal,
            r"Unequal's agents 'left' and 'right' can't be joined: the action space of one is "
            r"Discrete\(3\), of the other Box\(0.0, 1.0, \(3,\), float32\) \(docs/games.md lists",
        ),
        (Talking, "Talking's left has a Text at 'said' in its spaces, which is not supported"),
        (Nameless, "Nameless has no possible_agents: define it"),
        (Twins, "Twins has 7 twice in possible_agents, each of which becomes a separate column"),
        (Wrong, r"Wrong's right returned float32 of shape \(4,\) as its observation"),
        (Blind, "Blind's right returned None as its observation"),
        (Priceless, "Priceless's left returned nan as its reward at step 1"),
    ],
)
def test_what_is_wrong_with_a_game_is_one_sentence(env, words):
    with pytest.raises((ConfigError, EnvironmentFault), match=words) as raised:
        probe(env, "sync", {}, 0).check_step()
    assert "\n" not in str(raised.value)


def test_what_a_game_cant_have_is_refused(tiny):
    for settings, words in (
        ({"wrappers": ['TimeLimit:{"max_episode_steps":5}']}, "several"),
        ({"envs_per_actor": 7}, r"multiple of 2, the agents of a game of Matching \(left, right\)"),
        ({"tasks": (Matching, CountingGame), "num_actors": 2}, "environments of one agent"),
    ):
        config = tiny(**{"env": Matching} | settings, transport="serial")
        with pytest.raises(ConfigError, match=words):
            hr.Trainer(config)
    with pytest.raises(ConfigError, match="nearest: 6 or 8"):
        hr.Trainer(tiny(env=Matching, envs_per_actor=7, transport="serial"))
    with pytest.raises(ConfigError, match=r"envs_per_actor=7 must be a multiple of 2, .* 6 or 8"):
        hr.Trainer(hr.Config(env=Matching, envs_per_actor=7))  # all else is chosen


@pytest.mark.parametrize("opponents", ["uniform", "latest:0.5,uniform:0.5"])
def test_opponents_fill_up_games_however_many_columns_learn(tiny, opponents):
    chosen = dict.fromkeys(("num_actors", "fragment_length", "batch_size"), "auto")
    config = tiny(env=Matching, opponents=opponents, envs_per_actor=3, **chosen)
    with hr.Trainer(config, notify=str) as trainer:
        assert trainer.config.envs_per_actor == 3
        assert trainer.config.is_sized


class Idle(CountingTurns):
    """Its last agent never moves."""

    def _select(self):
        super()._select()
        if self.agent_selection == self.possible_agents[-1] and len(self.agents) > 1:
            self.agent_selection = self.agents[0]


@pytest.mark.parametrize("kind", ["games", "moves"])
def test_an_agent_that_never_moves_is_told_of(monkeypatch, kind):
    monkeypatch.setattr(turn_based_game, {"games": "MAX_GAMES", "moves": "_MAX_MOVES"}[kind], 5)
    with contextlib.closing(make_vec(Idle, 1, "sync")) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFault, match=f"Idle's 2 had no turn in 5 .*{kind}"):
            for _ in range(200):
                envs.step(np.zeros(3, np.int64))


def test_games_side_by_side_count_together_until_an_agent_should_have_moved(monkeypatch, tiny):
    """Return a warning of 8 environments, each with too few games alone."""
    monkeypatch.setattr(turn_based_game, "MAX_GAMES", 40)
    config = tiny(env=Idle, envs_per_actor=24, transport="serial", total_steps=900)
    with pytest.raises(EnvironmentFault, match=r"Idle's 2 had no turn in 4\d games, so no policy"):
        list(hr.Trainer(config, notify=str))


def test_an_agent_that_had_no_turn_in_a_short_run_is_named_at_its_end(tiny):
    config, said = tiny(env=Idle, envs_per_actor=24, transport="serial", total_steps=200), []
    with hr.Trainer(config, notify=said.append) as trainer:
        list(trainer)
        trainer.finish(draw=False)
    assert [x for x in said if "no training for 2: this run had no step of theirs" in x]


def test_clusters_of_environments_refuse_games():
    from headrace.cluster_env.messages import WorkerSetup
    from headrace.cluster_env.worker import Worker

    with pytest.raises(ConfigError, match="ClusterEnv can't step Matching, a game of 2 agents"):
        Worker(WorkerSetup(Matching, 2, "auto", {}, seed=0, index=0))


class NobodyAtOnce(Matching):
    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = []
        return {}, {}


class NobodyInTurns(CountingTurns):
    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = []


class DeadInTurns(CountingTurns):
    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.terminations = dict.fromkeys(self.agents, True)


class Undead(CountingTurns):
    def step(self, action):
        i = self.agent_selection
        super().step(action)
        if action is None:
            self.agents, self.agent_selection = [i, *self.agents], i


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (NobodyAtOnce, "NobodyAtOnce was over after reset 100 times in a row"),
        (NobodyInTurns, "NobodyInTurns was over after reset 100 times in a row"),
        (DeadInTurns, "DeadInTurns was over after reset 100 times in a row"),
        (Undead, "Undead keeps selecting 0, which has ended"),
    ],
)
def test_a_game_that_goes_on_without_anybody_ends(env, words):
    with contextlib.closing(make_vec(env, 1, "sync")) as envs:
        actions = np.zeros(envs.num_envs, np.int64)
        with pytest.raises(EnvironmentFault, match=words):
            envs.reset(seed=0)
            for _ in range(200):
                envs.step(actions)


class Seldom(CountingTurns):
    """Ends before its last agent's turn, except for every seventh game."""

    def moves(self, game):
        return 9 if game % 7 == 6 else 1


class Widow(CountingTurns):
    """Agent 0 dies early in a long game."""

    lives = staticmethod(lambda game: 1)
    moves = staticmethod(lambda game: 60)


@pytest.mark.parametrize(("env", "kind"), [(Seldom, "moves"), (Widow, "moves"), (Seldom, "games")])
def test_an_agent_that_is_seldom_there_is_no_fault(monkeypatch, env, kind):
    monkeypatch.setattr(turn_based_game, {"games": "MAX_GAMES", "moves": "_MAX_MOVES"}[kind], 20)
    with contextlib.closing(make_vec(env, 1, "sync")) as envs:
        envs.reset(seed=0)
        for _ in range(200):
            envs.step(np.zeros(3, np.int64))


class Stranger(Matching):
    def step(self, actions):
        returned = super().step(actions)
        self.agents = [*self.agents, "third"]
        return returned


class StrangeTurn(CountingTurns):
    def _select(self):
        super()._select()
        if self._moves == 1:
            self.agent_selection = 7


class Unpaid(Matching):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {"left": rewards["left"]}, *rest


class OfGym(Matching):
    def step(self, actions):
        obs, rewards, over, _, infos = super().step(actions)
        return obs, rewards, over, infos


class OfGymInTurns(CountingTurns):
    def last(self, observe=True):
        obs, reward, over, _, info = super().last()
        return obs, reward, over, info


class Short(Matching):
    """Its mask has one number, which broadcasts to all three actions."""

    mask = (1,)

    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], {"right": {"action_mask": np.array(self.mask)}}


class Long(Short):
    mask = (1, 0, 1, 1)


class Uninformed(Matching):
    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], None


class Together(Matching):
    """Returns values that aren't keyed by agent."""

    def step(self, actions):
        obs, rewards, *_, infos = super().step(actions)
        return obs, rewards, False, False, infos


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            Short,
            r"Short's right returns an action_mask of shape \(1,\) in its infos, and has \d act",
        ),
        (Long, r"Long's right returns an action_mask of shape \(4,\) in its infos, and has \d act"),
        (Uninformed, "Uninformed returned None as its infos from reset: return a dict by agent"),
        (Together, "Together returned False as its terminated from step: return a dict by agent"),
        (Stranger, "Stranger has an agent 'third' that isn't in possible_agents"),
        (StrangeTurn, "StrangeTurn has an agent 7 that isn't in possible_agents"),
        (Unpaid, "Unpaid returned no reward for right, which acted"),
        (OfGym, "OfGym returned 4 values from step, but 5 are required"),
        (OfGymInTurns, "OfGymInTurns returned 4 values from last, but 5 are required"),
    ],
)
def test_what_breaks_the_rules_of_a_game_is_one_sentence(env, words):
    with contextlib.closing(make_vec(env, 1, "sync")) as envs:
        actions = np.zeros(envs.num_envs, np.int64)
        with pytest.raises(EnvironmentFault, match=words) as raised:
            envs.reset(seed=0)
            envs.step(actions)
            envs.step(actions)
    assert "\n" not in str(raised.value)


class Paid(Matching):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: np.array([value]) for agent, value in rewards.items()}, *rest


def test_a_reward_may_be_an_array_of_one():
    returned = []
    for env in (Matching, Paid):
        with contextlib.closing(make_vec(env, 2, "sync")) as envs:
            envs.reset(seed=0)
            returned.append(envs.step(np.arange(envs.num_envs) % 3)[1].tolist())
    assert returned[0] == returned[1]
    assert any(returned[0])


class Growing(Matching):
    def _shown(self):
        obs = super()._shown()
        return obs | {"right": np.zeros(4, np.float32)} if self._steps > 1 else obs


def test_an_observation_that_changes_its_shape_later_is_told_with_its_agent():
    with contextlib.closing(opened(Growing, 2, "sync", checked_steps=0)[1]) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            EnvironmentFault, match="Growing's right returned an observation outside"
        ):
            for _ in range(3):
                envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.parametrize("num_agents", [2, 3])
def test_sizes_that_are_chosen_hold_whole_games(num_agents):
    for learners in (1, 2):
        config = choose(hr.Config(num_learners=learners), None, 4, num_agents)
        assert config.per_learner.envs_per_actor % num_agents == 0
    for given in ({"num_actors": 1}, {"batch_size": 128}):
        with pytest.raises(ConfigError, match="whole games"):
            choose(hr.Config(envs_per_actor=4, **given), None, 4, 3)
