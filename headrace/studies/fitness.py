"""Fitness of runs: returns, or scores relative to a random and a reference player."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import Config
from headrace.envs.names import env_name, resolve
from headrace.envs.suites import SUITES, Suite
from headrace.errors import ConfigError
from headrace.studies.scores import references


def suite_of(config: Config, given: str | None) -> Suite | None:
    """Return the suite that normalises the scores of a run's environment or tasks.

    Args:
        given: a suite, or a file of ``headrace references``; None: the 57 games of Atari.

    Returns:
        None where no suite is given and Atari has no reference score of each: returns count.

    Raises:
        ConfigError: the suite that is given isn't there, or lacks a reference score.
    """
    suite = SUITES["atari-57"] if given is None else references.read(given)
    # By the names that scores have: those of tasks are resolved, a single one is as given.
    names = [env_name(resolve(task)) for task in config.tasks]
    try:
        for name in names or [config.to_json()["env"]]:
            suite.task(name)
    except ConfigError:
        if given is not None:
            raise
        return None
    return suite


def fitness(suite: Suite | None, mean: float, tasks: Mapping[str, float]) -> float:
    """Return a run's fitness: for several tasks the mean capped normalised score.

    Args:
        mean: its return, which counts without a suite. tasks: the return of each environment, also
            of a single one, whose score isn't capped.
    """
    if suite is None:
        return mean
    found = suite.scores({task: [value] for task, value in tasks.items()})
    return found.mean if len(tasks) > 1 else next(iter(found.normalized.values()))
