"""Output, games and plots of ``headrace league``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds.pennies import Pennies

import headrace as hr
from headrace.actors.episodes import Limits
from headrace.cli import main
from headrace.envs.make import make_vec
from headrace.errors import CheckpointError, ConfigError
from headrace.games.league_folder import Snapshot, snapshots
from headrace.rundir import league_writer
from headrace.studies.league import command
from headrace.studies.league.command import folder_of, show_league
from headrace.studies.league.matches import MOST_GAMES, MatchResult, all_pairs, play


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "x"
    hr.train(
        Pennies, hr.PPO(epochs=1, minibatches=2), opponents="latest:0.5,pfsp:0.5", num_actors=1,
        envs_per_actor=6, fragment_length=8, network=hr.Network(hidden=(8,)), eval_episodes=0,
        transport="serial", snapshot_every_steps=100, total_steps=250, run_dir=str(path),
    )  # fmt: skip
    return path


def matches(run: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in league_writer.match_files(run / "league")]


def shows(penny: int) -> Any:
    """Return a policy that always shows the same."""
    games = Pennies()
    policy = hr.Policy(games.single_observation_space, games.single_action_space)
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias[:] = torch.tensor([20.0, 0.0] if penny == 0 else [0.0, 20.0])
    return policy


def test_games_are_played_from_both_seats_equally() -> None:
    """Matching pennies: same actions win in the even seat and lose in the odd one."""
    games = make_vec(Pennies, 7)
    one, other = (Snapshot(str(i), Path(str(i)), "r", i) for i in (0, 1))
    match = play(games, (one, other), 101, 0, lambda path: shows(0))
    assert match.games == 101
    assert (match.wins, match.draws, match.losses) == (51, 0, 50)
    assert match.by_seat == (3.0, -3.0)
    assert match.mean == pytest.approx(3 / 101)
    returns = [3.0] * 51 + [-3.0] * 50
    assert match.se == pytest.approx(np.std(returns, ddof=1) / np.sqrt(101))


def test_a_player_is_who_it_is_in_each_seat() -> None:
    games = make_vec(Pennies, 4)
    one, other = (Snapshot(str(i), Path(str(i)), "r", i) for i in (0, 1))
    match = play(games, (one, other), 40, 0, lambda path: shows(int(path.name)))
    assert match.by_seat == (-3.0, 3.0)  # they never show the same


def test_a_game_that_never_ends_is_one_sentence() -> None:
    players = tuple(Snapshot(str(i), Path(str(i)), "r", i) for i in (0, 1))
    games = make_vec(Pennies, 3, env_kwargs={"rounds": 10**9})
    says = "^0 against 1: 3 of 10 episodes did not end within 30 steps; train with .*TimeLimit"
    limits = Limits(max_steps=30)
    with pytest.raises(ConfigError, match=says) as caught:
        play(games, players, 10, 0, lambda path: shows(0), limits)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    games = make_vec(Pennies, 3, env_kwargs={"rounds": 29})
    assert play(games, players, 10, 0, lambda path: shows(0), limits).games == 10  # type: ignore[arg-type]
    games = make_vec(Pennies, 3, env_kwargs={"rounds": 10**9})
    with pytest.raises(ConfigError, match=r"10 of 10 episodes did not end within 0\.1 s"):
        play(games, players, 10, 0, lambda path: shows(0), Limits(timeout_s=0.1))  # type: ignore[arg-type]


def test_a_run_shows_plays_rates_and_draws(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run)]) == 0
    assert "snapshots without games between them" in capsys.readouterr().out
    first, last = (snapshots(run / "league")[i].name for i in (0, -1))
    assert main(["league", str(run), "--play", first, "x", "--episodes", "20"]) == 0
    out = capsys.readouterr().out
    assert f"{first} against {last}, 20 games" in " ".join(out.split())
    assert (run / "league" / "league.png").stat().st_size > 1000
    assert main(["league", str(run / "league"), "--episodes", "20"]) == 0
    pairs = {(m["one"], m["other"]) for m in matches(run)}
    count = len(snapshots(run / "league"))
    assert len(pairs) == len(matches(run)) == count * (count - 1) // 2
    out = capsys.readouterr().out
    assert out.count("±") == count
    one = MatchResult.of(matches(run)[0])
    assert one.wins + one.draws + one.losses == one.games == 20
    assert main(["league", str(run), "--episodes", "20"]) == 0
    assert "0 pairs play" in capsys.readouterr().out


def test_games_that_a_pair_has_played_are_not_played_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, games = list[int](), list[int]()

    def noted(columns: Any, players: Any, episodes: int, seed: int, load: Any) -> MatchResult:
        seeds.append(seed), games.append(episodes)
        return play(columns, players, episodes, seed, load)

    folder = run / "league"
    monkeypatch.setattr(command, "play", noted)
    for file in (folder / "matches").glob("*.json"):
        file.unlink()
    names = [one.name for one in snapshots(folder)][:2]
    for two in (names, names[::-1]):
        show_league(run, two, 10, 12, 7, False)
    show_league(run, (), 25, 12, 7, False)
    pairs = len(list(all_pairs(snapshots(folder))))
    assert sorted(games) == [5, 10, 10] + [25] * (pairs - 1)
    assert len(set(seeds)) == len(seeds) == pairs + 2
    gaps = np.diff(sorted(seeds))
    assert (gaps >= MOST_GAMES).all(), "columns of games count on from their seed"
    seeds.clear()
    for file in (folder / "matches").glob("*.json"):
        file.unlink()
    show_league(run, names, 10, 12, 7, False)
    show_league(run, names, 10, 12, 8, False)
    assert seeds[0] != seeds[1]


def test_snapshots_are_evenly_spaced_in_each_run() -> None:
    def of(*lengths: int) -> list[Snapshot]:
        runs = zip("ABCDEF", lengths, strict=False)
        every = [Snapshot(f"{r}-{s}", Path(), r, s) for r, n in runs for s in range(n)]
        return sorted(every, key=lambda one: (one.step, one.run))

    def chosen(players: list[Snapshot], most: int) -> dict[str, list[int]]:
        found = command._spread(players, most)
        assert found == [one for one in players if one in found]
        return {r: [x.step for x in found if x.run == r] for r in sorted({x.run for x in found})}

    assert chosen(of(10, 10), 10) == {"A": [0, 2, 4, 7, 9], "B": [0, 2, 4, 7, 9]}
    assert chosen(of(2, 10), 6) == {"A": [0, 1], "B": [0, 3, 6, 9]}
    assert chosen(of(10), 3) == {"A": [0, 4, 9]}
    assert chosen(of(4, 4, 4), 4) == {"A": [0, 3], "B": [3], "C": [3]}
    assert chosen(of(3, 3, 3, 3), 2) == {"A": [2], "D": [2]}
    assert chosen(of(3, 3), 12) == {"A": [0, 1, 2], "B": [0, 1, 2]}


def test_bad_input_is_one_sentence(run: Path, tmp_path: Path) -> None:
    for path, names, episodes, words in (
        (tmp_path, (), None, "neither a league nor a run with a league"),
        (run, ("x-0",), None, "two snapshots"),
        (run, ("x-0", "y"), None, "'y' isn't a snapshot"),
        (run, ("x-0", "x-0"), None, "play='x-0 x-0' is x-0 against itself"),
        (run, (), 0, "episodes=0"),
    ):
        with pytest.raises(ConfigError) as caught:
            show_league(path, names, episodes, 12, 0, False)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert folder_of(run) == run / "league"


def test_the_whole_run_can_be_overwritten(run: Path) -> None:
    from headrace.rundir.directories import check

    check(run, resume=False, overwrite=True)
    (run / "league" / "snapshots" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        check(run, resume=False, overwrite=True)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"episodes": 0}, "episodes=0 must be 1 or more, or None .nearest: 1"),
        ({"most": 1, "episodes": 2}, "most=1 must be 2 or more .nearest: 2"),
        ({"seed": -1, "episodes": 2}, "seed=-1 must be between 0 and .* .nearest: 0"),
        ({"names": ("x", "unknown")}, "play='unknown' isn't a snapshot of .* Choose among .*, x …"),
        ({"names": ("x", "x-10")}, "play='x-10' isn't a snapshot of .* Did you mean 'x-"),
    ],
)
def test_what_cant_be_played_is_one_sentence(run: Path, asked: dict[str, Any], words: str) -> None:
    given = {"names": (), "episodes": None, "most": 3, "seed": 0, "trusts": True} | asked
    with pytest.raises(ConfigError, match=words) as raised:
        show_league(run, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["{", "[]", '{"one": "a"}', '"text"'])
def test_games_that_cant_be_read_are_named_with_their_file(run: Path, content: str) -> None:
    folder = run / "league/matches"
    folder.mkdir(exist_ok=True)
    broken = folder / "0.json"
    broken.write_text(content)
    with pytest.raises(CheckpointError, match=r"matches/0.json can't be read as games of two"):
        show_league(run, (), None, 3, 0, True)
    broken.unlink()


def test_a_run_whose_settings_cant_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json can't be read as a run's settings"):
        folder_of(tmp_path)
