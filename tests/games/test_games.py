"""Games by name and by callable: lookup, spaces and training."""

from __future__ import annotations

import contextlib
import json
import sys
import types
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from worlds import CountingGame, CountingTurns, Matching

import headrace as hr
from headrace.cli import main
from headrace.envs.make import make_vec
from headrace.envs.names import Prepared, env_name, resolve
from headrace.envs.probe import probe
from headrace.errors import ConfigError, EnvironmentFault
from headrace.games.vector import agents_of, in_turns


@pytest.fixture
def zoo(monkeypatch):
    """A package of games by name."""
    package = types.ModuleType("some_zoo")
    package.__path__ = []
    for name, makers in {
        "both_v1": {"parallel_env": CountingGame, "env": CountingTurns},
        "turns_v2": {"env": CountingTurns},
    }.items():
        module = types.ModuleType(f"some_zoo.{name}")
        vars(module).update(makers)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "some_zoo", package)


@pytest.mark.usefixtures("zoo")
def test_modules_of_games_are_found_by_name_and_move_at_once_where_they_can():
    both, turns, second = (
        Prepared.split(resolve(f"some_zoo{name}"))[0]
        for name in (":both_v1", ":turns_v2", ".both_v1:env")
    )
    assert env_name(both) == "some_zoo:both_v1"
    assert isinstance(both(), CountingGame)
    assert isinstance(turns(num_agents=2), CountingTurns)
    assert isinstance(second(num_agents=2), CountingTurns)
    assert env_name(second) == "some_zoo.both_v1:env"
    with pytest.raises(ConfigError, match="'some_zoo:both_v3' is unknown"):
        resolve("some_zoo:both_v3")


@pytest.mark.usefixtures("zoo")
def test_what_fails_in_a_package_of_ones_own_asks_for_no_other(monkeypatch, tmp_path):
    (tmp_path / "own_zoo").mkdir()
    (tmp_path / "own_zoo/__init__.py").touch()
    (tmp_path / "own_zoo/broken_v0.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"ZeroDivisionError: division by zero\)$"):
        resolve("own_zoo:broken_v0")


def test_only_the_end_of_a_name_is_its_version(monkeypatch):
    registry = types.ModuleType("pettingzoo")
    made = types.SimpleNamespace(make=CountingGame)
    vars(registry).update(make=None, aec_registry={}, parallel_registry={"sea/my_view-v2": made})
    monkeypatch.setitem(sys.modules, "pettingzoo", registry)
    assert isinstance(
        Prepared.split(resolve("pettingzoo:sea/my_view_v2"))[0](num_agents=2), CountingGame
    )


def test_pettingzoos_own_games_are_found_as_they_are_registered():
    for name, agents, turns in (("rps_v2", 2, False), ("tictactoe_v3", 2, True)):
        found = resolve(f"pettingzoo:classic/{name}")
        assert env_name(found) == f"pettingzoo:classic/{name}"
        with contextlib.closing(make_vec(found, 3)) as envs:
            assert len(agents_of(envs)) == agents
            assert envs.num_envs == 3 * agents
            assert in_turns(envs) == turns
    policy_of = probe("pettingzoo:classic/tictactoe_v3", "auto", {}, 0)
    policy = hr.Policy(policy_of.observation_space, policy_of.action_space)
    found = hr.evaluate(policy, "pettingzoo:classic/tictactoe_v3", 5, deterministic=False)
    first, second = found.agents.values()
    assert [a + b for a, b in zip(first.returns, second.returns, strict=True)] == [0.0] * 5
    assert set(first.lengths) <= {3, 4, 5}


def test_a_run_learns_evaluates_resumes_and_is_loaded(tmp_path, capsys):
    run = tmp_path / "run"
    shape = {"num_actors": 1, "envs_per_actor": 32, "fragment_length": 16}
    algo = hr.PPO(gamma=0.3, learning_rate=1e-2, epochs=4)
    how = {"transport": "serial", "eval_episodes": 8, "log_interval_s": 0.1, "seed": 1}
    results = []
    policy = hr.train(
        Matching, algo, [results.append], total_steps=4_000, run_dir=str(run), **shape, **how
    )
    found = hr.evaluate(policy, Matching, 20)
    assert min(one.mean for one in found.agents.values()) > 6.0
    last = results[-1]
    assert list(last.agents) == ["left", "right"]
    assert sum(one.env_steps for one in last.agents.values()) == last.env_steps
    assert sum(one.episodes for one in last.agents.values()) == last.episodes
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["agents/right/episodic_return"] == last.agents["right"].episode_return
    summary = json.loads((run / "summary.json").read_text())
    assert summary["evaluation"]["agents"]["left"]["mean"] > 6.0
    assert summary["agents"]["left"]["episodes"] == last.agents["left"].episodes
    again = hr.resume(run, total_steps=4_500)
    assert again.action_space == Discrete(3)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["agents/left/episodes"] > last.agents["left"].episodes
    assert hr.evaluate(hr.load(run), Matching, 4).mean > 6.0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--episodes", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["episodes"] == 6
    assert set(told["agents"]) == {"left", "right"}
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert "  left: return" in capsys.readouterr().out


class Guess:
    """Turn-based game that rewards naming the observation, at the other's next move."""

    possible_agents = ["a", "b"]  # noqa: RUF012
    metadata = {}  # noqa: RUF012

    def observation_space(self, agent):
        mask = Box(0, 1, (4,), np.int8)
        return Dict({"observation": Box(0, 1, (3,), np.float32), "action_mask": mask})

    def action_space(self, agent):
        return Discrete(4)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._moves, self.agent_selection = ["a", "b"], 0, "a"
        self._due, self._sum = {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}
        self._shown = {x: int(self._rng.integers(3)) for x in self.agents}

    def last(self):
        x = self.agent_selection
        seen = {"observation": np.eye(3, dtype=np.float32)[self._shown[x]],
                "action_mask": np.array([1, 1, 1, 0], np.int8)}  # fmt: skip
        return seen, self._sum[x], self._moves >= 12, False, {}

    def step(self, action):
        x, y = self.agent_selection, "b" if self.agent_selection == "a" else "a"
        if action is None:
            self.agents.remove(x)
        else:
            assert action != 3, "the mask forbids it"
            self._sum[x] = 0.0
            self._sum[y] += self._due[y]
            self._due = {**self._due, x: float(action == self._shown[x]), y: 0.0}
            self._shown[x] = int(self._rng.integers(3))
            self._moves += 1
            if self._moves == 12:  # the last mover has what it is due
                self._sum[x] += self._due[x]
        self.agent_selection = y

    def close(self):
        pass


def test_a_game_in_turns_is_learnt_though_rewards_come_late(tmp_path):
    policy = hr.train(
        Guess, hr.APPO(gamma=0.3, learning_rate=1e-2), num_actors=1, envs_per_actor=32,
        fragment_length=16, total_steps=6_000, transport="serial", eval_episodes=0,
        run_dir=str(tmp_path / "run"), seed=1,
    )  # fmt: skip
    found = hr.evaluate(policy, Guess, 20)
    assert min(one.mean for one in found.agents.values()) > 4.5


class Leaving(Matching):
    """Its left agent leaves at step 3: with repeated end flags, or without any."""

    def __init__(self, lingers: bool) -> None:
        super().__init__()
        self._lingers = lingers

    def step(self, actions):
        obs, rewards, over, never, infos = super().step(actions)
        if self._steps >= 3:
            if self._lingers:
                over = over | {"left": True}
            elif self.agents:
                self.agents = ["right"]
                over = {"right": over["right"]}
                never = {"right": False}
        return obs, rewards, over, never, infos


@pytest.mark.parametrize("lingers", [True, False])
def test_who_leaves_has_ended_and_waits_for_the_next_game(lingers):
    with contextlib.closing(make_vec(partial(Leaving, lingers), 1)) as envs:
        envs.reset(seed=0)
        told = [envs.step(np.zeros(2, np.int64))[2:4] for _ in range(12)]
    terminated, truncated = (np.array(one) for one in zip(*told, strict=True))
    ended = (terminated | truncated).T.astype(int).tolist()
    assert ended[1] == [0] * 7 + [1] + [0] * 4
    assert ended[0] == [0, 0] + [1] * 6 + [0, 0, 0, 1]
    assert truncated[2].tolist() == [not lingers, False]
    assert terminated[2].tolist() == [lingers, False]


class Abrupt(CountingTurns):
    """Removes ended agents at once, without a turn; ``mute``: also without flags."""

    def __init__(self, mute: bool = False, keeps: bool = True) -> None:
        super().__init__()
        self._mute, self._keeps = mute, keeps

    def _select(self):
        if self._keeps:
            self._cumulative_rewards = self._sums
        gone = [i for i in self.agents if self.terminations[i] or self.truncations[i]]
        self.agents = [i for i in self.agents if i not in gone]
        if self._mute:
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
        super()._select()


def moves_of(env) -> list[list[tuple]]:
    """Return each agent's rewards, ends, and observations before and after a move."""
    found: list[list[tuple]] = [[], [], []]
    with contextlib.closing(make_vec(env, 1, "sync")) as envs:
        obs, infos = envs.reset(seed=0)
        over, seen = infos["absent"].copy(), obs.tolist()
        for _ in range(60):
            obs, reward, *ends, infos = envs.step(np.zeros(3, np.int64))
            for i in np.flatnonzero(infos["moved"]):
                flags = tuple(bool(end[i]) for end in ends)
                if not over[i]:
                    found[i].append((reward[i], flags, seen[i], obs[i].tolist()))
                over[i], seen[i] = any(flags), obs[i].tolist()
    return found


@pytest.mark.parametrize("mute", [False, True])
def test_who_is_taken_out_before_its_turn_is_told_its_end_and_last_rewards(mute):
    for got, wanted in zip(moves_of(partial(Abrupt, mute)), moves_of(CountingTurns), strict=True):
        assert sum(any(one[1]) for one in got) > 3
        for (reward, ends, before, after), (paid, ended, *shown) in zip(got, wanted, strict=False):
            assert (reward, before) == (paid, shown[0])
            assert ends == ((False, True) if mute and any(ended) else ended)
            assert after == (before if any(ended) else shown[1])


class Back(CountingTurns):
    """Agent 0 dies at its first move, and returns once all others have moved; 8 moves."""

    def __init__(self) -> None:
        super().__init__()
        self._ends = dict.fromkeys(range(3), False)

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agent_selection = 0

    def step(self, action):
        i = self.agent_selection
        if self.terminations[i]:
            self.agents.remove(i)
        else:
            self._sums[i], self._moves = 0, self._moves + 1
            for j in self.agents:
                self._sums[j] += self._moves
            if self._moves in (1, 8):
                self.terminations = {j: j == 0 or self._moves == 8 for j in range(3)}
        dead = [j for j in self.agents if self.terminations[j]]
        if self._moves == 3 and not dead and 0 not in self.agents:
            self.agents, self.terminations[0], self._sums[0] = [0, 1, 2], False, 0
        there = self.agents or [0]
        self.agent_selection = dead[0] if dead else next(
            j for k in (1, 2, 3) if (j := (i + k) % 3) in there)  # fmt: skip


def test_who_comes_back_in_a_game_in_turns_begins_an_episode():
    """An agent's rewards are those since its move. Others while it was absent don't count."""
    returns = [[], [], []]
    for moves, found in zip(moves_of(Back), returns, strict=True):
        total = 0.0
        for reward, ends, before, _ in moves:
            total += reward
            if any(ends):
                found.append((total, before[5]))
                total = 0.0
    first = 1.0  # of move 1, which it dies of
    again = sum(range(4, 9))  # of moves 4 to 8
    assert [value for value, _ in returns[0][:4]] == [first, again, first, again]
    assert [value for value, _ in returns[1][:2]] == [sum(range(2, 9))] * 2
    assert [value for value, _ in returns[2][:2]] == [sum(range(3, 9))] * 2


def test_last_rewards_that_nobody_can_know_are_told():
    words = "removed 0 from agents before a turn that reports its last reward"
    with pytest.raises(EnvironmentFault, match=words):
        moves_of(partial(Abrupt, keeps=False))


def test_what_a_callable_returns_is_recognised():
    assert not isinstance(Matching(), gymnasium.Env)
    with contextlib.closing(make_vec(partial(Matching, length=3), 2)) as envs:
        assert agents_of(envs) == ("left", "right")
        assert envs.num_envs == 4


class ShowsAll(Matching):
    """Its reset observes both agents, but only the right one plays."""

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        self.agents = ["right"]
        return obs, infos

    def step(self, actions):
        assert list(actions) == ["right"]
        obs, rewards, *flags, infos = super().step(actions)
        return {"right": obs["right"]}, rewards, *flags, infos


def test_who_is_shown_something_at_reset_and_is_not_among_agents_is_absent():
    with contextlib.closing(make_vec(ShowsAll, 1, "sync")) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["absent"].tolist() == [True, False]
        for _ in range(7):
            _, _, terminated, truncated, _ = envs.step(np.zeros(2, np.int64))
            assert (terminated | truncated).tolist() == [True, False]
