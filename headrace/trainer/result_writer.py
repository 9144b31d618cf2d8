"""Collects results from all learners, and writes them on rank 0."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs import info_metrics
from headrace.envs.probe import Probe
from headrace.evaluating.evaluations import Evaluations
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir.custom_metrics import CustomMetrics
from headrace.rundir.early_returns import EarlyReturns
from headrace.rundir.episodes import gather_episodes, own_episodes
from headrace.rundir.files import RunLog
from headrace.rundir.health import doctor_of
from headrace.rundir.league_run import LeagueRun, league_metrics
from headrace.rundir.result import Result
from headrace.rundir.run_progress import Progress, RunProgress
from headrace.trainer.metrics_allreduce import MetricsAllReduce, logs_iterations
from headrace.types import Group, SingleLearner


class ResultWriter:
    """Collects the results of a run, and writes them on rank 0.

    Attributes:
        episodes: this learner's recent episodes.
        tally: counters of the run, and sums since the last result.
        custom: metrics from environment infos and callbacks.
        early: points of the return curve within the first updates.
        log: result files; None before :meth:`open_log`, and on ranks other than 0.

    Args:
        started: start time of the run (``time.monotonic()``).
        notify: called with a line of text for the user.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        probe: Probe,
        learned: tuple[Group, AnyPolicy, Progress],
        started: float,
        notify: Callable[[str], None],
    ) -> None:
        self._group, policy, self._progress = learned
        self._run_dir, self._notify = run_dir, notify
        agents = () if config.mixture is not None else probe.agents
        self.episodes = own_episodes(config.num_learners, probe.env, agents)
        self.early = EarlyReturns()
        self.custom = CustomMetrics(info_metrics.written(config.info_metrics), notify)
        weights = policy.state_dict().values()
        copied = 0 if config.inference == "shared" else sum(x.nbytes for x in weights)
        counting = probe.frames_per_step, probe.in_turns
        self.tally = RunProgress(self._progress, config, copied, started, *counting)
        self.log: RunLog | None = None

    def open_log(self, config: Config, policy: AnyPolicy, stack: contextlib.ExitStack) -> None:
        """Open the result files on rank 0; ``stack`` closes them."""
        self.log = None
        if self._group.rank > 0:
            return
        setting, size = config.log_iterations, self._group.size
        logged = logs_iterations(size) if setting is None else setting
        resumed_at = (self._progress.env_steps, self._progress.updates) if config.resume else None
        doctor = doctor_of(config, policy, self._notify)
        log = RunLog(self._run_dir, size if logged else 0, resumed_at, self._notify, doctor)
        self.log = stack.enter_context(contextlib.closing(log))

    def begin(self) -> tuple[float | None, bool]:
        """Start counting steps, episodes and time.

        Returns:
            the mean return of all learners' recent episodes, and whether their window is full.
        """
        episodes, progress = gather_episodes(self._group, self.episodes), self._progress
        self.tally.begin(episodes)
        self.early.begin(episodes, progress.updates, progress.env_steps, progress.trained_s)
        progress.start()
        return episodes.mean_return, episodes.full

    def end_update(self, metrics: MetricsAllReduce, seconds: float) -> None:
        """Record an update that ended ``seconds`` after the start of training."""
        progress = self._progress
        self.early.end_update(progress.updates, progress.env_steps, seconds)
        if self.log is not None:
            counted = progress.updates, progress.env_steps, seconds
            self.log.iteration(metrics.iterations(), *counted)

    def result(
        self,
        rates: tuple[float, dict[str, float]],
        restarts: int,
        evaluations: Evaluations,
        league: LeagueRun | None,
    ) -> Result | None:
        """Write and return the result of all learners on rank 0; other ranks return None.

        Args:
            rates: learning rate and scheduled hyperparameters of the next update.
            restarts: number of actors of all learners that were restarted.
        """
        episodes = gather_episodes(self._group, self.episodes)
        metrics = self.custom.gather(self._group)
        points = self.early.points(self._group, episodes)
        if self.log is None:
            return None
        self.custom.report_missing(self.episodes.count)
        rate, values = rates
        metrics |= evaluations.metrics | {f"charts/{k}": v for k, v in values.items()}
        extra: dict[str, Any] = {"learning_rate": rate, "eval_return": evaluations.latest}
        extra |= league_metrics(league) | {"metrics": metrics}
        result = self.tally.result(episodes, restarts=restarts, **extra)
        self.log.returns(points)
        self.log.result(result)
        return result

    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        self.custom.gather(SingleLearner())  # values that callbacks logged last
        if self._group.rank == 0:
            self.custom.report_missing()
        made = [json.loads(text) for text in self._progress.env_changes]
        return self.tally.summary() | {"metrics": self.custom.latest, "env_changes": made}
