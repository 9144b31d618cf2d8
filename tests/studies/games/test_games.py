"""OpenSpiel's games, and measures of play with known values for simple policies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pyspiel")  # it has no wheels for Python 3.10

import pyspiel
from open_spiel.python import policy as spiel

from headrace.envs.make import make_vec
from headrace.errors import ConfigError
from headrace.games.openspiel import GAMES, SpielGames, load
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.studies.games.nash import average, in_turns, nash_conv, tabular
from headrace.studies.games.perfect import against, any_move, best_moves, minimax, one_ahead
from headrace.studies.games.quantal import quantal


def policy_of(game: str, seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    games = SpielGames(2, game)
    spaces = games.single_observation_space, games.single_action_space
    policy = Policy(*spaces, Network(hidden=(8,)), True)
    torch.nn.init.normal_(policy.policy_head.weight)
    return policy


def play(game: str, steps: int, columns: int = 8, seed: int = 0) -> Any:
    """Play random legal moves; return observation, action and result of each step."""
    games, rng = SpielGames(columns, game), np.random.default_rng(seed)
    obs, infos = games.reset(seed=seed)
    for _ in range(steps):
        mask = infos["action_mask"]
        action = (rng.random(mask.shape) * mask).argmax(1)
        before, states = obs.copy(), [node.state.clone() for node in games._nodes]
        obs, reward, terminated, _, infos = games.step(action)
        yield before, mask, action, states, obs, reward, terminated, games


@pytest.mark.parametrize("game", GAMES)
def test_each_step_is_what_openspiel_says(game: str) -> None:
    """Compare with its states, move by move: tensors, masks, rewards, ends."""
    ends = 0
    for before, mask, action, states, _, reward, terminated, games in play(game, 120):
        for g, state in enumerate(states):
            for i in range(2):
                c = 2 * g + i
                if state.is_terminal():
                    assert reward[c] == 0
                    assert not terminated[c]
                    continue
                waits = not state.is_simultaneous_node() and state.current_player() != i
                legal = [0] if waits else state.legal_actions(i)
                assert np.flatnonzero(mask[c]).tolist() == legal
                assert action[c] in legal
                assert before[c][-2:].tolist() == [float(i == 0), float(i == 1)]
            if state.is_terminal():
                continue
            pair = action[2 * g : 2 * g + 2].tolist()
            if state.is_simultaneous_node():
                state.apply_actions(pair)
            else:
                state.apply_action(pair[state.current_player()])
            over = state.is_terminal()
            assert terminated[2 * g] == terminated[2 * g + 1] == over
            if over:
                assert reward[2 * g : 2 * g + 2].tolist() == state.returns()
                ends += 1
            elif not state.is_chance_node():
                assert games._nodes[g].state.history() == state.history()
    assert ends >= 15


def test_chance_deals_as_it_should() -> None:
    """Yield Kuhn's six deals, all equally likely."""
    deals: Counter[tuple[int, ...]] = Counter()
    games = SpielGames(600, "kuhn_poker")
    games.reset(seed=1)
    deals.update(tuple(node.state.history()[:2]) for node in games._nodes)
    assert len(deals) == 6
    assert max(abs(count - 50) for count in deals.values()) < 4 * np.sqrt(50 * 5 / 6)


def test_a_game_of_more_players_or_none_is_refused() -> None:
    for name, words in (
        ("kuhn_poker(players=3)", "3 players"),
        ("kuhn_pokr", "Did you mean"),
        ("kuhn_poker(x=3)", "can't be loaded"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            load(name)
        assert "\n" not in str(caught.value)


def test_games_are_made_by_their_ids() -> None:
    envs = make_vec("OpenSpiel/leduc_poker-v0", 3)
    assert envs.num_envs == 6
    assert envs.agents == ("player_0", "player_1")
    envs = make_vec("OpenSpiel/game-v0", 2, env_kwargs={"game": "liars_dice"})
    assert envs.single_action_space.n == pyspiel.load_game("liars_dice").num_distinct_actions()


def test_nash_conv_of_known_policies() -> None:
    kuhn = pyspiel.load_game("kuhn_poker")
    assert nash_conv(spiel.UniformRandomPolicy(kuhn), kuhn) == pytest.approx(11 / 12)
    rps = load("rock_paper_scissors")
    assert nash_conv(spiel.UniformRandomPolicy(in_turns(rps)), rps) == pytest.approx(0.0)
    rock = spiel.TabularPolicy(in_turns(rps))
    rock.action_probability_array[:] = [1.0, 0.0, 0.0]
    assert nash_conv(rock, rps) == pytest.approx(2.0)


@pytest.mark.parametrize("game", ["kuhn_poker", "rock_paper_scissors"])
def test_a_table_holds_what_the_policy_does(game: str) -> None:
    """Returns against itself, by the table, match those of played games."""
    policy = policy_of(game)
    table = tabular(policy, load(game))
    games = SpielGames(4000, game)
    obs, infos = games.reset(seed=0)
    total, left = np.zeros(4000), np.ones(4000, bool)
    torch.manual_seed(0)
    while left.any():
        start = np.ones(4000, bool)
        action, _ = policy.predict(obs, None, start, False, action_mask=infos["action_mask"])
        obs, reward, terminated, _, infos = games.step(action)
        total += reward * left
        left &= ~terminated
    from open_spiel.python.algorithms.expected_game_score import policy_value

    state = in_turns(load(game)).new_initial_state()
    want = policy_value(state, [table, table])
    se = total[::2].std() / np.sqrt(2000)
    assert abs(total[::2].mean() - want[0]) < 4 * se


def test_the_average_plays_as_one_that_is_drawn_for_each_game() -> None:
    """Against any third policy the average gets the mean of their returns."""
    from open_spiel.python.algorithms.expected_game_score import policy_value

    kuhn = load("kuhn_poker")
    tables = [tabular(policy_of("kuhn_poker", seed), kuhn) for seed in range(4)]
    mixed, third = average(tables[:3], kuhn), tables[3]
    state = kuhn.new_initial_state()
    each = np.mean([policy_value(state, [one, third]) for one in tables[:3]], axis=0)
    assert policy_value(state, [mixed, third]) == pytest.approx(each)
    flat = np.mean([one.action_probability_array for one in tables[:3]], axis=0)
    reach = spiel.TabularPolicy(kuhn)
    reach.action_probability_array[:] = flat
    assert policy_value(state, [reach, third]) != pytest.approx(each, abs=1e-6)


def test_minimax_never_loses_and_finds_a_win() -> None:
    game = load("tic_tac_toe")
    state = game.new_initial_state()
    assert len(best_moves(state, {})) == 9  # all draw
    for move in (0, 3, 1, 4):  # x x . / o o . : x wins at 2
        state.apply_action(move)
    assert best_moves(state, {}) == (2,)
    for seat in (0, 1):
        found = against(policy_of("tic_tac_toe"), game, seat, minimax(), 30, 0)
        assert found["won"] == 0
        assert found["lost"] > 0
        assert sum(found.values()) == 30


@pytest.mark.parametrize(
    ("game", "moves", "best"),
    [
        ("tic_tac_toe", (0, 4, 1), {2}),  # x x . / . o . : o must stop x at 2
        ("tic_tac_toe", (0, 3, 1, 4), {2}),  # and wins rather than to stop the other
        ("tic_tac_toe", (0,), {1, 2, 3, 4, 5, 6, 7, 8}),
        ("connect_four", (0, 6, 0, 6, 0), {0}),
        ("connect_four", (0, 6, 0, 6, 0, 6), {0}),
    ],
)
def test_who_sees_a_move_ahead_wins_at_once_or_stops_who_would(game, moves, best) -> None:
    state = load(game).new_initial_state()
    for move in moves:
        state.apply_action(move)
    rng = np.random.default_rng(0)
    assert {one_ahead(state, rng) for _ in range(100)} == best


def test_whoever_sees_a_move_ahead_beats_those_who_see_none() -> None:
    policy, game = policy_of("connect_four"), load("connect_four")
    seen, blind = (against(policy, game, 0, who, 30, 0) for who in (one_ahead, any_move))
    assert seen["lost"] > blind["lost"] + 5


def test_with_a_bonus_the_equilibrium_is_a_softmax_of_what_actions_return() -> None:
    """With a smaller bonus it is nearer to Nash's equilibrium."""
    rps, kuhn = load("rock_paper_scissors"), load("kuhn_poker")
    assert quantal(rps, 0.3, rounds=50).action_probability_array == pytest.approx(1 / 3)
    far, near = (nash_conv(quantal(kuhn, bonus), kuhn) for bonus in (0.5, 0.1))
    assert (far, near) == (pytest.approx(0.225, abs=2e-3), pytest.approx(0.038, abs=4e-3))
    table = quantal(kuhn, 0.5)
    bet = table.action_probability_array[table.state_lookup["0b"], 1]  # the lowest card calls
    assert bet == pytest.approx(1 / (1 + np.exp((2 - 1) / 0.5)), abs=1e-3)
