"""A run's part in a league: its snapshots, its win rates, and who its actors play against."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.names import env_name
from headrace.envs.probe import Probe
from headrace.errors import CheckpointError, ConfigError
from headrace.league.folder import GAME, Snapshot, snapshots
from headrace.league.opponent_sampling import SeatAssignment
from headrace.league.win_rates import WinRates
from headrace.nn.policy import Policy
from headrace.rundir import checkpoint, exploited_opponent, league_writer
from headrace.rundir.atomic_files import TolerantWriter
from headrace.rundir.run_progress import Progress
from headrace.spaces.json import space_to_json
from headrace.types import Group

_GAMES = 256  # new games after which the win rates are written anew
_ENOUGH = 100  # games against an opponent before its win rate counts for a snapshot


def folder_of(config: Config, run_dir: Path) -> Path | None:
    """The league of a run: the one that is named, or its own; None: an exploiter without any."""
    if config.league is not None:
        return Path(config.league)
    return None if config.exploit is not None else run_dir / "league"


def game(config: Config, found: Probe) -> dict[str, Any]:
    """What makes two runs' games the same, as plain values."""
    return {
        "env": config.to_json()["env"],
        "env_kwargs": config.env_kwargs,
        "agents": list(found.agents),
        "observation_space": space_to_json(found.observation_space),
        "action_space": space_to_json(found.action_space),
        "info_mask": found.info_mask,
    }


def check_opponents(config: Config, found: Probe, run_dir: Path) -> None:
    """See that opponents can play this game with these sizes.

    Raises:
        ConfigError: it has one agent; or columns aren't enough; or the league, or the one to
            exploit, is of another game.
        CheckpointError: there is no such policy to exploit.
    """
    asked = [x for x in ("exploit", "opponents", "zero_sum") if getattr(config, x)]
    for name in asked:
        needs = f"{name}={getattr(config, name)!r} needs a game"
        if len(found.agents) < 2:
            raise ConfigError(
                f"{needs} of several agents, and {env_name(found.env)} has one: leave it out"
            )
    if config.mixture is None:
        return
    if config.is_sized:
        config.mixture.games(config.per_learner.envs_per_actor, len(found.agents))
    where = folder_of(config, run_dir)
    if where is not None:
        league_writer.check(where, game(config, found))
    exploited_opponent.check(config, found, run_dir)


def member(config: Config, *known: Any) -> LeagueRun | None:
    """A run's :class:`LeagueRun`, with these arguments, where it has opponents; else None."""
    return None if config.mixture is None else LeagueRun(config, *known)


def league_metrics(membership: LeagueRun | None) -> dict[str, Any]:
    """What a result says of a run's league, by the fields of Result; None where there is none."""
    names = ("league_win_rate", "league_least_win_rate", "league_snapshots")
    return dict(zip(names, membership.told if membership else (None,) * 3, strict=True))


class LeagueRun:
    """What a run does in its league; only rank 0 touches files, and every learner asks.

    Args:
        config: all settings, with ``opponents`` or ``exploit``. run_dir: of the run.
        found: its game. group: of its learners. policy: that learns. progress: of the run.
        notify: told once when the disk refuses something, which is tried again.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        found: Probe,
        group: Group,
        policy: Policy,
        progress: Progress,
        notify: Callable[[str], None],
    ) -> None:
        self._config, self._group = config, group
        self._policy, self._progress = policy, progress
        self._run_dir, self._folder = run_dir, folder_of(config, run_dir)
        self._game, self._name = game(config, found), run_dir.resolve().name
        self._standings, self._offsets = WinRates(), dict[str, int]()
        self._written: dict[str, Any] = {}  # standings, as actors see them
        self._unwritten, self._latest = 0, -1  # games; the step of the newest snapshot
        self._run, self._newest, self._branch = "", "", 0
        self._disk = TolerantWriter(notify)

    def begin(self, description: dict[str, Any]) -> SeatAssignment:
        """Join the league, or go on in it as the checkpoint says; take the first snapshot.

        Args:
            description: what ``config.json`` of the run's checkpoints holds.

        Returns:
            what actors need to know.

        Raises:
            CheckpointError: the league in which the run goes on isn't there, or the disk refuses.
        """
        self._description = description
        folder = self._folder
        if self._group.rank == 0:
            exploited_opponent.keep(self._config, self._run_dir)
        if folder is not None and self._group.rank == 0:
            if self._run and not (folder / GAME).exists():
                raise CheckpointError(
                    f"league={str(folder)!r} isn't there, in which the run {self._run} goes on: "
                    "put it back there, or begin another run"
                )
            league_writer.found(folder, self._game)
            if self._run:
                self._rewind(folder)
            else:
                self._run = league_writer.join(folder, self._name)
                self._snapshot()
        if self._group.size > 1:  # rank 0 is done
            self._run = self._group.broadcast(self._run)
        mixture = self._config.mixture
        assert mixture is not None
        only = exploited_opponent.of(self._config, self._run_dir)
        where = None if folder is None or only is not None else folder.resolve()
        return SeatAssignment(mixture, checkpoint.load_one, where, self._run, only)

    def _rewind(self, folder: Path) -> None:
        """Take back what was done behind the checkpoint, but snapshots that others may play."""
        latest = Snapshot(self._newest, folder, self._run, self._latest, self._branch)
        lost = league_writer.behind(folder, latest)
        league_writer.rewind_games(folder, self._run, self._offsets)
        league_writer.write_standings(folder, self._run, self._written)
        if self._config.league is None:
            league_writer.remove(lost)
        elif lost:
            self._branch = max(one.branch for one in lost) + 1
            self._snapshot()

    def after_update(self) -> None:
        """Take in what games came to, and a snapshot if it is time to."""
        if self._folder is None or self._group.rank > 0:
            return
        self._disk.attempt("reading the league's games", self._take_in)
        due = self._is_due()
        if due:
            self._disk.attempt("adding a snapshot to the league", self._snapshot)
        if due or self._unwritten >= _GAMES:
            self._disk.attempt("writing the league's standings", self._write_standings)

    def _take_in(self) -> None:
        assert self._folder is not None
        games = league_writer.new_games(self._folder, self._run, self._offsets)
        self._unwritten += self._standings.add(games)

    def _is_due(self) -> bool:
        steps = self._progress.env_steps - self._latest
        every, wins = self._config.snapshot_steps, self._config.snapshot_win_rate
        if steps <= 0:
            return False
        if wins is None or steps >= every:
            return steps >= every
        records = self._standings.records
        if self._newest not in records or records[self._newest].games < _ENOUGH:
            return False
        return min(one.win_rate for one in records.values() if one.games >= _ENOUGH) >= wins

    def _snapshot(self) -> None:
        assert self._folder is not None
        step = self._progress.env_steps
        parents = [self._newest] if self._newest else []
        about = {"run": self._run, "step": step, "parents": parents}
        files = checkpoint.policy_files(self._description | {"snapshot": about}, self._policy)
        self._newest = league_writer.add(self._folder, self._run, step, files, self._branch).name
        self._latest = step

    @property
    def told(self) -> tuple[float | None, float | None, int | None]:
        """Win rates against the newest own snapshot, and the least; how many snapshots there are.

        Rates are None where there are no games, or of an exploiter, whose return tells.
        """
        records, count = self._standings.records, None
        last = records.get(self._newest)
        enough = [one.win_rate for one in records.values() if one.games >= _ENOUGH]
        if self._folder is not None:
            with contextlib.suppress(OSError):  # which reading its games has told of
                count = len(snapshots(self._folder))
        return last and last.win_rate, min(enough, default=None), count

    def _write_standings(self) -> None:
        assert self._folder is not None
        values = self._standings.to_json()
        league_writer.write_standings(self._folder, self._run, values)
        self._written, self._unwritten = values, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "run": self._run,
            "latest": self._latest,
            "newest": self._newest,
            "branch": self._branch,
            "standings": self._standings.to_json(),
            "offsets": dict(self._offsets),
            "written": self._written,
            "unwritten": self._unwritten,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self._run, self._latest = saved["run"], saved["latest"]
        self._newest, self._branch = saved["newest"], saved["branch"]
        self._standings = WinRates(saved["standings"])
        self._offsets, self._written = dict(saved["offsets"]), dict(saved["written"])
        self._unwritten = saved["unwritten"]
