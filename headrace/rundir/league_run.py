"""Manages a run's part in a league: snapshots, win rates and opponents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.names import env_name
from headrace.envs.probe import Probe
from headrace.errors import CheckpointError, ConfigError
from headrace.games.league_folder import GAME, Snapshot, snapshots
from headrace.games.opponent_sampling import SeatAssignment
from headrace.games.win_rates import WinRates
from headrace.nn.policy import Policy
from headrace.rundir import (
    checkpoint,
    checkpoint_writer,
    exploited_opponent,
    league_identity,
    league_writer,
)
from headrace.rundir.atomic_files import TolerantWriter
from headrace.rundir.run_progress import Progress
from headrace.spaces.json import space_to_json
from headrace.types import Group

_GAMES = 256  # new games after which win rates are written again
_ENOUGH = 100  # games against an opponent before its win rate counts for a snapshot


def folder_of(config: Config, run_dir: Path) -> Path | None:
    """Return the league folder of a run, named or its own; None for an exploiter without one."""
    if config.league is not None:
        return Path(config.league)
    if config.exploit is not None:
        return None
    if (run_dir / "league").is_symlink():
        raise CheckpointError(f"{run_dir / 'league'} is a symbolic link: set league to its target")
    return run_dir / "league"


def game(config: Config, probe: Probe) -> dict[str, Any]:
    """Describe the game of a run in plain values that are equal for equal games."""
    return {
        "env": config.to_json()["env"],
        "env_kwargs": config.env_kwargs,
        "agents": list(probe.agents),
        "observation_space": space_to_json(probe.observation_space),
        "action_space": space_to_json(probe.action_space),
        "info_mask": probe.info_mask,
    }


def check_opponents(config: Config, probe: Probe, run_dir: Path) -> None:
    """Check that opponents can play this game with these sizes.

    Raises:
        ConfigError: the game has one agent, there are too few columns, or the league or the policy
            to exploit belongs to another game.
        CheckpointError: the policy to exploit doesn't exist.
    """
    game_settings = [x for x in ("exploit", "opponents", "zero_sum") if getattr(config, x)]
    for name in game_settings:
        needs = f"{name}={getattr(config, name)!r} needs a game"
        if len(probe.agents) < 2:
            raise ConfigError(
                f"{needs} with several agents, but {env_name(probe.env)} has one: leave it out"
            )
    if config.mixture is None:
        return
    if config.is_sized:
        config.mixture.games(config.per_learner.envs_per_actor, len(probe.agents))
    where = folder_of(config, run_dir)
    if where is not None:
        league_writer.check(where, game(config, probe))
    exploited_opponent.check(config, probe, run_dir)


def member(config: Config, *args: Any) -> LeagueRun | None:
    """Create the :class:`LeagueRun` of a run with opponents; None for other runs."""
    return None if config.mixture is None else LeagueRun(config, *args)


def league_metrics(membership: LeagueRun | None) -> dict[str, Any]:
    """Return the league fields of Result; None values without a league."""
    names = ("league_win_rate", "league_least_win_rate", "league_snapshots")
    return dict(zip(names, membership.summary if membership else (None,) * 3, strict=True))


class LeagueRun:
    """Manages a run's league; only rank 0 touches files, and every rank makes the same calls.

    Args:
        config: settings of the run, with ``opponents`` or ``exploit``.
        run_dir: run directory.
        found: probe of its game.
        group: group of its learners.
        policy: policy that trains.
        progress: progress of the run.
        notify: called once when the disk can't be written; writing is tried again.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        probe: Probe,
        group: Group,
        policy: Policy,
        progress: Progress,
        notify: Callable[[str], None],
    ) -> None:
        self._config, self._group = config, group
        self._policy, self._progress = policy, progress
        self._run_dir, self._folder = run_dir, folder_of(config, run_dir)
        self._game, self._name = game(config, probe), run_dir.resolve().name
        self._standings, self._offsets = WinRates(), dict[str, int]()
        self._written: dict[str, Any] = {}  # win rates, as actors see them
        self._unwritten, self._latest = 0, -1  # games; the step of the newest snapshot
        self._run, self._newest, self._branch = "", "", 0
        self._disk, self._notify = TolerantWriter(notify), notify

    def begin(self, description: dict[str, Any]) -> SeatAssignment:
        """Join the league and take the first snapshot, or resume as the checkpoint says.

        Args:
            description: contents of ``config.json`` of the run's checkpoints.

        Returns:
            seat assignment for the actors.

        Raises:
            CheckpointError: the league of the resumed run is missing, or can't be written.
        """
        self._description = description
        folder = self._folder
        if self._group.rank == 0:
            exploited_opponent.copy(self._config, self._run_dir)
        if folder is not None and self._group.rank == 0:
            if self._run and not (folder / GAME).exists():
                raise CheckpointError(
                    f"league={str(folder)!r} is missing, but the run {self._run} resumes in it: "
                    "restore it, or start another run"
                )
            league_writer.create(folder, self._game)
            self._join(folder)
        if self._group.size > 1:  # rank 0 is done
            self._run = self._group.broadcast(self._run)
        mixture = self._config.mixture
        assert mixture is not None
        only = exploited_opponent.of(self._config, self._run_dir)
        where = None if folder is None or only is not None else folder.resolve()
        return SeatAssignment(mixture, checkpoint.load_one, where, self._run, only)

    def _join(self, folder: Path) -> None:
        """Join the league or continue as an earlier member; a copy of a run is a new member."""
        is_shared, copied = self._config.league is not None, False
        if is_shared and self._run:
            copied = league_identity.is_copy(folder, self._run, self._run_dir)
        if self._run and not copied:
            self._rewind(folder)
        else:
            known = league_identity.run_of(folder, self._run_dir) if copied else None
            before, self._run = self._run, known or league_writer.join(folder, self._name)
            self._offsets, self._branch = {}, 0
            if known:
                self._rewind(folder)
            else:
                self._snapshot()
            if copied:
                self._notify(
                    f"league: {self._run_dir} is a copy of the run {before}, so it plays as "
                    f"{self._run}"
                )
        if is_shared:
            league_identity.sign(folder, self._run, self._run_dir)

    def _rewind(self, folder: Path) -> None:
        """Undo changes after the checkpoint, except snapshots that others may play."""
        latest = Snapshot(self._newest, folder, self._run, self._latest, self._branch)
        lost = league_writer.behind(folder, latest)
        league_writer.rewind_games(folder, self._run, self._offsets)
        league_writer.write_standings(folder, self._run, self._written)
        if self._config.league is None:
            league_writer.remove(folder, lost)
        elif lost:
            self._branch = max(one.branch for one in lost) + 1
            self._snapshot()

    def after_update(self) -> None:
        """Read new games, and add a snapshot if due."""
        if self._folder is None or self._group.rank > 0:
            return
        self._disk.attempt("reading the league's games", self._read_games)
        due = self._is_due()
        if due:
            self._disk.attempt("adding a snapshot to the league", self._snapshot)
        if due or self._unwritten >= _GAMES:
            self._disk.attempt("writing the league's standings", self._write_standings)

    def _read_games(self) -> None:
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
        files = checkpoint_writer.policy_files(
            self._description | {"snapshot": about}, self._policy
        )
        self._newest = league_writer.add(self._folder, self._run, step, files, self._branch).name
        self._latest = step

    @property
    def summary(self) -> tuple[float | None, float | None, int | None]:
        """Win rate against the newest own snapshot, least win rate, number of snapshots.

        Rates are None without games, and for an exploiter, whose return is its win rate.
        """
        records, count = self._standings.records, None
        last = records.get(self._newest)
        enough = [one.win_rate for one in records.values() if one.games >= _ENOUGH]
        if self._folder is not None:
            with contextlib.suppress(OSError):  # already reported by reading its games
                count = len(snapshots(self._folder))
        return last and last.win_rate, min(enough, default=None), count

    def _write_standings(self) -> None:
        assert self._folder is not None
        values = self._standings.to_json()
        league_writer.write_standings(self._folder, self._run, values)
        self._written, self._unwritten = values, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
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
        """Restore the result of :meth:`state_dict`."""
        self._run, self._latest = saved["run"], saved["latest"]
        self._newest, self._branch = saved["newest"], saved["branch"]
        self._standings = WinRates(saved["standings"])
        self._offsets, self._written = dict(saved["offsets"]), dict(saved["written"])
        self._unwritten = saved["unwritten"]
