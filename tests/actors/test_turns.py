"""Moves of turn-based agents arrive once, with the rewards until the agent's next turn."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from worlds import CountingTurns

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.envs.make import make_vec
from headrace.games.vector import agents_of
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.ops.returns import gae, vtrace
from headrace.transport.slab import Slab
from headrace.types import Rollout
from tests.actors.test_cut_rollouts import After
from tests.actors.test_game_columns import (
    ENGINES_AND_MASKS,
    arrived,
    reference,
    told,
    value_of,
)

GAMES, AGENTS, T = 2, 3, 5
B = GAMES * AGENTS
RECURRENT = Network((8,), core="gru", core_size=8)


def check_moves(rollouts: list[Rollout], seed: int) -> None:
    """Check that each move of each game arrives once, in its agent's column, with its data."""
    moves = defaultdict(list)  # by game and number
    for b in range(B):
        game, agent = seed + b // AGENTS, b % AGENTS
        before, last = (-1, 0, True), -1  # episode, step, over; action
        for one in told(rollouts, b):
            (_, _, episode, step), move = one.label, one.before[5]
            assert one.label[:2] == (game, agent)
            assert (episode, step) == ((before[0] + 1, 0) if before[2] else before[:2])
            assert one.before[4] == (last if step else -1)
            assert one.after[:5] == (*one.label[:3], step + 1, one.action)
            until = one.after[5]
            parts = sum(3 * k + agent + 1 for k in range(move, until))
            assert one.reward == parts + 0.25 * one.action
            dies = agent == 0 and step + 1 == CountingTurns.lives(episode)
            over = dies or until == CountingTurns.moves(episode)
            assert one.terminated == (over and CountingTurns.terminates(agent, episode))
            moves[b // AGENTS, episode].append(move)
            before, last = (episode, step + 1, over), one.action
    for number in range(GAMES):
        played = max(episode for n, episode in moves if n == number)
        assert played > 2
        for episode in range(played - 1):  # the last ones aren't over
            assert sorted(moves[number, episode]) == list(range(CountingTurns.moves(episode)))


class Filled:
    """Fills poisoned slots, and returns copies."""

    def __init__(self, engine="sync", network=None, num_steps=T, env=None, **kwargs) -> None:
        self.envs = make_vec(env or CountingTurns, GAMES, engine, kwargs)
        _, infos = self.envs.reset(seed=0)
        torch.manual_seed(1)
        spaces = self.envs.single_observation_space, self.envs.single_action_space
        self.policy = Policy(*spaces, network, "action_mask" in infos)
        self._slab = Slab(rollout_spec(self.policy, num_steps, B, 0.9), 1, 1)
        pace = AsynchronousStepper(self.envs, self.policy, "Turns")
        self.collector = Collector(self.envs, self.policy, "Turns", 0.9, pace)
        self.collector.reset(5)

    def __call__(self, count: int, cut=lambda: None, version: int = 3) -> list[Rollout]:
        rollouts = []
        for _ in range(count):
            self._slab.poison(0)
            self._slab.trees[0]["first"].fill_(False)  # or what is left out looks like padding
            valid = self.collector.fill(Rollout(**self._slab.trees[0]), version, cut())
            rollouts.append(Rollout(**tree.map_leaves(torch.clone, self._slab.trees[0])))
            assert valid == int((~rollouts[-1].first[1:]).sum())
        return rollouts

    def close(self) -> None:
        self.envs.close()


@pytest.fixture
def filled():
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(
            contextlib.closing(Filled(*args, **kwargs))
        )


@pytest.mark.parametrize(("engine", "mask"), ENGINES_AND_MASKS)
def test_each_move_arrives_once_with_its_own_reward(filled, engine, mask):
    fill = filled(engine, mask=mask)
    assert agents_of(fill.envs) == ("0", "1", "2")
    rollouts = fill(24)
    check_moves(rollouts, 5)
    if mask != "none":
        for b in range(B):
            assert all((x.action - x.label[2] - x.label[3]) % 3 < 2 for x in told(rollouts, b))


@pytest.mark.parametrize(
    ("num_steps", "network"),
    [
        (1, RECURRENT),
        (2, None),
        (9, RECURRENT),
        *[
            pytest.param(*one, marks=pytest.mark.full)
            for one in ((1, None), (2, RECURRENT), (9, None))
        ],
    ],
)
def test_so_it_does_wherever_fragments_end(filled, num_steps, network):
    rng = np.random.default_rng(num_steps)
    fill = filled(network=network, num_steps=num_steps)
    check_moves(fill(180 // num_steps), 5)
    fill.collector.reset(7)  # forgets what was begun
    cuts = lambda: After(int(rng.integers(1, 4)))  # noqa: E731
    check_moves(fill(400 // num_steps, cuts), 7)


def test_a_step_that_is_carried_over_was_drawn_from_what_its_log_probability_says(filled):
    fill = filled(network=RECURRENT)
    rollouts = fill(12)
    carried = 0
    for b in range(B):
        carried += sum(bool(r.first[-1, b]) and not bool(r.first[-2, b]) for r in rollouts)
    assert carried > 3, "the case happens"
    for rollout in rollouts:
        inputs, core = rollout.obs, rollout.core
        with torch.inference_mode():
            for t in range(T):
                params, core = fill.policy.act(inputs[t], rollout.first[t], core)
                expected = fill.policy.distribution.log_prob(params, rollout.action[t])
                valid = ~rollout.first[t + 1]
                torch.testing.assert_close(
                    rollout.log_prob[t][valid], expected[valid], atol=1e-5, rtol=1e-5
                )


def test_statistics_are_those_of_the_agents_episodes(filled):
    rollouts = filled()(24)
    for b in range(B):
        expected, total = [], 0.0
        for one in told(rollouts, b):
            total += one.reward
            _, agent, episode, step = one.label
            dies = agent == 0 and step + 1 == CountingTurns.lives(episode)
            if dies or one.after[5] == CountingTurns.moves(episode):
                expected.append((total, step + 1))
                total = 0.0
        ends = torch.cat([r.episode_return[:, b] for r in rollouts])
        lengths = torch.cat([r.episode_length[:, b] for r in rollouts])
        known = ~ends.isnan()
        assert list(zip(ends[known].tolist(), lengths[known].tolist(), strict=True)) == expected


@pytest.mark.parametrize("num_steps", [2, 9])
def test_advantages_are_those_of_a_slow_reference_for_each_agent(filled, num_steps):
    gamma, lam, rho_bar, c_bar = 0.9, 0.8, 1.0, 0.7
    rng, pieces = np.random.default_rng(0), 0
    for rollout in filled(num_steps=num_steps)(90 // num_steps):
        obs = rollout.obs.int().tolist()
        value = torch.tensor([[value_of(x) for x in row] for row in obs], dtype=torch.float64)
        log_ratio = torch.from_numpy(rng.normal(size=(num_steps, B)) / 2)
        stream = rollout.reward.double(), value, rollout.terminated, rollout.first
        advantage, _ = gae(*stream, gamma=gamma, lam=lam)
        vs = vtrace(log_ratio, *stream, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar).vs
        for b in range(B):
            rows = [t for t in range(num_steps) if not rollout.first[t + 1, b]]
            steps = {t: moved(obs, t, b, int(rollout.action[t, b])) for t in rows}
            pieces += len({label[2] for label, *_ in steps.values()}) > 1
            slow = reference(steps, gamma, lam, log_ratio[:, b].exp(), rho_bar, c_bar)
            for t in rows:
                assert float(advantage[t, b]) == pytest.approx(slow[t][0], abs=1e-3)
                assert float(vs[t, b]) == pytest.approx(slow[t][1], abs=1e-3)
    assert pieces > 5 or num_steps == 2, "episodes end inside of fragments"


def moved(obs: list, t: int, b: int, action: int) -> tuple[tuple, float, bool]:
    """Return a move's label, reward and death from the game's rules alone."""
    _, _, episode, step, _, move = obs[t][b]
    agent, until = b % AGENTS, obs[t + 1][b][5]
    reward = sum(3 * k + agent + 1 for k in range(move, until)) + 0.25 * action
    over = until == CountingTurns.moves(episode)
    over |= agent == 0 and step + 1 == CountingTurns.lives(episode)
    dies = over and CountingTurns.terminates(agent, episode)
    return (5 + b // AGENTS, agent, episode, step), reward, dies


@pytest.mark.parametrize("num_steps", [1, T])
def test_discounted_returns_go_on_over_fragments(filled, num_steps):
    rollouts = filled(num_steps=num_steps)(120 // num_steps)
    for b in range(B):
        known = [
            float(r.discounted_return[t, b])
            for r in rollouts
            for t in range(num_steps)
            if not r.first[t + 1, b]
        ]
        total, expected = 0.0, []
        for one in told(rollouts, b):
            total = one.reward + (0.0 if one.label[3] == 0 else 0.9 * total)
            expected.append(total)
        assert known == pytest.approx(expected, rel=1e-4)


def test_the_version_of_a_carried_move_is_that_of_the_weights_that_chose_it(filled):
    fill, policies, carried = filled(num_steps=1), [], set()
    for version in range(40):
        with torch.no_grad():
            for weight in fill.policy.parameters():
                weight.add_(torch.randn_like(weight) / 5)
        policies.append(copy.deepcopy(fill.policy))
        [rollout] = fill(1, version=version)
        for b in (~rollout.first[1]).nonzero().flatten().tolist():
            acted = policies[rollout.version[b]]
            row = slice(b, b + 1)
            params, _ = acted.act(rollout.obs[0, row], rollout.first[0, row], ())
            expected = acted.distribution.log_prob(params, rollout.action[0, row])
            torch.testing.assert_close(rollout.log_prob[0, row], expected, atol=1e-5, rtol=1e-5)
            carried.add(version - int(rollout.version[b]))
    assert {0, 1, 2} <= carried, "some are carried more than once"


class Brief(CountingTurns):
    """Every other game ends after one move."""

    @staticmethod
    def moves(game: int) -> int:
        return 1 if game % 2 else 9


def test_who_ends_before_its_first_turn_has_no_step_in_that_game(filled):
    rollouts = filled(env=Brief)(24)
    for b in range(B):
        steps = Counter(one.label[2] for one in told(rollouts, b))
        played = range(max(steps))
        for game in played[1::2]:
            assert steps[game] == (game % AGENTS == b % AGENTS)
        assert all(steps[game] >= 1 for game in played[::2])
        ended = sum(int((~r.episode_return[:, b].isnan()).sum()) for r in rollouts)
        assert ended in (len(steps), len(steps) - 1)


def test_each_move_arrives_once_over_every_transport(way, tiny):
    shape = {"num_actors": 1, "envs_per_actor": B, "fragment_length": T}
    config = tiny(env=CountingTurns, algo=hr.APPO(), **shape, **way, batch_size=None)
    rollouts = arrived(config, make_vec(CountingTurns, GAMES), 24)
    seeds = [int(x) for x in rollouts[0].obs[0, :, 0] if x]
    check_moves(rollouts, min(seeds))
