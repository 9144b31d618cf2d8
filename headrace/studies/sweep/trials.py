"""Runs a trial: one seed after the other in separate processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.suites import Suite
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir import resolve_imports
from headrace.studies.children import Children
from headrace.studies.fitness import fitness, suite_of
from headrace.studies.run import train_to_end
from headrace.studies.scores.runs import NoScore, RunScore, check_ended, score_of
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import NAME, Claim, Store, optuna, storage

REPORTS = 16  # reports of a run's score to the journal, if trials are pruned

Measure = Callable[[Sweep, Claim, int, Children], dict[str, Any]]


def measured(sweep: Sweep, claim: Claim, repeat: int, children: Children) -> dict[str, Any]:
    """Train one of a trial's runs, or resume it.

    Returns:
        ``score`` of :func:`fitness`; or ``pruned`` as True; or ``error`` with the reason.
    """
    config = sweep.run_config(claim.number, claim.values, repeat)
    folder = Path(config.run_dir or "")
    if (score := _ended(config)) is None:
        before = repeat * config.total_steps
        request = {"config": config.to_json(), "output": sweep.output, "trial": claim.trial_id}
        request |= {"prune": sweep.prune, "before": before, "seeds": sweep.seeds}
        request["suite"] = sweep.suite_name
        output = folder.with_name(folder.name + ".log")
        result: dict[str, Any] = children.call(train_run, request, sweep.timeout_s, output)
        if result:
            return result
        try:
            score = score_of(folder)
        except NoScore as error:
            return {"error": str(error)}
    return {"score": fitness(sweep.suite, score.value, score.tasks)}


def _ended(config: Config) -> RunScore | None:
    """Return the score of a run that ended earlier."""
    with contextlib.suppress(CheckpointError, RuntimeError):
        score = score_of(Path(config.run_dir or ""))
        check_ended(Path(config.run_dir or ""))
        if score.env_steps >= config.total_steps:
            return score
    return None


def do_trial(
    sweep: Sweep, store: Store, claim: Claim, children: Children, measure: Measure = measured
) -> str:
    """Run all seeds of a trial; return a line about it.

    Raises:
        RuntimeError: a run was interrupted; the next claim of the trial resumes it.
    """
    scores: list[float] = []
    for repeat in range(sweep.seeds):
        try:
            sweep.run_config(claim.number, claim.values, repeat)
        except ConfigError as error:  # values that contradict each other
            store.fail(claim, str(error))
            return f"no score: {error}"
        result = measure(sweep, claim, repeat, children)
        if "error" in result:
            store.fail(claim, result["error"])
            return f"no score: {result['error']}"
        if "pruned" in result:
            store.prune(claim)
            return "pruned"
        scores.append(result["score"])
    store.finish(claim, scores)
    return f"score {sum(scores) / len(scores):.4g}"


# -- in the child ---------------------------------------------------------------------------------


def train_run(request: dict[str, Any]) -> dict[str, Any]:
    """Train a run to its end; return a reason if it has no score.

    Raises:
        RuntimeError: the run was interrupted, for instance by a signal to all processes of a job.
    """
    config = resolve_imports.config(request["config"])
    suite = suite_of(config, request["suite"]) if request["suite"] else None
    reports = None if request["prune"] == "none" else _Reports(request, config, suite)
    why = train_to_end(config, [] if reports is None else [reports])
    if why is not None:
        return {"error": why}
    return {"pruned": True} if reports is not None and reports.pruned else {}


class _Reports:
    """Callback that reports a run's score to the journal, and stops pruned runs."""

    def __init__(self, request: dict[str, Any], config: Config, suite: Suite | None) -> None:
        total_steps, self._suite = config.total_steps, suite
        self._env = config.to_json()["env"]
        self._before, self._interval = request["before"], max(1, total_steps // REPORTS)
        self._end, self._stop_time_s = total_steps * request["seeds"], config.stop_time_s
        study = optuna().load_study(
            study_name=NAME,
            storage=storage(Path(request["output"])),
            pruner=pruner(request["prune"], self._end),
        )
        self._trial = optuna().trial.Trial(study, request["trial"])
        reported = study.trials[self._trial.number].intermediate_values
        self._latest = max(reported, default=-1)
        self.pruned = False

    def __call__(self, result: Any) -> bool:
        due = (self._before + result.env_steps) // self._interval * self._interval
        if result.episode_return is None or due <= max(self._latest, self._before):
            return True
        self._latest = due
        parts = {name: float(one.episode_return) for name, one in (result.tasks or {}).items()}
        tasks = parts or {self._env: result.episode_return}
        self._trial.report(fitness(self._suite, result.episode_return, tasks), due)
        has_time_left = self._stop_time_s is None or result.seconds < self._stop_time_s
        has_steps_left = self._before + result.env_steps < self._end
        self.pruned = has_steps_left and has_time_left and bool(self._trial.should_prune())
        return not self.pruned


def pruner(name: str, steps: int) -> Any:
    """Return Optuna's pruner for trials of a number of steps."""
    pruners = optuna().pruners
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=steps // 8)
    return pruners.SuccessiveHalvingPruner(min_resource=max(1, steps // 16), reduction_factor=4)
