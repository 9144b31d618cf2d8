"""Fitness of runs: returns, or scores relative to a random and a reference player."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import Config
from headrace.envs.names import env_name, resolve
from headrace.envs.suites import SUITES, Suite
from headrace.errors import ConfigError
from headrace.studies.scores import references


def suite_of(config: Config, name: str | None) -> Suite | None:
    """Return the suite that normalises the scores of a run's environment or tasks.

    Args:
        name: name of a suite, or a file of ``headrace references``; None: the 57 Atari games.

    Returns:
        None without a name if Atari lacks a reference score: runs are then ranked by returns.

    Raises:
        ConfigError: the named suite doesn't exist, or lacks a reference score.
    """
    suite = SUITES["atari-57"] if name is None else references.read(name)
    # Scores are named by resolved tasks, or by a single environment as the user wrote it.
    tasks = [env_name(resolve(task)) for task in config.tasks]
    try:
        for task in tasks or [config.to_json()["env"]]:
            suite.task(task)
    except ConfigError:
        if name is not None:
            raise
        return None
    return suite


def fitness(suite: Suite | None, mean: float, tasks: Mapping[str, float]) -> float:
    """Return a run's fitness: for several tasks the mean capped normalised score.

    Args:
        mean: return of the run, used without a suite.
        tasks: return of each environment; the score of a single one isn't capped.
    """
    if suite is None:
        return mean
    scores = suite.scores({task: [value] for task, value in tasks.items()})
    return scores.mean if len(tasks) > 1 else next(iter(scores.normalized.values()))
