"""``headrace league``: plays games between snapshots, and prints ratings and pay-offs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from rich.console import Console

from headrace.envs.make import make_vec
from headrace.errors import CheckpointError, ConfigError, require
from headrace.games.league_folder import GAME, Snapshot, newest, snapshots
from headrace.processes import global_generators_kept, safe_files, seed_global_generators
from headrace.rundir import checkpoint, league_writer, resolve_imports
from headrace.studies.league import picture
from headrace.studies.league.matches import MOST_GAMES, MatchResult, all_pairs, pair, play
from headrace.studies.league.ratings import Rating, rate
from headrace.studies.machine import show, wide_console
from headrace.validation import fields, ranges

Games = dict[tuple[str, str], tuple[int, float]]
_SHOWN = 40  # maximum number of players in the plot


def folder_of(path: Path) -> Path:
    """Return the league of a run, or ``path`` itself if it is one.

    Raises:
        ConfigError: the path is neither. CheckpointError: the settings of a run are unreadable.
    """
    if safe_files.is_file(path / GAME):
        return path
    if os.path.lexists(path / "config.json"):
        named = _named_in(path / "config.json")
        league = Path(named or path / "league")
        if safe_files.is_file(league / GAME, None if named else path):
            return league
    raise ConfigError(
        f"{str(path)!r} is neither a league nor a run with a league: give the run directory of a "
        "run with --opponents, or its league"
    )


def _named_in(settings: Path) -> str | None:
    """Return the league that a run's ``config.json`` names.

    Raises:
        CheckpointError: the file is unreadable.
    """
    try:
        named: str | None = safe_files.read_json(settings)["config"].get("league")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{settings} can't be read as a run's settings: {error!r}") from error
    return named


def settings_of(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the oldest snapshot of a league with its ``config.json``, or None."""
    every = snapshots(folder_of(path))
    return (every[0].path, checkpoint.read_config(every[0].path)) if every else None


def show_league(
    path: Path,
    names: Sequence[str],
    episodes: int | None,
    most: int,
    seed: int,
    trusts: bool,
    output: Path | None = None,
    console: Console | None = None,
) -> dict[str, Rating]:
    """Play the requested games, then print ratings and plot pay-offs of all games of the league.

    Args:
        names: two snapshots to play against each other. Empty: with ``episodes``, every pair of at
            most ``most`` snapshots, evenly spaced in each run.
        episodes: games that ``names`` play now (None: 100), or total games of every pair; half of
            them in either seat.
        trusts: import code that snapshots name.
        output: file of the plot; league.png in the league by default.

    Returns:
        ratings of all players with games.

    Raises:
        ConfigError: there is no league, or no snapshot of that name.
    """
    console, folder = console or wide_console(), folder_of(path)
    require(len(names) in (0, 2), "play", " ".join(names), "two snapshots")
    fields.check("episodes", Annotated[int, ranges.Range(1, 10**6)] | None, episodes)
    fields.check("most", Annotated[int, ranges.Range(2, 10**6)], most)
    fields.check("seed", Annotated[int, ranges.SEED], seed)
    every = snapshots(folder)
    games = _games(folder)
    if names:
        one, other = pair(folder, names)
        request = RequestedGames(one, other, episodes or 100, _count(games, one, other))
        _print_match(_play_all(folder, [request], seed, trusts)[0], console)
    elif episodes is not None:
        every_pair = [(a, b, _count(games, a, b)) for a, b in all_pairs(_spread(every, most))]
        missing = [RequestedGames(a, b, episodes - n, n) for a, b, n in every_pair if n < episodes]
        console.print(f"{len(missing)} pairs play until each has {episodes} games")
        _play_all(folder, missing, seed, trusts)
    games = _games(folder)
    if not games:
        console.print(
            f"{folder}: {len(every)} snapshots without games between them: --episodes 100 plays "
            "every pair, --play A B one pair"
        )
        return {}
    ratings = rate(games)
    _print_ratings(every, ratings, games, console)
    output = output or folder / "league.png"
    rated = [one for one in every if one.name in ratings]
    drawn = _spread(rated, _SHOWN)
    matrix = picture.payoffs(games, [one.name for one in drawn])
    picture.draw(drawn, matrix, ratings, output)
    console.print(f"plot: {output}", soft_wrap=True)
    return ratings


def _spread(players: Sequence[Snapshot], most: int) -> list[Snapshot]:
    """Select at most ``most`` snapshots, evenly per run and evenly spaced within a run.

    The newest snapshot represents a run with a single place. Of more runs than places, evenly
    spaced ones are used.
    """
    of_run: dict[str, list[Snapshot]] = {}
    for one in players:
        of_run.setdefault(one.run, []).append(one)
    runs = [of_run[name] for name in _even(list(of_run), most)]
    places = [0] * len(runs)
    for _ in range(min(most, sum(map(len, runs)))):
        places[min((n, i) for i, n in enumerate(places) if n < len(runs[i]))[1]] += 1
    chosen = {
        one.name
        for of_one, count in zip(runs, places, strict=True)
        for one in ([newest(of_one)] if count == 1 else _even(of_one, count))
    }
    return [one for one in players if one.name in chosen]


def _even(values: Sequence[Any], most: int) -> list[Any]:
    """Select at most ``most`` (2 or more) evenly spaced items, including the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _games(folder: Path) -> Games:
    """Read the number of games and the total score of all pairs.

    Raises:
        CheckpointError: a file of games is unreadable.
    """
    games: Games = {}
    for file in league_writer.match_files(folder):
        try:
            match = MatchResult.of(safe_files.read_json(file, folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{file} can't be read as games of two snapshots ({error!r}): remove it and play "
                "them again with --episodes"
            ) from error
        count, score = games.get((match.one, match.other), (0, 0.0))
        games[match.one, match.other] = count + match.games, score + match.score
    return games


def _count(games: Games, a: Snapshot, b: Snapshot) -> int:
    """Return the number of games between two snapshots, in either order."""
    return sum(games.get(key, (0, 0.0))[0] for key in ((a.name, b.name), (b.name, a.name)))


class RequestedGames(NamedTuple):
    """Request for games between two snapshots."""

    one: Snapshot
    other: Snapshot
    games: int
    before: int  # games that they have already played

    def seed(self, seed: int) -> int:
        """Return the seed of these games, which differs by snapshots and for later games."""
        names = "/".join(sorted((self.one.name, self.other.name)))
        words = np.random.SeedSequence([seed, self.before, *names.encode()]).generate_state(1)
        return int(words[0] >> 1)


def _play_all(
    folder: Path, pairs: Sequence[RequestedGames], seed: int, trusts: bool
) -> list[MatchResult]:
    """Play the games of pairs in one vector environment, and save the results."""
    if not pairs:
        return []
    first = pairs[0].one.path
    values = checkpoint.read_config(first)
    config, env = values["config"], resolve_imports.environment(first, values, trusts)
    count = min(max(one.games for one in pairs), MOST_GAMES)

    def load(path: Path) -> Any:
        return checkpoint.load_one(path, trusted=trusts)

    with contextlib.ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        seed_global_generators(seed, "match")
        games = make_vec(env, count, config["engine"], config["env_kwargs"], seed)
        stack.enter_context(contextlib.closing(games))
        results = []
        for request in pairs:
            players = request.one, request.other
            seed_global_generators(request.seed(seed), "match")
            match = play(games, players, request.games, request.seed(seed), load)
            league_writer.write_match(folder, match._asdict())
            results.append(match)
    return results


def _print_match(match: MatchResult, console: Console) -> None:
    """Print the result of a match."""
    seats = ", ".join(f"{mean:+.3f}" for mean in match.by_seat)
    console.print(
        f"{match.one} against {match.other}, {match.games} games: {match.wins} won, {match.draws} "
        f"drawn, {match.losses} lost; return {match.mean:+.3f} ± {match.se:.3f} (standard error; "
        f"by seat {seats})",
        soft_wrap=True,
    )


def _print_ratings(
    every: Sequence[Snapshot], ratings: dict[str, Rating], games: Games, console: Console
) -> None:
    """Print the table of ratings."""
    steps = {one.name: f"{one.step:,}" for one in every}
    scored = dict.fromkeys(ratings, 0.0)
    for (one, other), (count, score) in games.items():
        scored[one] += score
        scored[other] += count - score
    rows = [
        {
            "snapshot": name,
            "steps": steps.get(name, "gone"),
            "rating": f"{one.value:.0f} ± {one.se:.0f}",
            "games": f"{one.games:,}",
            "mean score": f"{scored[name] / one.games:.1%}",
        }
        for name, one in ratings.items()
    ]
    show(rows, "Ratings: Elo with standard errors, 1500 on average", console)
